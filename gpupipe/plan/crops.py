"""Crops, flips and boxes to erase: which pixels become which, in integers, so that no engine is left to round."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpupipe.errors import ConfigError
from gpupipe.kernels import Crops, Erase
from gpupipe.kernels.philox import uniform
from gpupipe.kernels.sizes import nearest_bucket, sequence_sizes
from gpupipe.plan.elementary import coarse, exp
from gpupipe.plan.iou_crops import iou_windows
from gpupipe.plan.stream import CROP, ERASE, FLIP, Stream, below
from gpupipe.recipe import (
    BucketCrop,
    Crop,
    LetterBox,
    MultiScaleCrop,
    RandomCrop,
    RandomErasing,
    RandomIoUCrop,
    RandomResizedCrop,
    Recipe,
    Resize,
    ResizeCenterCrop,
    ResizeCornerCrop,
    ResizeToSequence,
    ScaleJitter,
)
from gpupipe.recipe.several import PASTED

__all__ = ["cropping", "erasing", "output_sizes"]

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Flags = NDArray[np.bool_]
Attempt = Callable[[range, Longs], tuple[NDArray[np.bool_], Longs]]
QUARTERS = np.array(
    [*((0, 0), (0, 4), (4, 0), (4, 4), (2, 2)), *((2, 0), (2, 4), (4, 2), (0, 2), (1, 1), (1, 3), (3, 1), (3, 3))]
)
"""How many quarters of the way down and right the boxes of `MultiScaleCrop` lie."""
TRIES = 10  # as torchvision's get_params
BICUBIC = {"bilinear": 0.0, "random": 0.5, "bicubic": 1.0}  # such a share of the images


def cropping(
    recipe: Recipe,
    seed: int,
    epoch: int,
    positions: Longs,
    heights: Ints,
    widths: Ints,
    view: int | Longs = 0,
    field: int = 0,
    boxes: Sequence[NDArray[np.float64]] = (),
) -> Crops:
    """The crops of the images at these positions of an epoch.

    positions: int64 (N,), global positions, 0 or more; heights, widths: int32 (N,), in pixels. view: which view of the
    samples, 0 to 255; each is drawn by itself; of parts of samples the number of each, (N,). field: which of a sample's
    images, 0 to 255, the first one 0; each is drawn by itself, but what shares another's geometry takes that one's
    number. boxes: of each image (M, 4), left, top, right, bottom; `RandomIoUCrop` alone reads them.
    The same arguments give the same crops on every machine, in any batch, in any order. Images whose size is unknown
    (height or width 0) get those of a 1 x 1 image.
    """
    stream = Stream(seed, epoch, positions, view, field)
    tall, wide = np.maximum(heights, 1).astype(np.int64), np.maximum(widths, 1).astype(np.int64)
    crop = recipe.crop
    shares = recipe.flip.p if recipe.flip else 0.0, BICUBIC[crop.interpolation]
    flips, bicubic = uniform(stream.words(FLIP)[:2]) < np.array(shares)[:, None]
    if not isinstance(view, int):  # parts that are put together before the flip are mirrored as one
        flips = uniform(Stream(seed, epoch, positions, view & PASTED, field).words(FLIP)[0]) < shares[0]
    if isinstance(crop, RandomResizedCrop | RandomIoUCrop | MultiScaleCrop):
        if isinstance(crop, RandomIoUCrop):
            windows = iou_windows(crop, stream, np.stack([tall, wide], axis=1), boxes)
        elif isinstance(crop, MultiScaleCrop):
            windows = _multi_scale_boxes(crop, stream, tall, wide)
        else:
            windows = _random_boxes(crop, stream, tall, wide)
        resized = np.full((len(tall), 2), crop.output_size, np.int64)
        anchors, outputs = np.zeros((len(tall), 2), np.int64), None
    else:
        corner = np.zeros_like(tall)
        windows = np.stack([corner, corner, tall, wide], axis=1)
        resized, anchors, outputs = WHOLE[type(crop)](crop, stream, windows[:, 2:], flips)
    return Crops(
        windows.astype(np.int32),
        resized.astype(np.int32),
        anchors.astype(np.int32),
        flips,
        bicubic,
        crop.output_size,
        crop.color,
        centres=isinstance(crop, RandomIoUCrop),
        padding=crop.padding_mode,
        outputs=None if outputs is None else outputs.astype(np.int32),
    )


def output_sizes(crop: Crop, sizes: ArrayLike) -> Longs:
    """Height and width (N, 2) of what a crop makes of images of these sizes, for an order such as `Buckets.by_size`.

    sizes: (N, 2): `source.image_sizes()`, with the recipe's `exif_orientation`. Raises ConfigError for a crop that
    draws them.
    """
    images = np.maximum(np.asarray(sizes, np.int64), 1)
    if isinstance(crop, Resize) and isinstance(crop.shorter, tuple) and len(crop.shorter) > 1:
        raise ConfigError(f"output_sizes: {crop!r} draws the size of each image; group by the images' own sizes")
    if not crop.varies:
        return np.full((len(images), 2), crop.output_size, np.int64)
    zeros = np.zeros(len(images), np.int64)
    outputs = WHOLE[type(crop)](crop, Stream(0, 0, zeros), images, zeros > 0).outputs
    assert outputs is not None
    return outputs


# Crops that resize the whole image, of sizes (N, 2).


class Placed(NamedTuple):
    """What comes of each image, (N, 2) each: `resized`, `anchors` and `outputs` of `Crops`."""

    resized: Longs
    anchors: Longs
    outputs: Longs | None = None


def _resize_center_crop(crop: ResizeCenterCrop, stream: Stream, sizes: Longs, flips: Flags) -> Placed:
    """By torchvision's arithmetic: the longer side is truncated; the crop's corner is rounded half to even, that of
    padding down."""
    resized = _resized(sizes, crop.resize, crop.max_size)
    room = resized - np.array(crop.output_size, np.int64)
    return Placed(resized, np.where(room < 0, -(-room // 2), np.rint(room / 2)).astype(np.int64))


def _resize_corner_crop(crop: ResizeCornerCrop, stream: Stream, sizes: Longs, flips: Flags) -> Placed:
    """The crop's place in the image that is mirrored first, where it is."""
    resized, centers, _ = _resize_center_crop(crop, stream, sizes, flips)
    room = resized - np.array(crop.output_size, np.int64)
    corner = crop.place.startswith("bottom"), crop.place.endswith("right")
    anchors: Longs = centers if crop.place == "center" else room * np.array(corner)
    anchors[:, 1] = np.where(flips, room[:, 1] - anchors[:, 1], anchors[:, 1])
    return Placed(resized, anchors)


