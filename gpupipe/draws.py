"""Everything random about an image, as a pure function: (recipe, seed, epoch, positions, image sizes) -> `Plan`.

A plan says exactly which pixels become which, in integers, so that no engine is left to round for itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpupipe.philox import philox4x32, split64, uniform
from gpupipe.recipe import Crop, Filter, RandomHorizontalFlip, RandomResizedCrop, Recipe, ResizeCenterCrop

__all__ = ["Plan", "plan"]

Ints = NDArray[np.int32]

# The fourth counter word: which operation draws (high half), and its how-manieth block of four words (low half).
CROP, FLIP = 0 << 16, 1 << 16
CROP_TRIES = 10  # as torchvision's RandomResizedCrop.get_params


@dataclass(frozen=True)
class Plan:
    """What happens to each of N images.

    windows: int32 (N, 4), top, left, height, width of the box that is cut out of the source image, in its pixels.
    resized: int32 (N, 2), height and width to which the window is resized (antialiased bilinear).
    anchors: int32 (N, 2), top and left of the output within the resized window.
    flips:   bool (N,), whether the output is mirrored left to right.
    size:    (height, width) of every output.
    filter:  of the resize, "bilinear" or "bicubic".

    Images whose size is unknown (height or width 0) get the plan of a 1 x 1 image.
    """

    windows: Ints
    resized: Ints
    anchors: Ints
    flips: NDArray[np.bool_]
    size: tuple[int, int]
    filter: Filter = "bilinear"

    def row(self, row: int) -> Plan:
        """The plan of one image, N = 1."""
        at = slice(row, row + 1)
        return Plan(self.windows[at], self.resized[at], self.anchors[at], self.flips[at], self.size, self.filter)


def plan(
    recipe: Recipe,
    seed: int,
    epoch: int,
    positions: NDArray[np.int64],
    heights: Ints,
    widths: Ints,
    view: int = 0,
) -> Plan:
    """The plan for the images at these positions of an epoch, in one view.

    positions: int64 (N,), global positions, 0 or more; heights, widths: int32 (N,), in pixels.
    The same arguments give the same plan on every machine, in any batch, in any order.
    """
    stream = _Stream(seed, epoch, positions, view)
    tall, wide = np.maximum(heights, 1).astype(np.int64), np.maximum(widths, 1).astype(np.int64)
    windows, resized, anchors = _geometry(recipe.crop, stream, tall, wide)
    return Plan(
        windows.astype(np.int32),
        resized.astype(np.int32),
        anchors.astype(np.int32),
        _flips(recipe.flip, stream, len(positions)),
        recipe.crop.output_size,
        recipe.crop.interpolation,
    )


class _Stream:
    """Random words keyed by (seed, epoch, position, view, operation)."""

    def __init__(self, seed: int, epoch: int, positions: NDArray[np.int64], view: int) -> None:
        self.key = split64(seed)
        self.epoch = epoch
        self.view = np.uint64(view << 24)  # the highest byte of the fourth counter word
        unsigned = positions.astype(np.uint64)
        self.low, self.high = unsigned & np.uint64(0xFFFFFFFF), unsigned >> np.uint64(32)

    def words(
        self, operation: int | NDArray[np.uint64], rows: NDArray[np.int64] | slice = slice(None)
    ) -> NDArray[np.uint64]:
        """uint64 (4, rows) below 2**32, or (4, operations, rows) for a column of operations."""
        return philox4x32(
            (self.low[rows], self.high[rows], self.epoch, self.view | np.asarray(operation, np.uint64)), self.key
        )


def _flips(flip: RandomHorizontalFlip | None, stream: _Stream, count: int) -> NDArray[np.bool_]:
    if flip is None:
        return np.zeros(count, dtype=np.bool_)
    return uniform(stream.words(FLIP)[0]) < flip.p


Geometry = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]


def _geometry(crop: Crop, stream: _Stream, heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Geometry:
    """Windows, resized sizes and anchors of a crop, int64."""
    if isinstance(crop, ResizeCenterCrop):
        return _resize_center_crop(crop, heights, widths)
    windows = _random_boxes(crop, stream, heights, widths)
    count = len(heights)
    return windows, np.tile(np.array(crop.output_size, np.int64), (count, 1)), np.zeros((count, 2), np.int64)


def _resize_center_crop(crop: ResizeCenterCrop, heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Geometry:
    """torchvision's arithmetic: the longer side is truncated, the crop's corner rounded half to even."""
    shorter = np.minimum(heights, widths)
    resized = np.stack([crop.resize * heights // shorter, crop.resize * widths // shorter], axis=1)
    anchors = np.rint((resized - np.array(crop.output_size, np.int64)) / 2).astype(np.int64)
    corner = np.zeros_like(heights)
    return np.stack([corner, corner, heights, widths], axis=1), resized, anchors


def _random_boxes(
    crop: RandomResizedCrop, stream: _Stream, heights: NDArray[np.int64], widths: NDArray[np.int64]
) -> NDArray[np.int64]:
    """(N, 4) boxes by torchvision's algorithm: ten tries, then the central box of the nearest allowed ratio.

    Later tries are drawn only for the images that need them; each try has its own counter, so that changes nothing.
    """
    boxes = _central_boxes(crop, heights, widths)
    rows = np.arange(len(heights))
    for tries in (range(1), range(1, CROP_TRIES)):
        fits, drawn = _attempts(crop, stream, tries, rows, heights[rows], widths[rows])
        first = fits.argmax(axis=0)
        found = fits.any(axis=0)
        boxes[rows[found]] = drawn[first[found], found.nonzero()[0]]
        rows = rows[~found]
    return boxes


def _attempts(
    crop: RandomResizedCrop,
    stream: _Stream,
    tries: range,
    rows: NDArray[np.int64],
    heights: NDArray[np.int64],
    widths: NDArray[np.int64],
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Whether each try's box fits into its image, (tries, rows), and the boxes, (tries, rows, 4)."""
    operations = np.array([CROP | attempt for attempt in tries], dtype=np.uint64)[:, None]
    area, ratio, down, right = stream.words(operations, rows)
    height, width = _drawn_shape(crop, uniform(area), uniform(ratio), heights * widths)
    fits = (width > 0) & (width <= widths) & (height > 0) & (height <= heights)
    top = _below(down, np.where(fits, heights - height + 1, 1))
    left = _below(right, np.where(fits, widths - width + 1, 1))
    return fits, np.stack([top, left, height, width], axis=-1)


