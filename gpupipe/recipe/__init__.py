"""What is done to an image, as small frozen dataclasses. Nothing here says who does it or draws a number."""

from __future__ import annotations

# ruff: noqa: F403, F405  (the names that are public stand in __all__)
from gpupipe.recipe.augmentations import *
from gpupipe.recipe.auto_augment import *
from gpupipe.recipe.fields import check_fields as check_fields
from gpupipe.recipe.fitting import *
from gpupipe.recipe.geometric import *
from gpupipe.recipe.mixing import *
from gpupipe.recipe.operations import *
from gpupipe.recipe.own import *
from gpupipe.recipe.presets.dense import *
from gpupipe.recipe.presets.image_text import *
from gpupipe.recipe.presets.imagenet import *
from gpupipe.recipe.presets.self_supervised import *
from gpupipe.recipe.presets.test_time import *
from gpupipe.recipe.presets.video import *
from gpupipe.recipe.presets.yolo import *
from gpupipe.recipe.recipe import *
from gpupipe.recipe.several import *

__all__ = [
    "AugMix",
    "AutoAugment",
    "BucketCrop",
    "CoarseDropout",
    "ColorJitter",
    "CopyPaste",
    "CutMix",
    "DetectionMixUp",
    "ElasticTransform",
    "GaussianBlur",
    "GaussianNoise",
    "LetterBox",
    "MixUp",
    "MixUpOrCutMix",
    "Mosaic",
    "MultiCrop",
    "MultiScaleCrop",
    "Normalize",
    "OnBatch",
    "PerImage",
    "RandAugment",
    "RandomAdjustSharpness",
    "RandomAffine",
    "RandomApply",
    "RandomAutocontrast",
    "RandomChannelPermutation",
    "RandomChoice",
    "RandomCrop",
    "RandomEqualize",
    "RandomErasing",
    "RandomGamma",
    "RandomGrayscale",
    "RandomHSV",
    "RandomHorizontalFlip",
    "RandomInvert",
    "RandomIoUCrop",
    "RandomPerspective",
    "RandomPhotometricDistort",
    "RandomPosterize",
    "RandomResizedCrop",
    "RandomRotation",
    "RandomSolarize",
    "RandomVerticalFlip",
    "Recipe",
    "Resize",
    "ResizeCenterCrop",
    "ResizeCornerCrop",
    "ResizeToSequence",
    "ScaleJitter",
    "ThreeAugment",
    "TimmAugMix",
    "TimmRandAugment",
    "TrivialAugmentWide",
    "byol_train",
    "convnext_eval",
    "convnext_train",
    "deit3_eval",
    "deit3_train",
    "detection_eval",
    "detection_train",
    "dino_eval",
    "dino_train",
    "dinov2_train",
    "eval_views",
    "imagenet_eval",
    "imagenet_train",
    "kinetics_eval",
    "kinetics_train",
    "mae_finetune",
    "mae_train",
    "openclip_eval",
    "openclip_train",
    "r3d_eval",
    "r3d_train",
    "resnet50_v2_eval",
    "resnet50_v2_train",
    "segmentation_eval",
    "segmentation_train",
    "siglip_eval",
    "siglip_train",
    "simclr_train",
    "swin_eval",
    "swin_train",
    "timm_a_eval",
    "timm_a_train",
    "tsn_eval",
    "tsn_train",
    "yolo_eval",
    "yolo_train",
]
