"""Several sources in one, by weight."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.batch import MISSING, Columns, Coming, Index, Key
from gpupipe.batch.columns import assemble
from gpupipe.errors import ConfigError, DataError, SampleError
from gpupipe.sources.parts import Before, fetched, stored
from gpupipe.sources.source import Source, content_fingerprint
from gpupipe.sources.stream import StreamSource

if TYPE_CHECKING:  # orders import torch
    from gpupipe.order import Interleaved, Order
    from gpupipe.order.mixture import Weight

__all__ = ["Mixture", "MixtureSource"]

log = logging.getLogger("gpupipe")


@dataclass(frozen=True)
class Mixture:
    """Several data sets in one, for `Loader` and `open_source`: each has its share of every epoch.

        gpupipe.Mixture({"photos": ("photos/train", 0.7), "drawings": (source, 0.3)})

    An epoch has each one's share exactly, by largest remainder, spread evenly: of the samples before any multiple of 64
    each has its share to within 1 (of up to three; to within 1.7 of any number). Each goes through epochs of its own,
    shuffled anew in each where the loader shuffles: a small one comes again within an epoch of the mixture, a large one
    goes on in the next where it stopped. All of that is a pure function of seed, epoch and position, so that a mixture
    resumes anywhere on any number of ranks.

    sources:     by name what `open_source` takes, and its weight: a number, of which only the proportions count; a list
                 with one for each epoch from 0 on, the last of which stays; or a function of the epoch, which must
                 give the same whenever it is asked. All sources must have the same fields.
    num_samples: of an epoch; None: as many as all sources have together.
    classes:     the names of all classes: labels of sources that name theirs are renumbered by name. None: labels are
                 as they are, and sources that name classes must name the same; of one that names none beside them
                 you are warned.
    orders:      by name an order for a source, in the place of the usual one: of shards on slow storage
                 `BlockShuffled.of_shards(source, 16)`.

    A sample's key is that of its source behind the source's name: "photos/cat/1.jpg".
    """

    sources: Mapping[str, tuple[Any, Weight]]
    num_samples: int | None = None
    classes: Sequence[str] | None = None
    orders: Mapping[str, Order] = field(default_factory=dict)

    def __post_init__(self) -> None:
        from gpupipe.order.mixture import check_weight
        from gpupipe.order.plain import check_whole
        from gpupipe.order.protocol import check_order

        if not isinstance(self.sources, Mapping) or not self.sources:
            raise ConfigError(f"Mixture: {self.sources!r} must be a dict of a name and (data, weight) each")
        for name, part in self.sources.items():
            if not isinstance(name, str) or not name or "/" in name:
                raise ConfigError(f"Mixture: the name {name!r} must be a text without '/', as keys begin with it")
            if not isinstance(part, tuple) or len(part) != 2:
                raise ConfigError(f"Mixture: {name!r} is {part!r}; it must be (data, weight)")
            check_weight(f"Mixture: the weight of {name!r}", part[1])
        for name, order in self.orders.items():
            if name not in self.sources:
                raise ConfigError(f"Mixture: orders has {name!r}, but the sources are {', '.join(self.sources)}")
            check_order(f"Mixture: the order of {name!r}", order)
            check_whole(f"Mixture: the order of {name!r}", order, self.sources[name][0])


class MixtureSource(Source):
    """The samples of several sources, one source behind the other; their weights are in `usual_order`.

    names: of the sources, which are the `parts`.
    """

    def __init__(self, mixture: Mixture, parts: Sequence[Source]) -> None:
        self.names, self.parts = tuple(mixture.sources), tuple(parts)
        self._weights, self._num_samples = [weight for _, weight in mixture.sources.values()], mixture.num_samples
        self._orders = [mixture.orders.get(name) for name in self.names]
        for name, part in zip(self.names, self.parts, strict=True):
            if isinstance(part, StreamSource):
                raise ConfigError(f"Mixture: {name!r} is a stream, whose samples have no numbers to be dealt out by")
        _check_fields(self.names, self.parts)
        self.fields = self.parts[0].fields
        self._numbers = _class_numbers(self.names, self.parts, mixture.classes)
        named = next((part for part in self.parts if part.classes is not None), self.parts[0])
        self.classes, self.class_to_idx = named.classes, named.class_to_idx
        if mixture.classes is not None:
            self.classes = list(mixture.classes)
            self.class_to_idx = {name: number for number, name in enumerate(self.classes)}
        self._ends = np.cumsum([len(part) for part in self.parts])
        self._begins = self._ends - [len(part) for part in self.parts]
        numbers = [np.empty(0, np.int64) if known is None else known for known in self._numbers]
        self.fingerprint = content_fingerprint(["mixture", *self.names, *(part.fingerprint for part in parts)], numbers)
        self.usual_order(False)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getstate__(self) -> dict[str, Any]:
        """Workers, which ask for samples alone, get no functions: few can be sent."""
        return vars(self) | {"_weights": [_not_sent if callable(weight) else weight for weight in self._weights]}

    def __repr__(self) -> str:
        weighed = zip(self.names, self.parts, self._weights, strict=True)
        return f"MixtureSource({', '.join(f'{name} {weight!r}: {part!r}' for name, part, weight in weighed)})"

    def usual_order(self, shuffle: bool) -> Interleaved:
        """By the weights; what an order is given for keeps that."""
        from gpupipe.order import Interleaved
        from gpupipe.order.protocol import name_of, samples_of

        given = zip(self.parts, self._orders, strict=True)
        orders = [part.usual_order(shuffle) if order is None else order for part, order in given]
        sizes = [len(part) for part in self.parts]
        for name, order, size in zip(self.names, orders, sizes, strict=True):
            if samples_of(order) > size:
                raise ConfigError(
                    f"Mixture: the order of {name!r}, {name_of(order)}, is for {samples_of(order)} samples or more, "
                    f"but it has {size}; build the order for it"
                )
        return Interleaved(orders, sizes, self._weights, self._num_samples, self.names)

    def part_of(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """The place among `names` of each sample's source, (N,) int64."""
        return np.searchsorted(self._ends[:-1], indices, side="right").astype(np.int64)

    @cached_property
    def targets(self) -> NDArray[np.int64]:
        """All labels. Raises DataError where those of a source aren't known."""
        labels = np.concatenate([self._own(one, "label", part.targets) for one, part in enumerate(self.parts)])
        labels.setflags(write=False)
        return labels

    def column(self, name: str) -> NDArray[Any] | list[Any]:
        """What all sources know."""
        if name == "label" or isinstance(self._kind(name), Index):
            return super().column(name)
        known = [self._own(one, name, part.column(name)) for one, part in enumerate(self.parts)]
        alike = all(isinstance(column, np.ndarray) and column.shape[1:] == known[0].shape[1:] for column in known)
        return np.concatenate(known) if alike else list(chain.from_iterable(known))

    def fetch(self, indices: NDArray[np.int64], before: Before = None) -> Columns:
        """Of each source its samples at once. What is noted or raised meanwhile is about their indices here."""
        parts = []
        for one, rows, theirs in self._split(indices):
            columns = fetched(self.parts[one], theirs, indices[rows], before, rows)
            own = {name: self._own(one, name, column, theirs) for name, column in columns.items()}
            parts.append((rows, own))
        whole = parts[0][1] if len(parts) == 1 else assemble(len(indices), parts)
        return whole | {name: indices.astype(np.int64) for name in self.fields.of_kind(Index)}

    def shapes(self, indices: NDArray[np.int64]) -> NDArray[np.int32] | None:
        """None where the source of one of them does not know."""
        shapes = np.empty((len(indices), 3), np.int32)
        for one, rows, theirs in self._split(indices):
            known = self.parts[one].shapes(theirs)
            if known is None:
                return None
            shapes[rows] = known
        return shapes

    def stored_bytes(self, indices: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """0 of samples of local sources."""
        whose = self.part_of(indices)
        rows = [np.flatnonzero(whose == one) for one in range(len(self.parts))]
        parts = (
            (part, some, indices[some] - begin)
            for part, some, begin in zip(self.parts, rows, self._begins, strict=False)
        )
        return stored(parts, len(indices))

    def lacks(self, index: int, name: str) -> str:
        one, theirs = self._at(index)
        return self.parts[one].lacks(theirs, name)

    def location(self, index: int) -> str:
        one, theirs = self._at(index)
        return self.parts[one].location(theirs)

    def key(self, index: int) -> str:
        """The source's name and the key there."""
        one, theirs = self._at(index)
        return f"{self.names[one]}/{self.parts[one].key(theirs)}"

    def ahead(self, coming: Coming) -> None:
        """Each is told, also of a fetch that asks for nothing of it: their turns are counted."""
        whose, dropped = self.part_of(coming.indices), self.part_of(coming.drop)
        for one, part in enumerate(self.parts):
            theirs = replace(coming.take(whose == one), drop=coming.drop[dropped == one])
            part.ahead(theirs.mapped(partial(np.add, -self._begins[one])))

    @property
    def looks_ahead(self) -> int:
        return max(part.looks_ahead for part in self.parts)

    def _at(self, index: int) -> tuple[int, int]:
        """The place of its source, and its index there."""
        one = int(self.part_of(np.array([index]))[0])
        return one, index - int(self._begins[one])

    def _split(self, indices: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
        """Of each source that has some of the samples, or for none the first: its place, their rows, and their indices
        there."""
        parts = self.part_of(indices)
        for one in np.unique(parts).tolist() or [0]:
            rows = np.flatnonzero(parts == one)
            yield one, rows, indices[rows] - self._begins[one]

    def _own(self, one: int, name: str, column: Any, theirs: NDArray[np.int64] | None = None) -> Any:
        """A column of a source with the keys and the class numbers that its samples (None: all) have here."""
        if isinstance(self._kind(name), Key):
            return [f"{self.names[one]}/{key}" for key in column]
        numbers = self._numbers[one] if name == "label" else None
        if numbers is None:
            return column
        if isinstance(column, list):
            rows = (np.arange(len(column)) if theirs is None else theirs)[:, None]
            each = zip(column, rows, strict=True)
            return [
                label if label is MISSING else int(self._own(one, name, np.array([label]), row)[0])
                for label, row in each
            ]
        inside = (column >= 0) & (column < len(numbers)) if column.dtype.kind in "iu" else np.zeros(len(column), bool)
        if not inside.all():
            row = int(np.argmin(inside.reshape(len(column), -1).all(axis=1)))
            index, source = row if theirs is None else int(theirs[row]), self.parts[one]
            reason = f"its label {column[row]} is none of the {len(numbers)} classes that {self.names[one]!r} names"
            if theirs is None:
                raise DataError(f"{source.location(index)}: {reason}")
            raise SampleError(index + int(self._begins[one]), source.location(index), reason)
        return numbers[column]


def _not_sent(epoch: int) -> float:
    raise ConfigError("a copy of a mixture has no weights that are functions: pass the mixture itself")


def _check_fields(names: Sequence[str], parts: Sequence[Source]) -> None:
    """Raise ConfigError where the sources have other fields, but for where in their data these lie."""
    first = _forms(parts[0])
    for name, part in zip(names[1:], parts[1:], strict=True):
        other = _forms(part)
        for each in first | other:
            own, theirs = first.get(each, "not there"), other.get(each, "not there")
            if own != theirs:
                raise ConfigError(
                    f"Mixture: the fields of all sources must be the same, but {each!r} is {own} in {names[0]!r} and "
                    f"{theirs} in {name!r}; pass fields= where they are opened, or open all alike by "
                    "gpupipe.open_source(mixture, fields=...)"
                )


def _forms(source: Source) -> dict[str, str]:
    """What each field is, wherever it lies."""
    return {name: repr(replace(field, source=None, folder=None, suffix=None)) for name, field in source.fields.items()}


def _class_numbers(
    names: Sequence[str], parts: Sequence[Source], classes: Sequence[str] | None
) -> list[NDArray[np.int64] | None]:
    """Of each source the number here of each class that it names; None: its labels are as they are. Raises ConfigError
    where it is not said which class is which."""
    named = {name: list(part.classes) for name, part in zip(names, parts, strict=True) if part.classes is not None}
    if classes is None:
        for name, other in list(named.items())[1:]:
            first = next(iter(named))
            if other != named[first]:
                differ = next(pair for pair in zip_longest(named[first], other) if pair[0] != pair[1])
                raise ConfigError(
                    f"Mixture: {first!r} names {len(named[first])} classes and {name!r} {len(other)}, which differ at "
                    f"{differ[0]!r} and {differ[1]!r}: one label would mean two things; pass the names of all as "
                    "classes=, by which labels are renumbered"
                )
        unnamed = [name for name in names if name not in named]
        if named and unnamed and "label" in parts[0].fields:
            log.warning(
                "gpupipe: Mixture: %r names its classes and %r does not, so nothing tells whether a label means the "
                "same in both: compare them, and pass the names of all as classes= where it does",
                next(iter(named)),
                unnamed[0],
            )
        return [None] * len(parts)
    numbers = {each: number for number, each in enumerate(classes)}
    for name, own in named.items():
        missing = [each for each in own if each not in numbers]
        if missing:
            raise ConfigError(
                f"Mixture: classes lacks {len(missing)} of those that {name!r} names, the first {missing[0]!r}"
            )
    return [np.array([numbers[each] for each in named[name]], np.int64) if name in named else None for name in names]
