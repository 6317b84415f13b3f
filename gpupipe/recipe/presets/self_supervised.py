"""Recipes of learning without labels: DINO, DINOv2, SimCLR, BYOL and MAE.

Each takes, as `settings`, `dtype`, `layout`, `exif_orientation` and `decode` of `Recipe`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpupipe.recipe.augmentations import (
    Augmenting,
    ColorJitter,
    GaussianBlur,
    RandomApply,
    RandomGrayscale,
    RandomSolarize,
)
from gpupipe.recipe.checks import count, number
from gpupipe.recipe.operations import RandomHorizontalFlip, RandomResizedCrop
from gpupipe.recipe.presets.imagenet import convnext_train
from gpupipe.recipe.presets.parts import normalization, resized_center
from gpupipe.recipe.recipe import MultiCrop, Recipe

__all__ = [
    "byol_train",
    "dino_eval",
    "dino_train",
    "dinov2_train",
    "mae_finetune",
    "mae_train",
    "simclr_train",
]

WEAK = ColorJitter(0.4, 0.4, 0.2, 0.1)
SIGMA = (0.1, 2.0)


def _view(
    settings: dict[str, Any],
    crop: RandomResizedCrop,
    *augmentations: Augmenting,
    jitter: ColorJitter = WEAK,
    views: int = 1,
) -> Recipe:
    """Crop, flip, jitter in 0.8 of the images, gray in 0.2, and what else is done."""
    colors = RandomApply((jitter,), 0.8), RandomGrayscale(0.2), *augmentations
    return Recipe((crop, RandomHorizontalFlip(), *colors, *normalization(settings)), views=views, **settings)


def _kernel(size: int) -> int:
    """10 % of the side in pixels, as an odd number: 23 of 224."""
    return size // 10 // 2 * 2 + 1


def simclr_train(size: int = 224, *, strength: float = 1.0, **settings: Any) -> Recipe:
    """SimCLR's two views of each image: crop, flip, jitter of `strength`, gray, and a blur half the time.

    strength: of the jitter, 0 to 2.5; 0.5 for small images, where the original does not blur either.

    Source: Chen et al. 2020, "A simple framework for contrastive learning" (arXiv 2002.05709), appendix A, and
    SimCLRTrainDataTransform of Lightning Bolts (pl_bolts/transforms/self_supervised), whose kernel of 10 % it has.

    Not the loader's: the loss, LARS, 1,000 epochs.
    Differs: normalized as ImageNet, where the original has levels of 0 to 1; without the third view, crop and flip
    alone, that Bolts makes for a classifier beside; `MultiCrop` has place for one.
    """
    strength = number(f"simclr_train: strength={strength!r}", strength, 0, 2.5)
    jitter = ColorJitter(0.8 * strength, 0.8 * strength, 0.8 * strength, 0.2 * strength)
    blur = RandomApply((GaussianBlur(_kernel(size), SIGMA),), 0.5)
    return _view(settings, RandomResizedCrop(size), blur, jitter=jitter, views=2)


def byol_train(size: int = 224, **settings: Any) -> MultiCrop:
    """BYOL's two views of each image: the first always blurred, the second one time in ten, and solarized in five.

    Source: Grill et al. 2020, "Bootstrap your own latent" (arXiv 2006.07733), appendix B and Table 6; BYOLTransform of
    Lightly has the same numbers, but a bilinear resize.

    Not the loader's: two networks, of which each sees both views, LARS, 1,000 epochs.
    Differs: jitter and blur are torchvision's, on uint8, where the original works on floats.
    """
    blur = GaussianBlur(_kernel(size), SIGMA)
    crop = RandomResizedCrop(size, interpolation="bicubic")
    first = _view(settings, crop, blur)
    return MultiCrop((first, _view(settings, crop, RandomApply((blur,), 0.1), RandomSolarize(128, 0.2))))


def _multi_crop(
    settings: dict[str, Any],
    sides: tuple[int, int],
    scales: tuple[tuple[float, float], tuple[float, float]],
    local_views: int,
    extra: tuple[Sequence[Augmenting], Sequence[Augmenting], Sequence[Augmenting]],
) -> MultiCrop:
    """Two large views and some small ones. extra: what is done to the first, to the second and to the small ones."""
    large, small = (
        RandomResizedCrop(side, scale, interpolation="bicubic") for side, scale in zip(sides, scales, strict=True)
    )
    recipes = [_view(settings, large, *extra[0]), _view(settings, large, *extra[1])]
    if local_views:
        recipes.append(_view(settings, small, *extra[2], views=local_views))
    return MultiCrop(tuple(recipes))


def dino_train(size: int = 224, *, local_size: int = 96, local_views: int = 8, **settings: Any) -> MultiCrop:
    """DINO's multi-crop: two large views of each image and, by default, eight small ones.

    The first view is always blurred, the second sometimes blurred and solarized, the small ones blurred half the time.

    Source: Caron et al. 2021, "Emerging properties in self-supervised vision transformers" (arXiv 2104.14294), and
    DataAugmentationDINO in main_dino.py of facebookresearch/dino, with its default scales.

    Not the loader's: two networks, of which the teacher sees the first two views alone, the loss, the optimizer.
    Differs: the original blurs with Pillow; here torchvision's blur with a kernel of 13 pixels stands for it.
    """
    count(f"dino_train: local_views={local_views!r}", local_views, 0, 254)
    blur = GaussianBlur(13, SIGMA)
    extra = (blur,), (RandomApply((blur,), 0.1), RandomSolarize(128, 0.2)), (RandomApply((blur,), 0.5),)
    return _multi_crop(settings, (size, local_size), ((0.4, 1.0), (0.05, 0.4)), local_views, extra)


def dinov2_train(size: int = 224, *, local_size: int = 96, local_views: int = 8, **settings: Any) -> MultiCrop:
    """DINOv2's multi-crop: two large views of each image and, by default, eight small ones.

    The first view is never blurred, the second 0.9 of the time, and solarized in 0.2, the small ones half the time: so
    the original's code does it, whose GaussianBlur passes 1 - p on to torchvision's RandomApply, where p is meant.

    Source: Oquab et al. 2023, "DINOv2: Learning robust visual features without supervision" (arXiv 2304.07193), and
    DataAugmentationDINO in dinov2/data of facebookresearch/dinov2 with the scales of its ssl_default_config.yaml. Its
    evaluation is `dino_eval`.

    Not the loader's: teacher and student, the masks of patches (iBOT), the losses, the optimizer.
    """
    count(f"dinov2_train: local_views={local_views!r}", local_views, 0, 254)
    blur = GaussianBlur(9, SIGMA)
    extra = (), (RandomApply((blur,), 0.9), RandomSolarize(128, 0.2)), (RandomApply((blur,), 0.5),)
    return _multi_crop(settings, (size, local_size), ((0.32, 1.0), (0.05, 0.32)), local_views, extra)


def dino_eval(size: int = 224, *, resize: int = 256, **settings: Any) -> Recipe:
    """The evaluation of DINO's features: shorter side 256, the centre's 224, bicubic.

    Source: eval_linear.py of facebookresearch/dino.
    """
    return resized_center(size, resize, settings)


def mae_train(size: int = 224, **settings: Any) -> Recipe:
    """MAE's pre-training: a crop of 0.2 of the image or more, bicubic, and a flip.

    Source: He et al. 2021, "Masked autoencoders are scalable vision learners" (arXiv 2111.06377), A.1, and
    main_pretrain.py of facebookresearch/mae. Its linear probe trains on crops of 0.08 or more:
    `RandomResizedCrop(size, interpolation="bicubic")`.

    Not the loader's: which patches are masked, AdamW, 800 to 1,600 epochs.
    """
    crop = RandomResizedCrop(size, (0.2, 1.0), interpolation="bicubic")
    return Recipe((crop, RandomHorizontalFlip(), *normalization(settings)), **settings)


def mae_finetune(size: int = 224, *, num_classes: int | None = None, **settings: Any) -> Recipe:
    """MAE's fine-tuning, which to a loader is `convnext_train`, as its evaluation is `convnext_eval`; see there.

    Source: arXiv 2111.06377, Table 9; FINETUNE.md and util/datasets.py of facebookresearch/mae.

    Not the loader's: AdamW with rates that decay from layer to layer, 50 to 100 epochs, stochastic depth.
    """
    return convnext_train(size, num_classes=num_classes, **settings)
