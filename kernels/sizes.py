"""Which size an image becomes by its own one: one arithmetic for crops, and for orders that put like sizes together.

Of divisions, products and roundings of float64 alone, which are the same on every machine.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Longs", "nearest_bucket", "sequence_sizes"]

Longs: TypeAlias = NDArray[np.int64]


def nearest_bucket(sizes: NDArray[np.integer], buckets: Longs) -> Longs:
    """The bucket of each image, (N,): that of which the aspect ratio differs by the smallest factor, so that a crop
    that covers it cuts off the smallest part; of two the wider one.

    sizes: (N, 2) heights and widths; unknown ones, 0, are taken for 1. buckets: (K, 2) likewise, of K aspect ratios.
    """
    ratios = buckets[:, 0] / buckets[:, 1]
    order = np.argsort(ratios, kind="stable")
    height, width = np.maximum(sizes, 1).T
    ratio = height / width
    found: Longs = order[np.searchsorted(ratios[order][1:] * ratios[order][:-1], ratio * ratio, side="left")]
    return found


def sequence_sizes(sizes: ArrayLike, patch: int, length: int, max_ratio: float | None = None) -> Longs:
    """Heights and widths (N, 2) to which images are resized, so that they have `length` patches of `patch` pixels at
    most and as many as can be: timm's `get_image_size_for_seq`, to the last bit, but that no image is too small for it.

    sizes: (N, 2); unknown ones, 0, are taken for 1. max_ratio: by which images are enlarged at most.
    """
    images = np.maximum(np.asarray(sizes), 1).astype(np.float64)
    low, high = np.full(len(images), EPS / 10), np.full(len(images), 100.0)
    while (open_ := high - low >= EPS).any():
        middle = (low + high) / 2
        fits = (_patches(images, middle, patch).prod(axis=1) <= length) & open_
        low, high = np.where(fits, middle, low), np.where(open_ & ~fits, middle, high)
    ratio = low if max_ratio is None else np.minimum(low, max_ratio)
    found: Longs = patch * _patches(images, ratio, patch)
    return found


EPS = 1e-5


def _patches(images: NDArray[np.float64], ratio: NDArray[np.float64], patch: int) -> Longs:
    """Of each image along both sides."""
    found: Longs = np.maximum(np.ceil(images * ratio[:, None] / patch), 1).astype(np.int64)
    return found
