"""How an epoch's positions are cut into steps and ranks.

Step k of rank r reads the positions k*G + r*B ... k*G + (r+1)*B - 1, for B samples a rank and G = B * world_size.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpupipe.errors import ConfigError
from gpupipe.order.base import Indices

__all__ = ["RankBatches"]


@dataclass(frozen=True)
class RankBatches:
    """How an epoch of `size` positions is cut into steps and ranks.

    Every rank has the same number of steps, and of rows in each step. Without `drop_last` the last step is short:
    each rank takes ceil(rest / world_size) rows of it, and fewer than world_size rows in all are padding: positions
    at or past `size`, which stand for the epoch's first positions again. A single rank never pads.
    """

    size: int
    batch_size: int
    rank: int = 0
    world_size: int = 1
    drop_last: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.batch_size, int) or self.batch_size < 1:
            raise ConfigError(f"batch_size={self.batch_size!r} must be an int of at least 1")
        if self.world_size < 1 or not 0 <= self.rank < self.world_size:
            raise ConfigError(f"rank={self.rank}, world_size={self.world_size}: rank must lie in [0, world_size)")

    @property
    def global_batch(self) -> int:
        """Samples a step over all ranks."""
        return self.batch_size * self.world_size

    def __len__(self) -> int:
        """Steps in an epoch."""
        whole, rest = divmod(self.size, self.global_batch)
        return whole + (rest > 0 and not self.drop_last)

    def positions(self, step: int) -> Indices:
        """int64 global positions that this rank reads at `step`; those at or past `size` are padding."""
        start = step * self.global_batch
        rows = min(self.batch_size, -(-(self.size - start) // self.world_size))
        first = start + self.rank * rows
        return np.arange(first, first + rows, dtype=np.int64)

    def padding(self, step: int) -> int:
        """How many of this rank's rows at `step` are padding; they are the last ones."""
        return int((self.positions(step) >= self.size).sum())

    def samples(self, step: int) -> int:
        """How many samples all ranks read at `step`, padding not counted."""
        return self.delivered(step + 1) - self.delivered(step)

    def delivered(self, step: int) -> int:
        """Global positions done once `step` steps are."""
        return min(step * self.global_batch, self.size)
