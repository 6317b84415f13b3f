"""Recipes of segmentation and detection: those of torchvision's references, in one size for all images.

Each takes, as `settings`, `dtype`, `layout`, `exif_orientation` and `decode` of `Recipe`. Masks, boxes and their labels
are fields beside the image, which follow it.
"""

from __future__ import annotations

from typing import Any, Literal

from gpupipe.errors import ConfigError
from gpupipe.recipe.augmentations import RandomPhotometricDistort
from gpupipe.recipe.operations import (
    Crop,
    RandomCrop,
    RandomHorizontalFlip,
    RandomIoUCrop,
    Resize,
    ResizeCenterCrop,
    ResizeCornerCrop,
    ScaleJitter,
)
from gpupipe.recipe.presets.parts import normalization, resized_center
from gpupipe.recipe.recipe import Recipe
from gpupipe.recipe.several import CopyPaste

__all__ = ["detection_eval", "detection_train", "segmentation_eval", "segmentation_train"]

GRAY = (123, 117, 104)
SIZES = {"hflip": 1024, "lsj": 1024, "multiscale": 1333, "ssd": 300, "ssdlite": 320}
SHORTER = tuple(range(480, 801, 32))


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


def detection_train(
    augmentation: Literal["hflip", "lsj", "multiscale", "ssd", "ssdlite"],
    size: int | None = None,
    *,
    copy_paste: bool = False,
    **settings: Any,
) -> Recipe:
    """torchvision's training of detection, of levels from 0 to 1: its models normalize.

    augmentation: "hflip", a flip alone; "lsj": large scale jitter, the image in a scale of 0.1 to 2, a part of it;
                  "multiscale": a flip, and a shorter side of 480, 512 ... 800, each image in a size of its own, so the
                  field is `Image(collate="list")`, as the models take it, or `Image(collate=Pad(multiple=32))`;
                  "ssd": on a canvas of up to 4 times its sides, a part that is chosen by the boxes, colours distorted;
                  "ssdlite": such a part alone.
    size:         by default 1024, for "ssd" 300 and for "ssdlite" 320, to which their models squash what they get; for
                  "multiscale" the most that the longer side becomes, 1333.
    copy_paste:   with "lsj", objects of another sample are pasted; see `CopyPaste`.

    Source: DetectionPresetTrain in references/detection/presets.py of pytorch/vision.

    Not the loader's: the models' own normalization, SGD, 26 to 660 epochs.
    Differs: with "hflip" the image fits into a square, top left on gray, where the reference leaves it as it is, and
    its models resize (shorter side 800, longer one 1,333 at most) and pad. With "ssd" colours are distorted last, the
    canvas's gray too, and on the resized image. Boxes of less than a pixel's area are dropped, the reference's those
    with a side below 1 (`Boxes(min_area=...)`).
    """
    if augmentation not in SIZES:
        raise ConfigError(f"detection_train: augmentation={augmentation!r} must be one of {', '.join(SIZES)}")
    side = SIZES[augmentation] if size is None else size
    crops: dict[str, Crop] = {"hflip": _fitted(side), "lsj": ScaleJitter(side, fill=GRAY)}
    crops |= {"multiscale": Resize(SHORTER, side)}
    crops |= {"ssd": RandomIoUCrop(side, (1.0, 4.0), fill=GRAY), "ssdlite": RandomIoUCrop(side)}
    colors = (RandomPhotometricDistort(),) if augmentation == "ssd" else ()
    if copy_paste and augmentation != "lsj":
        raise ConfigError(f"detection_train: copy_paste=True goes with augmentation='lsj', not {augmentation!r}")
    pasted = (CopyPaste(),) if copy_paste else ()
    return Recipe((crops[augmentation], RandomHorizontalFlip(), *pasted, *colors), **settings)


def detection_eval(size: int | None = 1024, *, squash: bool = False, **settings: Any) -> Recipe:
    """The evaluation that goes with `detection_train`: the image fits into a square, top left on gray.

    size:   None: each image in a size of its own, that of torchvision's models: a shorter side of 800, a longer one of
            1,333 at most. See "multiscale" there.
    squash: to the square in its place, as SSD's models do it.

    Source: DetectionPresetEval in references/detection/presets.py of pytorch/vision, which leaves sizes to its models.
    """
    if size is None:
        return Recipe((Resize((max(SHORTER),), SIZES["multiscale"]),), **settings)
    return Recipe((ResizeCenterCrop(size, (size, size)) if squash else _fitted(size),), **settings)


def _fitted(size: int) -> ResizeCornerCrop:
    return ResizeCornerCrop(size, None, max_size=size, fill=GRAY, place="top_left")
