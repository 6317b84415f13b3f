"""gpupipe.Loader, with each of its engines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

import gpupipe
from gpupipe.benchmark.contenders.base import Batch, Stream, needs_cuda
from gpupipe.benchmark.settings import Settings
from gpupipe.engines.choose import PREFETCH
from gpupipe.order import Shuffled
from gpupipe.sources import open_source

__all__ = ["GpupipeDaliCpu", "GpupipeDaliGpu", "GpupipeTorch"]

PASSES = 1_000_000  # over the data in one epoch of the benchmark: more than any measurement reaches


@dataclass(frozen=True)
class ManyPasses:
    """One permutation after another as a single epoch, so that no gap between epochs is measured."""

    size: int

    def __len__(self) -> int:
        return self.size * PASSES

    def indices(self, seed: int, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Each pass is the permutation of its own (seed, epoch)."""
        numbers, within = np.divmod(positions, self.size)
        found = np.empty_like(positions)
        for number in np.unique(numbers):
            chosen = numbers == number
            found[chosen] = Shuffled(self.size).indices(seed, epoch * PASSES + int(number), within[chosen])
        return found

    @property
    def fingerprint(self) -> str:
        """Names the size."""
        return f"many-passes-{self.size}"


@dataclass
class LoaderStream:
    """The loader's batches."""

    loader: Any

    def __iter__(self) -> Iterator[Batch]:
        yield from self.loader

    def close(self) -> None:
        """End the loader's processes and threads."""
        self.loader.close()


class GpupipeTorch:
    """gpupipe.Loader(engine="torch")."""

    name = "gpupipe-torch"
    engine: Literal["dali", "torch"] = "torch"
    device = "auto"

    def available(self, settings: Settings) -> str | None:
        """Every machine has what this engine needs."""
        return needs_cuda() if self.device == "cuda" else None

    def cycle(self, settings: Settings) -> int:
        """Workers take turns."""
        return settings.workers

    def queued(self, settings: Settings) -> int:
        """What the workers prefetch, and the batch that is being finished."""
        return settings.workers * PREFETCH["torch"] + 1

    def parallel(self, settings: Settings) -> int:
        """The loader's `num_workers`."""
        return settings.workers

    def open(self, settings: Settings) -> Stream:
        """Open the data (indexing it at the first time) and start the engine."""
        source = open_source(settings.data)
        loader = gpupipe.Loader(
            source,
            gpupipe.imagenet_train(settings.size, dtype=settings.dtype),
            batch_size=settings.batch_size,
            order=ManyPasses(len(source)),
            drop_last=True,
            num_workers=self.parallel(settings),
            engine=self.engine,
            device=self.device,
        )
        return LoaderStream(loader)


class GpupipeDaliCpu(GpupipeTorch):
    """gpupipe.Loader(engine="dali", device="cpu")."""

    name = "gpupipe-dali-cpu"
    engine: Literal["dali", "torch"] = "dali"
    device = "cpu"

    def cycle(self, settings: Settings) -> int:
        """One pipeline makes every batch."""
        return 1

    def queued(self, settings: Settings) -> int:
        """DALI's queue and the batch in the making."""
        return PREFETCH["dali"] + 1

    def parallel(self, settings: Settings) -> int:
        """DALI's threads."""
        return settings.threads


class GpupipeDaliGpu(GpupipeDaliCpu):
    """gpupipe.Loader(engine="dali", device="cuda")."""

    name = "gpupipe-dali-gpu"
    device = "cuda"
