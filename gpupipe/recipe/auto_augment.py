"""Policies that draw an image's operations from a list: RandAugment, TrivialAugment, AutoAugment and AugMix.

Those of torchvision v2's names do what its transforms do on uint8 images, within 1 level; `TimmRandAugment` and
`TimmAugMix` are timm's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from gpupipe.recipe.augmentations import Augmenting
from gpupipe.recipe.checks import PROBABILITY, Fill, count, filling, named, number, settle
from gpupipe.recipe.geometric import SAMPLING, Sampling

__all__ = ["AugMix", "AutoAugment", "RandAugment", "TimmAugMix", "TimmRandAugment", "TrivialAugmentWide"]

OPS, BINS = (count, 0, 100), (count, 2, 1000)
SEVERITIES, CHAINS = (count, 1, 10), (count, 1, 10)


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
        settle(self, num_ops=OPS, num_magnitude_bins=BINS, interpolation=SAMPLING, fill=filling)
        settle(self, magnitude=(count, 0, self.num_magnitude_bins - 1))


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
        settle(self, num_magnitude_bins=BINS, interpolation=SAMPLING, fill=filling)


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
        settle(self, policy=(named, "imagenet", "cifar10", "svhn"), interpolation=SAMPLING, fill=filling)


@dataclass(frozen=True)
class TimmRandAugment(Augmenting):
    """timm's RandAugment (timm/data/auto_augment.py): fifteen operations, each of which may be left out.

    magnitude:     mean strength, 0 to 10. num_ops: operations one after the other, 0 to 100.
    magnitude_std: standard deviation of the strength, which is drawn anew for each operation and cut to 0 to 10.
    increasing:    take the forms of posterize, solarize and the enhancements that grow stronger with the magnitude.
    p:             probability of each operation to be done.
    interpolation: "nearest", "bilinear", "bicubic" or "random": one of the last two, drawn for each operation.
    fill:          as in `RandAugment`; timm fills with the mean of its images' pixels, here ImageNet's.

    timm's text "rand-m7-mstd0.5-inc1" is `TimmRandAugment(7, magnitude_std=0.5)`, with its train.py's default for
    interpolation="random". timm works on Pillow images; here levels are those of torchvision's functions on uint8, but
    for bicubic ones, which are Pillow's. Raises ConfigError for other values.
    """

    magnitude: float = 9
    num_ops: int = 2
    magnitude_std: float = 0.0
    increasing: bool = True
    p: float = 0.5
    interpolation: Sampling | Literal["bicubic", "random"] = "bilinear"
    fill: float | Fill = (124, 116, 104)

    moves: ClassVar[bool] = True

    def __post_init__(self) -> None:
        settle(self, magnitude=(number, 0, 10), num_ops=OPS, magnitude_std=(number, 0), p=PROBABILITY)
        settle(self, increasing=lambda _, value: bool(value), fill=filling)
        settle(self, interpolation=(*SAMPLING, "bicubic", "random"))


@dataclass(frozen=True)
class AugMix(Augmenting):
    """The image mixed with what chains of operations make of it, in random shares (Hendrycks et al. 2020).

    severity:      strengths are drawn from the first so many of ten, 1 to 10.
    mixture_width: how many chains there are, 1 to 10.
    chain_depth:   operations of each, 1 to 10; -1: drawn for each chain, 1 to 3.
    all_ops:       whether brightness, color, contrast and sharpness are among them.
    interpolation, fill: as in `RandAugment`.

    As torchvision's `v2.AugMix` and arXiv 1912.02781, with alpha=1: all shares that add up to 1 are as likely. Masks,
    boxes and points can't follow a mixture of moved images.
    """

    severity: int = 3
    mixture_width: int = 3
    chain_depth: int = -1
    all_ops: bool = True
    interpolation: Sampling = "bilinear"
    fill: float | Fill = None

    def __post_init__(self) -> None:
        settle(
            self, severity=SEVERITIES, mixture_width=CHAINS, chain_depth=_depth, interpolation=SAMPLING, fill=filling
        )
        settle(self, all_ops=lambda _, value: bool(value))


@dataclass(frozen=True)
class TimmAugMix(Augmenting):
    """timm's AugMix (timm/data/auto_augment.py), of thirteen of the operations of `TimmRandAugment`.

    magnitude: strengths are drawn uniformly from 0 to this, 0 to 10. mixture_width, chain_depth: as in `AugMix`.
    interpolation, fill: as in `TimmRandAugment`.

    timm's text "augmix-m5-w4-d2" is `TimmAugMix(5, 4, 2)`. It cuts the mix of the chains to whole levels before it
    mixes that with the image; here that is done once.
    """

    magnitude: float = 3
    mixture_width: int = 3
    chain_depth: int = -1
    interpolation: Sampling | Literal["bicubic", "random"] = "bilinear"
    fill: float | Fill = (124, 116, 104)

    def __post_init__(self) -> None:
        settle(self, magnitude=(number, 0, 10), mixture_width=CHAINS, chain_depth=_depth, fill=filling)
        settle(self, interpolation=(*SAMPLING, "bicubic", "random"))


def _depth(said: str, value: Any) -> int:
    return value if value == -1 else count(said, value, 1, 10)
