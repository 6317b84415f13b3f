"""What a node's cache holds of its ranks' samples: those that come next, of all that it has met.

    step t:   read ──► hits are those held for t ──► each has its next use ──► the nearest are held, as many as fit

What is needed last goes first (Belady, "A study of replacement algorithms", 1966), and what is needed later than all
that is held is not taken in at all. All is decided in the order of steps, never by the time at which something happens:
so each rank of a node finds the same plan by itself, and it is known before the run. Of an order that does not say
where a sample comes again, what was used last stays (LRU).

How those are held of which it is known when they come again: `gpupipe.kernels.furthest`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from gpupipe.kernels.furthest import furthest
from gpupipe.order.future import Future
from gpupipe.order.protocol import Indices, samples_of

__all__ = ["Met", "Retention", "Step", "enough_epochs", "walk"]

SizesOf = Callable[[Indices], Indices]

BLOCK = 16384  # samples whose next uses are found at once: a round of calls costs what a thousand samples do
MOST_WARMED = 1 << 22
"""Samples that are gone through before a resume, for what the cache holds there: some seconds. Those of 26 epochs of
ImageNet on each of 8 nodes."""
MOST_EPOCHS = 4  # times those in which a node reads as much as all data: 98 % of the samples have come again by then


class Step(NamedTuple):
    """What a node does at a step.

    indices, sizes: of the samples that its ranks read, (N,), rank after rank. hits: (N,) bool, those that the cache
    held before. keep: (N,) bool, those that it holds from then on. drop: (M,) samples whose room is free when this step
    has been read: by `lag` steps before it was decided that they go.
    """

    indices: Indices
    sizes: Indices
    hits: NDArray[np.bool_]
    keep: NDArray[np.bool_]
    drop: Indices


class Met(NamedTuple):
    """What a node reads at a step, before anything is decided: times (N,) are those of the next uses, at the latest the
    time when they have to be looked for again."""

    epoch: int
    step: int
    indices: Indices
    sizes: Indices
    times: Indices


class Retention:
    """The plan of a node whose cache has room for `capacity` bytes; `at` gives it step by step.

    future:   what the node reads. sizes_of: bytes of samples. lag: steps by which all ranks have surely passed one.
    horizon:  epochs in which next uses are looked for; None: see `enough_epochs`.
    begin:    epoch and step of the first that is asked for. What was read in the epochs before, in which it can have
              been held till then, is taken to have been read by this plan.

    What is needed again before its room would be free stays.
    """

    def __init__(
        self,
        future: Future,
        sizes_of: SizesOf,
        capacity: int,
        lag: int = 0,
        begin: tuple[int, int] = (0, 0),
        horizon: int | None = None,
    ) -> None:
        self._future = future
        self._sizes_of = sizes_of
        self._horizon = enough_epochs(future, sizes_of, capacity) if horizon is None else horizon
        self._policy: _Policy = (furthest if future.is_known else _Recent)(capacity, sizes_of)
        self._lag = lag
        self._pending: deque[Indices] = deque()
        first = _before(future, begin, self._horizon + 1) if future.is_known else begin
        self._coming = walk(future, sizes_of, self._horizon, first)
        self._next = future.time(*first)
        self._begun = False  # what was dropped before is not this plan's to drop

    def at(self, epoch: int, step: int) -> Step:
        """The plan of that step. Those between it and the last one that was asked for, which it must not come before,
        are taken to be read as well."""
        time = self._future.time(epoch, step)
        assert time >= self._next, (epoch, step)
        if not self._future.is_known and time > self._next:  # a sampler is not asked for what is left out
            self._coming = walk(self._future, self._sizes_of, self._horizon, (epoch, step))
        drops: list[Indices] = []
        while True:
            met = next(self._coming)
            made = self.decide(met)
            if (met.epoch, met.step) == (epoch, step):
                break
            drops += [made.drop] if self._begun else []
        self._begun = True
        return made._replace(drop=self.not_held([*drops, made.drop])) if drops else made

    def decide(self, met: Met) -> Step:
        """The plan of what comes next, for one who walks through the steps himself."""
        indices, sizes, times = met.indices, met.sizes, met.times
        rows: Any = slice(None)
        back: Any = slice(None)
        if len({*indices.tolist()}) < len(indices):  # padding, or repeated ones
            _, rows, back = np.unique(indices, return_index=True, return_inverse=True)
        now = self._future.time(met.epoch, met.step)
        self._next = now + 1
        busy = now + 2 * self._lag  # room is free then, and a rank that is ahead by as much has not asked again
        hits, keep, drop = self._policy.step(
            now, busy, indices[rows], sizes[rows], times[rows], partial(self._again, met)
        )
        self._pending.append(drop)
        over = [self._pending.popleft() for _ in range(len(self._pending) - self._lag)]
        free = np.concatenate(over) if over else drop[:0]
        return Step(indices, sizes, hits[back], keep[back], self._policy.still_free(free))

    def has_passed(self, epoch: int, step: int) -> bool:
        """Whether that step can't be asked for any more."""
        return self._future.time(epoch, step) < self._next

    def held(self) -> Indices:
        """All samples that are held now, in no order."""
        return self._policy.held()

    def not_held(self, parts: Sequence[Indices]) -> Indices:
        """All of them that are not held now, each once."""
        return np.setdiff1d(np.concatenate([np.empty(0, np.int64), *parts]), self.held())

    def release(self, indices: Indices) -> None:
        """Those that a plan before this one held and this does not are dropped with its next."""
        self._pending.append(self.not_held([indices]))

    def _again(self, met: Met, indices: Indices) -> Indices:
        return _next_uses(self._future, indices, met.epoch, met.step, self._horizon)


