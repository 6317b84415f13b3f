"""SSD's crops, which the boxes of a sample choose: torchvision's RandomZoomOut and RandomIoUCrop."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpupipe.kernels.philox import uniform
from gpupipe.plan.stream import IOU, ZOOM, Stream, below
from gpupipe.recipe import RandomIoUCrop

__all__ = ["iou_windows"]

Floats = NDArray[np.float64]
Longs = NDArray[np.int64]
ROUNDS = 50  # of one more than `trials` blocks, each in a page of its own; by then 1 of 2,000 has no option of 1


def iou_windows(crop: RandomIoUCrop, stream: Stream, sizes: Longs, boxes: Sequence[Floats]) -> Longs:
    """Windows (N, 4) of images of these sizes (N, 2), out of which they may reach.

    boxes: of each (M, 4), left, top, right, bottom. All trials' numbers are drawn by position, whatever the boxes are.
    """
    windows = _canvases(crop, stream, sizes)
    open_rows = np.arange(len(sizes))
    trials = np.arange(1 + crop.trials, dtype=np.uint64)[:, None]
    for page in range(ROUNDS):
        words = stream.words(np.uint64(page << 24 | IOU) | trials, open_rows)
        options = np.array(crop.sampler_options)[below(words[0, 0], len(crop.sampler_options))]
        parts, fits = _parts(crop, windows[open_rows], uniform(words[:, 1:]))
        done = options >= 1
        for place in np.flatnonzero(~done & fits.any(axis=0)):
            row = open_rows[place]
            fitting = parts[fits[:, place], place]
            shown = np.flatnonzero(_overlaps(fitting, boxes[row], options[place]))
            if len(shown):
                windows[row], done[place] = fitting[shown[0]], True
        open_rows = open_rows[~done]
        if not len(open_rows):
            break
    return windows


def _canvases(crop: RandomIoUCrop, stream: Stream, sizes: Longs) -> Longs:
    """(N, 4) the images, or larger windows around them."""
    windows = np.concatenate([np.zeros_like(sizes), sizes], axis=1)
    if crop.zoom_out is None:
        return windows
    applied, factor, left, top = uniform(stream.words(ZOOM))
    low, high = crop.zoom_out
    canvases = (sizes * (low + factor * (high - low))[:, None]).astype(np.int64)
    places = ((canvases - sizes) * np.stack([top, left], axis=1)).astype(np.int64)
    zoomed = np.concatenate([-places, canvases], axis=1)
    return np.where((applied < crop.p)[:, None], zoomed, windows)


def _parts(crop: RandomIoUCrop, canvases: Longs, drawn: Floats) -> tuple[Longs, NDArray[np.bool_]]:
    """Of each trial's numbers (4, trials, N) the part (trials, N, 4), and whether it has the wanted shape."""
    sides = canvases[:, 2:].T[:, None]
    shares = crop.min_scale + (crop.max_scale - crop.min_scale) * drawn[1::-1]  # torchvision draws the width first
    parts = (sides * shares).astype(np.int64)
    places = ((sides - parts) * drawn[3:1:-1]).astype(np.int64)
    height, width = parts
    fits = (height > 0) & (width > 0)
    ratio = width / np.maximum(height, 1)
    fits &= (ratio >= crop.min_aspect_ratio) & (ratio <= crop.max_aspect_ratio)
    return np.stack([*(places + canvases[:, :2].T[:, None]), *parts], axis=-1), fits


def _overlaps(parts: Longs, boxes: Floats, least: float) -> NDArray[np.bool_]:
    """Whether each part (T, 4) has that IoU or more with a box (M, 4) whose centre lies in it."""
    first, last = parts[:, None, 1::-1], (parts[:, :2] + parts[:, 2:])[:, None, ::-1]
    corners = boxes.reshape(-1, 2, 2)
    centres = corners.mean(axis=1)
    inside = ((first < centres) & (centres < last)).all(axis=-1)
    shared = (np.minimum(last, corners[:, 1]) - np.maximum(first, corners[:, 0])).clip(0).prod(axis=-1)
    areas = parts[:, 2:].prod(axis=1)[:, None] + (corners[:, 1] - corners[:, 0]).prod(axis=1)
    enough: NDArray[np.bool_] = (inside & (shared >= least * (areas - shared))).any(axis=1)
    return enough
