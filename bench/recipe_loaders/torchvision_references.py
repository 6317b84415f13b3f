"""torchvision as its references train: ImageFolder, v2 transforms on Pillow images, mixing when collated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import InterpolationMode, v2

from gpupipe.recipe import MultiCrop, RandomResizedCrop, Recipe
from gpupipe.tools.benchmark.contenders import BatchStream
from gpupipe.tools.benchmark.contenders.torch_loader import PREFETCH_FACTOR, EndlessShuffle
from gpupipe.tools.benchmark.measurement import BenchSettings
from recipe_loaders.in_torchvision import augmentations, collate, tail
from recipe_loaders.table import FirstView, Way, maker

__all__ = ["TorchvisionReferences", "Views"]


class Views:
    """From a Pillow image to each view's tensor."""

    def __init__(self, recipe: Recipe | MultiCrop) -> None:
        self.transforms = [transform(view) for view in recipe.view_recipes]

    def __call__(self, picture: Any) -> list[torch.Tensor]:
        return [one(picture) for one in self.transforms]


def transform(recipe: Recipe) -> Callable[[Any], torch.Tensor]:
    """From a Pillow image to one view's tensor."""
    crop, flip = recipe.crop, recipe.flip
    assert isinstance(crop, RandomResizedCrop)
    filter = InterpolationMode(crop.interpolation)
    return v2.Compose(
        [
            v2.RandomResizedCrop(crop.output_size, crop.scale, crop.ratio, interpolation=filter),
            v2.RandomHorizontalFlip(flip.p if flip else 0.0),
            *augmentations(recipe.augmentations),
            v2.PILToTensor(),
            *tail(recipe),
        ]
    )


class TorchvisionReferences(Way):
    """references/classification/presets.py with its backend "pil"."""

    name = "torchvision's references"

    def open(self, settings: BenchSettings) -> BatchStream:
        """The workers start with the first batch."""
        dataset = ImageFolder(settings.data, self.views(settings.size))
        loader = DataLoader(
            dataset,
            batch_size=settings.batch_size,
            sampler=EndlessShuffle(len(dataset)),
            num_workers=settings.workers,
            prefetch_factor=PREFETCH_FACTOR,
            multiprocessing_context="fork",  # the collate function is a closure
            collate_fn=collate(self.entry.recipe(settings.size)),
        )
        return FirstView(loader)

    def views(self, size: int) -> Callable[[Any], list[torch.Tensor]]:
        """What a Pillow image becomes."""
        return Views(self.entry.recipe(size))


def __getattr__(recipe: str) -> Callable[[], Way]:
    return maker(TorchvisionReferences, recipe)
