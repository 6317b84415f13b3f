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

from gpupipe.benchmark.contenders.base import Stream
from gpupipe.benchmark.contenders.gpupipe_loader import ManyPasses
from gpupipe.benchmark.contenders.torch_loader import PREFETCH_FACTOR, DataLoaderStream
from gpupipe.benchmark.settings import Settings
from gpupipe.draws import plan
from gpupipe.kernels import decode_crop_resize
from gpupipe.recipe import Recipe
from gpupipe.sources import open_source
from recipe_loaders.in_torchvision import augmentations, collate, tail
from recipe_loaders.table import Way, maker

__all__ = ["BehindDecode"]


class Decoded(Dataset[Any]):
    """Samples by their position in an endless epoch: (float32 (3, size, size), label)."""

    def __init__(self, data: str, recipe: Recipe) -> None:
        self.source = open_source(data)
        self.order = ManyPasses(len(self.source))
        self.recipe = recipe
        self.transform = v2.Compose([*augmentations(recipe.augmentations), *tail(recipe)])

    def __getitems__(self, keys: Sequence[int]) -> list[tuple[torch.Tensor, int]]:
        """A whole batch, as torch's fetcher asks where a dataset has this method."""
        positions = np.array(keys, np.int64)
        encoded, meta = self.source.fetch(self.order.indices(0, 0, positions))
        planned = plan(self.recipe, 0, 0, positions, meta.heights, meta.widths)
        made = decode_crop_resize(
            encoded,
            planned.windows,
            planned.size,
            flips=planned.flips,
            resized=planned.resized,
            anchors=planned.anchors,
            filter=planned.filter,
            threads=1,
        )
        if made.failures:
            raise ValueError(f"{len(made.failures)} images can't be decoded: {next(iter(made.failures.values()))}")
        # Contiguous planes: torchvision's transforms are faster on these.
        planes = torch.from_numpy(made.images).permute(0, 3, 1, 2).contiguous()
        return [(self.transform(image), label) for image, label in zip(planes, meta.labels.tolist(), strict=True)]


class Endless(Sampler[int]):
    """0, 1, 2, ..."""

    def __iter__(self) -> Iterator[int]:
        return count()


class BehindDecode(Way):
    """One thread in each worker."""

    name = "torchvision v2 behind the same decode"

    def open(self, settings: Settings) -> Stream:
        """The workers start with the first batch."""
        recipe = self.entry.recipe(settings.size)
        loader = DataLoader(
            Decoded(settings.data, recipe),
            batch_size=settings.batch_size,
            sampler=Endless(),
            num_workers=settings.workers,
            prefetch_factor=PREFETCH_FACTOR,
            collate_fn=collate(recipe),
        )
        return DataLoaderStream(loader, "cpu")


def __getattr__(recipe: str) -> Callable[[], Way]:
    return maker(BehindDecode, recipe)
