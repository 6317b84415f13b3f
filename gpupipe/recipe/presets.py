"""Published training and evaluation recipes, in the parts that are a loader's; torchvision's first ones before all.

Each takes, as `settings`, `dtype`, `layout`, `exif_orientation` and `decode` of `Recipe`; those that mix take the
`num_classes` of `MixUp`.
"""

from __future__ import annotations

import math
from typing import Any, Literal

from gpupipe.errors import ConfigError
from gpupipe.recipe.augmentations import (
    Augmenting,
    ColorJitter,
    GaussianBlur,
    RandomApply,
    RandomGrayscale,
    RandomSolarize,
    ThreeAugment,
)
from gpupipe.recipe.auto_augment import TimmRandAugment, TrivialAugmentWide
from gpupipe.recipe.checks import count, pair
from gpupipe.recipe.mixing import MixUpOrCutMix
from gpupipe.recipe.operations import (
    Normalize,
    RandomErasing,
    RandomHorizontalFlip,
    RandomResizedCrop,
    ResizeCenterCrop,
)
from gpupipe.recipe.recipe import MultiCrop, Recipe, dtype_name

__all__ = [
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


def imagenet_train(size: int | tuple[int, int] = 224, **settings: Any) -> Recipe:
    """The training recipe of torchvision's ImageNet reference: random resized crop, flip, normalize.

    settings: `dtype`, `layout`, `exif_orientation` and `decode` of `Recipe`.

    >>> imagenet_train(224).output_spec(256)
    OutputSpec(shape=(256, 3, 224, 224), dtype='float32', layout='NCHW')
    """
    return Recipe((RandomResizedCrop(size), RandomHorizontalFlip(), *_normalization(settings)), **settings)


def imagenet_eval(size: int | tuple[int, int] = 224, *, resize: int | None = None, **settings: Any) -> Recipe:
    """The evaluation recipe of torchvision's ImageNet reference: resize, center crop, normalize.

    resize:   the shorter side before the crop; by default the crop takes 0.875 of it (224 of 256).
    settings: `dtype`, `layout`, `exif_orientation` and `decode` of `Recipe`.
    """
    if resize is None:
        resize = round(max(pair(f"imagenet_eval: size={size!r}", size)) / 0.875)
    return _evaluation(ResizeCenterCrop(size, resize), settings)


def _evaluation(crop: ResizeCenterCrop, settings: dict[str, Any]) -> Recipe:
    return Recipe((crop, *_normalization(settings)), **settings)


def _normalization(settings: dict[str, Any]) -> tuple[Normalize, ...]:
    """ImageNet's, unless the `dtype` among a recipe's settings is uint8, which holds no normalized images."""
    return () if dtype_name(settings.get("dtype", "float32")) == "uint8" else (Normalize(),)


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
            *_normalization(settings),
            RandomErasing(0.1),
            MixUpOrCutMix(num_classes, mixup_alpha=0.2, cutmix_alpha=1.0),
        ),
        **settings,
    )


def resnet50_v2_eval(size: int = 224, *, resize: int = 232, **settings: Any) -> Recipe:
    """The evaluation that goes with `resnet50_v2_train`: shorter side 232, the centre's 224, bilinear.

    Source: `ResNet50_Weights.IMAGENET1K_V2.transforms` in torchvision/models/resnet.py.
    """
    return _evaluation(ResizeCenterCrop(size, resize), settings)


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
            *_normalization(settings),
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
    return _evaluation(ResizeCenterCrop(size, math.floor(size / 0.95), "bicubic"), settings)


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
            *_normalization(settings),
            MixUpOrCutMix(num_classes, mixup_alpha=0.8, cutmix_alpha=1.0),
        ),
        **settings,
    )


def deit3_eval(size: int = 224, **settings: Any) -> Recipe:
    """The evaluation that goes with `deit3_train`: the shorter side becomes `size`, the centre is taken, bicubic.

    Source: arXiv 2204.07118, Table 1 (test crop ratio 1.0). timm tests its copies of the 224 pixel weights with 0.9.
    """
    return _evaluation(ResizeCenterCrop(size, size, "bicubic"), settings)


def dino_train(size: int = 224, *, local_size: int = 96, local_views: int = 8, **settings: Any) -> MultiCrop:
    """DINO's multi-crop: two large views of each image and, by default, eight small ones.

    The first view is always blurred, the second sometimes blurred and solarized, the small ones blurred half the time.

    Source: Caron et al. 2021, "Emerging properties in self-supervised vision transformers" (arXiv 2104.14294), and
    DataAugmentationDINO in main_dino.py of facebookresearch/dino, with its default scales.

    Not the loader's: two networks, of which the teacher sees the first two views alone, the loss, the optimizer.
    Differs: the original blurs with Pillow; here torchvision's blur with a kernel of 13 pixels stands for it.
    """
    count(f"dino_train: local_views={local_views!r}", local_views, 0, 254)
    blur = GaussianBlur(13, (0.1, 2.0))

    def view(crop: RandomResizedCrop, *blurred: Augmenting, views: int = 1) -> Recipe:
        colors = RandomApply((ColorJitter(0.4, 0.4, 0.2, 0.1),), 0.8), RandomGrayscale(0.2)
        return Recipe(
            (crop, RandomHorizontalFlip(), *colors, *blurred, *_normalization(settings)), views=views, **settings
        )

    large = RandomResizedCrop(size, scale=(0.4, 1.0), interpolation="bicubic")
    small = RandomResizedCrop(local_size, scale=(0.05, 0.4), interpolation="bicubic")
    recipes = [view(large, blur), view(large, RandomApply((blur,), 0.1), RandomSolarize(128, 0.2))]
    if local_views:
        recipes.append(view(small, RandomApply((blur,), 0.5), views=local_views))
    return MultiCrop(tuple(recipes))


def dino_eval(size: int = 224, *, resize: int = 256, **settings: Any) -> Recipe:
    """The evaluation of DINO's features: shorter side 256, the centre's 224, bicubic.

    Source: eval_linear.py of facebookresearch/dino.
    """
    return _evaluation(ResizeCenterCrop(size, resize, "bicubic"), settings)
