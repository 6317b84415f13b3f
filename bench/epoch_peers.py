"""Contenders of epochs.py: loaders whose epochs have so many batches, one after the other, on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

from peers.common import Peer
from torch.utils.data import DataLoader, Sampler
from torchvision.datasets import ImageFolder

import gpupipe
from gpupipe.decode.choose import PREFETCH
from gpupipe.decode.tuned import Tuned
from gpupipe.order import Shuffled, VirtualEpochs
from gpupipe.sources import open_source
from gpupipe.tools.benchmark.contenders import Batch, BatchStream
from gpupipe.tools.benchmark.contenders.torch_loader import PREFETCH_FACTOR, EndlessShuffle, TorchvisionV2
from gpupipe.tools.benchmark.measurement import BenchSettings
from gpupipe.tools.tuning.candidates import queued

__all__ = ["ENDLESS", "DataLoaderPersistent", "DataLoaderPlain", "GpupipeDali", "GpupipeTorch"]

ENDLESS = 1_000_000  # batches of an epoch that no measurement ends


@dataclass
class Epochs:
    """Epoch after epoch of a loader."""

    loader: Any
    end: Callable[[], None]

    def __iter__(self) -> Iterator[Batch]:
        while True:
            yield from self.loader

    def close(self) -> None:
        """End what it has started."""
        self.end()


class Way(Peer):
    """`batches`: of an epoch. Whole epochs are counted, and of an endless one the workers' turns."""

    def __init__(self, batches: int) -> None:
        self.batches = batches

    def cycle(self, settings: BenchSettings) -> int:
        """Production repeats with each epoch."""
        return super().cycle(settings) if self.batches == ENDLESS else self.batches


class GpupipeTorch(Way):
    """The torch engine, as it is by default."""

    name = "gpupipe, torch engine"
    engine: Literal["dali", "torch"] = "torch"

    def queued(self, settings: BenchSettings) -> int:
        """What is prefetched, and what lies ready behind the engine."""
        return queued(Tuned(self.engine, settings.workers, PREFETCH[self.engine]))

    def open(self, settings: BenchSettings) -> BatchStream:
        """Index the data at the first time."""
        source = open_source(settings.data)
        loader = gpupipe.Loader(
            source,
            gpupipe.imagenet_train(settings.size, dtype=settings.dtype),
            settings.batch_size,
            order=VirtualEpochs(Shuffled(len(source)), self.batches * settings.batch_size),
            num_workers=settings.workers,
            engine=self.engine,
            device="cpu",
        )
        return Epochs(loader, loader.close)


class GpupipeDali(GpupipeTorch):
    """DALI's CPU backend."""

    name = "gpupipe, DALI on the CPU"
    engine = "dali"


class Continued(Sampler[int]):
    """`size` samples of the stream of permutations, then those that follow."""

    def __init__(self, samples: int, size: int) -> None:
        self.stream = iter(EndlessShuffle(samples))
        self.size = size

    def __iter__(self) -> Iterator[int]:
        return islice(self.stream, self.size)

    def __len__(self) -> int:
        return self.size


class DataLoaderPersistent(Way):
    """torchvision v2 on tensors in a DataLoader."""

    name = "torchvision v2, DataLoader with persistent workers"
    persistent = True
    ahead = PREFETCH_FACTOR

    def open(self, settings: BenchSettings) -> BatchStream:
        """Scan the folder; the workers start with the first batch."""
        way = TorchvisionV2()
        dataset = ImageFolder(settings.data, way.transform(settings), loader=way.reader())
        loader: DataLoader[Any] = DataLoader(
            dataset,
            batch_size=settings.batch_size,
            sampler=Continued(len(dataset), self.batches * settings.batch_size),
            num_workers=settings.workers,
            prefetch_factor=PREFETCH_FACTOR,
            persistent_workers=self.persistent,
        )
        return Epochs(loader, lambda: None)


class DataLoaderPlain(DataLoaderPersistent):
    """Its workers start with each epoch."""

    name = "torchvision v2, DataLoader"
    persistent = False
