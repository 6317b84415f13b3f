"""Policies that draw an image's operations from a list: RandAugment, TrivialAugment and AutoAugment.

Those of torchvision v2's names do what its transforms do on uint8 images, within 1 level; `TimmRandAugment` is timm's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from gpupipe.errors import ConfigError
from gpupipe.recipe.augmenting import Augmenting
from gpupipe.recipe.checks import Fill, check_count, check_fill, check_interpolation, check_number

__all__ = ["AutoAugment", "RandAugment", "TimmRandAugment", "TrivialAugmentWide"]

Sampling: TypeAlias = Literal["nearest", "bilinear"]
SAMPLINGS = ("nearest", "bilinear")
POLICIES = ("imagenet", "cifar10", "svhn")
MOST_OPS = 100
MOST_BINS = 1000


@dataclass(frozen=True)
class RandAugment(Augmenting):
    """`num_ops` operations, each drawn from fourteen, all of the same strength (Cubuk et al. 2020, arXiv 1909.13719).

    num_ops:            operations one after the other, 0 to 100.
    magnitude:          strength, an int from 0 to num_magnitude_bins - 1.
    num_magnitude_bins: how many strengths there are, 2 to 1000.
    interpolation:      "nearest" or "bilinear", for rotating, shearing and moving the image.
    fill:               what these leave empty: None for black, a level from 0 to 255, or R, G and B.

    As torchvision's `v2.RandAugment`. Raises ConfigError for other values.
    """

    num_ops: int = 2
    magnitude: int = 9
    num_magnitude_bins: int = 31
    interpolation: Sampling = "nearest"
    fill: float | Fill = None

    moves: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_count("RandAugment", "num_ops", self.num_ops, 0, MOST_OPS)
        check_count("RandAugment", "num_magnitude_bins", self.num_magnitude_bins, 2, MOST_BINS)
        check_count("RandAugment", "magnitude", self.magnitude, 0, self.num_magnitude_bins - 1)
        check_interpolation("RandAugment", self.interpolation, SAMPLINGS)
        object.__setattr__(self, "fill", check_fill("RandAugment", self.fill))


@dataclass(frozen=True)
class TrivialAugmentWide(Augmenting):
    """One operation, drawn from fourteen, of a strength drawn from the whole range (Müller and Hutter 2021).

    As torchvision's `v2.TrivialAugmentWide` and arXiv 2103.10158; settings as in `RandAugment`.
    """

    num_magnitude_bins: int = 31
    interpolation: Sampling = "nearest"
    fill: float | Fill = None

    moves: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_count("TrivialAugmentWide", "num_magnitude_bins", self.num_magnitude_bins, 2, MOST_BINS)
        check_interpolation("TrivialAugmentWide", self.interpolation, SAMPLINGS)
        object.__setattr__(self, "fill", check_fill("TrivialAugmentWide", self.fill))


@dataclass(frozen=True)
class AutoAugment(Augmenting):
    """One of 25 pairs of operations, found by search, each done with its own probability (Cubuk et al. 2019).

    policy: "imagenet", "cifar10" or "svhn": the data that the pairs were found on. As torchvision's `v2.AutoAugment`
    and arXiv 1805.09501; the other settings as in `RandAugment`.
    """

    policy: Literal["imagenet", "cifar10", "svhn"] = "imagenet"
    interpolation: Sampling = "nearest"
    fill: float | Fill = None

    moves: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise ConfigError(f"AutoAugment: policy={self.policy!r} must be one of {', '.join(POLICIES)}")
        check_interpolation("AutoAugment", self.interpolation, SAMPLINGS)
        object.__setattr__(self, "fill", check_fill("AutoAugment", self.fill))


@dataclass(frozen=True)
class TimmRandAugment(Augmenting):
    """timm's RandAugment (timm/data/auto_augment.py): fifteen operations, each of which may be left out.

    magnitude:     mean strength, 0 to 10. num_ops: operations one after the other, 0 to 100.
    magnitude_std: standard deviation of the strength, which is drawn anew for each operation and cut to 0 to 10.
    increasing:    take the forms of posterize, solarize and the enhancements that grow stronger with the magnitude.
    p:             probability of each operation to be done.
    interpolation, fill: as in `RandAugment`; timm fills with the mean of its images' pixels, here ImageNet's.

    timm's text "rand-m7-mstd0.5-inc1" is `TimmRandAugment(7, magnitude_std=0.5)`. timm works on Pillow images and
    draws bilinear or bicubic for each operation; here levels are those of torchvision's functions on uint8 and the
    interpolation is one for all. Raises ConfigError for other values.
    """

    magnitude: float = 9
    num_ops: int = 2
    magnitude_std: float = 0.0
    increasing: bool = True
    p: float = 0.5
    interpolation: Sampling = "bilinear"
    fill: float | Fill = (124, 116, 104)

    moves: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "magnitude", check_number("TimmRandAugment", "magnitude", self.magnitude, 0, 10))
        check_count("TimmRandAugment", "num_ops", self.num_ops, 0, MOST_OPS)
        std = check_number("TimmRandAugment", "magnitude_std", self.magnitude_std, 0, math.inf)
        object.__setattr__(self, "magnitude_std", std)
        object.__setattr__(self, "increasing", bool(self.increasing))
        object.__setattr__(self, "p", check_number("TimmRandAugment", "p", self.p, 0, 1))
        check_interpolation("TimmRandAugment", self.interpolation, SAMPLINGS)
        object.__setattr__(self, "fill", check_fill("TimmRandAugment", self.fill))
