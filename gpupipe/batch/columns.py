"""Values of several samples, side by side.

A column has a row for each sample: `Images`, a NumPy array whose first side it is, or a list. So sources give them. A
batch's columns are collated: tensors, `Ragged`, lists; pixels are a tuple of tensors, one for each view.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

__all__ = ["Clip", "Columns", "Images", "Ragged", "Video", "array_of", "assemble", "take"]

Columns: TypeAlias = dict[str, Any]
"""Column by field name."""


@dataclass
class Images:
    """N images as a source has them.

    data:  of each the bytes of its file, uint8 (bytes,), or its pixels, uint8 (height, width, 3); None where there are
           none, which a batch has for an image of no bytes, with a failure. Of frames a source has a `Video`, and a
           batch a `Clip`.
    sizes: int32 (N, 3), height and width as stored, and the EXIF orientation, 1 to 8; height and width are 0 of what is
           damaged. None: not known; the headers are read where the bytes are.
    """

    data: list[Any]
    sizes: NDArray[np.int32] | None = None

    def __len__(self) -> int:
        return len(self.data)

    @property
    def flat(self) -> Images:
        """The frames of all clips, one by one."""
        frames = [frame for clip in self.data for frame in clip.frames]
        return Images(frames, None if self.sizes is None else self.sizes.repeat(len(frames) // max(len(self), 1), 0))


class Video(Protocol):
    """A video whose frames can be had one by one. All raise ValueError or OSError, which says why it can't be read."""

    @property
    def rate(self) -> float | None:
        """Frames a second; None: not known."""

    def __len__(self) -> int:
        """How many frames it has."""

    def read(self, numbers: Sequence[int]) -> list[NDArray[np.uint8]]:
        """Of each of these frames the bytes of its file, or its pixels, as `Images` has them."""


@dataclass(frozen=True)
class Clip:
    """Frames of a video, all of one size, and which of its frames they are."""

    frames: list[NDArray[np.uint8]]
    numbers: list[int]

    @property
    def nbytes(self) -> int:
        return sum(frame.nbytes for frame in self.frames)


@dataclass(frozen=True)
class Ragged:
    """Rows of different lengths in two tensors.

    values:  all rows, one behind the other, (sum of lengths, ...). offsets: int64 (N + 1,): row i is
             `values[offsets[i] : offsets[i + 1]]`, which is `ragged[i]`.
    """

    values: torch.Tensor
    offsets: torch.Tensor

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> torch.Tensor:
        try:
            row = operator.index(row)
        except TypeError:
            raise TypeError(f"Ragged: rows are picked one by one, by an int, and {row!r} is none") from None
        if not -len(self) <= row < len(self):
            raise IndexError(f"Ragged: there is no row {row}, there are {len(self)}")
        row %= len(self)
        return self.values[int(self.offsets[row]) : int(self.offsets[row + 1])]

    @property
    def lengths(self) -> torch.Tensor:
        """Of each row, int64 (N,)."""
        return self.offsets.diff()

    def to(self, *args: Any, **options: Any) -> Ragged:
        """Both tensors as `torch.Tensor.to` gives them on a device; a dtype is that of the values."""
        values = self.values.to(*args, **options)
        return Ragged(values, self.offsets.to(values.device, non_blocking=bool(options.get("non_blocking", False))))

    def pin_memory(self) -> Ragged:
        """The same in page-locked memory."""
        return Ragged(self.values.pin_memory(), self.offsets.pin_memory())


def array_of(value: Any) -> NDArray[Any]:
    """As NumPy has it, but that an empty list, which says nothing of what it would hold, is int64 and not float64."""
    array = np.asarray(value)
    return array.astype(np.int64) if isinstance(value, list | tuple) and not array.size else array


def take(columns: Columns, rows: NDArray[np.int64] | Sequence[int]) -> Columns:
    """Those rows of each column, in that order."""
    return {name: _taken(column, np.asarray(rows, np.int64)) for name, column in columns.items()}


def _taken(column: Any, rows: NDArray[np.int64]) -> Any:
    if isinstance(column, Images):
        sizes = None if column.sizes is None else column.sizes[rows]
        return Images([column.data[row] for row in rows.tolist()], sizes)
    if isinstance(column, np.ndarray):
        return column[rows]
    return [column[row] for row in rows.tolist()]


def assemble(count: int, parts: Sequence[tuple[NDArray[np.int64], Columns]]) -> Columns:
    """Columns of `count` rows out of parts of them: (rows, their columns). A row of no part has no image and None, or 0
    in a column that is an array in every part. Tensors come to the device of the first part's."""
    names = {name: None for _, columns in parts for name in columns}
    return {name: _assembled(count, [(rows, columns[name]) for rows, columns in parts]) for name in names}


def _assembled(count: int, parts: Sequence[tuple[NDArray[np.int64], Any]]) -> Any:
    columns = [column for _, column in parts]
    if isinstance(columns[0], Images):
        return _assembled_images(count, parts)
    if isinstance(columns[0], tuple):  # of views
        views = range(len(columns[0]))
        return tuple(_assembled(count, [(rows, column[view]) for rows, column in parts]) for view in views)
    if hasattr(columns[0], "new_empty"):  # tensors; torch is imported late, see `gpupipe`
        from gpupipe.kernels.transfer import put

        tensor = columns[0].new_empty((count, *columns[0].shape[1:]))
        for rows, column in parts:
            put(tensor, rows, column)
        return tensor
    if all(isinstance(column, np.ndarray) for column in columns):
        kinds = {(column.dtype, column.shape[1:]) for column in columns}
        if len(kinds) == 1:
            dtype, shape = kinds.pop()
            whole = np.zeros((count, *shape), dtype)
            for rows, column in parts:
                whole[rows] = column
            return whole
    listed: list[Any] = [None] * count
    for rows, column in parts:
        for row, value in zip(rows.tolist(), column, strict=True):
            listed[row] = value
    return listed


def _assembled_images(count: int, parts: Sequence[tuple[NDArray[np.int64], Images]]) -> Images:
    whole = Images(_assembled(count, [(rows, column.data) for rows, column in parts]))
    if all(column.sizes is not None for _, column in parts):
        sizes = whole.sizes = _assembled(count, [(rows, column.sizes) for rows, column in parts])
        sizes[sizes[:, 2] == 0, 2] = 1  # of rows that are not there
    return whole
