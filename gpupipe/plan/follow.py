"""How masks, boxes and points follow their image's crop, as torchvision v2's functions on tv_tensors do.

All are of the whole image, upright, and come out as the part of it that the crop shows; boxes and points after that as
`Moves.of` moves it. What a sample holds is checked here: ValueError says what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from gpupipe.kernels import Crops
from gpupipe.kernels.augment_reference import displacement
from gpupipe.kernels.crops import folded

__all__ = ["box_corners", "boxes_of", "follow_boxes", "follow_mask", "follow_points"]

Floats = NDArray[np.float64]
Kept = NDArray[np.bool_]


def follow_mask(mask: NDArray[Any], crops: Crops, row: int, out: NDArray[Any], ignore: int = 0) -> None:
    """The mask of one image, (height, width), by nearest neighbour into `out`, (out_height, out_width) of its dtype.

    ignore: what pixels become that lie outside the mask. Values are kept as they are, also those above 2**24, which
    torchvision rounds to float32.
    """
    if mask.ndim != 2 or mask.dtype != out.dtype:
        raise ValueError(f"the mask is {mask.dtype} {mask.shape}, but {out.dtype} (height, width) is needed")
    rows, columns = (_nearest(crops, row, axis) for axis in (0, 1))
    if crops.flips[row]:
        columns = columns[::-1]
    if crops.padding == "constant" and _within(rows, mask.shape[0]) and _within(columns, mask.shape[1]):
        # Whole rows, then columns: 35 us for 224 x 224 of 375 x 500 uint8, where one index for both takes 127. All
        # indices are valid; "clip" spares a copy of the output.
        left, right = sorted((int(columns[0]), int(columns[-1])))
        np.take(mask[rows, left : right + 1], columns - left, axis=1, out=out, mode="clip")
        return
    down = (rows >= 0) & (rows < mask.shape[0])
    across = (columns >= 0) & (columns < mask.shape[1])
    out.fill(ignore)
    out[np.ix_(down, across)] = mask[np.ix_(rows[down], columns[across])]


def box_corners(boxes: ArrayLike, format: Literal["xyxy", "xywh", "cxcywh"]) -> Floats:
    """Left top and right bottom of each of the boxes (M, 4), float64 (M, 2, 2)."""
    given = _rows(boxes, 4, "boxes")
    first, last = given[:, :2], given[:, 2:]
    if format == "xywh":
        last = first + last
    elif format == "cxcywh":
        first, last = first - last / 2, first + last / 2
    corners = np.stack([first, last], axis=1)
    _check_boxes(given, corners, format)
    return corners


def boxes_of(corners: Floats, format: Literal["xyxy", "xywh", "cxcywh"]) -> Floats:
    """The boxes (M, 4) of their corners, as `box_corners` gives these."""
    first, sides = corners[:, 0], corners[:, 1] - corners[:, 0]
    parts = {"xyxy": (first, corners[:, 1]), "xywh": (first, sides), "cxcywh": (first + sides / 2, sides)}[format]
    return np.concatenate(parts, axis=1)


def follow_boxes(
    boxes: ArrayLike,
    format: Literal["xyxy", "xywh", "cxcywh"],
    crops: Crops,
    row: int,
    min_area: float,
    moves: Iterable[NDArray[np.floating]] = (),
) -> tuple[NDArray[np.float32], Kept]:
    """The boxes (M, 4) of one image, clipped to what the crop and each of `Moves.of` show, float32 (K, 4) in the same
    format; and which of them were kept, bool (M,): those with `min_area` square pixels of the output or more left after
    each, since what was cut off must not come back when it is turned."""
    corners = box_corners(boxes, format)
    height, width = crops.size_of(row)
    moved = _moved(corners, crops, row)
    if crops.fill is not None:  # what lies beside the window has no place there
        anchor = crops.anchors[row, ::-1]
        moved = np.clip(moved, -anchor, crops.resized[row, ::-1] - anchor)
    moved = np.clip(moved, 0, (width, height))
    if crops.flips[row]:
        moved[:, :, 0] = width - moved[:, ::-1, 0]
    if crops.shown is not None:
        moved = np.clip(moved, crops.shown[row, 1::-1], crops.shown[row, :1:-1])
    kept: Kept = _area(moved) >= min_area
    if crops.centres:
        top, left, tall, wide = crops.windows[row].tolist()
        centres = corners.mean(axis=1)
        kept &= ((centres > (left, top)) & (centres < (left + wide, top + tall))).all(axis=1)
    for move in moves:
        edges = np.stack([moved[:, [0, 1, 1, 0], 0], moved[:, [0, 0, 1, 1], 1]], axis=-1)
        carried = _carried(edges, move) if move.ndim == 2 else _bent(np.ceil(edges), move, (height, width))
        moved = np.clip(np.stack([carried.min(axis=1), carried.max(axis=1)], axis=1), 0, (width, height))
        kept &= _area(moved) >= min_area
    return boxes_of(moved[kept], format).astype(np.float32), kept


def follow_points(
    points: ArrayLike,
    outside: Literal["drop", "clip", "keep"],
    crops: Crops,
    row: int,
    moves: Iterable[NDArray[np.floating]] = (),
) -> tuple[NDArray[np.float32], Kept]:
    """The points (M, 2), x and y, of one image, float32 (K, 2), and which of them were kept, bool (M,): all, unless
    `outside` is "drop". As torchvision's, a point mirrors at the middle of the pixels 0 and width - 1, but turns about
    the corner between pixels; and in the image are those from 0 to below the height and width."""
    height, width = crops.size_of(row)
    moved = _moved(_rows(points, 2, "points"), crops, row)
    if crops.flips[row]:
        moved[:, 0] = width - 1 - moved[:, 0]
    for move in moves:
        if move.ndim == 1:
            moved = _bent(np.trunc(moved), move, (height, width))
            continue
        shift = 0.5 if np.linalg.det(move) < 0 else 0.0  # nothing but flips mirrors
        moved = _carried(moved + shift, move) - shift
    low, high = np.array([(0, 0), (width, height)] if crops.shown is None else crops.shown[row].reshape(2, 2)[:, ::-1])
    if outside == "clip":
        moved = np.clip(moved, low, high - 1)
    kept = np.ones(len(moved), np.bool_)
    if outside == "drop":
        np.all((moved >= low) & (moved < high), axis=1, out=kept)
    return moved[kept].astype(np.float32), kept


def _nearest(crops: Crops, row: int, axis: int) -> NDArray[np.int64]:
    """Which row (axis 0) or column (axis 1) of the image each of the output has: torch's floor(i * scale) in float32
    (aten/src/ATen/native/UpSample.h); none, -1, where it lies outside of what was resized."""
    start, source = (int(crops.windows[row, side + axis]) for side in (0, 2))
    resized, anchor, side = int(crops.resized[row, axis]), int(crops.anchors[row, axis]), crops.size_of(row)[axis]
    scale = np.float32(source) / np.float32(resized)
    shown = folded(np.arange(anchor, anchor + side), resized, crops.padding)
    places = shown.astype(np.float32)
    nearest: NDArray[np.int64] = np.minimum((places * scale).astype(np.int64), source - 1) + start
    if crops.padding == "constant" and (anchor < 0 or anchor + side > resized):
        nearest[(places < 0) | (places >= resized)] = -1
    return nearest


def _within(places: NDArray[np.int64], side: int) -> bool:
    """Whether all lie in it, for places that only grow or only fall."""
    return bool(min(places[0], places[-1]) >= 0 and max(places[0], places[-1]) < side)


def _moved(points: Floats, crops: Crops, row: int) -> Floats:
    """Points (..., 2), x and y of the image, as those of the output before it is mirrored."""
    top, left, height, width = crops.windows[row].tolist()
    resized, anchors = crops.resized[row].tolist(), crops.anchors[row].tolist()
    moved: Floats = (points - (left, top)) * (resized[1] / width, resized[0] / height) - (anchors[1], anchors[0])
    return moved


def _bent(points: Floats, values: NDArray[np.floating], size: tuple[int, int]) -> Floats:
    """Points (..., 2), whole numbers, by an elastic operation: as far back as their pixels are displaced, which is not
    its inverse, but torchvision's way."""
    x, y = np.moveaxis(np.clip(points, 0, (size[1] - 1, size[0] - 1)).astype(np.int64), -1, 0)
    right, down = displacement(torch.from_numpy(values), *size).numpy()
    return np.stack([x - right[y, x], y - down[y, x]], axis=-1).astype(np.float64)


