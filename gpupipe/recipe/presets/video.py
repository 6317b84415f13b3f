"""Recipes of action recognition: PyTorchVideo's on Kinetics, torchvision's reference, TSN's. All frames of a clip get
the same crop, flip and operations; which frames those are says the field, `gpupipe.Frames`.

Each takes, as `settings`, `dtype`, `layout`, `exif_orientation` and `decode` of `Recipe`.
"""

from __future__ import annotations

from typing import Any

from gpupipe.recipe.operations import MultiScaleCrop, Normalize, RandomCrop, RandomHorizontalFlip
from gpupipe.recipe.presets.parts import normalization, resized_center
from gpupipe.recipe.recipe import Recipe

__all__ = [
    "kinetics_eval",
    "kinetics_train",
    "r3d_eval",
    "r3d_train",
    "tsn_eval",
    "tsn_train",
]

PYTORCHVIDEO = Normalize((0.45, 0.45, 0.45), (0.225, 0.225, 0.225))
TORCHVISION = Normalize((0.43216, 0.394666, 0.37645), (0.22803, 0.22145, 0.216989))


def kinetics_train(size: int = 224, *, shorter: tuple[int, int] = (256, 320), **settings: Any) -> Recipe:
    """PyTorchVideo's training on Kinetics (slow_r50, SlowFast, X3D): shorter side drawn, a random part, flip.

    shorter: from the first to the second, both drawn, too. Clips of slow_r50: `Frames(clip=(8, 8), fps=30)`.

    Source: the tutorial "Training a PyTorchVideo classification model" and pytorchvideo/transforms/functional.py.

    Not the loader's: SGD with cosine decay, 196 epochs.
    Differs: resized with antialiasing, PyTorchVideo without.
    """
    low, high = shorter
    crop = RandomCrop(size, resize=(low, high + 1))
    return Recipe((crop, RandomHorizontalFlip(), *normalization(settings, PYTORCHVIDEO)), **settings)


def kinetics_eval(size: int = 256, *, resize: int | None = None, **settings: Any) -> Recipe:
    """The evaluation that goes with `kinetics_train`: the centre of the image, whose shorter side becomes `resize`, by
    default `size`.

    The papers' tests are of 10 clips and 3 crops: `Frames(clip=(8, 8), fps=30, clips=10, sampling="even")`, and
    `eval_views(kinetics_eval(), three=True)`. Source: the model card of slow_r50 on PyTorch Hub.

    Differs: as `kinetics_train`.
    """
    return resized_center(size, size if resize is None else resize, settings, "bilinear", PYTORCHVIDEO)


def r3d_train(size: int = 112, *, shorter: int = 128, **settings: Any) -> Recipe:
    """torchvision's training of r3d_18, mc3_18 and r2plus1d_18: a random part of the shorter side of 128, flip.

    Clips: `Frames(clip=(16, 1))`, of videos of 15 frames a second.

    Source: VideoClassificationPresetTrain in references/video_classification/presets.py of pytorch/vision.

    Not the loader's: SGD, 45 epochs; up to 5 clips of a video in an epoch.
    Differs: the ratio of sides is kept, where the reference squashes each video to 128 x 171; with antialiasing.
    """
    crop = RandomCrop(size, resize=shorter)
    return Recipe((crop, RandomHorizontalFlip(), *normalization(settings, TORCHVISION)), **settings)


def r3d_eval(size: int = 112, *, resize: tuple[int, int] = (128, 171), **settings: Any) -> Recipe:
    """The evaluation that goes with `r3d_train`: the centre of the video squashed to 128 x 171.

    Clips: `Frames(clip=(16, 1), clips=5, sampling="even")`. Source: VideoClassificationPresetEval. Differs: with
    antialiasing.
    """
    return resized_center(size, resize, settings, "bilinear", TORCHVISION)


def tsn_train(size: int = 224, **settings: Any) -> Recipe:
    """The training of TSN: one of ten boxes in a corner or in the middle, flip. Clips: `Frames(clip=(3, None))`.

    Source: configs/recognition/tsn of mmaction2. Not the loader's: SGD, 100 epochs. Differs: the image is resized once,
    antialiased, where mmaction2 resizes its shorter side to 256 before.
    """
    return Recipe((MultiScaleCrop(size), RandomHorizontalFlip(), *normalization(settings)), **settings)


def tsn_eval(size: int = 224, *, resize: int = 256, **settings: Any) -> Recipe:
    """The evaluation that goes with `tsn_train`: 224 of 256. Clips: `Frames(clip=(3, None), sampling="even")`; for the
    papers' tests (25, None) and `eval_views(tsn_eval(), flip=True, five=True)`.

    Source: configs/recognition/tsn of mmaction2.
    """
    return resized_center(size, resize, settings, "bilinear")
