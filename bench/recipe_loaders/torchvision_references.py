"""torchvision as its references train: ImageFolder, v2 transforms on Pillow images, mixing when collated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import InterpolationMode, v2

from gpupipe.benchmark.contenders.base import Stream
from gpupipe.benchmark.contenders.torch_loader import PREFETCH_FACTOR, DataLoaderStream, EndlessShuffle
from gpupipe.benchmark.settings import Settings
from gpupipe.recipe import RandomResizedCrop, Recipe
from recipe_loaders.in_torchvision import augmentations, collate, tail
from recipe_loaders.table import Way, maker

__all__ = ["TorchvisionReferences", "transform"]


def transform(recipe: Recipe) -> Callable[[Any], torch.Tensor]:
    """From a Pillow image to a finished one."""
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

    def open(self, settings: Settings) -> Stream:
        """The workers start with the first batch."""
        recipe = self.entry.recipe(settings.size)
        dataset = ImageFolder(settings.data, transform(recipe))
        loader = DataLoader(
            dataset,
            batch_size=settings.batch_size,
            sampler=EndlessShuffle(len(dataset)),
            num_workers=settings.workers,
            prefetch_factor=PREFETCH_FACTOR,
            collate_fn=collate(recipe),
        )
        return DataLoaderStream(loader, "cpu")


def __getattr__(recipe: str) -> Callable[[], Way]:
    return maker(TorchvisionReferences, recipe)
