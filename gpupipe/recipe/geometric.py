"""Operations that move an image's pixels, and with them its masks, boxes and points.

Names, settings and meaning are torchvision v2's (torchvision/transforms/v2/_geometry.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

from gpupipe.errors import ConfigError
from gpupipe.recipe.augmentations import Augmenting
from gpupipe.recipe.checks import PROBABILITY, Fill, filling, floats, named, number, settle, span

__all__ = [
    "SAMPLING",
    "ElasticTransform",
    "RandomAffine",
    "RandomPerspective",
    "RandomRotation",
    "RandomVerticalFlip",
    "Sampling",
]

Sampling: TypeAlias = Literal["nearest", "bilinear"]
SAMPLING = (named, "nearest", "bilinear")


@dataclass(frozen=True)
class RandomVerticalFlip(Augmenting):
    """Mirrors the image top to bottom with probability `p`."""

    p: float = 0.5

    moves: ClassVar[bool] = True

    def __post_init__(self) -> None:
        settle(self, p=PROBABILITY)


@dataclass(frozen=True)
class RandomRotation(Augmenting):
    """Turns the image about its middle, counterclockwise, by an angle drawn from `degrees`; its size stays.

    degrees:       a number d for angles from -d to d, or (low, high).
    interpolation: "nearest" or "bilinear". fill: what it leaves empty: None or a level from 0 to 255, or R, G and B;
                   None is black too, but bilinear edges are blended with it once, with a color twice, as torchvision's.
    """

    degrees: float | tuple[float, float]
    interpolation: Sampling = "nearest"
    fill: float | Fill = 0

    moves: ClassVar[bool] = True

    def __post_init__(self) -> None:
        settle(self, degrees=(_ranges, 2), interpolation=SAMPLING, fill=filling)


@dataclass(frozen=True)
class RandomAffine(Augmenting):
    """Turns the image about its middle, clockwise, scales, shears and moves it, each by a number drawn for itself.

    degrees:   a number d for angles from -d to d, or (low, high).
    translate: (a, b) of 0 to 1: by whole pixels, up to a times the width to either side and b times the height.
    scale:     (low, high) of factors above 0.
    shear:     a number d for degrees along x from -d to d, (low, high), or (low, high, low, high) along x and y.
    The rest: as in `RandomRotation`. None leaves that one out.
    """

    degrees: float | tuple[float, float]
    translate: tuple[float, float] | None = None
    scale: tuple[float, float] | None = None
    shear: float | tuple[float, ...] | None = None
    interpolation: Sampling = "nearest"
    fill: float | Fill = 0

    moves: ClassVar[bool] = True

    def __post_init__(self) -> None:
        settle(self, degrees=(_ranges, 2), translate=_shares, interpolation=SAMPLING, fill=filling)
        settle(self, scale=lambda said, scale: None if scale is None else span(said, scale))
        settle(self, shear=lambda said, shear: None if shear is None else _ranges(said, shear, 2, 4))


@dataclass(frozen=True)
class RandomPerspective(Augmenting):
    """With probability `p` the image as seen from the side: each corner is moved inwards by a number of pixels drawn
    for itself along x and y.

    distortion_scale: so much of half the width and of half the height at most, 0 to 1.
    The rest: as in `RandomRotation`.
    """

    distortion_scale: float = 0.5
    p: float = 0.5
    interpolation: Sampling = "bilinear"
    fill: float | Fill = 0

    moves: ClassVar[bool] = True

    def __post_init__(self) -> None:
        settle(self, distortion_scale=PROBABILITY, p=PROBABILITY, interpolation=SAMPLING, fill=filling)


@dataclass(frozen=True)
class ElasticTransform(Augmenting):
    """Pixels moved to and fro by random ways that are alike for neighbours (Simard et al. 2003).

    alpha: how far, right and down: two numbers of 0 or more, or one for both. sigma: 0 to 100, the standard deviation
    in pixels of the Gaussian blur of the ways, each at first between half of alpha to either side.
    The rest: as in `RandomRotation`. Boxes and points go the way back of the pixel that they lie in, as torchvision's.
    """

    alpha: float | tuple[float, float] = 50.0
    sigma: float = 5.0
    interpolation: Sampling = "bilinear"
    fill: float | Fill = 0

    moves: ClassVar[bool] = True

    def __post_init__(self) -> None:
        settle(self, alpha=_both, sigma=(number, 0, 100), interpolation=SAMPLING, fill=filling)


def _both(said: str, value: Any) -> tuple[float, ...]:
    numbers = floats(value) or (() if isinstance(value, str) else floats([value]) * 2)
    if len(numbers) != 2 or not all(0 <= one < math.inf for one in numbers):
        raise ConfigError(f"{said} must be a number of 0 or more, or two")
    return numbers


def _ranges(said: str, value: Any, *lengths: int) -> tuple[float, ...]:
    """A distance to either side of 0 as (low, high); or so many ends of ranges, low and high in turn."""
    ends = floats(value)
    if not ends and not isinstance(value, str | Sequence):
        ends = tuple(side * number for number in floats([value]) for side in (-1, 1))
    in_order = all(-math.inf < low <= high < math.inf for low, high in zip(ends[::2], ends[1::2], strict=False))
    if len(ends) not in lengths or not in_order:
        forms = ") or (".join(", ".join(["low, high"] * (length // 2)) for length in lengths)
        raise ConfigError(f"{said} must be a number of 0 or more, or ({forms}), low <= high")
    return ends


def _shares(said: str, value: Any) -> tuple[float, ...] | None:
    shares = floats(() if value is None else value)
    if value is not None and (len(shares) != 2 or not all(0 <= share <= 1 for share in shares)):
        raise ConfigError(f"{said} must be None or two shares, of the width and of the height, of 0 to 1")
    return shares or None
