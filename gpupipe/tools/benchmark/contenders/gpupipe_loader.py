"""gpupipe.Loader, with each of its engines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import gpupipe
from gpupipe.decode.choose import PREFETCH, choose
from gpupipe.decode.decoders import Decoders
from gpupipe.decode.tuned import Tuned, tuned
from gpupipe.order import Shuffled, VirtualEpochs
from gpupipe.sources import open_source
from gpupipe.tools.benchmark.contenders import BatchStream, needs_cuda
from gpupipe.tools.benchmark.measurement import BenchSettings
from gpupipe.tools.tuning.candidates import queued

__all__ = ["GpupipeDaliCpu", "GpupipeDaliGpu", "GpupipeTorch", "GpupipeTuned", "many_passes"]

PASSES = 1_000_000  # over the data in one epoch of the benchmark: more than any measurement reaches


def many_passes(size: int) -> VirtualEpochs:
    """One permutation after another as a single epoch, so that no gap between epochs is measured."""
    return VirtualEpochs(Shuffled(size), PASSES * size)


@dataclass
class GpupipeTorch:
    """gpupipe.Loader(engine="torch"); options of the loader: `num_workers`, else the settings' number."""

    name: ClassVar[str] = "gpupipe-torch"
    device: ClassVar[str] = "auto"

    num_workers: int | None = None

    def how(self, settings: BenchSettings) -> Tuned:
        """How the loader is run."""
        return Tuned("torch", self.num_workers or settings.workers, PREFETCH["torch"])

    def available(self, settings: BenchSettings) -> str | None:
        return needs_cuda() if self.device == "cuda" else None

    def cycle(self, settings: BenchSettings) -> int:
        """Workers take turns; one pipeline of DALI's makes every batch."""
        how = self.how(settings)
        return how.num_workers if how.engine == "torch" else 1

    def queued(self, settings: BenchSettings) -> int:
        return queued(self.how(settings))

    def open(self, settings: BenchSettings) -> BatchStream:
        """Open the data (indexing it at the first time) and start the engine."""
        source = open_source(settings.data, fields=settings.fields)
        return gpupipe.Loader(
            source,
            gpupipe.imagenet_train(settings.size, dtype=settings.dtype),
            batch_size=settings.batch_size,
            order=many_passes(len(source)),
            drop_last=True,
            device=self.device,
            **vars(self.how(settings)),
        )


@dataclass
class GpupipeDaliCpu(GpupipeTorch):
    """gpupipe.Loader(engine="dali", device="cpu"); options of the loader and of its `Decoders`.

    num_workers is by default the settings' number of threads.
    """

    name: ClassVar[str] = "gpupipe-dali-cpu"
    device: ClassVar[str] = "cpu"

    prefetch_factor: int = PREFETCH["dali"]
    cpu_share: float = 0.0
    cpu_workers: int = 0
    hw_decoder_load: float = Decoders.hw_decoder_load
    crop_decode: bool | None = None

    def how(self, settings: BenchSettings) -> Tuned:
        """With the decoders."""
        decoders = Decoders(self.cpu_share, self.cpu_workers, self.hw_decoder_load, self.crop_decode)
        return Tuned("dali", self.num_workers or settings.threads, self.prefetch_factor, decoders)


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
        return None if tuned(choose("auto", "auto")[1]) else "`gpupipe tune DATA` has not run on this machine"

    def how(self, settings: BenchSettings) -> Tuned:
        """What a loader takes by itself."""
        found = tuned(choose("auto", "auto")[1])
        assert found is not None, "it was not available"
        return found
