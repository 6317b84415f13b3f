"""Recipes of classification on ImageNet: torchvision's, timm's, DeiT III's, and ConvNeXt's, which is Swin's too.

Each takes, as `settings`, `dtype`, `layout`, `exif_orientation` and `decode` of `Recipe`; those that mix take the
`num_classes` of `MixUp`.
"""

from __future__ import annotations

import math
from typing import Any, Literal

from gpupipe.errors import ConfigError
from gpupipe.recipe.augmentations import ColorJitter, ThreeAugment
from gpupipe.recipe.auto_augment import TimmRandAugment, TrivialAugmentWide
from gpupipe.recipe.checks import pair
from gpupipe.recipe.mixing import MixUpOrCutMix
from gpupipe.recipe.operations import RandomErasing, RandomHorizontalFlip, RandomResizedCrop
from gpupipe.recipe.presets.parts import normalization, resized_center
from gpupipe.recipe.recipe import Recipe

__all__ = [
    "convnext_eval",
    "convnext_train",
    "deit3_eval",
    "deit3_train",
    "imagenet_eval",
    "imagenet_train",
    "resnet50_v2_eval",
    "resnet50_v2_train",
    "swin_eval",
    "swin_train",
    "timm_a_eval",
    "timm_a_train",
]


def imagenet_train(size: int | tuple[int, int] = 224, **settings: Any) -> Recipe:
    """The training recipe of torchvision's ImageNet reference: random resized crop, flip, normalize.

    settings: `dtype`, `layout`, `exif_orientation` and `decode` of `Recipe`.

    >>> imagenet_train(224).output_spec(256)
    OutputSpec(shape=(256, 3, 224, 224), dtype='float32', layout='NCHW')
    """
    return Recipe((RandomResizedCrop(size), RandomHorizontalFlip(), *normalization(settings)), **settings)


def imagenet_eval(size: int | tuple[int, int] = 224, *, resize: int | None = None, **settings: Any) -> Recipe:
    """The evaluation recipe of torchvision's ImageNet reference: resize, center crop, normalize.

    resize:   the shorter side before the crop; by default the crop takes 0.875 of it (224 of 256).
    settings: `dtype`, `layout`, `exif_orientation` and `decode` of `Recipe`.
    """
    if resize is None:
        resize = round(max(pair(f"imagenet_eval: size={size!r}", size)) / 0.875)
    return resized_center(size, resize, settings, "bilinear")


def resnet50_v2_train(size: int = 176, *, num_classes: int | None = None, **settings: Any) -> Recipe:
    """torchvision's recipe for the weights `ResNet50_Weights.IMAGENET1K_V2`, also used for its other V2 weights.

    Source: references/classification of pytorch/vision, README.md (ResNet-50 with --auto-augment ta_wide) and
    presets.py; "How to train state-of-the-art models using TorchVision's latest primitives" (PyTorch blog, 2021).

    Not the loader's: SGD, 600 epochs with cosine decay, weight decay 2e-5 but none on normalization layers, EMA of the
    weights, and label smoothing of 0.1 in the loss (`CrossEntropyLoss(label_smoothing=0.1)`, also with mixed labels).
    Its sampler that repeats each image four times on different ranks is `gpupipe.Repeated(order, 4)`, in one batch.
    Differs: each image draws its own lambda and its own choice of MixUp or CutMix, where torchvision draws for a batch.
    """
    return Recipe(
        (
            RandomResizedCrop(size),
            RandomHorizontalFlip(),
            TrivialAugmentWide(interpolation="bilinear"),
            *normalization(settings),
            RandomErasing(0.1),
            MixUpOrCutMix(num_classes, mixup_alpha=0.2, cutmix_alpha=1.0),
        ),
        **settings,
    )


def resnet50_v2_eval(size: int = 224, *, resize: int = 232, **settings: Any) -> Recipe:
    """The evaluation that goes with `resnet50_v2_train`: shorter side 232, the centre's 224, bilinear.

    Source: `ResNet50_Weights.IMAGENET1K_V2.transforms` in torchvision/models/resnet.py.
    """
    return resized_center(size, resize, settings, "bilinear")


def timm_a_train(
    variant: Literal["A1", "A2", "A3"], size: int | None = None, *, num_classes: int | None = None, **settings: Any
) -> Recipe:
    """The recipes A1 (600 epochs), A2 (300) and A3 (100, on 160 pixels) of timm for ResNets.

    size: default 224, for A3 160. Raises ConfigError for another variant.

    Source: Wightman, Touvron, Jégou 2021, "ResNet strikes back: An improved training procedure in timm" (arXiv
    2110.00476), Table 2; RandAugment of magnitude 7, 7 and 6 is timm's "rand-m7-mstd0.5-inc1" and "rand-m6-...".

    Not the loader's: LAMB with cosine decay, binary cross-entropy, for which timm's commands make ones of the targets
    above 0.2 (`--bce-loss --bce-target-thresh 0.2`), weight decay 0.01, 0.02 and 0.02, stochastic depth of 0.05 in A1
    and A2. Repeated augmentation in A1 and A2 is `gpupipe.Repeated(order, 3)`.
    Differs: each image draws its own lambda and its own choice of MixUp or CutMix (timm's --mixup-mode elem; its
    default draws for a batch). timm draws bilinear or bicubic for each resize and each operation of RandAugment, by
    default; here the resize is bicubic, as in the evaluation, and the operations are bilinear.
    """
    if variant not in ("A1", "A2", "A3"):
        raise ConfigError(f"timm_a_train: variant={variant!r} must be one of A1, A2, A3")
    return Recipe(
        (
            RandomResizedCrop(size or (160 if variant == "A3" else 224), interpolation="bicubic"),
            RandomHorizontalFlip(),
            TimmRandAugment(6 if variant == "A3" else 7, magnitude_std=0.5),
            *normalization(settings),
            MixUpOrCutMix(
                num_classes,
                mixup_alpha=0.2 if variant == "A1" else 0.1,
                cutmix_alpha=1.0,
                label_smoothing=0.1 if variant == "A1" else 0.0,
            ),
        ),
        **settings,
    )


