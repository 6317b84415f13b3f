"""The distribution of ImageNet's training JPEGs, as a short table: sizes, chroma subsampling, quality, bytes per pixel.

Measured on 500 training images: mean 110 kB and 467 x 397 pixels; 76% are 4:4:4, 21% 4:2:0, 1% 4:2:2, 2% gray; seven
in ten have a longer side of 500 pixels. Draws are stratified, so that a few hundred images already have these means.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

__all__ = ["ImageSpec", "JpegKind", "SizeTable", "imagenet_like_specs", "table_parameters"]

Quantiles = tuple[float, ...]  # values at evenly spaced ranks from 0 to 1


@dataclass(frozen=True)
class ImageSpec:
    """What one made JPEG shall be: pixels, Pillow's `subsampling` (None for gray) and `quality`, size in bytes."""

    width: int
    height: int
    subsampling: int | None
    quality: int
    target_bytes: int


@dataclass(frozen=True)
class JpegKind:
    """A share of all images that have the same chroma subsampling (0: 4:4:4, 1: 4:2:2, 2: 4:2:0, None: gray)."""

    share: float
    subsampling: int | None
    bytes_per_pixel: Quantiles
    quality: Quantiles


@dataclass(frozen=True)
class SizeTable:
    """Sides of the images: those whose longer side is 500 pixels, and all others by longer side and aspect."""

    share_500: float = 0.70
    share_landscape: float = 0.754
    short_of_500: Quantiles = (238, 333, 333, 334, 353, 375, 375, 375, 375, 390, 500)
    long_side: Quantiles = (110, 223, 285, 347, 400, 420, 484, 600, 640, 800, 1250)
    aspect: Quantiles = (0.35, 0.66, 0.68, 0.72, 0.75, 0.75, 0.75, 0.78, 0.85, 0.99, 1.0)


# Quality follows bytes per pixel in rank only loosely: the measured correlation of their logarithms is 0.6.
KINDS = (
    JpegKind(
        share=0.765,
        subsampling=0,
        bytes_per_pixel=(0.126, 0.347, 0.469, 0.537, 0.606, 0.672, 0.75, 0.82, 0.898, 1.007, 1.25),
        quality=(80, 93, 95, 96, 96, 96, 96, 96, 96, 96, 98),
    ),
    JpegKind(
        share=0.205,
        subsampling=2,
        bytes_per_pixel=(0.087, 0.127, 0.146, 0.169, 0.187, 0.223, 0.267, 0.283, 0.321, 0.438, 0.7),
        quality=(60, 69, 73, 75, 77, 80, 82, 84, 87, 92, 98),
    ),
    JpegKind(share=0.01, subsampling=1, bytes_per_pixel=(0.15, 0.27, 0.5), quality=(80, 85, 93)),
    JpegKind(share=0.02, subsampling=None, bytes_per_pixel=(0.15, 0.34, 0.7), quality=(84, 95, 96)),
)
RANK_NOISE = 0.35  # of the range of ranks: how loosely quality follows bytes per pixel


def imagenet_like_specs(count: int, seed: int) -> list[ImageSpec]:
    """`count` specifications in shuffled order; the same for the same `count` and `seed`."""
    rng = np.random.default_rng(seed)
    sides = draw_sides(rng, SizeTable(), count)
    rng.shuffle(sides)
    specs: list[ImageSpec] = []
    rest = [round(kind.share * count) for kind in KINDS[1:]]
    for kind, share in zip(KINDS, [count - sum(rest), *rest], strict=True):  # the first takes what rounding leaves
        start = len(specs)
        specs += kind_specs(rng, kind, sides[start : start + share])
    return [specs[i] for i in rng.permutation(count)]


def table_parameters() -> dict[str, Any]:
    """Everything that decides the distribution, for the version of a sample set."""
    return {"sizes": asdict(SizeTable()), "kinds": [asdict(kind) for kind in KINDS], "rank_noise": RANK_NOISE}


def draw_sides(rng: np.random.Generator, table: SizeTable, count: int) -> np.ndarray:
    """(count, 2) widths and heights."""
    of_500 = round(table.share_500 * count)
    short = stratified(rng, table.short_of_500, of_500)
    long = stratified(rng, table.long_side, count - of_500)
    other_short = long * stratified(rng, table.aspect, count - of_500)
    pairs = np.stack([np.r_[np.full(of_500, 500.0), long], np.r_[short, other_short]], axis=1)
    portrait = stratified(rng, (0.0, 1.0), count) >= table.share_landscape
    pairs[portrait] = pairs[portrait, ::-1]
    sides: np.ndarray = np.maximum(pairs.round(), 16).astype(np.int64)
    return sides


def kind_specs(rng: np.random.Generator, kind: JpegKind, sides: np.ndarray) -> list[ImageSpec]:
    """Specifications of one kind, one for each row of `sides`."""
    count = len(sides)
    density = stratified(rng, kind.bytes_per_pixel, count)
    noisy_rank = density.argsort().argsort() + rng.normal(0, RANK_NOISE * max(count, 1), count)
    quality = np.sort(stratified(rng, kind.quality, count))[noisy_rank.argsort().argsort()]
    return [
        ImageSpec(int(w), int(h), kind.subsampling, round(q), round(d * w * h))
        for (w, h), q, d in zip(sides, quality, density, strict=True)
    ]


def stratified(rng: np.random.Generator, quantiles: Quantiles, count: int) -> np.ndarray:
    """`count` values of the distribution with these quantiles: one from each equal slice of it, in random order."""
    ranks = (rng.permutation(count) + 0.5) / max(count, 1)
    return np.interp(ranks, np.linspace(0, 1, len(quantiles)), quantiles)
