"""MixUp and CutMix: each image of a batch, and its label, mixed with its neighbour's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from gpupipe.errors import ConfigError
from gpupipe.recipe.checks import PROBABILITY, count, number, settle

__all__ = ["CutMix", "MixUp", "MixUpOrCutMix", "Mixing"]


def _alpha(said: str, value: Any) -> float:
    alpha = number(said, value, 0)
    if alpha == 0:
        raise ConfigError(f"{said} mixes nothing; give a number above 0, or leave {said.partition(':')[0]} out")
    return alpha


def _classes(said: str, value: Any) -> int | None:
    return None if value is None else count(said, value, 1, 2**31 - 1)


COMMON = {"num_classes": _classes, "p": PROBABILITY, "label_smoothing": PROBABILITY}


@dataclass(frozen=True)
class _Alone:
    """The settings of `MixUp` and `CutMix`."""

    num_classes: int | None = None
    alpha: float = 1.0
    p: float = 1.0
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        settle(self, alpha=_alpha, **COMMON)

    @property
    def alphas(self) -> tuple[float, float]:
        """Those of MixUp and of CutMix."""
        return self.alpha, self.alpha


@dataclass(frozen=True)
class MixUp(_Alone):
    """Each image becomes lambda * itself + (1 - lambda) * its neighbour (Zhang et al. 2018, arXiv 1710.09412).

    num_classes: of the labels, which come out as float32 (N, num_classes), mixed alike. None: as many as the data has,
                 which the Loader finds out; its `recipe` then has the number.
    alpha: lambda is drawn from Beta(alpha, alpha), for each image by itself; above 0.
    p: the probability of an image to be mixed.
    label_smoothing: 0 to 1, the part of each label that is spread over all classes, as in torch's CrossEntropyLoss.

    The neighbours of an epoch's positions 0, 1, 2, 3, ... are 1, 0, 3, 2, ..., so the batch size must be even; a last
    batch that is not full is not mixed. torchvision and timm draw one lambda for a batch (timm's mode "elem" one for
    each image).
    """

    cut_p: ClassVar[float] = 0.0


@dataclass(frozen=True)
class CutMix(_Alone):
    """A box of each image is replaced by its neighbour's pixels (Yun et al. 2019, arXiv 1905.04899).

    The box has 1 - lambda of the area, less what lies outside the image, as in torchvision's `v2.CutMix`; the label is
    mixed in proportion to the pixels. Settings and neighbours as in `MixUp`.
    """

    cut_p: ClassVar[float] = 1.0


@dataclass(frozen=True)
class MixUpOrCutMix:
    """For each image either MixUp or, with probability `switch_p`, CutMix, as timm's `Mixup` with both alphas.

    mixup_alpha, cutmix_alpha: the alpha of each. The other settings as in `MixUp`.
    """

    num_classes: int | None = None
    mixup_alpha: float = 1.0
    cutmix_alpha: float = 1.0
    p: float = 1.0
    switch_p: float = 0.5
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        settle(self, mixup_alpha=_alpha, cutmix_alpha=_alpha, switch_p=PROBABILITY, **COMMON)

    @property
    def alphas(self) -> tuple[float, float]:
        """Those of MixUp and of CutMix."""
        return self.mixup_alpha, self.cutmix_alpha

    @property
    def cut_p(self) -> float:
        """The probability of a mixed image to be cut."""
        return self.switch_p


Mixing: TypeAlias = MixUp | CutMix | MixUpOrCutMix
