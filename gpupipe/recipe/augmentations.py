"""What may be done to an image between flip and normalization, in any number and order, and how to combine it.

Names, settings and meaning are torchvision v2's (torchvision/transforms/v2).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from gpupipe.errors import ConfigError
from gpupipe.recipe.checks import (
    PROBABILITY,
    Fill,
    RangeLike,
    count,
    filling,
    floats,
    jitter,
    number,
    pair,
    settle,
    span,
)

__all__ = [
    "Augmenting",
    "CoarseDropout",
    "ColorJitter",
    "GaussianBlur",
    "GaussianNoise",
    "RandomAdjustSharpness",
    "RandomApply",
    "RandomAutocontrast",
    "RandomChannelPermutation",
    "RandomChoice",
    "RandomEqualize",
    "RandomGamma",
    "RandomGrayscale",
    "RandomHSV",
    "RandomInvert",
    "RandomPhotometricDistort",
    "RandomPosterize",
    "RandomSolarize",
    "ThreeAugment",
    "common_fill",
    "walk",
]


class Augmenting:
    """An operation on the pixels of one image, between flip and normalization.

    moves: whether it moves pixels, which masks, boxes and points follow. If it may leave some empty, it has a `fill`.
    """

    moves: ClassVar[bool] = False

    @property
    def parts(self) -> tuple[Augmenting, ...]:
        """The operations that it is made of."""
        return ()


def walk(operations: Sequence[Augmenting]) -> Iterator[Augmenting]:
    """Every operation, each before those that it is made of."""
    for operation in operations:
        yield operation
        yield from walk(operation.parts)


def common_fill(operations: Sequence[Augmenting]) -> Fill:
    """The fill on which all operations that need one agree; ConfigError where they don't."""
    fills = {operation: operation.fill for operation in walk(operations) if hasattr(operation, "fill")}
    if set(fills.values()) == {None, (0.0, 0.0, 0.0)}:  # which differ where pixels of the image's edge are interpolated
        exact = {fill for operation, fill in fills.items() if getattr(operation, "interpolation", "") != "nearest"}
        if len(exact) < 2:
            return next(iter(exact), None)
    if len(set(fills.values())) > 1:
        got = ", ".join(f"{type(operation).__name__}(fill={fill})" for operation, fill in fills.items())
        raise ConfigError(f"Recipe: its operations must fill with one color, but got {got}; set the same fill in all")
    return next(iter(fills.values()), None)


@dataclass(frozen=True)
class ColorJitter(Augmenting):
    """Brightness, contrast, saturation and hue changed by random factors, in random order.

    brightness, contrast, saturation: a number d for factors from max(0, 1 - d) to 1 + d, or (low, high) of 0 or more.
    hue: a number d for turns from -d to d, or (low, high), in parts of the circle, between -0.5 and 0.5.
    None leaves that one out. Raises ConfigError for other values.
    """

    brightness: RangeLike = None
    contrast: RangeLike = None
    saturation: RangeLike = None
    hue: RangeLike = None

    def __post_init__(self) -> None:
        factor = (jitter, 1.0, 0.0)
        settle(self, brightness=factor, contrast=factor, saturation=factor, hue=(jitter, 0.0, -0.5, 0.5))


@dataclass(frozen=True)
class RandomPhotometricDistort(Augmenting):
    """SSD's: brightness, contrast, saturation, hue and the order of the channels, each changed with probability `p`.

    Contrast comes after brightness or after hue, as often as not. brightness, contrast, saturation, hue: as for
    `ColorJitter`. Liu et al., "SSD: Single Shot MultiBox Detector", ECCV 2016, and its code.
    """

    brightness: RangeLike = (0.875, 1.125)
    contrast: RangeLike = (0.5, 1.5)
    saturation: RangeLike = (0.5, 1.5)
    hue: RangeLike = (-0.05, 0.05)
    p: float = 0.5

    def __post_init__(self) -> None:
        factor = (jitter, 1.0, 0.0)
        settle(self, brightness=factor, contrast=factor, saturation=factor, hue=(jitter, 0.0, -0.5, 0.5), p=PROBABILITY)


