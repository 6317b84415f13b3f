"""What can be read of a loader as of a `torch.utils.data.DataLoader`, and what can't be set any more."""

from __future__ import annotations

from typing import Any, Literal

from gpupipe.engines.choose import EngineSettings
from gpupipe.engines.worker import WorkerInit
from gpupipe.errors import ConfigError
from gpupipe.order import RankBatches
from gpupipe.place import Place

__all__ = ["DataLoaderAttributes"]

# What a loader is built of, with the arguments of a new one that would change it.
FIXED = {
    name: name
    for name in (
        "batch_size",
        "collate_fn",
        "decoders",
        "device",
        "drop_last",
        "engine",
        "generator",
        "in_order",
        "multiprocessing_context",
        "num_workers",
        "order",
        "persistent_workers",
        "pin_memory",
        "pin_memory_device",
        "prefetch_factor",
        "rank",
        "recipe",
        "seed",
        "shuffle",
        "timeout",
        "worker_init_fn",
        "world_size",
    )
} | {"batch_sampler": "order and batch_size", "dataset": "data", "sampler": "order", "source": "data"}


class DataLoaderAttributes:
    """DataLoader's attributes for a loader that has `settings` and a `Place`.

    Those that the loader has been built of are read-only once `_built` is set: DataLoader raises a ValueError for some
    of them, and takes others, which here would change nothing.
    """

    settings: EngineSettings
    _place: Place
    _built = False

    collate_fn: None = None
    in_order: Literal[True] = True
    pin_memory_device: Literal[""] = ""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in FIXED and self._built:
            raise ConfigError(
                f"{name} can't be set on a Loader that is built, as its workers and threads have it already; "
                f"build another one with {FIXED[name]}"
            )
        super().__setattr__(name, value)

    @property
    def batches(self) -> RankBatches:
        """How the current epoch is cut into steps and ranks."""
        return self._place.batches

    @property
    def batch_size(self) -> int:
        """Samples per batch of this rank."""
        return self.batches.batch_size

    @property
    def drop_last(self) -> bool:
        """Whether a last batch that is not full is left out."""
        return self.batches.drop_last

    @property
    def num_workers(self) -> int:
        """Worker processes, or DALI's CPU threads and the worker processes beside it."""
        return self.settings.num_workers

    @property
    def prefetch_factor(self) -> int | None:
        """Batches ahead, per worker or for DALI in all; None where num_workers is 0, as in DataLoader."""
        return self.settings.prefetch_factor if self.settings.num_workers else None

    @property
    def pin_memory(self) -> bool:
        """Whether batches pass through page-locked memory."""
        return self.settings.pin_memory

    @property
    def persistent_workers(self) -> bool:
        """Whether worker processes live on between epochs."""
        return self.settings.persistent_workers

    @property
    def timeout(self) -> float:
        """Seconds to wait for a batch, 0 for ever."""
        return self.settings.timeout

    @property
    def worker_init_fn(self) -> WorkerInit | None:
        """What is called in each worker process with its number."""
        return self.settings.worker_init_fn

    @property
    def multiprocessing_context(self) -> Any:
        """The context that starts worker processes, None for the default one."""
        return self.settings.multiprocessing_context
