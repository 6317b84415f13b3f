"""What a node's ranks read at any step, and when they read a sample next: arithmetic, no list of the steps to come."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpupipe.order.protocol import Indices, Order, is_invertible, positions_of
from gpupipe.order.ranks import RankBatches
from gpupipe.order.repeated import VirtualEpochs

__all__ = ["NEVER", "Future"]

NEVER = int(np.iinfo(np.int64).max)
"""The time of a use that does not come: later than any that does."""


@dataclass(frozen=True)
class Future:
    """What `ranks` read, a contiguous range of the world's that share a node.

    A time is a step as one number that grows over the epochs: epoch * steps + step.

    batches: how the epoch `begin` is cut into steps; its `origin` counts there alone, its rank nowhere.
    """

    order: Order
    seed: int
    batches: RankBatches
    ranks: range
    begin: int = 0

    def __post_init__(self) -> None:
        assert 0 <= self.ranks.start < self.ranks.stop <= self.batches.world_size, self
        assert self.ranks.step == 1, self
        assert self.batches.size == len(self.order) > 0, self

    @cached_property
    def is_known(self) -> bool:
        """Whether the order has an inverse, without which `next_use` can't be asked."""
        return is_invertible(self.order)

    @property
    def steps(self) -> int:
        """From an epoch's first time to the next one's: no epoch has more, whatever its origin."""
        return self.batches.size // self.batches.global_batch + 2

    def count(self, epoch: int) -> int:
        """How many steps an epoch has."""
        return len(self._batches(epoch))

    @property
    def passes(self) -> int:
        """Epochs of the order within VirtualEpochs that one of the loader's has, rounded up; of other orders 1."""
        return -(-self.batches.size // len(_inner(self.order)))

    def time(self, epoch: int, step: int) -> int:
        """A step's."""
        return epoch * self.steps + step

    def uses(self, epoch: int, step: int) -> Indices:
        """The samples that the node's ranks read at a step, rank after rank, padding as well."""
        return self.order.indices(self.seed, epoch, self.places(epoch, step))

    def places(self, epoch: int, step: int) -> Indices:
        """Where in the epoch these stand."""
        batches = self._batches(epoch)
        rows = -(-batches.samples(step) // batches.world_size)
        places = batches.delivered(step) + np.arange(self.ranks.start * rows, self.ranks.stop * rows, dtype=np.int64)
        return places % batches.size

    def next_use(self, indices: Indices, epoch: int, step: int | Indices, horizon: int) -> Indices:
        """When the node reads each sample next after a step, or after a step of each one's own, (N,) times.

        It is looked for in the rest of the epoch and in `horizon` more; NEVER: it was not found. Of VirtualEpochs these
        are epochs of the order within, from the one on in which the first of the steps lies. The more samples are asked
        for at once, the less each one costs: NumPy's calls are what a few hundred cost.
        """
        found = np.full(len(indices), NEVER)
        if not len(indices):
            return found
        inner = _inner(self.order)
        begin, size = epoch * self.batches.size, len(inner)
        now = np.broadcast_to(self.time(epoch, 0) + np.asarray(step), indices.shape)
        here = (begin + self._batches(epoch).delivered(int(np.min(step)))) // size
        left = np.arange(len(indices))
        for passes in range(begin // size if self._pads else here, here + horizon + 1):
            places = positions_of(inner, self.seed, passes, indices[left])
            assert places is not None, "the order has no inverse"
            later = np.where(places < 0, -begin - 1, places + (passes * size - begin))  # -1: before all epochs
            times = _earliest(self._times(epoch, later), now[left])
            found[left] = np.minimum(found[left], times)
            if self._pads:
                found[left] = np.minimum(found[left], _earliest(self._times_again(epoch, later), now[left]))
            left = left[times == NEVER]  # and not of padding: that ends an epoch, in which more passes may be
            if not len(left):
                return found
        end = self.time((here + horizon + 1) * size // self.batches.size, 0)
        found[left[found[left] >= end]] = NEVER  # padding behind uses that were not looked for
        return found

    def _batches(self, epoch: int) -> RankBatches:
        return self.batches if epoch == self.begin else replace(self.batches, origin=0)

    @property
    def _pads(self) -> bool:
        """Whether an epoch's last step may have padding."""
        return not self.batches.drop_last and self.batches.world_size > 1

    def _times(self, epoch: int, places: Indices) -> Indices:
        """When the node reads the positions that come so many after the first of an epoch; NEVER: other nodes do."""
        cut, batches = self._cut(epoch, places), self.batches
        steps, offset = np.divmod(cut.places - cut.origin, batches.global_batch)
        in_last = steps >= cut.steps
        ranks = offset // np.where(in_last, cut.rows, batches.batch_size)
        times = cut.epochs * self.steps + steps + (cut.origin > 0)
        return np.where(self._has(ranks) & ~(in_last & batches.drop_last), times, NEVER)

    def _times_again(self, epoch: int, places: Indices) -> Indices:
        """When it reads them as padding."""
        cut, size = self._cut(epoch, places), self.batches.size
        times = np.full(places.shape, NEVER)
        for copy in range(-(-self.batches.world_size // size)):  # one, but for a handful of samples
            rows = cut.rest + copy * size + cut.places  # of the last step
            ranks = rows // np.maximum(1, cut.rows)
            read = (cut.rest > 0) & (ranks < self.batches.world_size) & self._has(ranks)
            times[read] = np.broadcast_to(cut.epochs * self.steps + cut.steps + (cut.origin > 0), places.shape)[read]
        return times

    def _cut(self, epoch: int, places: Indices) -> _Cut:
        batches = self.batches
        later = places // batches.size
        origin = np.where(later == self.begin - epoch, batches.origin, 0) if batches.origin else np.zeros((), np.int64)
        steps, rest = np.divmod(batches.size - origin, batches.global_batch)
        return _Cut(epoch + later, places - later * batches.size, origin, steps, rest, -(-rest // batches.world_size))

    def _has(self, ranks: Indices) -> NDArray[np.bool_]:
        return (ranks >= self.ranks.start) & (ranks < self.ranks.stop)


class _Cut(NamedTuple):
    """Positions, each as one of its epoch, and how that is cut: full steps begin at `origin`, a last one has `rest`
    positions, `rows` for each rank. What is one for all has no dimension."""

    epochs: Indices
    places: Indices
    origin: Indices
    steps: Indices
    rest: Indices
    rows: Indices


def _inner(order: Order) -> Order:
    """The order of which VirtualEpochs are cut."""
    while isinstance(order, VirtualEpochs):
        order = order.order
    return order


def _earliest(times: Indices, now: Indices) -> Indices:
    """Of the times (many, N) the first after `now`, (N,)."""
    found: Indices = np.where(times > now, times, NEVER).min(axis=0)
    return found
