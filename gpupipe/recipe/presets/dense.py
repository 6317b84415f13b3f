"""Recipes of segmentation and detection: those of torchvision's references, in one size for all images.

Each takes, as `settings`, `dtype`, `layout`, `exif_orientation` and `decode` of `Recipe`. Masks, boxes and their labels
are fields beside the image, which follow it.
"""

from __future__ import annotations

from typing import Any, Literal

from gpupipe.errors import ConfigError
from gpupipe.recipe.operations import RandomCrop, RandomHorizontalFlip, ResizeCornerCrop, ScaleJitter
from gpupipe.recipe.presets.parts import normalization, resized_center
from gpupipe.recipe.recipe import Recipe

__all__ = ["detection_eval", "detection_train", "segmentation_eval", "segmentation_train"]

GRAY = (123, 117, 104)


def segmentation_train(size: int = 480, *, base_size: int = 520, **settings: Any) -> Recipe:
    """torchvision's training of segmentation: the image in a scale of 0.5 to 2, mirrored or not, a random part of it.

    base_size: the shorter side at scale 1. What is missing right and below of a small image is black, and in the mask
               its `ignore`, 255 by default.

    Source: SegmentationPresetTrain in references/segmentation/presets.py of pytorch/vision, with transforms v2.

    Not the loader's: SGD with polynomial decay, 30 epochs, the auxiliary loss.
    """
    crop = RandomCrop(size, resize=(int(0.5 * base_size), int(2.0 * base_size)), place="top_left")
    return Recipe((crop, RandomHorizontalFlip(), *normalization(settings)), **settings)


def segmentation_eval(size: int = 520, **settings: Any) -> Recipe:
    """The evaluation that goes with `segmentation_train`: the whole image and its mask, squashed to a square.

    Source: SegmentationPresetEval in references/segmentation/presets.py, with transforms v2 (v1 keeps the ratio).
    """
    return resized_center(size, (size, size), settings, "bilinear")


def detection_train(augmentation: Literal["hflip", "lsj"], size: int = 1024, **settings: Any) -> Recipe:
    """torchvision's training of detection, of levels from 0 to 1: its models normalize.

    augmentation: "hflip", a flip alone; "lsj": large scale jitter, the image in a scale of 0.1 to 2, a part of it.

    Source: DetectionPresetTrain in references/detection/presets.py of pytorch/vision.

    Not the loader's: the models' own resize and normalization, SGD, 26 epochs.
    Differs: with "hflip" the image fits into a square, top left on gray, where the reference leaves it as it is, and
    its models resize (shorter side 800, longer one 1,333 at most) and pad; boxes of less than a pixel's area are
    dropped, the reference's those with a side below 1 (`Boxes(min_area=...)`).
    """
    if augmentation not in ("hflip", "lsj"):
        raise ConfigError(f"detection_train: augmentation={augmentation!r} must be one of hflip, lsj")
    crop = _fitted(size) if augmentation == "hflip" else ScaleJitter(size, fill=GRAY)
    return Recipe((crop, RandomHorizontalFlip()), **settings)


def detection_eval(size: int = 1024, **settings: Any) -> Recipe:
    """The evaluation that goes with `detection_train`: the image fits into a square, top left on gray.

    Source: DetectionPresetEval in references/detection/presets.py of pytorch/vision, which leaves sizes to its models.
    """
    return Recipe((_fitted(size),), **settings)


def _fitted(size: int) -> ResizeCornerCrop:
    return ResizeCornerCrop(size, None, max_size=size, fill=GRAY, place="top_left")