@dataclass(frozen=True)
class RandomChannelPermutation(Augmenting):
    """Red, green and blue in any of their six orders."""


@dataclass(frozen=True)
class RandomGrayscale(Augmenting):
    """Three equal channels, with probability `p`."""

    p: float = 0.1

    def __post_init__(self) -> None:
        settle(self, p=PROBABILITY)


@dataclass(frozen=True)
class RandomSolarize(Augmenting):
    """Levels from `threshold` (0 to 256) on are inverted, with probability `p`."""

    threshold: float
    p: float = 0.5

    def __post_init__(self) -> None:
        settle(self, threshold=(number, 0, 256), p=PROBABILITY)


@dataclass(frozen=True)
class RandomInvert(Augmenting):
    """Levels become 255 less themselves, with probability `p`."""

    p: float = 0.5

    def __post_init__(self) -> None:
        settle(self, p=PROBABILITY)


@dataclass(frozen=True)
class RandomPosterize(Augmenting):
    """The upper `bits` (0 to 8) of each level are kept, with probability `p`."""

    bits: int
    p: float = 0.5

    def __post_init__(self) -> None:
        settle(self, bits=(count, 0, 8), p=PROBABILITY)


@dataclass(frozen=True)
class RandomAutocontrast(Augmenting):
    """Each channel is stretched from 0 to 255, with probability `p`."""

    p: float = 0.5

    def __post_init__(self) -> None:
        settle(self, p=PROBABILITY)


@dataclass(frozen=True)
class RandomEqualize(Augmenting):
    """Each channel's histogram is flattened, with probability `p`."""

    p: float = 0.5

    def __post_init__(self) -> None:
        settle(self, p=PROBABILITY)


@dataclass(frozen=True)
class RandomAdjustSharpness(Augmenting):
    """Sharper (`sharpness_factor` above 1) or smoother (below 1, down to 0), with probability `p`."""

    sharpness_factor: float
    p: float = 0.5

    def __post_init__(self) -> None:
        settle(self, sharpness_factor=(number, 0), p=PROBABILITY)


@dataclass(frozen=True)
class GaussianBlur(Augmenting):
    """A blur of kernel_size x kernel_size pixels, odd, whose standard deviation in pixels is drawn from `sigma`.

    sigma: (low, high) or one number, above 0. Unlike torchvision's, the kernel is as wide as it is high.
    """

    kernel_size: int
    sigma: float | tuple[float, float] = (0.1, 2.0)

    def __post_init__(self) -> None:
        size = self.kernel_size
        if not isinstance(size, int) or size < 1 or size % 2 == 0:
            raise ConfigError(f"GaussianBlur: kernel_size={size!r} must be an odd, positive int")
        settle(self, sigma=lambda said, sigma: span(said, floats(sigma) or floats([sigma]) * 2))


@dataclass(frozen=True)
class GaussianNoise(Augmenting):
    """Normal numbers are added to every level, cut to whole levels; what then lies beyond 0 or 255 is cut to these.

    mean: -1 to 1. sigma: 0 to 100, the standard deviation. Of both 1 stands for 255 levels.
    """

    mean: float = 0.0
    sigma: float = 0.1

    def __post_init__(self) -> None:
        settle(self, mean=(number, -1, 1), sigma=(number, 0, 100))


@dataclass(frozen=True)
class RandomHSV(Augmenting):
    """YOLO's: hue, saturation and value each changed by a random amount, in OpenCV's bytes.

    hue: up to so much of the circle either way, 0 to 1. saturation, value: d for factors from 1 - d to 1 + d, 0 to 1.
    As Ultralytics' `RandomHSV(hgain, sgain, vgain)` since 8.3.79.
    """

    hue: float = 0.015
    saturation: float = 0.7
    value: float = 0.4

    def __post_init__(self) -> None:
        settle(self, hue=PROBABILITY, saturation=PROBABILITY, value=PROBABILITY)


