"""gpupipe.Loader, with each of its engines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import gpupipe
from gpupipe.decode.choose import PREFETCH, choose
from gpupipe.decode.decoders import Decoders
from gpupipe.decode.tuned import Tuned, tuned
from gpupipe.order import Shuffled, VirtualEpochs
from gpupipe.sources import open_source
from gpupipe.tools.benchmark.contenders.contender import Batch, Stream, needs_cuda
from gpupipe.tools.benchmark.settings import BenchSettings

__all__ = ["GpupipeDaliCpu", "GpupipeDaliGpu", "GpupipeTorch", "GpupipeTuned", "many_passes"]

PASSES = 1_000_000  # over the data in one epoch of the benchmark: more than any measurement reaches
HANDED_ON = 4  # batches behind an engine: finished ahead of the consumer, and one in the making


def many_passes(size: int) -> VirtualEpochs:
    """One permutation after another as a single epoch, so that no gap between epochs is measured."""
    return VirtualEpochs(Shuffled(size), PASSES * size)


@dataclass
class LoaderStream:
    """The loader's batches."""

    loader: Any

    def __iter__(self) -> Iterator[Batch]:
        yield from self.loader

    def close(self) -> None:
        """End the loader's processes and threads."""
        self.loader.close()


@dataclass
class GpupipeTorch:
    """gpupipe.Loader(engine="torch"); options of the loader: `num_workers`, else the settings' number."""

    name: ClassVar[str] = "gpupipe-torch"
    engine: ClassVar[Literal["dali", "torch"]] = "torch"
    device: ClassVar[str] = "auto"

    num_workers: int | None = None

    def available(self, settings: BenchSettings) -> str | None:
        """Every machine has what this engine needs."""
        return needs_cuda() if self.device == "cuda" else None

    def cycle(self, settings: BenchSettings) -> int:
        """Workers take turns."""
        return self.num_workers or settings.workers

    def queued(self, settings: BenchSettings) -> int:
        """What the workers prefetch, and what is being finished or lies ready behind them."""
        return self.cycle(settings) * PREFETCH["torch"] + HANDED_ON

    def open(self, settings: BenchSettings) -> Stream:
        """Open the data (indexing it at the first time) and start the engine."""
        source = open_source(settings.data)
        loader = gpupipe.Loader(
            source,
            gpupipe.imagenet_train(settings.size, dtype=settings.dtype),
            batch_size=settings.batch_size,
            order=many_passes(len(source)),
            drop_last=True,
            **self.loader_options(settings),
        )
        return LoaderStream(loader)

    def loader_options(self, settings: BenchSettings) -> dict[str, Any]:
        """Which engine, where, and how it is run."""
        return {"engine": self.engine, "device": self.device, "num_workers": self.num_workers or settings.workers}


@dataclass
class GpupipeDaliCpu(GpupipeTorch):
    """gpupipe.Loader(engine="dali", device="cpu"); options of the loader and of its `Decoders`."""

    name: ClassVar[str] = "gpupipe-dali-cpu"
    engine: ClassVar[Literal["dali", "torch"]] = "dali"
    device: ClassVar[str] = "cpu"

    prefetch_factor: int | None = None
    cpu_share: float = 0.0
    cpu_workers: int = 0
    hw_decoder_load: float = Decoders.hw_decoder_load
    crop_decode: bool | None = None

    def cycle(self, settings: BenchSettings) -> int:
        """One pipeline makes every batch."""
        return 1

    def queued(self, settings: BenchSettings) -> int:
        """DALI's queue and the batch in the making, and what lies ready behind them."""
        return (self.prefetch_factor or PREFETCH["dali"]) + HANDED_ON

    def loader_options(self, settings: BenchSettings) -> dict[str, Any]:
        """The decoders too; num_workers is by default the settings' number of threads."""
        return {
            "engine": self.engine,
            "device": self.device,
            "num_workers": self.num_workers or settings.threads,
            "prefetch_factor": self.prefetch_factor,
            "decoders": Decoders(self.cpu_share, self.cpu_workers, self.hw_decoder_load, self.crop_decode),
        }


@dataclass
class GpupipeDaliGpu(GpupipeDaliCpu):
    """gpupipe.Loader(engine="dali", device="cuda")."""

    name: ClassVar[str] = "gpupipe-dali-gpu"
    device: ClassVar[str] = "cuda"


class GpupipeTuned(GpupipeTorch):
    """gpupipe.Loader as it comes, on a machine where `gpupipe tune` has run."""

    name: ClassVar[str] = "gpupipe-tuned"

    def available(self, settings: BenchSettings) -> str | None:
        """What was tuned must be in the cache folder."""
        return None if _tuned() else "`gpupipe tune DATA` has not run on this machine"

    def cycle(self, settings: BenchSettings) -> int:
        """The turn of the workers, where an engine has such turns."""
        found = _tuned()
        return found.num_workers if found and found.engine == "torch" else 1

    def queued(self, settings: BenchSettings) -> int:
        """As for the engine that was found best."""
        found = _tuned()
        return self.cycle(settings) * (found.prefetch_factor if found else 0) + HANDED_ON

    def loader_options(self, settings: BenchSettings) -> dict[str, Any]:
        """None: what was tuned is applied where these are left out."""
        return {}


def _tuned() -> Tuned | None:
    return tuned(choose("auto", "auto")[1])
