"""A gpupipe recipe in torchvision's v2 transforms, which work on uint8 tensors and on Pillow images."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import default_collate
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional

import gpupipe
from gpupipe.recipe import Augmenting, Mixing, MultiCrop, Recipe
from recipe_loaders.table import CLASSES

__all__ = ["augmentations", "collate", "tail"]


def augmentation(one: Augmenting) -> Callable[[Any], Any]:
    """Its transform. timm's RandAugment becomes the nearest that torchvision has: magnitudes without a spread, and no
    bicubic filter, which its functions on tensors lack."""
    match one:
        case gpupipe.RandAugment():
            return v2.RandAugment(one.num_ops, one.magnitude, one.num_magnitude_bins, **warp(one))
        case gpupipe.TrivialAugmentWide():
            return v2.TrivialAugmentWide(one.num_magnitude_bins, **warp(one))
        case gpupipe.AutoAugment():
            return v2.AutoAugment(v2.AutoAugmentPolicy(one.policy), **warp(one))
        case gpupipe.TimmRandAugment():
            single = v2.RandAugment(1, round(3 * one.magnitude), 31, **warp(one))
            return v2.Compose([v2.RandomApply([single], one.p) for _ in range(one.num_ops)])
        case gpupipe.RandomVerticalFlip():
            return v2.RandomVerticalFlip(one.p)
        case gpupipe.RandomRotation():
            return v2.RandomRotation(one.degrees, **warp(one))
        case gpupipe.RandomAffine():
            return v2.RandomAffine(one.degrees, one.translate, one.scale, one.shear, **warp(one))
        case gpupipe.AugMix():
            depth, ops = one.chain_depth, one.all_ops
            return v2.AugMix(one.severity, one.mixture_width, depth, all_ops=ops, **warp(one))
        case gpupipe.ElasticTransform():
            return v2.ElasticTransform(list(one.alpha), one.sigma, **warp(one))
        case gpupipe.RandomPerspective():
            return v2.RandomPerspective(one.distortion_scale, one.p, **warp(one))
        case gpupipe.RandomGamma():
            low, high = one.gamma
            power = v2.Lambda(lambda image: functional.adjust_gamma(image, random.uniform(low, high)))
            return v2.RandomApply([power], one.p)
        case gpupipe.ColorJitter():
            return v2.ColorJitter(one.brightness, one.contrast, one.saturation, one.hue)
        case gpupipe.RandomPhotometricDistort():
            return v2.RandomPhotometricDistort(one.brightness, one.contrast, one.saturation, one.hue, one.p)
        case gpupipe.RandomChannelPermutation():
            return v2.RandomChannelPermutation()
        case gpupipe.GaussianNoise():
            return v2.GaussianNoise(one.mean, one.sigma)
        case gpupipe.RandomGrayscale():
            return v2.RandomGrayscale(one.p)
        case gpupipe.RandomSolarize():
            return v2.RandomSolarize(one.threshold, one.p)
        case gpupipe.RandomInvert() | gpupipe.RandomAutocontrast() | gpupipe.RandomEqualize():
            return getattr(v2, type(one).__name__)(one.p)
        case gpupipe.RandomPosterize():
            return v2.RandomPosterize(one.bits, one.p)
        case gpupipe.RandomAdjustSharpness():
            return v2.RandomAdjustSharpness(one.sharpness_factor, one.p)
        case gpupipe.GaussianBlur():
            return v2.GaussianBlur(one.kernel_size, one.sigma)
        case gpupipe.ThreeAugment():
            return augmentation(one.choice)
        case gpupipe.RandomApply():
            return v2.RandomApply(augmentations(one.operations), one.p)
        case gpupipe.RandomChoice():
            return v2.RandomChoice(augmentations(one.operations), p=None if one.p is None else list(one.p))
    raise ValueError(f"no transform of torchvision stands for {one!r}")


def warp(one: Any) -> dict[str, Any]:
    """Interpolation and fill."""
    filter = "bilinear" if one.interpolation == "bicubic" else one.interpolation
    return {"interpolation": InterpolationMode(filter), "fill": one.fill and list(one.fill)}


def augmentations(some: tuple[Augmenting, ...]) -> list[Callable[[Any], Any]]:
    """Their transforms, in order."""
    return [augmentation(one) for one in some]


def tail(recipe: Recipe) -> list[Callable[[Any], Any]]:
    """What follows the augmentations, on a uint8 tensor: to float, normalized, erased."""
    steps: list[Callable[[Any], Any]] = [v2.ToDtype(torch.float32, scale=True)]
    if recipe.normalize:
        steps.append(v2.Normalize(recipe.normalize.mean, recipe.normalize.std))
    if recipe.erasing:
        erasing = recipe.erasing
        value = "random" if erasing.constant is None else list(erasing.constant)
        steps.append(v2.RandomErasing(erasing.p, erasing.scale, erasing.ratio, value))
    return steps


def collate(recipe: Recipe | MultiCrop) -> Callable[[list[Any]], tuple[list[torch.Tensor], torch.Tensor]]:
    """The views' images, mixed where the recipe mixes, and the labels, which are those before: they are counted."""
    mixing = mix(recipe.view_recipes[0].mixing)

    def call(samples: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        views, labels = default_collate(samples)
        if mixing is None:
            return views, labels
        mixed, targets = mixing(views[0], labels)
        assert targets.shape == (len(labels), CLASSES)
        return [mixed], labels

    return call


def mix(mixing: Mixing | None) -> Callable[..., Any] | None:
    """As torchvision's references: in the collate function, one draw for a batch."""
    match mixing:
        case gpupipe.MixUp():
            return v2.MixUp(alpha=mixing.alpha, num_classes=mixing.num_classes)
        case gpupipe.CutMix():
            return v2.CutMix(alpha=mixing.alpha, num_classes=mixing.num_classes)
        case gpupipe.MixUpOrCutMix():
            mixup = v2.MixUp(alpha=mixing.mixup_alpha, num_classes=mixing.num_classes)
            cutmix = v2.CutMix(alpha=mixing.cutmix_alpha, num_classes=mixing.num_classes)
            return v2.RandomChoice([mixup, cutmix], p=[1 - mixing.switch_p, mixing.switch_p])
    return None
