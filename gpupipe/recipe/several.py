"""Samples made of several: mosaics, detection's MixUp, copied and pasted objects.

Partners are drawn from the epoch's order, each of them anew for each sample: the same on any engine and number of
ranks. Each image of a sample is cropped by itself; what follows it comes along. All other fields are those of the
sample itself.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TypeAlias

from gpupipe.recipe.checks import PROBABILITY, number, settle, span
from gpupipe.recipe.operations import Crop, RandomHorizontalFlip

__all__ = ["GEOMETRY", "CopyPaste", "DetectionMixUp", "Mosaic", "Several", "parts_of"]

QUADRANTS, BLENDED, PASTED = 4, 4, 8
"""A sample has up to 16 parts: so many quadrants of a mosaic, those blended in from this number on, and of each of both
those whose objects are pasted."""


@dataclass(frozen=True)
class Mosaic:
    """With probability `p` four samples about a random point, each resized to fit into the crop's size; then, mosaic or
    not, a random scale and shift.

    scale:     (low, high) of the factor by which the middle is enlarged.
    translate: up to this share of the sides it is shifted, each way.

    As Ultralytics' `Mosaic` and the part of its `RandomPerspective` that is not off by default: a canvas of twice the
    size, on which the samples touch at a point in its middle half, scaled about its middle, of which `size` is left.
    What no image covers is the crop's `fill`, which it has to have: `LetterBox`, for one. Differs: each image is
    resized once, by the antialiased filter, to where it lies in the end, rounded to whole pixels; boxes go by
    `Boxes(min_area)` alone, theirs also by the share that is left (0.1), sides of 2 pixels and ratios of 100.
    """

    p: float = 1.0
    scale: tuple[float, float] = (0.5, 1.5)
    translate: float = 0.1

    def __post_init__(self) -> None:
        settle(self, p=PROBABILITY, scale=span, translate=PROBABILITY)


@dataclass(frozen=True)
class DetectionMixUp:
    """With probability `p` a sample is blended with another, a mosaic where the recipe has these: lambda * itself +
    (1 - lambda) * the other, lambda drawn from Beta(alpha, alpha); it has the boxes and points of both.

    As Ultralytics' `MixUp`. lambda is rounded to 1 / 65,536. Masks can't be blended.
    """

    p: float = 1.0
    alpha: float = 32.0

    def __post_init__(self) -> None:
        settle(self, p=PROBABILITY, alpha=(number, 1e-3))


@dataclass(frozen=True)
class CopyPaste:
    """With probability `p` some objects of another sample, which is cropped and mirrored by itself, cover the sample.

    blending: whether what surrounds them by up to 2 pixels comes along, as it does in torchvision, whose blurred mask
              is rounded up.

    Samples need `Mask(numbers="boxes")`, which says what is which object's. As SimpleCopyPaste of torchvision's
    detection reference, after large scale jitter there (Ghiasi et al. 2021, arXiv 2012.07177): as many objects as there
    are, drawn with repeats; the boxes of what was covered are those of what is left, and what is covered whole is
    dropped. Differs: these boxes end behind their last pixel, as in torchvision's v2; the partner is any sample, not
    the batch's one before; a pixel belongs to one object alone.
    """

    p: float = 1.0
    blending: bool = True

    def __post_init__(self) -> None:
        settle(self, p=PROBABILITY)


Several: TypeAlias = Mosaic | DetectionMixUp | CopyPaste
GEOMETRY = Crop | Several | RandomHorizontalFlip
"""What is done at once, before all others."""


def parts_of(operations: Collection[object]) -> tuple[int, ...]:
    """The numbers of the parts that a sample can have by these operations; (0,) where it is made of one."""
    kinds = {type(operation) for operation in operations}
    return tuple(
        pasted + blended + quadrant
        for pasted in (0, PASTED)[: 1 + (CopyPaste in kinds)]
        for blended in (0, BLENDED)[: 1 + (DetectionMixUp in kinds)]
        for quadrant in range(QUADRANTS if Mosaic in kinds else 1)
    )
