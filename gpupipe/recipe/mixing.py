"""MixUp and CutMix: each image of a batch, and its label, mixed with its neighbour's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

from gpupipe.errors import ConfigError
from gpupipe.recipe.checks import PROBABILITY, count, named, number, settle, shown

__all__ = ["CutMix", "MixUp", "MixUpOrCutMix", "Mixing"]


def _alpha(said: str, value: Any) -> float:
    alpha = number(said, value, 0)
    if alpha == 0:
        raise ConfigError(f"{said} mixes nothing; give a number above 0, or leave {said.partition(':')[0]} out")
    return alpha


def _classes(said: str, value: Any) -> int | None:
    return None if value is None else count(said, value, 1, 2**31 - 1)


def _alike(said: str, value: Any) -> int | None:
    if value is not None and (count(said, value, 1, 2**31 - 1) == 1) == (value % 2 == 0):
        raise ConfigError(f"{said} must be 1, an even number, so that pairs are of one group, or None")
    return None if value is None else int(value)


Rounding: TypeAlias = Literal["torchvision", "timm"]
COMMON = {"num_classes": _classes, "p": PROBABILITY, "label_smoothing": PROBABILITY, "alike": _alike}
BOX = {"rounding": (named, "torchvision", "timm")}


class _Mixing:
    def __repr__(self) -> str:
        return shown(self, "alike", "rounding")


@dataclass(frozen=True, repr=False)
class _Alone(_Mixing):
    """The settings of `MixUp` and `CutMix`."""

    num_classes: int | None = None
    alpha: float = 1.0
    p: float = 1.0
    label_smoothing: float = 0.0
    alike: int | None = 1

    def __post_init__(self) -> None:
        settle(self, alpha=_alpha, **COMMON)

    @property
    def alphas(self) -> tuple[float, float]:
        """Those of MixUp and of CutMix."""
        return self.alpha, self.alpha


@dataclass(frozen=True, repr=False)
class MixUp(_Alone):
    """Each image becomes lambda * itself + (1 - lambda) * its neighbour (Zhang et al. 2018, arXiv 1710.09412).

    num_classes: of the labels, which come out as float32 (N, num_classes), mixed alike. None: as many as the data has,
                 which the Loader finds out; its `recipe` then has the number.
    alpha: lambda is drawn from Beta(alpha, alpha), for each image by itself; above 0.
    p: the probability of an image to be mixed.
    label_smoothing: 0 to 1, the part of each label that is spread over all classes, as in torch's CrossEntropyLoss.

    alike: so many images in a row, from the epoch's first on, draw as one: whether they are mixed, how and with which
           lambda. 1, or an even number; None: those of a rank's batch, as torchvision and timm do it, which the Loader
           fills in (to go on with other ranks, give the number). timm's mode "elem" is 1, its "pair" 2.

    The neighbours of an epoch's positions 0, 1, 2, 3, ... are 1, 0, 3, 2, ..., so the batch size must be even; a last
    batch that is not full is not mixed.
    """

    cut_p: ClassVar[float] = 0.0
    rounding: ClassVar[Rounding] = "torchvision"


@dataclass(frozen=True, repr=False)
class CutMix(_Alone):
    """A box of each image is replaced by its neighbour's pixels (Yun et al. 2019, arXiv 1905.04899).

    The box has 1 - lambda of the area, less what lies outside the image, as in torchvision's `v2.CutMix`; the label is
    mixed in proportion to the pixels. Settings and neighbours as in `MixUp`.
    rounding: "torchvision": a box reaches as many whole pixels to either side; "timm": its sides are whole.
    """

    rounding: Rounding = "torchvision"

    cut_p: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        settle(self, **BOX)


@dataclass(frozen=True, repr=False)
class MixUpOrCutMix(_Mixing):
    """For each image either MixUp or, with probability `switch_p`, CutMix, as timm's `Mixup` with both alphas.

    mixup_alpha, cutmix_alpha: the alpha of each. The other settings as in `MixUp` and `CutMix`.
    """

    num_classes: int | None = None
    mixup_alpha: float = 1.0
    cutmix_alpha: float = 1.0
    p: float = 1.0
    switch_p: float = 0.5
    label_smoothing: float = 0.0
    alike: int | None = 1
    rounding: Rounding = "torchvision"

    def __post_init__(self) -> None:
        settle(self, mixup_alpha=_alpha, cutmix_alpha=_alpha, switch_p=PROBABILITY, **COMMON, **BOX)

    @property
    def alphas(self) -> tuple[float, float]:
        """Those of MixUp and of CutMix."""
        return self.mixup_alpha, self.cutmix_alpha

    @property
    def cut_p(self) -> float:
        """The probability of a mixed image to be cut."""
        return self.switch_p


Mixing: TypeAlias = MixUp | CutMix | MixUpOrCutMix
