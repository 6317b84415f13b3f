"""Any sized object of a user's by the index, such as a torch Dataset: its items are samples, or go on as they are."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.batch import MISSING, Array, Columns, Field, Frames, Image, Images, Index, Key, Schema
from gpupipe.errors import ConfigError, DataError, SampleError
from gpupipe.host.whereabouts import Noted
from gpupipe.sources.raised import as_raised
from gpupipe.sources.source import Source, as_column, content_fingerprint
from gpupipe.sources.values import around, as_given, within
from gpupipe.sources.wanted import is_own

__all__ = ["DatasetSource", "ItemSource", "UserSource"]


class UserSource(Source):
    """A user's object by the index.

    Nothing is known but by reading a sample. `classes`, `class_to_idx` and `fingerprint` are taken from the object if
    it has them; without a fingerprint of its own it counts as the same while type and length are the same.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        size = len(dataset)
        if size == 0:
            raise DataError(f"the dataset {type(dataset).__name__} is empty: its len() is 0")
        self.classes = getattr(dataset, "classes", None)
        self.class_to_idx = getattr(dataset, "class_to_idx", None)
        name = str(getattr(dataset, "fingerprint", type(dataset).__qualname__))
        self.fingerprint = content_fingerprint([name], [np.array([size], np.int64)])
        self.draws: bool | None = None  # from the global random generators; None: not known yet
        self.asked = False  # for a sample, in this process
        self._size = size  # nothing is kept for each sample: two billion of them cost no more memory than two

    def __len__(self) -> int:
        return self._size

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self.dataset).__name__}, {len(self)} samples)"

    def location(self, index: int) -> str:
        """Type of the object and the index."""
        return f"{type(self.dataset).__name__}[{index}]"

    def check_size(self) -> None:
        """Raise ConfigError where its len() is another now: orders and what else counts samples are for the first."""
        now = len(self.dataset)
        if now != self._size:
            raise ConfigError(
                f"the dataset {type(self.dataset).__name__} had {self._size} samples when the Loader was built, and "
                f"now its len() is {now}, which the Loader's epochs would not follow; build a new Loader of it"
            )

    def item(self, index: int) -> Any:
        """What it has there. Raises SampleError, which is of the type that the object raised, too."""
        if not 0 <= index < self._size:
            raise IndexError(f"{self.location(index)}: its len() is {self._size}")
        self.asked = True
        try:
            with Noted(index):
                return self.dataset[index]
        except Exception as error:
            reason = f"{type(self.dataset).__name__}.__getitem__ raised {type(error).__name__}: {error}"
            raise as_raised(error, index, self.location(index), reason) from error

    def items(self, indices: NDArray[np.int64], before: Callable[[int], None] | None = None) -> Iterator[Any]:
        """One after the other; `before` is called with its row before each of them."""
        for row, index in enumerate(indices.tolist()):
            if before is not None:
                before(row)
            yield self.item(index)


