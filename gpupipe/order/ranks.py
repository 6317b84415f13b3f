"""How an epoch's positions are cut into steps and ranks.

Step k of rank r reads the positions k*G + r*B ... k*G + (r+1)*B - 1, for B samples a rank and G = B * world_size.

An epoch that goes on with another G is cut anew from the position P that was reached. Its step 0 then stands for the
first P mod G positions, so that P is the start of a step, and the steps after it have G positions each:

    |<- origin ->|<-- G -->|<-- G -->|<-- G -->|...
       step 0      step 1    step 2  ^ P: step 3 is the first that is read
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpupipe.batch.batch import ENDLESS
from gpupipe.errors import ConfigError
from gpupipe.host.checks import whole
from gpupipe.order.protocol import Indices

__all__ = ["RankBatches"]


@dataclass(frozen=True)
class RankBatches:
    """How an epoch of `size` positions is cut into steps and ranks.

    Every rank has the same number of steps, and of rows in each step. Without `drop_last` the last step is short:
    each rank takes ceil(rest / world_size) rows of it, and fewer than world_size rows in all are padding: positions
    at or past `size`, which stand for the epoch's first positions again. A single rank never pads.

    origin: positions of step 0 where the epoch was begun with other batches, below the global batch; 0: none were.
    """

    size: int
    batch_size: int
    rank: int = 0
    world_size: int = 1
    drop_last: bool = False
    origin: int = 0

    def __post_init__(self) -> None:
        whole("batch_size", self.batch_size, 1)
        if self.world_size < 1 or not 0 <= self.rank < self.world_size:
            raise ConfigError(f"rank={self.rank}, world_size={self.world_size}: rank must lie in [0, world_size)")
        assert 0 <= self.origin < self.global_batch, self

    @property
    def is_endless(self) -> bool:
        """Whether the epoch's end shows only when it is met."""
        return self.size >= ENDLESS

    @property
    def global_batch(self) -> int:
        """Samples a step over all ranks."""
        return self.batch_size * self.world_size

    def __len__(self) -> int:
        """Steps in an epoch."""
        whole, rest = divmod(self.size - self.origin, self.global_batch)
        return (self.origin > 0) + whole + (rest > 0 and not self.drop_last)

    def positions(self, step: int) -> Indices:
        """int64 global positions that this rank reads at `step`; those at or past `size` are padding."""
        rows = -(-self.samples(step) // self.world_size)
        first = self.delivered(step) + self.rank * rows
        return np.arange(first, first + rows, dtype=np.int64)

    def padding(self, step: int) -> int:
        """How many of this rank's rows at `step` are padding; they are the last ones."""
        return int((self.positions(step) >= self.size).sum())

    def samples(self, step: int) -> int:
        """How many samples all ranks read at `step`, padding not counted."""
        return self.delivered(step + 1) - self.delivered(step)

    def delivered(self, step: int) -> int:
        """Global positions done once `step` steps are."""
        if step == 0:
            return 0
        return min(self.origin + (step - (self.origin > 0)) * self.global_batch, self.size)

    def step_at(self, position: int) -> int:
        """Steps that are done once `position` global positions are: the inverse of `delivered`."""
        whole = -(-(position - self.origin) // self.global_batch)
        return min(whole + (self.origin > 0), len(self))
