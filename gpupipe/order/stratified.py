"""Batches that hold each class in proportion."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpupipe.errors import ConfigError
from gpupipe.host.checks import whole
from gpupipe.order.feistel import Domain, permute, round_keys, snug, subkeys, unpermute
from gpupipe.order.protocol import (
    AHEAD,
    BATCHES,
    CLASSES,
    STRATA,
    EpochCache,
    Indices,
    OnceEach,
    classes_of,
    digest,
    words,
)

__all__ = ["Stratified"]

GOLDEN = (math.sqrt(5) - 1) / 2

Chosen = tuple[Indices, Indices]  # of each position: its class, and which of the class's samples


@dataclass(frozen=True, eq=False)
class Stratified(OnceEach):
    """Every global batch holds each class in proportion, and every sample comes once an epoch.

    Exactly: of n samples, n_c are of class c. The positions k * batch_size ... (k + 1) * batch_size - 1, which are the
    global batch of step k, hold floor(x) or ceil(x) samples of each class c, with x = batch_size * n_c / n; likewise
    the last, short batch with its own size. The batches with ceil(x) are spread evenly over the epoch, and are others
    in every epoch. A class's samples are shuffled in every epoch, and so are the places within a batch: a rank gets a
    random part of a global batch.

    How: each batch has floor(x) places for each class and some extra places, the same number in every batch. The extra
    places of the whole epoch are dealt to the batches in turn, class after class (McNaughton's wrap-around rule,
    "Scheduling with deadlines and loss functions", 1959), so that no batch gets two for the same class.

    labels:     one integer for each sample, such as `source.targets`.
    batch_size: of the global batch: the loader's batch_size * world_size.

    Raises ConfigError where a class has fewer samples than there would have to be, one for each full batch.
    """

    labels: ArrayLike
    batch_size: int
    _plan: _Plan = field(init=False, repr=False)
    _drawn: EpochCache[_Drawn] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        whole("Stratified: batch_size", self.batch_size, 1, 2**62)
        found, of_sample, counts = classes_of("Stratified", self.labels)
        _refuse_rare(found, counts, int(self.batch_size))
        plan = _plan(of_sample, counts, int(self.batch_size))
        object.__setattr__(self, "_plan", plan)
        object.__setattr__(self, "_drawn", EpochCache(partial(_draw, plan.extra, plan.batches), keeps=AHEAD))

    def __len__(self) -> int:
        return len(self._plan.members)

    def indices(self, seed: int, epoch: int, positions: Indices) -> Indices:
        """The sample at each position's shuffled place in its batch."""
        plan = self._plan
        batches, within = np.divmod(positions, plan.batch_size)
        full = batches < plan.batches
        keys = subkeys(round_keys(seed, epoch, BATCHES), batches)
        places = permute(within, plan.batch_domains.at(np.where(full, 0, 1)), keys)
        classes, numbers = self._chosen(self._drawn(seed, epoch), batches, places, full)
        keys = subkeys(round_keys(seed, epoch, STRATA), classes)
        found: Indices = plan.members[plan.begins[classes] + permute(numbers, plan.class_domains.at(classes), keys)]
        return found

    def _inverse(self, seed: int, epoch: int, indices: Indices) -> Indices:
        plan, drawn = self._plan, self._drawn(seed, epoch)
        listed = self._listed[indices]
        classes = np.searchsorted(plan.begins, listed, side="right") - 1
        keys = subkeys(round_keys(seed, epoch, STRATA), classes)
        numbers = unpermute(listed - plan.begins[classes], plan.class_domains.at(classes), keys)
        batches, places = _placed(plan, drawn, classes, numbers)
        keys = subkeys(round_keys(seed, epoch, BATCHES), batches)
        domains = plan.batch_domains.at(np.where(batches < plan.batches, 0, 1))
        return batches * plan.batch_size + unpermute(places, domains, keys)

    @cached_property
    def _listed(self) -> Indices:
        """Each sample's place among the plan's members: 8 bytes a sample, once the inverse is asked for."""
        listed = np.empty_like(self._plan.members)
        listed[self._plan.members] = np.arange(len(listed))
        return listed

    def _chosen(self, drawn: _Drawn, batches: Indices, places: Indices, full: NDArray[np.bool_]) -> Chosen:
        """The class at each place of its batch, and which of the class's samples."""
        plan = self._plan
        rows = (drawn.first + batches * plan.stride) % max(1, plan.batches)
        regular = places < len(plan.each.classes)
        classes, numbers = np.empty_like(places), np.empty_like(places)
        for at, choose in ((~full, _last), (full & regular, _regular), (full & ~regular, _extra)):
            classes[at], numbers[at] = choose(plan, drawn, rows[at], places[at])
        return classes, numbers

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the classes' members, and the batch size."""
        return f"stratified-{self.batch_size}-{digest(self._plan.members.tobytes(), self._plan.counts.tobytes())}"


class _Places(NamedTuple):
    """Places of a batch: the class of each, and its number among the places of its class there, both (places,)."""

    classes: Indices
    numbers: Indices


class _Plan(NamedTuple):
    """What is the same in all epochs. A class is named by its place in the list of C classes.

    members, counts, begins: the samples (N,) class by class, and how many each class has and where it begins (C,).
    batch_size, batches:     places of a full batch, and how many full batches there are.
    regular, extra:          of each class (C,): places in every full batch, and extra places in the whole epoch.
    each, last:              the regular places of a full batch, and all those of the last, short one.
    class_domains, batch_domains: of a class's samples, and of the places of a full and of the last batch.
    stride:                  rows of the plan from one batch to the next; extra places are dealt out row by row.
    """

    members: Indices
    counts: Indices
    begins: Indices
    batch_size: int
    batches: int
    regular: Indices
    extra: Indices
    each: _Places
    last: _Places
    class_domains: Domain
    batch_domains: Domain
    stride: int