class DatasetSource(UserSource):
    """Samples of a user's object. Of a dict a field takes the entry under its source, or else its own name; of a tuple
    that at the place which its source says, or else at its own in the schema.

    fields: None: an image, encoded or decoded, and a label, which is a number or an array.
    """

    def __init__(self, dataset: Any, fields: Mapping[str, Field] | None = None) -> None:
        super().__init__(dataset)
        self.fields = Schema.of({"image": Image(), "label": Array()} if fields is None else fields)
        self._given = {name: field for name, field in self.fields.items() if not is_own(name, field)}
        self._names = [name if field.source is None else field.source for name, field in self._given.items()]
        self._in_order = all(field.source is None for field in self._given.values())
        self._is_usual = fields is None
        self._lacking: dict[tuple[int, str], str] = {}  # of the last fetch: an item may be another when asked again

    def fetch(self, indices: NDArray[np.int64], before: Callable[[int], None] | None = None) -> Columns:
        """Columns with one `__getitem__` per sample; `before` is called with its row before each of them.

        Raises SampleError, with the object's own exception as its cause, also for a value that is none of its field,
        and DataError where the item is of another form than the fields.
        """
        return self.columns(indices, self.items(indices, before))

    def columns(self, indices: NDArray[np.int64], items: Iterable[Any]) -> Columns:
        """Of what the object gave for these samples. Raises as `fetch` does."""
        self._lacking.clear()
        samples = [self._parsed(index, item) for index, item in zip(indices.tolist(), items, strict=True)]
        given = dict(zip(self._given, zip(*samples, strict=True), strict=True)) if samples else {}
        columns = {name: self._column(field, indices, list(given.get(name, ()))) for name, field in self.fields.items()}
        if self._is_usual and isinstance(columns["label"], list):
            self._check_labels(indices, columns["label"])
        return columns

    def lacks(self, index: int, name: str) -> str:
        """What else the item had."""
        return self._lacking.get((index, name), "")

    def _column(self, field: Field, indices: NDArray[np.int64], values: list[Any]) -> Any:
        if isinstance(field, Key):
            return list(map(self.key, indices.tolist()))
        if isinstance(field, Index):
            return indices.astype(np.int64)
        if isinstance(field, Image) and not isinstance(field, Frames):
            return Images([None if value is MISSING else value for value in values])
        return as_column(field, values)

    def _check_labels(self, indices: NDArray[np.int64], labels: list[Any]) -> None:
        """Raise DataError where they can't be stacked, as they are where nothing else was asked for."""
        known = [(index, label) for index, label in zip(indices.tolist(), labels, strict=True) if label is not MISSING]
        shapes = {getattr(label, "shape", ()): index for index, label in known}
        if len(shapes) > 1:
            forms = ", ".join(f"{self.location(index)} {shape}" for shape, index in shapes.items())
            raise DataError(
                f"{type(self.dataset).__name__}: the labels have different shapes: {forms}; make them alike, or pass "
                "fields={'image': gpupipe.Image(), 'label': gpupipe.Array(collate='ragged')}"
            )

    def _parsed(self, index: int, item: Any) -> list[Any]:
        """The value of each field that is in the item."""
        values, name = [], ""
        try:
            for (name, field), value in zip(self._given.items(), self._parts(item), strict=True):
                if value is None or value is MISSING:
                    values.append(MISSING)
                    if field.missing != "default" and isinstance(item, Mapping | tuple | list):
                        self._lacking[index, name] = around(item, str(field.source or name))
                else:
                    values.append(as_given(field, value))
        except Exception as error:  # the item and its parts may be of classes of the user's own
            what = f"is {_describe(item)}; "
            if not name:
                raise DataError(f"{self.location(index)} {what}{error}") from error
            reason = f"it {what}its field {name!r}: {error}"
            raise SampleError(index, self.location(index), reason) from error
        return values

    def _parts(self, item: Any) -> list[Any]:
        """What the item has for each field that is in it."""
        names = self._names
        if isinstance(item, tuple | list):
            parts = list(item) if self._in_order else [within(item, str(name)) for name in names]
        elif isinstance(item, Mapping):
            parts = [within(item, name) if isinstance(name, str) else item.get(name, MISSING) for name in names]
            if all(part is MISSING for part in parts):
                raise ValueError(f"it has {list(item)}, but none of {names}")
        else:
            parts = [item]
        if len(parts) != len(names) or (self._is_usual and isinstance(parts[1], list | tuple)):
            raise TypeError(
                f"it must be ({', '.join(map(str, names))}), each a value, or a dict of these; for samples of another "
                "form pass fields="
            )
        return parts


def _describe(item: Any) -> str:
    if type(item) not in (tuple, list):  # another class's own code may raise
        return type(item).__name__
    return f"{type(item).__name__} of ({', '.join(type(part).__name__ for part in item[:4])})"


class ItemSource(UserSource):
    """The items of a user's dataset as they are: there are no fields, but the column "items", a list.

    Raises ConfigError for what is no map-style dataset, DataError for one without samples.
    """

    fields = None  # type: ignore[assignment]  # what an item holds is the dataset's own affair

    def __init__(self, dataset: Any) -> None:
        _check_map_style(dataset)
        super().__init__(dataset)

    def __getitem__(self, index: Any) -> Any:
        return self.dataset[index]

    def fetch(self, indices: NDArray[np.int64], before: Callable[[int], None] | None = None) -> Columns:
        """The items, with one `__getitem__` for each; `before` is called with its row before each of them.

        Raises SampleError, with the dataset's own exception as its cause.
        """
        return {"items": list(self.items(indices, before))}

    @property
    def gives_several(self) -> bool:
        """Whether the dataset has a `__getitems__` by which torch's DataLoader reads a batch.

        That of torch's Subset counts if the dataset in it has one: else it only asks for one item after the other.
        """
        from torch.utils.data import Subset

        dataset = self.dataset
        while isinstance(dataset, Subset) and getattr(dataset.__getitems__, "__func__", None) is Subset.__getitems__:
            dataset = dataset.dataset
        return bool(getattr(dataset, "__getitems__", None))

    def several(self, indices: NDArray[np.int64]) -> Any:
        """What one call of `__getitems__` returns: a list of items, or a batch of whatever form. Raises what it
        raises."""
        self.asked = True
        return self.dataset.__getitems__(indices.tolist())

    def alone(self, index: int) -> Any:
        """What `__getitems__` returns for that sample alone. Raises SampleError, which is of the type that it raised,
        too."""
        try:
            with Noted(index):
                return self.several(np.array([index]))
        except Exception as error:
            reason = f"{type(self.dataset).__name__}.__getitems__ raised {type(error).__name__}: {error}"
            raise as_raised(error, index, self.location(index), reason) from error


def _check_map_style(dataset: Any) -> None:
    from torch.utils.data import IterableDataset

    if isinstance(dataset, str | os.PathLike):
        raise ConfigError(
            f"data={os.fspath(dataset)!r} names files, which recipe=None does not read: pass a recipe, such as "
            "gpupipe.imagenet_train(224), or a dataset that reads them"
        )
    map_style = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    if isinstance(dataset, IterableDataset) or not map_style:
        raise ConfigError(
            f"data is {type(dataset).__name__}, but recipe=None needs a map-style dataset, with __len__ and "
            "__getitem__, as samples are asked for by their number, so as to shuffle and to resume anywhere"
        )