def _drawn_shape(
    crop: RandomResizedCrop, area: NDArray[np.float64], ratio: NDArray[np.float64], total: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Heights and widths of the boxes that two uniform numbers give."""
    target = total * (crop.scale[0] + area * (crop.scale[1] - crop.scale[0]))
    low, high = (_coarse(math.log(bound)) for bound in crop.ratio)
    aspect = _exp(low + ratio * (high - low))
    return np.rint(np.sqrt(target / aspect)).astype(np.int64), np.rint(np.sqrt(target * aspect)).astype(np.int64)


def _coarse(value: float) -> float:
    """`value` to 40 binary places: the logarithms of two mathematical libraries may differ in the last ones."""
    return round(value * 2**40) / 2**40


def _exp(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """e**x for |x| up to about 4, from additions and multiplications alone.

    Those are the same to the bit on every processor; NumPy's `exp` is not, and a box must never depend on it. Taylor
    series of e**(x/8), squared three times: relative error below 1e-14.
    """
    x = x / 8
    total = np.ones_like(x)
    for n in range(16, 0, -1):
        total = total * x / n + 1
    for _ in range(3):
        total = total * total
    return total


def _below(word: NDArray[np.uint64], bound: NDArray[np.int64]) -> NDArray[np.int64]:
    """An integer in [0, bound), by multiply and shift; bound is at most 2**31."""
    index: NDArray[np.int64] = ((word * bound.astype(np.uint64)) >> np.uint64(32)).astype(np.int64)
    return index


def _central_boxes(crop: RandomResizedCrop, heights: NDArray[np.int64], widths: NDArray[np.int64]) -> NDArray[np.int64]:
    """The fallback of torchvision's algorithm: the whole image, cut to the nearest allowed ratio, in the middle.

    At least one pixel remains, where torchvision's arithmetic leaves none of a tiny image (1 x 1, ratio up to 0.2).
    """
    ratio = widths / heights
    low, high = crop.ratio
    width = np.where(ratio > high, np.maximum(np.rint(heights * high), 1), widths).astype(np.int64)
    height = np.where(ratio < low, np.maximum(np.rint(widths / low), 1), heights).astype(np.int64)
    return np.stack([(heights - height) // 2, (widths - width) // 2, height, width], axis=1)