@dataclass(frozen=True)
class RandomGamma(Augmenting):
    """Levels raised to a power drawn from `gamma` (255 standing for 1), with probability `p`.

    gamma: (low, high), above 0 and up to 100: below 1 for lighter images. As Albumentations' `RandomGamma`, whose
    gamma_limit is a hundred times as much, by torchvision's `adjust_gamma`.
    """

    gamma: tuple[float, float] = (0.8, 1.2)
    p: float = 0.5

    def __post_init__(self) -> None:
        settle(self, gamma=(span, 100.0), p=PROBABILITY)


@dataclass(frozen=True)
class CoarseDropout(Augmenting):
    """Random boxes of the image are filled, with probability `p`; masks stay as they are.

    num_holes_range: (least, most) boxes, 1 to 100. hole_height_range, hole_width_range: (low, high), shares of the
    image's height and width, above 0 and up to 1. fill: as in `RandAugment`.

    As Albumentations' `CoarseDropout`: Cutout (DeVries and Taylor 2017, arXiv 1708.04552) of several boxes, which lie
    inside the image.
    """

    num_holes_range: tuple[int, int] = (1, 2)
    hole_height_range: tuple[float, float] = (0.1, 0.2)
    hole_width_range: tuple[float, float] = (0.1, 0.2)
    fill: float | Fill = 0
    p: float = 0.5

    def __post_init__(self) -> None:
        settle(self, num_holes_range=_counts, hole_height_range=(span, 1.0), hole_width_range=(span, 1.0))
        settle(self, fill=filling, p=PROBABILITY)


def _counts(said: str, value: Any) -> tuple[int, int]:
    low, high = pair(said, value)
    if not low <= high <= 100:
        raise ConfigError(f"{said} must be (least, most) with least <= most <= 100")
    return low, high


@dataclass(frozen=True)
class ThreeAugment(Augmenting):
    """DeiT III's augmentation: grayscale, solarize at 128 or Gaussian blur of sigma 0.1 to 2, one of them.

    Touvron, Cord, Jégou 2022, "DeiT III: Revenge of the ViT" (arXiv 2204.07118), 3.2, and augment.py of its code. That
    blurs with Pillow; here torchvision's blur with a kernel of 13 pixels, three sigma to either side, stands for it.
    """

    @property
    def choice(self) -> RandomChoice:
        """What it is made of."""
        return RandomChoice((RandomGrayscale(1.0), RandomSolarize(128, 1.0), GaussianBlur(13, (0.1, 2.0))))

    @property
    def parts(self) -> tuple[Augmenting, ...]:
        return (self.choice,)


@dataclass(frozen=True)
class RandomApply(Augmenting):
    """All of `operations`, in their order, with probability `p`; else none."""

    operations: tuple[Augmenting, ...]
    p: float = 0.5

    def __post_init__(self) -> None:
        settle(self, operations=_augmentations, p=PROBABILITY)

    @property
    def parts(self) -> tuple[Augmenting, ...]:
        return self.operations


@dataclass(frozen=True)
class RandomChoice(Augmenting):
    """One of `operations`, drawn with the weights `p` (one for each, which need not add up to 1), default equal."""

    operations: tuple[Augmenting, ...]
    p: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        settle(self, operations=_augmentations)
        if self.p is None:
            return
        weights = floats(self.p)
        if len(weights) != len(self.operations) or not all(0 <= w < math.inf for w in weights) or sum(weights) == 0:
            raise ConfigError(
                f"RandomChoice: p={self.p!r} must have a weight of 0 or more for each of the "
                f"{len(self.operations)} operations, and not only zeros"
            )
        object.__setattr__(self, "p", weights)

    @property
    def parts(self) -> tuple[Augmenting, ...]:
        return self.operations


def _augmentations(said: str, operations: object) -> tuple[Augmenting, ...]:
    if not isinstance(operations, Sequence) or not operations:
        raise ConfigError(f"{said} must be a tuple of one operation or more")
    for operation in operations:
        if not isinstance(operation, Augmenting):
            known = ", ".join(sorted(kind.__name__ for kind in Augmenting.__subclasses__()))
            owner = said.partition(":")[0]
            raise ConfigError(f"{owner}: {operation!r} can't be one of its operations; these can: {known}")
    return tuple(operations)
