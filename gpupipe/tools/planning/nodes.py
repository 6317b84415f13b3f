"""Each node's steps, gone through by the same arithmetic as in the run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpupipe.host.system import usable_cpus
from gpupipe.order import Future, Order, RankBatches
from gpupipe.order.protocol import Indices
from gpupipe.order.retention import Retention, enough_epochs, walk
from gpupipe.tools.planning.layout import Layout

__all__ = ["Epochs", "Run", "curve", "epochs_of"]

FEW = 1 << 20  # samples in all epochs, for which no processes are started
MOST_SAMPLED = 1 << 16
"""Samples for the curve over sizes: of more data every k-th sample stands for k."""


@dataclass(frozen=True)
class Run:
    """What is planned: `batches.world_size` ranks, `per_node` of them on each node, whose cache may hold `capacity`
    bytes; see `Retention`."""

    order: Order
    seed: int
    batches: RankBatches
    per_node: int
    epochs: int
    capacity: int
    lag: int

    @property
    def nodes(self) -> int:
        """Machines."""
        return self.batches.world_size // self.per_node

    def future(self, node: int) -> Future:
        """What a node reads."""
        return Future(
            self.order, self.seed, self.batches, range(node * self.per_node, node * self.per_node + self.per_node)
        )


class Epochs(NamedTuple):
    """Figures of each epoch, (epochs,) int64: samples that are read, those that the cache has, the bytes of both, bytes
    that come from storage, what lies between them and is not wanted included, bytes that would come without a cache,
    and requests."""

    samples: Indices
    hits: Indices
    bytes: Indices
    hit_bytes: Indices
    fetched: Indices
    uncached: Indices
    requests: Indices


def epochs_of(run: Run, layout: Layout, nodes: Sequence[int]) -> Iterator[Epochs]:
    """The figures of these nodes, in turn; of many samples by processes."""
    workers = min(usable_cpus(), len(nodes))
    if workers < 2 or len(layout.sizes) * run.epochs < FEW:
        yield from (_node(run, layout, node) for node in nodes)
        return
    with ProcessPoolExecutor(workers, get_context("spawn"), _begin, (run, layout)) as pool:
        yield from pool.map(_of_this_process, nodes)


_GIVEN: list[tuple[Run, Layout]] = []


def _begin(run: Run, layout: Layout) -> None:
    _GIVEN[:] = [(run, layout)]


def _of_this_process(node: int) -> Epochs:
    return _node(*_GIVEN[0], node)


def _node(run: Run, layout: Layout, node: int) -> Epochs:
    future = run.future(node)
    plan = Retention(future, layout.space, run.capacity, run.lag)
    return Epochs(*np.array([_epoch(plan, future, layout, epoch) for epoch in range(run.epochs)], np.int64).T)


def _epoch(plan: Retention, future: Future, layout: Layout, epoch: int) -> NDArray[np.int64]:
    figures = np.zeros(len(Epochs._fields), np.int64)
    for number in range(len(future.cut(epoch))):
        step = plan.at(epoch, number)
        sizes, ranks = layout.sizes[step.indices], len(future.ranks)
        jobs = np.array_split(step.indices, ranks)
        missed = zip(jobs, np.array_split(~step.hits, ranks), strict=True)
        requests, fetched = layout.asked([np.unique(indices[rows]) for indices, rows in missed])
        hits = step.hits.sum()
        uncached = layout.asked([np.unique(indices) for indices in jobs])[1] if hits else fetched
        figures += [len(sizes), hits, sizes.sum(), sizes[step.hits].sum(), fetched, uncached, requests]
    return figures


def curve(run: Run, layout: Layout, capacities: Sequence[int]) -> NDArray[np.float64]:
    """The part of its bytes that the first node finds in caches of several sizes in the whole run, (sizes,)."""
    one_in = max(1, len(layout.sizes) // MOST_SAMPLED)
    whole = run.future(0)
    horizon = enough_epochs(whole, layout.space, max(capacities))
    some = _Some(whole.order, whole.seed, whole.batches, whole.ranks, one_in=one_in)
    plans = [Retention(some, layout.space, size // one_in, horizon=horizon) for size in capacities]
    wanted, hits = 0, np.zeros(len(plans))
    for met in walk(some, layout.space, horizon, (0, 0)):
        if met.epoch == run.epochs:
            break
        sizes = layout.sizes[met.indices]
        wanted += int(sizes.sum())
        hits += [sizes[plan.decide(met).hits].sum() for plan in plans]
    return hits / max(1, wanted)


@dataclass(frozen=True)
class _Some(Future):
    """Of every `one_in` samples one."""

    one_in: int = 1

    def places(self, epoch: int, step: int) -> Indices:
        places = super().places(epoch, step)
        some: Indices = places[self.order.indices(self.seed, epoch, places) % self.one_in == 0]
        return some
