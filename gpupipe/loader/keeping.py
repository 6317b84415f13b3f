"""Which samples of its jobs a node's disk cache is to keep, told with each job.

jobs ──► the plan of all ranks of the node, step by step ──► jobs that say what is kept of them, and what goes

Every rank of a node finds the same plan by itself: from the order, the number of ranks and the cache's size. What is on
the disk from before is found and used, whatever the plan says of it.
"""

from __future__ import annotations

import math
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpupipe.batch import Job
from gpupipe.decode.choose import EngineSettings
from gpupipe.loader.place import Point
from gpupipe.order import Future, Order, RankBatches
from gpupipe.order.protocol import Indices
from gpupipe.order.retention import Retention
from gpupipe.sources import Source
from gpupipe.sources.remote.cache import BlockCache, Cache, on_disk
from gpupipe.sources.remote.cache.store import keep_alive
from gpupipe.sources.remote.reader import MOST

__all__ = ["Keeping", "Room", "outstanding", "room_for", "size_for"]

DRIFT = 2  # steps that one rank is ahead of another, and one
FINISHED = 2  # batches that wait on a GPU
SPARE = 1.5  # times what is under way: samples differ in size, and a reader's thread drops when it has time
MOST_RESERVED = 4  # a quarter of the cache at most is left for what is under way
REMEMBERED = 1024  # steps; a stream that begins again at one of these needs no new plan
ASKED = 4096  # samples whose mean size is taken for that of all

Told = tuple[NDArray[np.bool_], Indices]  # a job's `keep` and `drop`


class Room(NamedTuple):
    """What a plan goes by: the bytes that may be held, and the steps after which every rank has surely passed one."""

    capacity: int
    lag: int


class Begun(NamedTuple):
    """What a plan was made for: how epochs are cut, with an origin in that epoch alone, and its room."""

    batches: RankBatches
    epoch: int
    room: Room


def room_for(size: float, space: float, jobs: int, ahead: float) -> Room:
    """What is left of so many bytes of a cache for what is held: blocks are stored when they come, some time before
    their step, and dropped when all ranks have passed it.

    space: of all that a node reads at a step. jobs: of a rank that are under way. ahead: bytes that the node's
    processes read before they are asked for.
    """
    lag = jobs + DRIFT
    return Room(int(size - min(size / MOST_RESERVED, SPARE * (ahead + lag * space))), lag)


def size_for(capacity: float, space: float, jobs: int, ahead: float) -> int:
    """The size of a cache that may hold so much: the inverse of `room_for`."""
    return math.ceil(capacity + min(capacity / (MOST_RESERVED - 1), SPARE * (ahead + (jobs + DRIFT) * space)))


def outstanding(processes: int, prefetch_factor: int) -> int:
    """Jobs that an engine has been given and whose batches are not delivered, at most."""
    return (processes + 1) * prefetch_factor + FINISHED


def _space_of(source: Source, indices: Indices) -> Indices:
    """What samples take of a cache, 0 for what is local."""
    sizes = source.stored_bytes(indices)
    assert sizes is not None
    return np.where(sizes > 0, on_disk(sizes), 0)


def _mean_size(source: Source) -> float:
    """What a sample takes of a cache, about."""
    return float(_space_of(source, np.linspace(0, len(source) - 1, min(len(source), ASKED)).astype(np.int64)).mean())


class Keeping:
    """For the jobs of a rank of a loader whose data has a cache.

    ranks: those of its node. Where several loaders of a process have one cache, such as one for training and one for
    evaluation, each plans with a part of it, by the bytes of their data; what is built after the first epoch of
    another has begun gets its part when that begins again.
    """

    def __init__(self, source: Source, cache: Cache, order: Order, seed: int, ranks: range, settings: EngineSettings):
        self._source, self._cache, self._order = source, cache, order
        self._seed, self._ranks, self._settings = seed, ranks, settings
        self._mean = _mean_size(source)
        self.bytes = self._mean * len(source)
        self._size: int | None = None
        self._plan: Retention | None = None
        self._begun: Begun | None = None
        self._told: OrderedDict[tuple[int, int], Told] = OrderedDict()
        _ALL.add(self)

    def __call__(self, jobs: Iterable[Job], batches: RankBatches) -> Iterator[Job]:
        """The jobs of a stream, whose first epoch is cut by `batches`."""
        begun: Begun | None = None
        for job in jobs:
            lost: list[Indices] = []
            if begun is None:
                epoch = job.epoch if batches.origin else 0
                begun = Begun(batches if batches.origin else batches.at(epoch), epoch, self._room(batches))
                lost = self._lost(job, batches)
            keep, drop = self._of(job, batches.rank, begun)
            if lost and self._plan is not None:
                drop = self._plan.not_held([drop, *lost])
            yield replace(job, keep=keep, drop=drop)

    def close(self) -> None:
        """Others may have its part of the cache."""
        _ALL.discard(self)

    def _lost(self, job: Job, batches: RankBatches) -> list[Indices]:
        """What the last jobs of a stream were to drop that was left before they were read, as far as is known."""
        last = next(reversed(self._told), None)
        cut = batches if last is None or batches.cut is None else batches.at(last[0])
        if last is None or Point(*last, cut).following.key == (job.epoch, job.step):
            return []
        return [self._told[at][1] for at in [*self._told][-self._under_way(batches.batch_size) :]]

    def _under_way(self, batch_size: int) -> int:
        """Jobs that have been told and whose batches are not delivered, at most."""
        processes = max(1, self._settings.worker_processes)
        ahead = processes * math.ceil(self._source.looks_ahead / batch_size)
        return ahead + outstanding(processes, self._settings.prefetch_factor)

    def _of(self, job: Job, rank: int, begun: Begun) -> Told:
        at = job.epoch, job.step
        if self._begun != begun or (at not in self._told and (self._plan is None or self._plan.has_passed(*at))):
            self._begin(begun, at)
        if at not in self._told:
            assert self._plan is not None
            try:
                step = self._plan.at(*at)
            except BaseException:
                self._begun = None  # it can't go on
                raise
            own = rank - self._ranks.start
            keep = np.array_split(step.keep, len(self._ranks))[own]
            self._told[at] = keep, step.drop[own :: len(self._ranks)]
            if len(self._told) > REMEMBERED:
                self._told.popitem(last=False)
        return self._told[at]

    def _begin(self, begun: Begun, at: tuple[int, int]) -> None:
        """A plan from there on in the place of what there is."""
        keep_alive(self._cache, self)
        future = Future(self._order, self._seed, begun.batches, self._ranks, begun.epoch)
        room = begun.room
        plan = Retention(future, lambda indices: _space_of(self._source, indices), room.capacity, room.lag, at)
        if self._plan is not None:
            plan.release(self._plan.held())
        self._plan, self._begun = plan, begun
        self._told.clear()

    def _room(self, batches: RankBatches) -> Room:
        if self._size is None:
            cache = BlockCache(self._cache)
            self._size = cache.size()
            cache.close()
        sharing = sum(one.bytes for one in _ALL if one._cache.place == self._cache.place)
        ahead = min(MOST, self._source.looks_ahead * self._mean)
        processes = max(1, self._settings.worker_processes)
        space = self._mean * batches.batch_size * len(self._ranks)
        part = self._size * self.bytes / max(1.0, sharing)
        jobs = outstanding(processes, self._settings.prefetch_factor)
        return room_for(part, space, jobs, ahead * processes * len(self._ranks))


_ALL: weakref.WeakSet[Keeping] = weakref.WeakSet()
