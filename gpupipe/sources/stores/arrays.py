"""Samples that are rows of arrays, of NumPy's files or of HDF5: encoded images, pixels, labels, boxes."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.batch import Array, Boxes, Columns, Field, Image, Images, Index, Key, Points, Scalar, Schema, Text
from gpupipe.errors import ConfigError, DataError, SampleError
from gpupipe.host.whereabouts import note
from gpupipe.sources.reading import ChangedError, Stamp
from gpupipe.sources.source import Source, as_column, content_fingerprint
from gpupipe.sources.stores.hdf5 import Hdf5File
from gpupipe.sources.stores.naming import arrays_of, element, refuse_single, told
from gpupipe.sources.stores.npy import NpyFile, NpzFile
from gpupipe.sources.stores.rows import ArrayFile, Held
from gpupipe.sources.values import as_given, in_int64
from gpupipe.texts import printable

__all__ = ["FILES", "ArraySource", "open_arrays"]

FILES: dict[str, Callable[[str], ArrayFile]] = {
    ".npy": NpyFile,
    ".npz": NpzFile,
    ".h5": Hdf5File,
    ".hdf5": Hdf5File,
}
PADDING = 16
AS_UINT8 = "write them so, floats of 0 to 1 as (array * 255).round().astype('uint8')"
TAKE_ARRAY = "pass gpupipe.Array for the field"
AGAIN = "put the file back, or make the loader again with the file as it is now"

Data = str | dict[str, str]
"""The path of a file, or paths of .npy files by the names that their arrays have here."""


class ArraySource(Source):
    """Row i of each array is sample i. Made by `open_arrays`."""

    def __init__(self, data: Data, fields: Mapping[str, Field] | None) -> None:
        self._data = data
        self.fields = Schema.of(fields)
        files = _opened(data)
        self._stamps = [file.stamp for file in files]
        there = {name: file for file in files for name in file.names()}
        if fields is None:
            refuse_single(data, there)
        names = arrays_of(self.fields, there)
        self._rows = {name: there[array].rows(array) for name, array in names.items()}
        self._places = [f"{there[array].path}, {array!r}" for array in names.values()]
        self._size = self._counted(names)
        self._check_arrays()
        self._number_classes()
        self._check_rows()
        held = [rows.values for rows in self._rows.values() if isinstance(rows, Held)]
        kinds = [f"{array}: {self._rows[name].dtype} {self._rows[name].shape}" for name, array in names.items()]
        texts = [str(text) for values in held if values.dtype.kind not in "biufc" for text in values]
        numbers = [values for values in held if values.dtype.kind in "biufc"]
        self.fingerprint = content_fingerprint([*kinds, *(self.classes or ()), *texts], numbers)

    def __len__(self) -> int:
        return self._size

    def __repr__(self) -> str:
        return f"ArraySource({self._data!r}, {len(self)} samples)"

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (self._data, self.fields, self.fingerprint, self._stamps)

    def fetch(self, indices: NDArray[np.int64]) -> Columns:
        """All fields: images as encoded, or as pixels."""
        if len(indices) and not 0 <= indices.min() <= indices.max() < self._size:
            raise IndexError(f"{self!r} has no sample {indices.min()} or {indices.max()}")
        return {name: self._column(name, field, indices) for name, field in self.fields.items()}

    def _column(self, name: str, field: Field, indices: NDArray[np.int64]) -> Any:
        if isinstance(field, Index):
            return indices.astype(np.int64)
        if isinstance(field, Key):
            return list(map(self.key, indices.tolist()))
        if isinstance(field, Array) and (held := self._held(name)) is not None:
            numbers = in_int64(held[indices])
            if numbers is not None:
                return numbers
        values = [self._value(name, field, index) for index in indices.tolist()]
        if isinstance(field, Image):
            return Images(values, self.shapes(indices) if name == self.fields.images[0] else None)
        return as_column(field, values)

    def _value(self, name: str, field: Field, index: int) -> Any:
        note(index)
        try:
            return as_given(field, _plain(field, self._rows[name].read(index)))
        except (ValueError, TypeError, OverflowError) as error:
            remedy = AGAIN if isinstance(error, ChangedError) else ""
            raise SampleError(index, self.location(index), f"its field {name!r}: {error}", remedy) from error

    def _held(self, name: str) -> NDArray[Any] | None:
        """A number for each sample, as it is stored, where they are held."""
        rows = self._rows.get(name)
        if not isinstance(rows, Held) or rows.values.ndim > 1 or rows.dtype.kind not in "biuf":
            return None
        return rows.values

    def _numbers(self, name: str) -> NDArray[Any] | None:
        """The same, integers as int64. Raises SampleError for the first that is too large for that."""
        held = self._held(name)
        numbers = None if held is None else in_int64(held)
        if held is not None and numbers is None:
            self._value(name, self.fields[name], int(np.argmax(held >= 2**63)))
        return numbers

    def shapes(self, indices: NDArray[np.int64]) -> NDArray[np.int32] | None:
        """Of pixels; not known of encoded images."""
        shape = self._rows[self.fields.images[0]].shape if self.fields.images else ()
        return np.tile(np.array([*shape[1:3], 1], np.int32), (len(indices), 1)) if len(shape) > 2 else None

    def location(self, index: int) -> str:
        """The row, of the first field's array."""
        return printable(f"row {index} of {self._places[0]}")

    def column(self, name: str) -> NDArray[Any] | list[Any]:
        """Numbers are known without reading images."""
        values = self._numbers(name)
        return super().column(name) if values is None else values

    @cached_property
    def targets(self) -> NDArray[np.int64]:
        """All labels, if they are integers. Raises DataError where they are none, SampleError for one beyond int64."""
        labels: NDArray[Any] | None = self._numbers("label")
        if labels is None or labels.dtype != np.int64:
            raise DataError(f"the labels of {self!r} are no list of integers")
        labels = labels.view()  # which becomes read-only by itself
        labels.setflags(write=False)
        return labels

    def _counted(self, names: Mapping[str, str]) -> int:
        """The samples. Raises ConfigError where arrays differ in their number, DataError where there are none."""
        counts = {name: rows.shape[0] for name, rows in self._rows.items()}
        if len(set(counts.values())) > 1:
            rows = ", ".join(f"{names[name]!r} {count:,}" for name, count in counts.items())
            raise ConfigError(f"{self._data!r}: arrays differ in their rows: {rows}; name those that belong together")
        size = next(iter(counts.values()), 0)
        if not size:
            raise DataError(f"{self._data!r} has no rows in {', '.join(names.values()) or 'any array'}")
        return size

    def _number_classes(self) -> None:
        """Texts under a Scalar are names of classes: their numbers take their place."""
        for name, rows in list(self._rows.items()):
            if type(self.fields[name]) is Scalar and isinstance(rows, Held) and rows.dtype.kind in "OUS":
                names, numbers = np.unique(_texts(rows.values, f"{self._data!r}, {name!r}"), return_inverse=True)
                self._rows[name] = Held(numbers.astype(np.int64))
                if name == "label":
                    self.classes = names.tolist()
                    self.class_to_idx = {text: number for number, text in enumerate(names.tolist())}

    def _check_arrays(self) -> None:
        """Raise ConfigError for a field of one number whose rows are arrays, DataError for images of other numbers than
        uint8."""
        for name, rows in self._rows.items():
            what = f"{self._data!r}: the field {name!r} can't be made of an array {told(rows)}"
            if type(self.fields[name]) is Scalar and len(rows.shape) > 1:
                advice = f"write it as array.reshape({rows.shape[0]})" if math.prod(rows.shape[1:]) == 1 else ""
                raise ConfigError(f"{what}: a Scalar is one number; {' or '.join(filter(None, [advice, TAKE_ARRAY]))}")
            if isinstance(self.fields[name], Image) and (kind := element(rows)).kind in "biufc" and kind != np.uint8:
                raise DataError(f"{what}: images are uint8, 0 to 255, or encoded files; {AS_UINT8}")

    def _check_rows(self) -> None:
        """Raise DataError where of the first row a field can't be made, for then it can't of any."""
        for name, field in self.fields.items():
            if name not in self._rows or (isinstance(field, Array) and self._held(name) is not None):
                continue
            try:
                value = self._rows[name].read(0)
            except ValueError:  # that row alone may be damaged
                continue
            try:
                as_given(field, _plain(field, value))
            except (ValueError, TypeError, OverflowError) as error:
                what = f"{self._data!r}: the field {name!r} can't be made of an array {told(self._rows[name])}"
                raise DataError(f"{what}: {error}") from error


