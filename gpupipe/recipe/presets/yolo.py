"""Recipes of YOLO's detectors, as Ultralytics trains and evaluates them.

Each takes, as `settings`, `dtype`, `layout`, `exif_orientation` and `decode` of `Recipe`. Boxes and their labels are
fields beside the image, which follow it.
"""

from __future__ import annotations

from typing import Any

from gpupipe.recipe.augmentations import RandomHSV
from gpupipe.recipe.operations import LetterBox, RandomHorizontalFlip
from gpupipe.recipe.recipe import Recipe
from gpupipe.recipe.several import DetectionMixUp, Mosaic

__all__ = ["yolo_eval", "yolo_train"]


def yolo_train(
    size: int = 640,
    *,
    mosaic: float = 1.0,
    mixup: float = 0.0,
    scale: float = 0.5,
    translate: float = 0.1,
    **settings: Any,
) -> Recipe:
    """YOLOv8's and YOLO11's training: mosaics of four images, scaled and shifted, distorted colours, a flip; levels of
    0 to 1.

    mosaic, mixup, scale, translate: as in Ultralytics' default.yaml, where mixup is 0.1 or more for large models.
            mosaic=0: single images, scaled and shifted all the same: its last ten epochs (`close_mosaic`).

    Source: v8_transforms in ultralytics/data/augment.py, with the defaults of default.yaml.

    Not the loader's: the optimizer, 100 epochs, a moving average of the weights, losses.
    Differs: see `Mosaic`, `DetectionMixUp` and `LetterBox`; the flip comes before the colours; without Albumentations'
    blurs, gray and CLAHE, each of one image in 100, which Ultralytics adds where that is installed; partners are of all
    data, its own of a buffer of the latest images.
    """
    first = (LetterBox(size), Mosaic(mosaic, (1 - scale, 1 + scale), translate))
    blended = (DetectionMixUp(mixup),) if mixup else ()
    return Recipe((*first, *blended, RandomHorizontalFlip(), RandomHSV()), **settings)


def yolo_eval(size: int = 640, **settings: Any) -> Recipe:
    """The evaluation that goes with `yolo_train`: the whole image, fitted into a square, in the middle on gray.

    Source: LetterBox in ultralytics/data/augment.py. Differs: it leaves images that are smaller as they are, and fits
    those of a batch into a rectangle of their mean ratio (`rect`).
    """
    return Recipe((LetterBox(size),), **settings)
