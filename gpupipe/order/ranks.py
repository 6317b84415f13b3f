"""How an epoch's positions are cut into steps and ranks.

Step k of rank r reads the positions k*G + r*B ... k*G + (r+1)*B - 1, for B samples a rank and G = B * world_size.

An epoch that goes on with another G is cut anew from the position P that was reached. Its step 0 then stands for the
first P mod G positions, so that P is the start of a step, and the steps after it have G positions each:

    |<- origin ->|<-- G -->|<-- G -->|<-- G -->|...
       step 0      step 1    step 2  ^ P: step 3 is the first that is read

An order that makes its batches itself says where each one begins. The ranks share each of them as the last, short one
of others: in equal parts, and what is missing to that are repeats of the batch's own first samples.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from gpupipe.batch.batch import ENDLESS
from gpupipe.errors import ConfigError
from gpupipe.host.checks import whole
from gpupipe.order.protocol import Indices, Order, makes_batches, name_of

__all__ = ["Cut", "RankBatches", "cut_by"]


@dataclass(frozen=True)
class Cut:
    """An epoch's batches as its order makes them."""

    order: Any
    seed: int
    epoch: int = 0

    @cached_property
    def starts(self) -> Indices:
        """Where each begins, and where the last one ends, (batches + 1,). Raises ConfigError for what can't be."""
        starts: Indices = self.order.starts(self.seed, self.epoch)
        sizes, largest = np.diff(starts), self.order.largest
        whole = len(starts) and starts[0] == 0 and starts[-1] == len(self.order)
        if not whole or (len(sizes) and not 0 < sizes.min() <= sizes.max() <= largest):
            raise ConfigError(
                f"order {name_of(self.order)}: starts() of epoch {self.epoch} must go from 0 to len(), "
                f"{len(self.order)}, in steps of 1 to `largest`, {largest}; got {np.array2string(starts, threshold=6)}"
            )
        return starts


def cut_by(order: Order, seed: int) -> Cut | None:
    """How an order cuts the first epoch into batches; None where a loader's batch size does."""
    return Cut(order, seed) if makes_batches(order) else None


@dataclass(frozen=True)
class RankBatches:
    """How an epoch of `size` positions is cut into steps and ranks.

    Every rank has the same number of steps, and of rows in each step. Without `drop_last` the last step is short:
    each rank takes ceil(rest / world_size) rows of it, and fewer than world_size rows in all are padding: positions
    at or past `size`, which stand for the epoch's first positions again. A single rank never pads.

    origin: positions of step 0 where the epoch was begun with other batches, below the global batch; 0: none were.
    cut:    the order's own batches, of which any may be short as the last one is else, and whose padding stands for
            positions of the same batch; `batch_size` is then the largest part of a rank, and `drop_last` is False.
    """

    size: int
    batch_size: int
    rank: int = 0
    world_size: int = 1
    drop_last: bool = False
    origin: int = 0
    cut: Cut | None = None

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
        """Samples a step over all ranks; of an order's own batches those of the largest."""
        return self.batch_size * self.world_size if self.cut is None else self.cut.order.largest

    @property
    def sure(self) -> int:
        """Global positions that an epoch delivers in any case, whatever its origin is."""
        return max(0, self.size - self.global_batch + 1) if self.drop_last else self.size

    def at(self, epoch: int) -> RankBatches:
        """How an epoch is cut that begins with these batches."""
        if self.cut is not None and self.cut.epoch != epoch:
            return replace(self, origin=0, cut=replace(self.cut, epoch=epoch))
        return replace(self, origin=0) if self.origin else self

    def __len__(self) -> int:
        """Steps in an epoch."""
        if self.cut is not None:
            return len(self.cut.starts) - 1
        whole, rest = divmod(self.size - self.origin, self.global_batch)
        return (self.origin > 0) + whole + (rest > 0 and not self.drop_last)

    def positions(self, step: int) -> Indices:
        """int64 global positions that this rank reads at `step`; those at or past `size` are padding."""
        return self.of_ranks(range(self.rank, self.rank + 1), step)

    def of_ranks(self, ranks: range, step: int) -> Indices:
        """The same of several ranks, one behind the other."""
        begin, end = self.delivered(step), self.delivered(step + 1)
        rows = -(-(end - begin) // self.world_size)
        found = np.arange(begin + ranks.start * rows, begin + ranks.stop * rows, dtype=np.int64)
        if self.cut is not None and begin + ranks.stop * rows > end:
            found = np.where(found < end, found, self.size + begin + (found - end) % (end - begin))
        return found

    def padding(self, step: int) -> int:
        """How many of this rank's rows at `step` are padding; they are the last ones."""
        return int((self.positions(step) >= self.size).sum())

    def samples(self, step: int) -> int:
        """How many samples all ranks read at `step`, padding not counted."""
        return self.delivered(step + 1) - self.delivered(step)

    def rows(self) -> int:
        """How many rows each rank has in an epoch, padding counted."""
        steps = len(self)
        if self.cut is not None:
            return int((-(-np.diff(self.cut.starts) // self.world_size)).sum())
        ends = sum(len(self.positions(step)) for step in {0, steps - 1} if steps)
        return ends + max(0, steps - 2) * self.batch_size

    def delivered(self, step: int) -> int:
        """Global positions done once `step` steps are."""
        if self.cut is not None:
            return int(self.cut.starts[step])
        if step == 0:
            return 0
        return min(self.origin + (step - (self.origin > 0)) * self.global_batch, self.size)

    def step_at(self, position: int) -> int:
        """Steps that are done once `position` global positions are: the inverse of `delivered`."""
        if self.cut is not None:
            return int(np.searchsorted(self.cut.starts, position))
        whole = -(-(position - self.origin) // self.global_batch)
        return min(whole + (self.origin > 0), len(self))
