"""Crops and flips: which pixels of the source image become which, in integers, so that no engine is left to round."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpupipe.kernels import Crops
from gpupipe.kernels.philox import uniform
from gpupipe.plan.boxes import drawn_sides, first_fits, placed
from gpupipe.plan.stream import CROP, FLIP, Stream
from gpupipe.recipe import Crop, RandomHorizontalFlip, RandomResizedCrop, Recipe, ResizeCenterCrop

__all__ = ["cropping"]

Ints = NDArray[np.int32]


def cropping(
    recipe: Recipe,
    seed: int,
    epoch: int,
    positions: NDArray[np.int64],
    heights: Ints,
    widths: Ints,
    view: int = 0,
    field: int = 0,
) -> Crops:
    """The crops of the images at these positions of an epoch.

    positions: int64 (N,), global positions, 0 or more; heights, widths: int32 (N,), in pixels. view: which view of the
    samples, 0 to 255; each is drawn by itself. field: which of a sample's images, 0 to 255, the first one 0; each is
    drawn by itself, but what shares another's geometry takes that one's number.
    The same arguments give the same crops on every machine, in any batch, in any order. Images whose size is unknown
    (height or width 0) get those of a 1 x 1 image.
    """
    stream = Stream(seed, epoch, positions, view, field)
    tall, wide = np.maximum(heights, 1).astype(np.int64), np.maximum(widths, 1).astype(np.int64)
    windows, resized, anchors = _geometry(recipe.crop, stream, tall, wide)
    return Crops(
        windows.astype(np.int32),
        resized.astype(np.int32),
        anchors.astype(np.int32),
        _flips(recipe.flip, stream, len(positions)),
        recipe.crop.output_size,
        recipe.crop.interpolation,
    )


def _flips(flip: RandomHorizontalFlip | None, stream: Stream, count: int) -> NDArray[np.bool_]:
    if flip is None:
        return np.zeros(count, dtype=np.bool_)
    return uniform(stream.words(FLIP)[0]) < flip.p


Geometry = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]


def _geometry(crop: Crop, stream: Stream, heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Geometry:
    """Windows, resized sizes and anchors of a crop, int64."""
    if isinstance(crop, ResizeCenterCrop):
        return _resize_center_crop(crop, heights, widths)
    assert isinstance(crop, RandomResizedCrop)
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
    crop: RandomResizedCrop, stream: Stream, heights: NDArray[np.int64], widths: NDArray[np.int64]
) -> NDArray[np.int64]:
    """(N, 4) boxes by torchvision's algorithm: ten tries, then the central box of the nearest allowed ratio."""

    def attempt(tries: range, rows: NDArray[np.int64]) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        area, ratio, down, right = stream.words(np.array([CROP | number for number in tries], np.uint64)[:, None], rows)
        tall, wide = heights[rows], widths[rows]
        height, width = drawn_sides(crop.scale, crop.ratio, tall * wide, uniform(area), uniform(ratio))
        fits = (width > 0) & (width <= wide) & (height > 0) & (height <= tall)
        return fits, placed(fits, (height, width), (tall, wide), (down, right))

    boxes = _central_boxes(crop, heights, widths)
    first_fits(boxes, np.arange(len(heights)), attempt)
    return boxes


def _central_boxes(crop: RandomResizedCrop, heights: NDArray[np.int64], widths: NDArray[np.int64]) -> NDArray[np.int64]:
    """The fallback of torchvision's algorithm: the whole image, cut to the nearest allowed ratio, in the middle.

    At least one pixel remains, where torchvision's arithmetic leaves none of a tiny image (1 x 1, ratio up to 0.2).
    """
    ratio = widths / heights
    low, high = crop.ratio
    width = np.where(ratio > high, np.maximum(np.rint(heights * high), 1), widths).astype(np.int64)
    height = np.where(ratio < low, np.maximum(np.rint(widths / low), 1), heights).astype(np.int64)
    return np.stack([(heights - height) // 2, (widths - width) // 2, height, width], axis=1)
