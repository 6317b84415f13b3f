"""timm's create_loader with its own options, and its Mixup on the finished batch, as in its training script."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from timm.data import Mixup, create_dataset, create_loader

from gpupipe.tools.benchmark.contenders import Batch, BatchStream
from gpupipe.tools.benchmark.contenders.torch_loader import EndlessShuffle
from gpupipe.tools.benchmark.measurement import BenchSettings
from recipe_loaders.table import CLASSES, Way, maker

__all__ = ["Timm"]


@dataclass
class MixedStream:
    """The loader's batches, mixed by the consumer."""

    loader: Any
    mixup: Mixup | None

    def __iter__(self) -> Iterator[Batch]:
        for images, labels in self.loader:
            if self.mixup is not None:
                images, targets = self.mixup(images, labels)
                assert targets.shape == (len(labels), CLASSES)
            yield images, labels

    def close(self) -> None:
        """Nothing is left once the iterator is gone."""


class Timm(Way):
    """Without its prefetcher, which is for GPUs: workers normalize."""

    name = "timm"

    def available(self, settings: BenchSettings) -> str | None:
        """Some recipes have no options."""
        return self.entry.timm_lacks or super().available(settings)

    def open(self, settings: BenchSettings) -> BatchStream:
        """Its loader with a sampler that never ends."""
        dataset = create_dataset("", root=settings.data, is_training=True)
        options = {"color_jitter": None, "interpolation": "bilinear"} | self.entry.timm
        loader: Any = create_loader(
            dataset,
            settings.size,
            settings.batch_size,
            is_training=True,
            use_prefetcher=False,
            num_workers=settings.workers,
            device=torch.device("cpu"),
            **options,
        )
        loader.batch_sampler.sampler = EndlessShuffle(len(dataset))
        mixing = self.entry.timm_mixing
        return MixedStream(loader, None if mixing is None else Mixup(num_classes=CLASSES, **mixing))


def __getattr__(recipe: str) -> Callable[[], Way]:
    return maker(Timm, recipe)
