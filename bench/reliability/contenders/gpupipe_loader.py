"""gpupipe's Loader, with the JPEGs really decoded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import gpupipe
from reliability.contenders.base import Setup, Stream

__all__ = ["GpupipeStream"]


class GpupipeStream(Stream):
    """On the CPU: its torch engine, unless another is asked for."""

    name = "gpupipe"

    def __init__(self, setup: Setup, engine: Literal["torch", "dali"] = "torch") -> None:
        super().__init__(setup)
        self.loader = gpupipe.Loader(
            setup.dataset,
            gpupipe.imagenet_train(8),
            setup.batch_size,
            setup.shuffle,
            drop_last=setup.drop_last,
            seed=setup.seed,
            num_workers=setup.workers,
            rank=setup.rank,
            world_size=setup.world,
            engine=engine,
            device="cpu",
            **setup.worker_options,
        )

    def __iter__(self) -> Iterator[list[int]]:
        for _, labels in self.loader:
            yield labels.tolist()

    @property
    def padding(self) -> int:
        return self.loader.padding

    def set_epoch(self, epoch: int) -> None:
        self.loader.set_epoch(epoch)

    def state(self) -> Any:
        return self.loader.state_dict()

    def load(self, state: Any, epoch: int) -> None:
        self.loader.load_state_dict(state)
        self.loader.set_epoch(epoch)

    def close(self) -> None:
        self.loader.close()