class _Drawn(NamedTuple):
    """What one epoch draws: `classes` (C,) in the order in which extra places are dealt out, where the extra places of
    each of these begin and the last ones end, `begins` (C + 1,), and the row of the `first` batch."""

    classes: Indices
    begins: Indices
    first: int


def _last(plan: _Plan, drawn: _Drawn, rows: Indices, places: Indices) -> Chosen:
    """In the last batch, which takes what all others have left."""
    classes = plan.last.classes[places]
    taken = plan.regular[classes] * plan.batches + plan.extra[classes]
    return classes, taken + plan.last.numbers[places]


def _regular(plan: _Plan, drawn: _Drawn, rows: Indices, places: Indices) -> Chosen:
    """At places which every full batch has."""
    classes = plan.each.classes[places]
    return classes, plan.regular[classes] * rows + plan.each.numbers[places]


def _extra(plan: _Plan, drawn: _Drawn, rows: Indices, places: Indices) -> Chosen:
    """At extra places: the e-th of row r is the (e * rows + r)-th of the epoch, so no row meets a class twice."""
    numbers = (places - len(plan.each.classes)) * plan.batches + rows
    at = np.searchsorted(drawn.begins, numbers, side="right") - 1
    classes = drawn.classes[at]
    return classes, plan.regular[classes] * plan.batches + numbers - drawn.begins[at]


def _placed(plan: _Plan, drawn: _Drawn, classes: Indices, numbers: Indices) -> tuple[Indices, Indices]:
    """The batch of each of a class's samples, and the place there: back from `_last`, `_regular` and `_extra`."""
    rows, places = np.full_like(numbers, plan.batches), np.empty_like(numbers)
    each, last = (np.searchsorted(part.classes, classes) for part in (plan.each, plan.last))  # its first place
    regular = plan.regular[classes] * plan.batches
    extra = numbers - regular
    is_regular, is_last = extra < 0, extra >= plan.extra[classes]
    places[is_last] = (last + extra - plan.extra[classes])[is_last]
    at = is_regular
    rows[at], numbers_there = np.divmod(numbers[at], plan.regular[classes[at]])
    places[at] = each[at] + numbers_there
    at = ~is_regular & ~is_last
    dealt = drawn.begins[np.argsort(drawn.classes)[classes[at]]] + extra[at]
    places[at], rows[at] = np.divmod(dealt, plan.batches)
    places[at] += len(plan.each.classes)
    batches = (rows - drawn.first) * pow(plan.stride, -1, max(1, plan.batches)) % max(1, plan.batches)
    return np.where(is_last, plan.batches, batches), places


def _plan(of_sample: Indices, counts: Indices, batch_size: int) -> _Plan:
    size = len(of_sample)
    batches = size // batch_size
    regular = batch_size * counts // size
    extra = _extra_places(counts, regular, batch_size, batches)
    return _Plan(
        members=np.argsort(of_sample, kind="stable").astype(np.int64),
        counts=counts,
        begins=np.cumsum(counts) - counts,
        batch_size=batch_size,
        batches=batches,
        regular=regular,
        extra=extra,
        each=_places(regular),
        last=_places(counts - regular * batches - extra),
        class_domains=snug(counts),
        batch_domains=snug([batch_size, max(1, size % batch_size)]),
        stride=_stride(batches),
    )


def _extra_places(counts: Indices, regular: Indices, batch_size: int, batches: int) -> Indices:
    """How many extra places each class gets in an epoch: its share rounded, by largest remainder, in integers.

    A share rounded down leaves ceil, and one rounded up floor, of the class's share to the last batch.
    """
    size = int(counts.sum())
    down, remainders = np.divmod(batches * (batch_size * counts - size * regular), size)
    missing = batches * (batch_size - int(regular.sum())) - int(down.sum())
    down[np.argsort(-remainders, kind="stable")[:missing]] += 1
    return down


def _places(counts: Indices) -> _Places:
    """So many places for each class."""
    classes = np.repeat(np.arange(len(counts)), counts)
    return _Places(classes, np.arange(len(classes)) - (np.cumsum(counts) - counts)[classes])


def _stride(rows: int) -> int:
    """A step through all rows, near their golden section, so that any run of rows is met evenly spread in time."""
    return next(step for step in range(max(1, round(rows * GOLDEN)), rows + 2) if math.gcd(step, max(1, rows)) == 1)


def _draw(extra: Indices, batches: int, seed: int, epoch: int) -> _Drawn:
    drawn = words(seed, epoch, CLASSES, np.arange(len(extra)))
    classes = np.argsort(drawn[0], kind="stable").astype(np.int64)
    begins = np.concatenate([[0], np.cumsum(extra[classes])])
    return _Drawn(classes, begins, int(drawn[1, 0]) % max(1, batches))


def _refuse_rare(found: NDArray[np.integer], counts: Indices, batch_size: int) -> None:
    """Raise ConfigError where a full batch would lack a class."""
    size, rarest = int(counts.sum()), int(counts.argmin())
    few = int(counts[rarest])
    if size >= batch_size and few * batch_size < size:
        raise ConfigError(
            f"Stratified: class {found[rarest]} has {few} of {size} samples, too few for one in each of the "
            f"{size // batch_size} batches of {batch_size}; take a global batch of {-(-size // few)} or more, or "
            "Weighted.balanced(labels), which draws rare classes more often"
        )
