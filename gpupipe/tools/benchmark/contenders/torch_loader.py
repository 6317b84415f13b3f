"""Plain torch: ImageFolder behind a DataLoader, shuffled without end, with torchvision's reference transforms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, Sampler
from torchvision import transforms
from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import default_loader
from torchvision.io import ImageReadMode, decode_image, read_file
from torchvision.transforms import v2

from gpupipe.recipe import IMAGENET_MEAN, IMAGENET_STD
from gpupipe.tools.benchmark.contenders import Batch, BatchStream, needs_folder
from gpupipe.tools.benchmark.measurement import BenchSettings

__all__ = ["DataLoaderStream", "EndlessShuffle", "ImageFolderContender", "TorchvisionPillow", "TorchvisionV2"]

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

    def transform(self, settings: BenchSettings) -> Callable[[Any], Any]:
        """What is done to each image: crop to `settings.size`, flip, `settings.dtype`."""
        raise NotImplementedError

    def reader(self) -> Callable[[str], Any]:
        """What makes an image of a path."""
        return default_loader  # type: ignore[no-any-return]

    def available(self, settings: BenchSettings) -> str | None:
        return needs_folder(settings)

    def cycle(self, settings: BenchSettings) -> int:
        return settings.workers

    def queued(self, settings: BenchSettings) -> int:
        return settings.workers * PREFETCH_FACTOR

    def open(self, settings: BenchSettings) -> BatchStream:
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


class TorchvisionPillow(ImageFolderContender):
    """With Pillow, as most training scripts do."""

    name = "torchvision-pillow"

    def transform(self, settings: BenchSettings) -> Callable[[Any], Any]:
        """From a Pillow image to a tensor."""
        as_float = [transforms.ToTensor(), transforms.Normalize(IMAGENET_MEAN, IMAGENET_STD)]
        steps = [
            transforms.RandomResizedCrop(settings.size),
            transforms.RandomHorizontalFlip(),
            *(as_float if settings.dtype == "float32" else [transforms.PILToTensor()]),
        ]
        return transforms.Compose(steps)  # type: ignore[no-any-return]


def read_rgb(path: str) -> torch.Tensor:
    """uint8 (3, height, width)."""
    return decode_image(read_file(path), mode=ImageReadMode.RGB)  # type: ignore[no-any-return]


class TorchvisionV2(ImageFolderContender):
    """With torchvision's own JPEG decoder and v2 transforms on tensors, resize on uint8."""

    name = "torchvision-v2"

    def transform(self, settings: BenchSettings) -> Callable[[Any], Any]:
        """From a uint8 tensor of any size to one that is cropped and, for float32, normalized."""
        as_float = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(IMAGENET_MEAN, IMAGENET_STD)]
        steps = [
            v2.RandomResizedCrop(settings.size, antialias=True),
            v2.RandomHorizontalFlip(),
            *(as_float if settings.dtype == "float32" else []),
        ]
        return v2.Compose(steps)  # type: ignore[no-any-return]

    def reader(self) -> Callable[[str], Any]:
        """torchvision's own decoder instead of Pillow."""
        return read_rgb