def timm_a_eval(size: int = 224, **settings: Any) -> Recipe:
    """The evaluation that goes with `timm_a_train`: the crop takes 0.95 of the shorter side, bicubic.

    Source: arXiv 2110.00476, Table 2; `crop_pct` and `interpolation` of resnet50.a1_in1k in timm/models/resnet.py, and
    timm's rounding down in transforms_factory.py, so 224 of 235.
    """
    return resized_center(size, math.floor(size / 0.95), settings)


def deit3_train(size: int = 224, *, num_classes: int | None = None, **settings: Any) -> Recipe:
    """DeiT III's recipe for vision transformers on ImageNet-1k.

    Source: Touvron, Cord, Jégou 2022, "DeiT III: Revenge of the ViT" (arXiv 2204.07118), Table 1; augment.py and
    README_revenge.md of facebookresearch/deit. Larger models train on 192 or 160 pixels, then are fine-tuned on 224.

    Not the loader's: LAMB, 800 epochs with cosine decay, weight decay 0.05, binary cross-entropy, for which the
    original's code makes ones of all targets above 0, stochastic depth. Repeated augmentation is
    `gpupipe.Repeated(order, 3)`.
    Differs: each image draws its own lambda and its own choice of MixUp or CutMix, where the original draws for a
    batch; its blur is Pillow's (see `ThreeAugment`).
    """
    return Recipe(
        (
            RandomResizedCrop(size, interpolation="bicubic"),
            RandomHorizontalFlip(),
            ThreeAugment(),
            ColorJitter(0.3, 0.3, 0.3),
            *normalization(settings),
            MixUpOrCutMix(num_classes, mixup_alpha=0.8, cutmix_alpha=1.0),
        ),
        **settings,
    )


def deit3_eval(size: int = 224, **settings: Any) -> Recipe:
    """The evaluation that goes with `deit3_train`: the shorter side becomes `size`, the centre is taken, bicubic.

    Source: arXiv 2204.07118, Table 1 (test crop ratio 1.0). timm tests its copies of the 224 pixel weights with 0.9.
    """
    return resized_center(size, size, settings)


def convnext_train(size: int = 224, *, num_classes: int | None = None, **settings: Any) -> Recipe:
    """ConvNeXt's recipe on ImageNet-1k: RandAugment, erasing, MixUp or CutMix, as DeiT's, Swin's and others after it.

    Source: Liu et al. 2022, "A ConvNet for the 2020s" (arXiv 2201.03545), Table 5, and the arguments with which its
    code calls timm's `create_transform` and `Mixup`: rand-m9-mstd0.5-inc1, bicubic, re_prob=0.25, re_mode="pixel".

    Not the loader's: AdamW, 300 epochs with cosine decay, weight decay 0.05, layer scale, stochastic depth, EMA.
    Differs: each image draws its own lambda and its own choice of MixUp or CutMix, where the original draws for a
    batch; operations are torchvision's (see `TimmRandAugment`).
    """
    return Recipe(
        (
            RandomResizedCrop(size, interpolation="bicubic"),
            RandomHorizontalFlip(),
            TimmRandAugment(9, magnitude_std=0.5, interpolation="bicubic"),
            *normalization(settings),
            RandomErasing(0.25, (0.02, 1 / 3), (0.3, 1 / 0.3), "random"),
            MixUpOrCutMix(num_classes, 0.8, 1.0, label_smoothing=0.1, rounding="timm"),
        ),
        **settings,
    )


def convnext_eval(size: int = 224, **settings: Any) -> Recipe:
    """The evaluation that goes with `convnext_train`: the crop takes 0.875 of the shorter side, bicubic.

    Source: `crop_pct` of convnext_tiny.fb_in1k in timm/models/convnext.py; 224 of 256 in the original's code, too.
    """
    return resized_center(size, math.floor(size / 0.875), settings)


def swin_train(size: int = 224, *, num_classes: int | None = None, **settings: Any) -> Recipe:
    """Swin's recipe on ImageNet-1k, which to a loader is `convnext_train`; see there what differs.

    Source: Liu et al. 2021, "Swin Transformer" (arXiv 2103.14030), A2.1; AUG in its code's config.py.

    Not the loader's: AdamW, 300 epochs with cosine decay, weight decay 0.05, stochastic depth of 0.2 to 0.5.
    """
    return convnext_train(size, num_classes=num_classes, **settings)


def swin_eval(size: int = 224, **settings: Any) -> Recipe:
    """The evaluation that goes with `swin_train`: the crop takes 0.9 of the shorter side, bicubic.

    Source: `crop_pct` of swin_tiny_patch4_window7_224.ms_in1k in timm/models/swin_transformer.py, and timm's rounding
    down, so 224 of 248. The original's code takes 224 of 256: `convnext_eval`.
    """
    return resized_center(size, math.floor(size / 0.9), settings)