def _letter_box(crop: LetterBox, stream: Stream, sizes: Longs, flips: Flags) -> Placed:
    """By Ultralytics' arithmetic."""
    resized = np.maximum(np.rint(sizes * _fitting(crop, sizes)), 1).astype(np.int64)
    return Placed(resized, -np.rint((np.array(crop.output_size) - resized) / 2 - 0.1).astype(np.int64))


def _random_crop(crop: RandomCrop, stream: Stream, sizes: Longs, flips: Flags) -> Placed:
    """By torchvision's arithmetic."""
    which, *places = stream.words(CROP)[:3]
    if crop.resize is None:
        resized = sizes
    elif isinstance(crop.resize, int):
        resized = _resized(sizes, crop.resize)
    else:
        low, high = crop.resize
        resized = _resized(sizes, low + below(which, high - low))
    room = resized + 2 * crop.padding - np.array(crop.output_size)
    anchors = np.stack([below(word, abs(free) + 1) for word, free in zip(places, room.T, strict=True)], axis=1)
    anchors += np.minimum(room, 0)
    if crop.place == "top_left":
        anchors = np.where(room < 0, 0, anchors)
        anchors[:, 1] = np.where(flips, room[:, 1] - anchors[:, 1], anchors[:, 1])
    return Placed(resized, anchors - crop.padding)


def _scale_jitter(crop: ScaleJitter, stream: Stream, sizes: Longs, flips: Flags) -> Placed:
    """By torchvision's arithmetic, with one number for the place along both sides."""
    scale, place = uniform(stream.words(CROP)[:2])
    low, high = crop.scale
    drawn = (low + scale * (high - low))[:, None]
    resized = np.maximum(sizes * (_fitting(crop, sizes) * drawn), 1).astype(np.int64)
    room = np.maximum(resized - np.array(crop.output_size), 0)
    return Placed(resized, (room * place[:, None]).astype(np.int64))


def _resize(crop: Resize, stream: Stream, sizes: Longs, flips: Flags) -> Placed:
    """By torchvision's arithmetic, which of RandomShortestSize's is in floats."""
    if not isinstance(crop.shorter, tuple):
        resized = _resized(sizes, crop.shorter, crop.max_size)
    else:
        shorter = np.array(crop.shorter)[below(stream.words(CROP)[0], len(crop.shorter))]
        factors = np.minimum(shorter / sizes.min(axis=1), crop.max_size / sizes.max(axis=1))
        resized = np.maximum((sizes * factors[:, None]).astype(np.int64), 1)
    return Placed(resized, np.zeros_like(resized), resized)


