"""Batches of as many samples as a budget has room for."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from gpupipe.errors import ConfigError
from gpupipe.host.checks import whole
from gpupipe.order.buckets import check_budget
from gpupipe.order.protocol import (
    AHEAD,
    EpochCache,
    Indices,
    Order,
    as_array,
    check_order,
    digest,
    samples_of,
)

__all__ = ["BudgetBatches"]


@dataclass(frozen=True, eq=False)
class BudgetBatches:
    """An order's samples in turn, in batches that end before the sum of their costs passes a budget.

    For samples of several lengths that are laid one behind the other, as NaViT packs images (Dehghani et al. 2023,
    arXiv 2307.06304). Where they are padded to the longest of a batch, `Buckets.by_size` wastes less. Epochs have as
    many batches as they need, so `len(loader)` is that of the current one, and the last batch has what is left.

    The budget is that of a global batch. Ranks have as many samples of it each, not as much cost.

    order:      any order that makes no batches itself.
    costs:      of each sample, such as an image's tokens. budget: of a global batch.
    batch_size: samples of a global batch at most, for as many of which a loader has memory.
    multiple:   batches have a multiple of that, such as the ranks, but for the last one.

    To list an epoch takes 0.1 s for a million samples that are Shuffled (one core of an Intel Xeon), once for each that
    is looked into.
    """

    order: Order
    costs: ArrayLike = field(repr=False)
    budget: int
    batch_size: int
    multiple: int = 1
    _costs: Indices = field(init=False, repr=False)
    _starts: EpochCache[Indices] = field(init=False, repr=False)
    _hashed: dict[str, str] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        check_order("BudgetBatches", self.order)
        costs = as_array("BudgetBatches: costs", self.costs)
        if costs.ndim != 1 or not len(costs) or not np.issubdtype(costs.dtype, np.integer) or costs.min() < 0:
            raise ConfigError("BudgetBatches: costs must be one list of integers of 0 or more, one for each sample")
        costs = costs.astype(np.int64)
        for name in ("budget", "batch_size", "multiple"):
            whole(f"BudgetBatches: {name}", getattr(self, name), 1, 2**62)
        if len(costs) < samples_of(self.order):
            raise ConfigError(
                f"BudgetBatches: costs are of {len(costs)} samples, but the order is of {samples_of(self.order)}; give "
                "one for each sample of the dataset"
            )
        check_budget("BudgetBatches", costs, self.budget, self.multiple)
        if self.batch_size < self.multiple:
            raise ConfigError(f"BudgetBatches: batch_size={self.batch_size} is below multiple={self.multiple}")
        object.__setattr__(self, "_costs", costs)
        most = self.batch_size - self.batch_size % self.multiple
        cut = partial(_cut, self.order, costs, self.budget, most, self.multiple)
        object.__setattr__(self, "_starts", EpochCache(cut, keeps=AHEAD))

    def __len__(self) -> int:
        return len(self.order)

    @property
    def samples(self) -> int:
        """How many samples the dataset has to have."""
        return samples_of(self.order)

    @property
    def largest(self) -> int:
        """Samples of a batch at most."""
        return self.batch_size

    def starts(self, seed: int, epoch: int) -> Indices:
        """Where each batch of an epoch begins, and where the last one ends."""
        return self._starts(seed, epoch)

    def indices(self, seed: int, epoch: int, positions: Indices) -> Indices:
        """The order's."""
        return self.order.indices(seed, epoch, positions)

    def alike(self, seed: int, epoch: int, position: int, count: int) -> Indices:
        """The samples that follow: first those which cost no more, then the cheapest, as one whose size can't be read
        costs nothing."""
        following = (position + 1 + np.arange(min(count, len(self) - 1))) % len(self)
        own, *samples = self.indices(seed, epoch, np.array([position, *following]))
        others = np.array(samples, np.int64)
        more: Indices = np.maximum(self._costs[others] - self._costs[own], 0)
        return others[np.argsort(more, kind="stable")]

    @property
    def fingerprint(self) -> str:
        """Names budget and sizes, with a hash of the costs and the order's fingerprint."""
        inner = self.order.fingerprint  # each time: a torch sampler's may be another
        hashed = self._hashed.get(inner) or digest(self._costs.tobytes(), inner.encode())
        object.__setattr__(self, "_hashed", {inner: hashed})
        return f"budget-{self.budget}-{self.batch_size}-{self.multiple}-{hashed}"


def _cut(order: Order, costs: Indices, budget: int, most: int, multiple: int, seed: int, epoch: int) -> Indices:
    size = len(order)
    sums = np.cumsum(costs[order.indices(seed, epoch, np.arange(size))]).tolist()
    starts, done = [0], 0
    while starts[-1] < size:
        begin = starts[-1]
        end = bisect_right(sums, done + budget, begin, min(begin + most, size))
        if end < size:
            end -= (end - begin) % multiple
        starts.append(end)
        done = sums[end - 1]
    return np.array(starts, np.int64)
