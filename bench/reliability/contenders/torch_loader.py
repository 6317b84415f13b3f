"""torch's DataLoader with a DistributedSampler."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torchvision.datasets import ImageFolder

from reliability import forms
from reliability.case import NoFunction
from reliability.contenders.base import Setup, Stored, Stream
from reliability.contenders.stores import torch_options
from reliability.data import pixels_of

__all__ = ["TorchStream"]


class TorchStream(Stream):
    """On a single rank too, so that the order has a seed and an epoch."""

    name = "torch"
    kinds = ("folder",)
    loader_of: ClassVar[Any] = DataLoader

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.sampler = self.make_sampler()
        self.loader: Any = self.make_loader()

    def make_sampler(self) -> Any:
        """Which samples this rank reads."""
        return DistributedSampler(self.setup.dataset, **self.sampler_options())

    def sampler_options(self) -> dict[str, Any]:
        """In the words of DistributedSampler."""
        setup = self.setup
        return {
            "num_replicas": setup.world,
            "rank": setup.rank,
            "shuffle": setup.shuffle,
            "seed": setup.seed,
            "drop_last": setup.drop_last,
        }

    def make_loader(self) -> Any:
        """A DataLoader, or what takes its arguments."""
        return self.loader_of(self.setup.dataset, **self.loader_options())

    def loader_options(self) -> dict[str, Any]:
        """In the words of DataLoader."""
        setup = self.setup
        return {
            "batch_size": setup.batch_size,
            "sampler": self.sampler,
            "num_workers": setup.workers,
            "drop_last": setup.drop_last,
            **setup.worker_options,
        }

    def __iter__(self) -> Iterator[list[int]]:
        for _, numbers in self.loader:
            yield numbers.tolist()

    def set_epoch(self, epoch: int) -> None:
        self.sampler.set_epoch(epoch)

    def close(self) -> None:
        """It has no way to close: its users drop it."""
        del self.loader

    @classmethod
    def write(cls, folder: Path, samples: Mapping[int, bytes], kind: str = "", beside: Any = None) -> None:
        forms.write(cls.kind_of(kind), folder, samples, beside)

    @classmethod
    def read(cls, stored: Stored) -> Iterator[tuple[int, float]]:
        """ImageFolder, which loads by Pillow."""
        if stored.local is None or stored.cache is not None:
            raise NoFunction(f"{cls.name} reads no storage and has no cache")
        if stored.skip:
            raise NoFunction(f"{cls.name} has no function that passes over bad samples")
        dataset = ImageFolder(str(stored.local), partial(pixels_of, size=stored.size))
        loader = cls.loader_of(dataset, shuffle=True, **torch_options(stored))
        for images, labels in loader:
            yield from zip(labels.tolist(), images.float().mean((1, 2, 3)).tolist(), strict=True)