def _carried(points: Floats, matrix: NDArray[np.floating]) -> Floats:
    """Points (..., 2) by a matrix of `Moves.of`."""
    x, y, part = np.moveaxis(points @ matrix[:, :2].T + matrix[:, 2], -1, 0)
    return np.stack([x / part, y / part], axis=-1)


def _area(corners: Floats) -> Floats:
    area: Floats = (corners[:, 1] - corners[:, 0]).prod(axis=1)
    return area


def _rows(given: ArrayLike, numbers: int, what: str) -> Floats:
    """As float64 (M, numbers)."""
    array = np.asarray(given)
    if len(array.shape) and not len(array):
        return np.zeros((0, numbers))
    if array.ndim != 2 or array.shape[1] != numbers or array.dtype.kind not in "iuf":
        raise ValueError(
            f"{what} are {array.dtype} {array.shape}, but (M, {numbers}) is needed: {numbers} numbers for each"
        )
    return array.astype(np.float64)


def _check_boxes(given: Floats, corners: Floats, format: str) -> None:
    wrong = ~(corners[:, 0] <= corners[:, 1]).all(axis=1) | ~np.isfinite(given).all(axis=1)
    if wrong.any():
        row = int(wrong.argmax())
        raise ValueError(
            f"box {row} of {len(given)} is {given[row].tolist()}, which has no width and height of 0 or more as "
            f"{format!r}; mend it, or name the format that the boxes have (Boxes(format=...))"
        )
