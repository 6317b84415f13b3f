"""What is cut out of images, and what it becomes: one geometry for all who draw it, cut by it or follow it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["PADDINGS", "Crops", "Padding", "by_size", "folded"]

Ints: TypeAlias = NDArray[np.int32]
Padding: TypeAlias = Literal["constant", "edge", "reflect", "symmetric"]
PADDINGS: tuple[Padding, ...] = get_args(Padding)


@dataclass(frozen=True)
class Crops:
    """A box of each of N images, and what it becomes.

    windows: int32 (N, 4), top, left, height, width of the box that is cut out of the image, in its pixels.
    resized: int32 (N, 2), height and width to which the window is resized, antialiased.
    anchors: int32 (N, 2), top and left of the output within the resized window.
    flips:   bool (N,), whether the output is mirrored left to right.
    bicubic: bool (N,), the filter of the resize: bicubic, else bilinear.
    size:    (height, width) of every output; the largest of each where `outputs` are given.
    fill:    R, G and B of what lies outside: the window may reach out of the image, whose surroundings are resized with
             it, and the output out of the resized window. None where neither does.
    centres: whether only those boxes follow whose centre lies in the window.
    padding: what the output shows where it reaches out of the resized window: "constant", the fill; else the pixel that
             `folded` says, of the resized window.
    outputs: int32 (N, 2), the height and width of each output; None: all have `size`.
    shown:   int32 (N, 4), top, left, bottom and right of the part of the output, as it comes out, that is shown of it,
             to which boxes and points are cut; None: all.
    """

    windows: Ints
    resized: Ints
    anchors: Ints
    flips: NDArray[np.bool_]
    bicubic: NDArray[np.bool_]
    size: tuple[int, int]
    fill: tuple[int, int, int] | None = None
    centres: bool = False
    padding: Padding = "constant"
    outputs: Ints | None = None
    shown: Ints | None = None

    @classmethod
    def of(
        cls,
        windows: ArrayLike,
        size: tuple[int, int],
        *,
        flips: ArrayLike = False,
        resized: ArrayLike | None = None,
        anchors: ArrayLike = 0,
        bicubic: ArrayLike = False,
        fill: tuple[int, int, int] | None = None,
    ) -> Crops:
        """From anything like arrays. One value for all is enough; by default windows are resized to `size`."""
        boxes = np.asarray(windows, np.int32)
        pairs = [np.asarray(size if resized is None else resized, np.int32), np.asarray(anchors, np.int32)]
        pairs = [np.broadcast_to(pair, (len(boxes), 2)) if pair.ndim < 2 else pair for pair in pairs]
        flags = [np.asarray(flag, np.bool_) for flag in (flips, bicubic)]
        flags = [flag if flag.ndim else np.broadcast_to(flag, len(boxes)) for flag in flags]
        return cls(boxes, pairs[0], pairs[1], flags[0], flags[1], size, fill)

    def __len__(self) -> int:
        return len(self.windows)

    def repeat(self, times: int) -> Crops:
        """Each image's so many times, one after the other."""
        return self._by_row(lambda column: column.repeat(times, 0))

    @property
    def sizes(self) -> Ints:
        """(N, 2), the height and width of each output."""
        return np.tile(np.array(self.size, np.int32), (len(self), 1)) if self.outputs is None else self.outputs

    def size_of(self, row: int) -> tuple[int, int]:
        """Height and width of one output."""
        return self.size if self.outputs is None else (int(self.outputs[row, 0]), int(self.outputs[row, 1]))

    def row(self, row: int) -> Crops:
        """That of one image, N = 1, in its own size."""
        return replace(self.take(slice(row, row + 1)), size=self.size_of(row), outputs=None)

    def take(self, rows: slice) -> Crops:
        """Those of some images."""
        return self._by_row(lambda column: column[rows])

    def _by_row(self, change: Callable[[NDArray[Any]], NDArray[Any]]) -> Crops:
        changed: dict[str, Any] = {name: change(own) for name, own in vars(self).items() if isinstance(own, np.ndarray)}
        return replace(self, **changed)


def folded(places: NDArray[np.int64], size: int, padding: Padding) -> NDArray[np.int64]:
    """Which of `size` pixels lies at each place, which may be beyond them: as paddings of that name in NumPy and
    torchvision, reflected as often as it takes. "constant" leaves places as they are."""
    if padding == "constant":
        return places
    if padding == "edge":
        return places.clip(0, size - 1)
    again = int(padding == "reflect")  # less of the outermost pixel, which is not repeated
    period = max(2 * (size - again), 1)
    around = places % period
    return np.where(around < size, around, period - 1 + again - around)


def by_size(sizes: Ints) -> list[tuple[NDArray[np.int64], tuple[int, int]]]:
    """The rows of each size that there is in (N, 2), and that size."""
    kinds, which = np.unique(sizes, axis=0, return_inverse=True)
    which = which.reshape(-1)  # NumPy 2.0 gives it another shape
    return [(np.flatnonzero(which == at), (int(kind[0]), int(kind[1]))) for at, kind in enumerate(kinds)]
