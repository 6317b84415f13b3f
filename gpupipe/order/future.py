"""What a node's ranks read at any step, and when they read a sample next: arithmetic, no list of the steps to come."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpupipe.errors import ConfigError
from gpupipe.order.protocol import AHEAD, EpochCache, Indices, Order, is_invertible, name_of, positions_of
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
        assert self.batches.cut is None or self.batches.cut.epoch == self.begin, self

    @cached_property
    def is_known(self) -> bool:
        """Whether the order has an inverse, without which `next_use` can't be asked."""
        return is_invertible(self.order)

    @property
    def steps(self) -> int:
        """From an epoch's first time to the next one's: no epoch has more, whatever its origin."""
        if self.batches.cut is None:
            return self.batches.size // self.batches.global_batch + 2
        return len(self.batches) + 2 if self.is_known else self.batches.size + 2

    def cut(self, epoch: int) -> RankBatches:
        """How an epoch is cut into steps."""
        return self.batches if epoch == self.begin else self._others(self.seed, epoch)

    @cached_property
    def _others(self) -> EpochCache[RankBatches]:
        return EpochCache(lambda _, epoch: self._cut_at(epoch), keeps=AHEAD)

    def _cut_at(self, epoch: int) -> RankBatches:
        batches = self.batches.at(epoch)
        if batches.cut is not None and self.is_known and len(batches) != len(self.batches):
            raise ConfigError(
                f"order {name_of(self.order)}: epoch {epoch} has {len(batches)} batches, epoch {self.begin} "
                f"{len(self.batches)}, but of an order with positions() all have as many: leave that out"
            )
        return batches

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
        return self.cut(epoch).of_ranks(self.ranks, step) % self.batches.size

    def next_use(self, indices: Indices, epoch: int, step: int | Indices, horizon: int) -> Indices:
        """When the node reads each sample next after a step, or after a step of each one's own, (N,) times.

        It is looked for in the rest of the epoch and in `horizon` more; NEVER: it was not found. Of VirtualEpochs these
        are epochs of the order within, from the one on in which the first of the steps lies. The more samples are asked
        for at once, the less each one costs, up to some thousands.
        """
        found = np.full(len(indices), NEVER)
        if not len(indices):
            return found
        inner = _inner(self.order)
        begin, size = epoch * self.batches.size, len(inner)
        now = np.broadcast_to(self.time(epoch, 0) + np.asarray(step), indices.shape)
        here = (begin + self.cut(epoch).delivered(int(np.min(step)))) // size
        left = np.arange(len(indices))
        for passes in range(begin // size if self._pads else here, here + horizon + 1):
            places = positions_of(inner, self.seed, passes, indices)
            assert places is not None, "the order has no inverse"
            epochs: int | Indices = passes
            if inner is not self.order:
                later, within = np.divmod(places + (passes * size - begin), self.batches.size)
                epochs, places = epoch + later, np.where(places < 0, -1, within)
            times = _first(self._times(epochs, places), now)
            if self._pads and (places < self.batches.world_size).any():
                found[left] = np.minimum(found[left], _first(self._times_again(epochs, places), now))
            come = np.flatnonzero(times != NEVER)
            found[left[come]] = np.minimum(found[left[come]], times[come])
            rest = np.flatnonzero(times == NEVER)  # and not of padding: that ends an epoch, in which more may be
            left, indices, now = left[rest], indices[rest], now[rest]
            if not len(left):
                return found
        end = self.time((here + horizon + 1) * size // self.batches.size, 0)
        found[left[found[left] >= end]] = NEVER  # padding behind uses that were not looked for
        return found

    def _times(self, epochs: int | Indices, places: Indices) -> Indices:
        """When the node reads these positions, of one epoch or of one each; NEVER: it does not. -1 is none."""
        if self.batches.cut is not None:
            return self._times_in(self.cut(int(epochs)), int(epochs), places)
        cut, batches = self._cut(epochs), self.batches
        offsets = places - cut.origin
        times = offsets // batches.global_batch
        offsets -= times * batches.global_batch
        here = self._has(offsets, batches.batch_size)
        in_last = times >= cut.steps
        if in_last.any():
            here = np.where(in_last, not batches.drop_last and self._has(offsets, cut.rows), here)
        here &= places >= 0
        times += cut.first
        found: Indices = np.where(here, times, NEVER)
        return found

    def _times_in(self, batches: RankBatches, epoch: int, places: Indices) -> Indices:
        """The same where the order makes the batches itself, of which each may have padding of its own."""
        assert batches.cut is not None
        starts, world = batches.cut.starts, batches.world_size
        steps = np.searchsorted(starts[1:-1], places, side="right")
        samples = np.diff(starts)[steps]
        offsets, rows = places - starts[steps], -(-samples // world)
        here = self._has(offsets, rows)
        for copy in range(1, 1 - (-world // int(samples.min(initial=world)))):
            again = offsets + copy * samples
            here |= self._has(again, rows) & (again < rows * world)
        found: Indices = np.where(here & (places >= 0), self.time(epoch, 0) + steps, NEVER)
        return found

    def _times_again(self, epochs: int | Indices, places: Indices) -> Indices:
        """When it reads them as padding."""
        cut, size = self._cut(epochs), self.batches.size
        times = np.full(places.shape, NEVER)
        for copy in range(-(-self.batches.world_size // size)):  # one, but for a handful of samples
            again = self._has(cut.rest + copy * size + places, cut.rows) & (places >= 0)
            times = np.where(again, cut.first + cut.steps, times)
        return times

    def _cut(self, epochs: int | Indices) -> _Cut:
        batches = self.batches
        origin = batches.origin * (epochs == self.begin)
        steps, rest = divmod(batches.size - origin, batches.global_batch)
        return _Cut(origin, epochs * self.steps + (origin > 0), steps, rest, -(-rest // batches.world_size))

    @property
    def _pads(self) -> bool:
        """Whether an epoch's last step may have padding, which stands for its first positions."""
        return not self.batches.drop_last and self.batches.world_size > 1 and self.batches.cut is None

    def _has(self, offsets: Indices, rows: int | Indices) -> NDArray[np.bool_]:
        """Whether rows of a step, of which each rank has so many, are the node's."""
        found: NDArray[np.bool_] = (offsets - self.ranks.start * rows).view(np.uint64) < len(self.ranks) * rows
        return found


class _Cut(NamedTuple):
    """Of one epoch, or of each: where its full steps begin, the time of the first of these, and how many they are; how
    many positions a last step has, and each rank's rows of it."""

    origin: int | Indices
    first: int | Indices
    steps: int | Indices
    rest: int | Indices
    rows: int | Indices


def _inner(order: Order) -> Order:
    """The order of which VirtualEpochs are cut."""
    while isinstance(order, VirtualEpochs):
        order = order.order
    return order


def _first(times: Indices, now: Indices) -> Indices:
    """Of the times (many, N) the first after `now`, (N,)."""
    times = np.where(times > now, times, NEVER)
    found: Indices = times[0] if len(times) == 1 else times.min(axis=0, initial=NEVER)
    return found
