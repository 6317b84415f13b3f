"""torchdata's StatefulDataLoader with the distributed sampler that it brings."""

from __future__ import annotations

from typing import Any

from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

from reliability.contenders.torch_loader import TorchStream

__all__ = ["StatefulStream"]


class StatefulStream(TorchStream):
    """Each rank saves its own state; the epoch is the user's to keep."""

    name = "stateful"
    loader_of = StatefulDataLoader

    def make_sampler(self) -> Any:
        return StatefulDistributedSampler(self.setup.dataset, **self.sampler_options())

    def state(self) -> Any:
        return self.loader.state_dict()

    def load(self, state: Any, epoch: int) -> None:
        self.sampler.set_epoch(epoch)
        self.loader.load_state_dict(state)