def walk(future: Future, sizes_of: SizesOf, horizon: int, at: tuple[int, int]) -> Iterator[Met]:
    """Each step from there on, without end."""
    epoch, step = at
    while True:
        count = len(future.cut(epoch))
        while step < count:
            places = [future.places(epoch, step)]
            many = BLOCK // max(1, len(places[0])) if future.is_known else 1
            steps = range(step, min(step + max(1, many), count))
            places += [future.places(epoch, later) for later in steps[1:]]
            lengths = [len(one) for one in places]
            indices = future.order.indices(future.seed, epoch, np.concatenate(places))
            sizes = sizes_of(indices)
            times = _next_uses(future, indices, epoch, np.repeat(steps, lengths), horizon)
            ends = np.cumsum(lengths).tolist()
            for number, begin, end in zip(steps, [0, *ends], ends, strict=False):
                yield Met(epoch, number, indices[begin:end], sizes[begin:end], times[begin:end])
            step = steps.stop
        epoch, step = epoch + 1, 0


def _next_uses(future: Future, indices: Indices, epoch: int, step: int | Indices, horizon: int) -> Indices:
    if not future.is_known:
        return indices
    times = future.next_use(indices, epoch, step, horizon * future.passes)
    return np.minimum(times, future.time(epoch + horizon, 0))


def _before(future: Future, begin: tuple[int, int], epochs: int) -> tuple[int, int]:
    """Where to go through steps from, so that at `begin` is held what a plan from the start on would hold."""
    epoch, _ = begin
    samples = future.batches.size * len(future.ranks) // future.batches.world_size
    epochs = min(epoch, epochs, MOST_WARMED // max(1, samples))
    return (epoch - epochs, 0) if epochs or samples <= MOST_WARMED else begin


class _Policy(Protocol):
    """What is held, and what is not."""

    def __init__(self, capacity: int, sizes_of: SizesOf) -> None: ...

    def step(
        self, now: int, busy: int, indices: Indices, sizes: Indices, times: Indices, again: SizesOf
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_], Indices]:
        """Hits and what is held from then on, of different samples (N,), and all that are dropped (M,)."""
        ...

    def still_free(self, dropped: Indices) -> Indices:
        """Those of the dropped that have not been taken in again since."""
        ...

    def held(self) -> Indices:
        """All that are held."""
        ...


class _Recent:
    """What was used first is dropped first."""

    def __init__(self, capacity: int, sizes_of: SizesOf) -> None:
        self._capacity = self._room = capacity
        self._held: dict[int, int] = {}  # bytes of each sample, in the order of their use

    def step(
        self, now: int, busy: int, indices: Indices, sizes: Indices, times: Indices, again: SizesOf
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_], Indices]:
        held = self._held
        hits = np.array([held.pop(index, None) is not None for index in indices.tolist()], np.bool_)
        keep = sizes <= self._capacity
        self._room -= int(sizes[keep & ~hits].sum())
        held.update(zip(indices[keep].tolist(), sizes[keep].tolist(), strict=True))
        evicted = []
        while self._room < 0:
            oldest = next(iter(held))
            self._room += held.pop(oldest)
            evicted.append(oldest)
        dropped = np.array(evicted, np.int64)
        keep &= ~np.isin(indices, dropped)
        return hits, keep, dropped

    def still_free(self, dropped: Indices) -> Indices:
        return dropped[[index not in self._held for index in dropped.tolist()]]

    def held(self) -> Indices:
        return np.array([*self._held], np.int64)


def enough_epochs(future: Future, sizes_of: SizesOf, capacity: int) -> int:
    """Epochs after which it does not matter any more when a sample comes again.

    A sample comes to a node in each epoch with the probability p, and again to the same k epochs later with
    p (1 - p)^(k - 1). A cache that holds all that come again within K epochs has the sum over k up to K of
    k p^2 (1 - p)^(k - 1) of the data. Beyond the K at which it is full, and a third and some epochs more for the
    beginning, in which it holds more of what comes late, nothing stays. Of `NodeBlocks` a dealing counts as an epoch.
    """
    order, size = future.order, future.batches.size
    first = order.indices(future.seed, 0, np.arange(min(size, BLOCK)))
    spread = order.indices(future.seed, 0, np.linspace(0, size - 1, min(size, BLOCK)).astype(np.int64))
    samples = samples_of(order) or size
    distinct = len(np.unique(first)) / len(first)
    often = min(1.0, size * distinct / samples) * len(future.ranks) / future.batches.world_size
    share = capacity / max(1.0, float(sizes_of(spread).mean()) * samples)
    epochs, held = 0, 0.0
    while held < share and epochs < MOST_EPOCHS / often:
        epochs += 1
        held += epochs * often**2 * (1 - often) ** (epochs - 1)
    return (epochs + epochs // 3 + 4) * int(getattr(order, "every", 1))