def _bucket_crop(crop: BucketCrop, stream: Stream, sizes: Longs, flips: Flags) -> Placed:
    """By kohya's arithmetic."""
    buckets = np.array(crop.buckets, np.int64)
    outputs = buckets[nearest_bucket(sizes, buckets)]
    factors = (outputs / sizes).max(axis=1, keepdims=True)
    resized = np.maximum((sizes * factors + 0.5).astype(np.int64), outputs)
    room = resized - outputs
    if crop.place == "center":
        return Placed(resized, room // 2, outputs)
    words = stream.words(CROP)[:2]
    return Placed(
        resized, np.stack([below(word, free + 1) for word, free in zip(words, room.T, strict=True)], 1), outputs
    )


def _resize_to_sequence(crop: ResizeToSequence, stream: Stream, sizes: Longs, flips: Flags) -> Placed:
    """By timm's arithmetic."""
    resized = sequence_sizes(sizes, crop.patch_size, crop.max_seq_len, crop.max_ratio)
    return Placed(resized, np.zeros_like(resized), resized)


WHOLE: dict[type[Crop], Callable[[Any, Stream, Longs, Flags], Placed]] = {
    BucketCrop: _bucket_crop,
    ResizeToSequence: _resize_to_sequence,
    Resize: _resize,
    ResizeCenterCrop: _resize_center_crop,
    ResizeCornerCrop: _resize_corner_crop,
    LetterBox: _letter_box,
    RandomCrop: _random_crop,
    ScaleJitter: _scale_jitter,
}


def _resized(sizes: Longs, resize: Longs | int | tuple[int, int] | None, max_size: int | None = None) -> Longs:
    """torchvision's sizes: the shorter side becomes `resize`, an int for all or (N,), the longer one `max_size` where
    it would be longer or where `resize` is None; at least a pixel is left."""
    if isinstance(resize, tuple):
        return np.tile(np.array(resize, np.int64), (len(sizes), 1))
    shorter, longer = sizes.min(axis=1), sizes.max(axis=1)
    short, long = (shorter, longer) if resize is None else (resize + 0 * shorter, resize * longer // shorter)
    if max_size is not None:
        ends = (long > max_size) | (resize is None)
        short, long = np.where(ends, max_size * short // long, short), np.where(ends, max_size, long)
    resized: Longs = np.maximum(np.where(sizes == shorter[:, None], short[:, None], long[:, None]), 1)
    return resized


def _fitting(crop: Crop, sizes: Longs) -> NDArray[np.float64]:
    """(N, 1) the factor with which an image just fits into the crop."""
    factors: NDArray[np.float64] = (np.array(crop.output_size) / sizes).min(axis=1, keepdims=True)
    return factors


def _multi_scale_boxes(crop: MultiScaleCrop, stream: Stream, heights: Longs, widths: Longs) -> Longs:
    """(N, 4) boxes by mmaction2's arithmetic, of at least a pixel."""
    which, where = stream.words(CROP)[:2]
    steps = range(len(crop.scales))
    pairs = np.array([(tall, wide) for tall in steps for wide in steps if abs(tall - wide) <= 1])
    scales = np.array(crop.scales)[pairs[below(which, len(pairs))]]
    boxes = np.maximum(np.minimum(heights, widths)[:, None] * scales, 1).astype(np.int64)
    quarters = (np.stack([heights, widths], axis=1) - boxes) // 4
    return np.concatenate([QUARTERS[below(where, crop.places)] * quarters, boxes], axis=1)


def _random_boxes(crop: RandomResizedCrop, stream: Stream, heights: Longs, widths: Longs) -> Longs:
    """(N, 4) boxes by torchvision's algorithm: ten tries, then the central box of the nearest allowed ratio."""

    def attempt(tries: range, rows: Longs) -> tuple[NDArray[np.bool_], Longs]:
        area, ratio, down, right = stream.words(np.array([CROP | number for number in tries], np.uint64)[:, None], rows)
        tall, wide = heights[rows], widths[rows]
        height, width = _drawn_sides(crop.scale, crop.ratio, tall * wide, uniform(area), uniform(ratio))
        fits = (width > 0) & (width <= wide) & (height > 0) & (height <= tall)
        return fits, _placed(fits, (height, width), (tall, wide), (down, right))

    boxes = _central_boxes(crop, heights, widths)
    _first_fits(boxes, np.arange(len(heights)), attempt)
    return boxes


def _central_boxes(crop: RandomResizedCrop, heights: Longs, widths: Longs) -> Longs:
    """The fallback of torchvision's algorithm: the whole image, cut to the nearest allowed ratio, in the middle.

    At least one pixel remains, where torchvision's arithmetic leaves none of a tiny image (1 x 1, ratio up to 0.2).
    """
    ratio = widths / heights
    low, high = crop.ratio
    width = np.where(ratio > high, np.maximum(np.rint(heights * high), 1), widths).astype(np.int64)
    height = np.where(ratio < low, np.maximum(np.rint(widths / low), 1), heights).astype(np.int64)
    return np.stack([(heights - height) // 2, (widths - width) // 2, height, width], axis=1)


def erasing(
    recipe: Recipe,
    seed: int,
    epoch: int,
    positions: Longs,
    view: int = 0,
    field: int = 0,
    sizes: Ints | None = None,
) -> Erase | None:
    """What `kernels.finish` erases of the images at these positions of an epoch; None if the recipe erases nothing.

    positions: int64 (N,), global positions, 0 or more. view: which view of the samples, 0 to 255. field: which of their
    images, as for `cropping`. sizes: (N, 2), the height and width of each; None: all have the crop's.
    The same arguments give the same boxes on every machine, in any batch, in any order.
    """
    if recipe.erasing is None:
        return None
    stream = Stream(seed, epoch, positions, view, field)
    erased, _, *keys = stream.words(ERASE)
    boxes = np.zeros((len(positions), 4), np.int64)
    rows = np.flatnonzero(uniform(erased) < recipe.erasing.p)
    if len(rows):
        own = np.full((len(positions), 2), recipe.crop.output_size) if sizes is None else sizes
        _draw(boxes, rows, recipe.erasing, own.astype(np.int64), stream)
    constant = recipe.erasing.constant
    noise = np.stack(keys, axis=1).astype(np.uint32) if constant is None else None
    return Erase(boxes.astype(np.int32), constant, noise)


def _draw(boxes: Longs, rows: Longs, settings: RandomErasing, sizes: Longs, stream: Stream) -> None:
    """torchvision's RandomErasing: up to ten tries for a box smaller than the image, else none."""

    def attempt(tries: range, rows: Longs) -> tuple[NDArray[np.bool_], Longs]:
        tall, wide = sizes[rows].T
        blocks = np.array([ERASE | 1 + number for number in tries], np.uint64)[:, None]
        area, ratio, down, right = stream.words(blocks, rows)
        width, height = _drawn_sides(settings.scale, settings.ratio, tall * wide, uniform(area), uniform(ratio))
        fits = (height < tall) & (width < wide)
        return fits, _placed(fits, (height, width), (tall, wide), (down, right))

    _first_fits(boxes, rows, attempt)


# Random boxes by the algorithm that torchvision's RandomResizedCrop and RandomErasing share: some tries, the first box
# that fits.


def _first_fits(boxes: Longs, rows: Longs, attempt: Attempt) -> None:
    """Sets boxes[rows] (N, 4) to the first of ten tries that fits, where one does.

    attempt(tries, rows) says whether each try's box fits, (tries, rows), and gives the boxes, (tries, rows, 4). Later
    tries are drawn only for the images that need them; each try has its own counter, so that changes nothing.
    """
    for tries in (range(1), range(1, TRIES)):
        fits, drawn = attempt(tries, rows)
        first, found = fits.argmax(axis=0), fits.any(axis=0)
        boxes[rows[found]] = drawn[first[found], found.nonzero()[0]]
        rows = rows[~found]


def _drawn_sides(
    scale: tuple[float, float],
    ratio: tuple[float, float],
    total: Longs,
    first: NDArray[np.float64],
    second: NDArray[np.float64],
) -> tuple[Longs, Longs]:
    """sqrt(area / ratio) and sqrt(area * ratio), rounded, for an area that is a uniform share of `total` and a
    log-uniform ratio; `first` and `second` are uniform numbers."""
    area = total * (scale[0] + first * (scale[1] - scale[0]))
    low, high = (coarse(math.log(bound)) for bound in ratio)
    aspect = exp(low + second * (high - low))
    return np.rint(np.sqrt(area / aspect)).astype(np.int64), np.rint(np.sqrt(area * aspect)).astype(np.int64)


def _placed(
    fits: NDArray[np.bool_],
    sides: tuple[Longs, Longs],
    image: tuple[Longs, Longs],
    words: tuple[NDArray[np.uint64], NDArray[np.uint64]],
) -> Longs:
    """Boxes (..., 4) of these heights and widths at random places of the image, where they fit."""
    (height, width), (tall, wide), (down, right) = sides, image, words
    top = below(down, np.where(fits, tall - height + 1, 1))
    left = below(right, np.where(fits, wide - width + 1, 1))
    return np.stack([top, left, height, width], axis=-1)
