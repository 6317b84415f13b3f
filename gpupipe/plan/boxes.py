"""Random boxes by the algorithm that torchvision's RandomResizedCrop and RandomErasing share: some tries, the first
box that fits."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gpupipe.plan.elementary import coarse, exp
from gpupipe.plan.stream import below

__all__ = ["drawn_sides", "first_fits", "placed"]

Longs = NDArray[np.int64]
Attempt = Callable[[range, Longs], tuple[NDArray[np.bool_], Longs]]
TRIES = 10  # as torchvision's get_params


def first_fits(boxes: Longs, rows: Longs, attempt: Attempt) -> None:
    """Sets boxes[rows] (N, 4) to the first of ten tries that fits, where one does.

    attempt(tries, rows) says whether each try's box fits, (tries, rows), and gives the boxes, (tries, rows, 4). Later
    tries are drawn only for the images that need them; each try has its own counter, so that changes nothing.
    """
    for tries in (range(1), range(1, TRIES)):
        fits, drawn = attempt(tries, rows)
        first, found = fits.argmax(axis=0), fits.any(axis=0)
        boxes[rows[found]] = drawn[first[found], found.nonzero()[0]]
        rows = rows[~found]


def drawn_sides(
    scale: tuple[float, float],
    ratio: tuple[float, float],
    total: Longs | int,
    first: NDArray[np.float64],
    second: NDArray[np.float64],
) -> tuple[Longs, Longs]:
    """sqrt(area / ratio) and sqrt(area * ratio), rounded, for an area that is a uniform share of `total` and a
    log-uniform ratio; `first` and `second` are uniform numbers."""
    area = total * (scale[0] + first * (scale[1] - scale[0]))
    low, high = (coarse(math.log(bound)) for bound in ratio)
    aspect = exp(low + second * (high - low))
    return np.rint(np.sqrt(area / aspect)).astype(np.int64), np.rint(np.sqrt(area * aspect)).astype(np.int64)


def placed(
    fits: NDArray[np.bool_],
    sides: tuple[Longs, Longs],
    image: tuple[Longs | int, Longs | int],
    words: tuple[NDArray[np.uint64], NDArray[np.uint64]],
) -> Longs:
    """Boxes (..., 4) of these heights and widths at random places of the image, where they fit."""
    (height, width), (tall, wide), (down, right) = sides, image, words
    top = below(down, np.where(fits, tall - height + 1, 1))
    left = below(right, np.where(fits, wide - width + 1, 1))
    return np.stack([top, left, height, width], axis=-1)
