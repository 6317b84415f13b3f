"""A torch DataLoader on gpupipe's decode kernel, with torchvision's v2 transforms behind it.

The same images in the same order, the same random boxes and flips, decoded by the same kernel, a batch at a time in
each worker. Then, image by image, v2 transforms on uint8 tensors, normalization and erasing; mixing when collated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler
from torchvision.transforms import v2

from gpupipe.kernels import decode_crops
from gpupipe.plan import cropping
from gpupipe.recipe import MultiCrop, Recipe
from gpupipe.sources import open_source
from gpupipe.tools.benchmark.contenders import BatchStream
from gpupipe.tools.benchmark.contenders.gpupipe_loader import many_passes
from gpupipe.tools.benchmark.contenders.torch_loader import PREFETCH_FACTOR
from gpupipe.tools.benchmark.measurement import BenchSettings
from recipe_loaders.in_torchvision import augmentations, collate, tail
from recipe_loaders.table import FirstView, Way, maker

__all__ = ["BehindDecode"]


class Decoded(Dataset[Any]):
    """Samples by their position in an endless epoch: each view's float32 (3, size, size), and the label."""

    def __init__(self, data: str, recipe: Recipe | MultiCrop) -> None:
        self.source = open_source(data)
        self.order = many_passes(len(self.source))
        self.views = recipe.view_recipes
        self.transforms = [v2.Compose([*augmentations(view.augmentations), *tail(view)]) for view in self.views]

    def __getitems__(self, keys: Sequence[int]) -> list[tuple[list[torch.Tensor], int]]:
        """A whole batch, as torch's fetcher asks where a dataset has this method."""
        positions = np.array(keys, np.int64)
        columns = self.source.fetch(self.order.indices(0, 0, positions))
        heights, widths, _ = columns["image"].sizes.T
        crops = [cropping(view, 0, 0, positions, heights, widths, number) for number, view in enumerate(self.views)]
        made = decode_crops(columns["image"].data, crops, threads=1)
        if made.failures:
            raise ValueError(f"{len(made.failures)} images can't be decoded: {made.failures}")
        # Contiguous planes: torchvision's transforms are faster on these.
        planes = [torch.from_numpy(images).permute(0, 3, 1, 2).contiguous() for images in made.images]
        return [
            ([transform(view[row]) for transform, view in zip(self.transforms, planes, strict=True)], label)
            for row, label in enumerate(columns["label"].tolist())
        ]


class Endless(Sampler[int]):
    """0, 1, 2, ..."""

    def __iter__(self) -> Iterator[int]:
        return count()


class BehindDecode(Way):
    """One thread in each worker."""

    name = "torchvision v2 behind the same decode"

    def open(self, settings: BenchSettings) -> BatchStream:
        """The workers start with the first batch."""
        recipe = self.entry.recipe(settings.size)
        loader = DataLoader(
            Decoded(settings.data, recipe),
            batch_size=settings.batch_size,
            sampler=Endless(),
            num_workers=settings.workers,
            prefetch_factor=PREFETCH_FACTOR,
            multiprocessing_context="fork",  # the collate function is a closure
            collate_fn=collate(recipe),
        )
        return FirstView(loader)


def __getattr__(recipe: str) -> Callable[[], Way]:
    return maker(BehindDecode, recipe)
