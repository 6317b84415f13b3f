"""What the contenders on a plain torch DataLoader share: endless shuffling, and the way to a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, Sampler
from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import default_loader

from gpupipe.tools.benchmark.contenders.contender import Batch, Stream, needs_folder
from gpupipe.tools.benchmark.settings import Settings

__all__ = ["ImageFolderContender"]

PREFETCH_FACTOR = 2  # torch's default


class EndlessShuffle(Sampler[int]):
    """One permutation after another."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Iterator[int]:
        while True:
            yield from torch.randperm(self.size).tolist()


@dataclass
class DataLoaderStream:
    """Batches of a DataLoader, copied to `device` from pinned memory where that is a GPU."""

    loader: DataLoader[Any]
    device: str

    def __iter__(self) -> Iterator[Batch]:
        for images, labels in self.loader:
            if self.device == "cpu":
                yield images, labels
            else:
                yield images.to(self.device, non_blocking=True), labels.to(self.device, non_blocking=True)

    def close(self) -> None:
        """Nothing is left once the iterator is gone."""


class ImageFolderContender:
    """torchvision's ImageFolder behind a DataLoader; a contender adds its transform and may bring its own reader."""

    name: str

    def transform(self, settings: Settings) -> Callable[[Any], Any]:
        """What is done to each image: crop to `settings.size`, flip, `settings.dtype`."""
        raise NotImplementedError

    def reader(self) -> Callable[[str], Any]:
        """What makes an image of a path."""
        return default_loader  # type: ignore[no-any-return]

    def available(self, settings: Settings) -> str | None:
        """An image folder is needed."""
        return needs_folder(settings)

    def cycle(self, settings: Settings) -> int:
        """Workers take turns."""
        return settings.workers

    def queued(self, settings: Settings) -> int:
        """What torch prefetches."""
        return settings.workers * PREFETCH_FACTOR

    def open(self, settings: Settings) -> Stream:
        """Scan the folder; the workers start with the first batch."""
        dataset = ImageFolder(settings.data, self.transform(settings), loader=self.reader())
        on_gpu = torch.cuda.is_available()
        loader = DataLoader(
            dataset,
            batch_size=settings.batch_size,
            sampler=EndlessShuffle(len(dataset)),
            num_workers=settings.workers,
            prefetch_factor=PREFETCH_FACTOR,
            pin_memory=on_gpu,
            drop_last=True,
        )
        return DataLoaderStream(loader, "cuda" if on_gpu else "cpu")
