"""What is done to an image, as small frozen dataclasses. Nothing here says who does it or draws a number."""

from __future__ import annotations

from gpupipe.recipe.augmentations import (
    Augmenting as Augmenting,
    ColorJitter,
    GaussianBlur,
    RandomApply,
    RandomChoice,
    RandomGrayscale,
    RandomSolarize,
    ThreeAugment,
    walk as walk,
)
from gpupipe.recipe.auto_augment import AutoAugment, RandAugment, TimmRandAugment, TrivialAugmentWide
from gpupipe.recipe.erasing import RandomErasing
from gpupipe.recipe.mixing import CutMix, Mixing as Mixing, MixUp, MixUpOrCutMix
from gpupipe.recipe.operations import (
    IMAGENET_MEAN as IMAGENET_MEAN,
    IMAGENET_STD as IMAGENET_STD,
    Crop as Crop,
    Filter as Filter,
    Normalize,
    RandomHorizontalFlip,
    RandomResizedCrop,
    ResizeCenterCrop,
)
from gpupipe.recipe.presets import imagenet_eval, imagenet_train
from gpupipe.recipe.published import (
    deit3_eval,
    deit3_train,
    dino_eval,
    dino_train,
    resnet50_v2_eval,
    resnet50_v2_train,
    timm_a_eval,
    timm_a_train,
)
from gpupipe.recipe.recipe import (
    Decode as Decode,
    Layout as Layout,
    Operation as Operation,
    OutputSpec as OutputSpec,
    Recipe,
)
from gpupipe.recipe.views import MultiCrop, Views as Views

__all__ = [
    "AutoAugment",
    "ColorJitter",
    "CutMix",
    "GaussianBlur",
    "MixUp",
    "MixUpOrCutMix",
    "MultiCrop",
    "Normalize",
    "RandAugment",
    "RandomApply",
    "RandomChoice",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "RandomSolarize",
    "Recipe",
    "ResizeCenterCrop",
    "ThreeAugment",
    "TimmRandAugment",
    "TrivialAugmentWide",
    "deit3_eval",
    "deit3_train",
    "dino_eval",
    "dino_train",
    "imagenet_eval",
    "imagenet_train",
    "resnet50_v2_eval",
    "resnet50_v2_train",
    "timm_a_eval",
    "timm_a_train",
]
