"""Any sized object whose items are (encoded bytes, label), such as a user's own torch Dataset."""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gpupipe.batch import Columns, Images, Schema
from gpupipe.errors import DataError
from gpupipe.host.whereabouts import Noted
from gpupipe.sources.raised import as_raised
from gpupipe.sources.source import Encoded, Source, content_fingerprint

__all__ = ["DatasetSource"]


class SizedDataset(Protocol):
    """What a DatasetSource wraps."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


class DatasetSource(Source):
    """Samples of a user's object: `dataset[i]` gives (bytes of an image file, integer label).

    Labels and sizes are known only by reading a sample. `classes`, `class_to_idx` and `fingerprint` are taken from the
    object if it has them; without a fingerprint of its own it counts as the same while type and length are the same.
    """

    def __init__(self, dataset: SizedDataset) -> None:
        self.fields = Schema.of(None)
        self.dataset = dataset
        size = len(dataset)
        if size == 0:
            raise DataError(f"the dataset {type(dataset).__name__} is empty: its len() is 0")
        self.classes = getattr(dataset, "classes", None)
        self.class_to_idx = getattr(dataset, "class_to_idx", None)
        name = str(getattr(dataset, "fingerprint", type(dataset).__qualname__))
        self.fingerprint = content_fingerprint([name], [np.array([size], np.int64)])
        self.draws: bool | None = None  # from the global random generators; None: not known yet
        self._size = size  # nothing is kept for each sample: two billion of them cost no more memory than two

    def __len__(self) -> int:
        return self._size

    def __repr__(self) -> str:
        return f"DatasetSource({type(self.dataset).__name__}, {len(self)} samples)"

    def fetch(self, indices: NDArray[np.int64], before: Callable[[int], None] | None = None) -> Columns:
        """Images, whose sizes are not known, and labels, with one `__getitem__` per sample; `before` is called with its
        row before each of them.

        Raises SampleError, with the object's own exception as its cause, and DataError where the item is of another
        kind than (bytes, integer).
        """
        items = []
        for row, index in enumerate(indices.tolist()):
            if before is not None:
                before(row)
            items.append(self._item(index))
        labels = np.array([label for _, label in items], np.int64)
        return {"image": Images([data for data, _ in items]), "label": labels}

    def _item(self, index: int) -> tuple[Encoded, int]:
        if not 0 <= index < self._size:
            raise IndexError(f"{self.location(index)}: its len() is {self._size}")
        try:
            with Noted(index):
                item = self.dataset[index]
        except Exception as error:
            reason = f"{type(self.dataset).__name__}.__getitem__ raised {type(error).__name__}: {error}"
            raise as_raised(error, index, self.location(index), reason) from error
        return self._parse(index, item)

    def location(self, index: int) -> str:
        """Type of the object and the index."""
        return f"{type(self.dataset).__name__}[{index}]"

    def _parse(self, index: int, item: Any) -> tuple[Encoded, int]:
        try:
            encoded, label = item
            return _as_bytes(encoded), _as_label(label)
        except Exception as error:  # the item and its parts may be of classes of the user's own
            raise DataError(
                f"{self.location(index)} is {_describe(item)}; it must be (the bytes of an image file, "
                f"an integer label): {error}. Return the undecoded file, without transforms; for an ImageFolder pass "
                "its folder"
            ) from error


def _as_bytes(encoded: Any) -> Encoded:
    if isinstance(encoded, (bytes, bytearray, memoryview)):
        return np.frombuffer(encoded, np.uint8)
    array = np.asarray(encoded)
    if array.dtype != np.uint8 or array.ndim != 1:
        raise TypeError(f"the first is {type(encoded).__name__} ({array.dtype}, {array.ndim} dimensions)")
    return np.ascontiguousarray(array)


def _as_label(label: Any) -> int:
    shape = tuple(getattr(label, "shape", ()))
    if shape:  # of one element, too: DataLoader would make a column of them, of another shape than (N,)
        raise TypeError(f"the label is {type(label).__name__} of shape {shape}; take label[i] or label.item()")
    try:
        number = operator.index(label.item() if hasattr(label, "item") else label)
    except TypeError:
        raise TypeError(f"the label is {type(label).__name__} ({reprlib.repr(label)})") from None
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"the label {reprlib.repr(number)} has no place in int64")
    return number


def _describe(item: Any) -> str:
    if type(item) not in (tuple, list):  # another class's own code may raise
        return type(item).__name__
    return f"{type(item).__name__} of ({', '.join(type(part).__name__ for part in item[:4])})"
