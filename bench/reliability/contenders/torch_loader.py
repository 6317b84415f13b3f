"""torch's DataLoader with a DistributedSampler."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from reliability.contenders.base import Setup, Stream

__all__ = ["TorchStream"]


class TorchStream(Stream):
    """On a single rank too, so that the order has a seed and an epoch."""

    name = "torch"

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
        return DataLoader(self.setup.dataset, **self.loader_options())

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