def _texts(values: NDArray[Any], what: str) -> NDArray[Any]:
    """Bytes as text. Raises DataError where they are none."""
    if values.dtype.kind != "S":
        return values.astype(str)
    try:
        return np.char.decode(values, "utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{what}: the names of classes are no UTF-8: {error}") from error


def _plain(field: Field, value: Any) -> Any:
    """A row as a user would give it: bytes for what is opaque, text for characters, boxes and points in rows."""
    if isinstance(value, np.void):  # filled up with zeros to the longest; some may be the file's own
        data = value.tobytes()
        return data[: len(data.rstrip(b"\0")) + PADDING]
    if isinstance(value, np.bytes_ | np.str_) or (isinstance(value, np.ndarray) and value.dtype.kind in "SU"):
        value = value.item()
    if isinstance(field, Text) and isinstance(value, bytes):
        return value.decode()
    if isinstance(field, Boxes | Points) and isinstance(value, np.ndarray) and value.ndim == 1:
        return value.reshape(-1, 4 if isinstance(field, Boxes) else 2)
    if isinstance(value, str) and not isinstance(field, Text):
        raise TypeError(f"it is text ({value[:40]!r})")
    return value


def _opened(data: Data) -> Sequence[ArrayFile]:
    """Raises DataError for a file that can't be opened."""
    parts = [(data, "")] if isinstance(data, str) else [(path, name) for name, path in data.items()]
    files = []
    for path, name in parts:
        try:
            files.append(NpyFile(path, name) if name else FILES[os.path.splitext(path)[1].lower()](path))
        except OSError as error:
            raise DataError(f"{path} can't be read: {error.strerror}; check the path") from error
    return files


def open_arrays(data: Any, fields: Mapping[str, Field] | None = None, *, rebuild: bool = False) -> ArraySource:
    """Open an .npy, .npz, .h5 or .hdf5 file, or a dict of .npy files. There is no index; `rebuild` does nothing.

    Raises DataError for a file that is missing, cut, damaged or being written to, or has no rows; ConfigError for a
    field whose array is not there, and for arrays of different lengths.
    """
    if isinstance(data, Mapping):
        return ArraySource({name: _absolute(path) for name, path in data.items()}, fields)
    return ArraySource(_absolute(data), fields)


def _absolute(path: str | os.PathLike[str]) -> str:
    return os.path.abspath(os.path.expanduser(path))


def _reopened(data: Data, fields: Schema, fingerprint: str, stamps: Sequence[Stamp]) -> ArraySource:
    source = ArraySource(data, fields)
    changed = any(before.difference(now, "file") for before, now in zip(stamps, source._stamps, strict=True))
    if changed or source.fingerprint != fingerprint:
        raise DataError(f"{data!r} was changed while a loader used it: make the loader again")
    return source
