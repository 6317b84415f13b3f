"""What a cache holds where what is needed last is dropped first, or not taken in (Belady).

Samples are held in lists by the time of their next use: those of `now` are the hits, those of the last time are dropped
first, the latest that came there before the others. A step of 256 samples takes 40 us by the C++ kernel, 125 by the
definition; the kernel needs 24 bytes a sample (one busy core of an Intel Xeon, 1.28 million samples on 8 nodes).
"""

from __future__ import annotations

import ctypes
import heapq
import weakref
from array import array
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gpupipe.kernels import native

__all__ = ["Furthest", "FurthestReference", "furthest"]

Numbers: TypeAlias = NDArray[np.int64]
SizesOf: TypeAlias = Callable[[Numbers], Numbers]
Flags: TypeAlias = NDArray[np.bool_]

SLICE = 256  # samples of a list that are looked at when one has to go


def furthest(capacity: int, sizes_of: SizesOf) -> Furthest | FurthestReference:
    """Of a cache that has room for so many bytes, and samples of such sizes."""
    return (Furthest if native.library() else FurthestReference)(capacity, sizes_of)


class Furthest:
    """As `FurthestReference`, by the kernel."""

    def __init__(self, capacity: int, sizes_of: SizesOf) -> None:
        self._sizes_of = sizes_of
        held = self._library.gp_held_new(ctypes.c_int64(capacity))
        if not held:
            raise MemoryError
        self._held = ctypes.c_void_p(held)
        weakref.finalize(self, self._library.gp_held_free, self._held)

    def step(
        self, now: int, busy: int, indices: Numbers, sizes: Numbers, times: Numbers, again: SizesOf
    ) -> tuple[Flags, Flags, Numbers]:
        """See `FurthestReference.step`."""
        hits, keep = np.empty((2, len(indices)), np.bool_)
        arrays = [np.ascontiguousarray(array, np.int64) for array in (indices, sizes, times)]
        step = native.HeldStep(self._held, now, busy, len(indices), *native.addresses([*arrays, hits, keep]).tolist())
        rest = self._found("hits", step)
        if len(rest):
            self._file(rest, again(rest))
        return hits, keep, self._found("keep", step)

    def still_free(self, dropped: Numbers) -> Numbers:
        """Those of the dropped that have not been taken in again since: all."""
        return dropped

    def held(self) -> Numbers:
        """All that are held, in no order."""
        return self._found("all", native.HeldStep(self._held))

    @property
    def nbytes(self) -> int:
        """Memory that it takes."""
        return int(self._library.gp_held_bytes(self._held))

    @property
    def _library(self) -> Any:
        return native.library()

    def _file(self, indices: Numbers, times: Numbers) -> None:
        arrays = [np.ascontiguousarray(array, np.int64) for array in (indices, self._sizes_of(indices), times)]
        self._call("file", native.HeldStep(self._held, 0, 0, len(indices), *native.addresses(arrays).tolist()))

    def _found(self, name: str, step: Any) -> Numbers:
        """What a call finds."""
        self._call(name, step)
        found = np.empty(step.named, np.int64)
        if len(found):
            self._library.gp_held_named(self._held, ctypes.c_void_p(found.ctypes.data))
        return found

    def _call(self, name: str, step: Any) -> None:
        if getattr(self._library, f"gp_held_{name}")(ctypes.byref(step)):
            raise MemoryError


class FurthestReference:
    """In Python: the definition."""

    def __init__(self, capacity: int, sizes_of: SizesOf) -> None:
        self._capacity = self._room = capacity
        self._sizes_of = sizes_of
        self._due: dict[int, array[int]] = {}  # by the time of their next use
        self._times: list[int] = []  # a heap of these, negative; some have passed, or have no samples any more

    def step(
        self, now: int, busy: int, indices: Numbers, sizes: Numbers, times: Numbers, again: SizesOf
    ) -> tuple[Flags, Flags, Numbers]:
        """Hits and what is held from then on, of different samples (N,), and all that are dropped (M,).

        now, times: of the step, and of the samples' next uses. busy: what is needed by then stays.
        again: gives the next uses of samples that were filed for now and are not read.
        """
        due = np.array(self._due.pop(now, ()), np.int64)
        due.sort()
        hits = _among(indices, due)
        if np.count_nonzero(hits) < len(due):  # of the rest it was known that they come no sooner
            rest = np.setdiff1d(due, indices, assume_unique=True)
            self._file(rest, again(rest))
        keep = hits & (times <= busy)
        self._room += int(sizes[hits & ~keep].sum())
        others = np.flatnonzero(~keep & (sizes <= self._capacity))
        others = others[np.argsort(times[others], kind="stable")]
        taken, evicted = self._fitted(busy, times[others], sizes[others])
        keep[others[:taken]] = True
        self._file(indices[keep], times[keep])
        return hits, keep, np.concatenate([indices[hits & ~keep], *evicted])

    def still_free(self, dropped: Numbers) -> Numbers:
        """Those of the dropped that have not been taken in again since: all."""
        return dropped

    def held(self) -> Numbers:
        """All that are held, in no order."""
        return np.concatenate([np.empty(0, np.int64), *map(np.array, self._due.values())])

    def _file(self, indices: Numbers, times: Numbers) -> None:
        for index, time in zip(indices.tolist(), times.tolist(), strict=True):
            due = self._due.get(time)
            if due is None:
                due = self._due[time] = array("q")
                heapq.heappush(self._times, -time)
            due.append(index)
        if len(self._times) > 2 * len(self._due) + SLICE:
            self._times = [-time for time in self._due]
            heapq.heapify(self._times)

    def _fitted(self, busy: int, times: Numbers, sizes: Numbers) -> tuple[int, list[Numbers]]:
        """How many of some samples, those that come next first, are taken in, and what has to go for them."""
        count, over, evicted = len(times), int(sizes.sum()) - self._room, []
        while over > 0:
            latest = self._latest()
            first = int(np.searchsorted(times[:count], latest)) if latest > busy else 0
            if first < count:  # the last of them come no sooner than what is held
                gone = _enough(sizes[first:count][::-1], over)
                over -= int(sizes[count - gone : count].sum())
                count -= gone
            elif latest > busy:
                due = self._due[latest]
                last = np.array(due[-SLICE:])
                last_sizes = self._sizes_of(last)
                gone = _enough(last_sizes[::-1], over)
                over -= int(last_sizes[-gone:].sum())
                evicted.append(last[-gone:])
                del due[-gone:]
                if not due:
                    del self._due[latest]
            else:
                break
        self._room = -over
        return count, evicted

    def _latest(self) -> int:
        """The last time at which something that is held is due; -1: nothing is."""
        while self._times and -self._times[0] not in self._due:
            heapq.heappop(self._times)
        return -self._times[0] if self._times else -1


def _among(indices: Numbers, ascending: Numbers) -> Flags:
    """Which of the indices are there."""
    if not len(ascending):
        return np.zeros(len(indices), np.bool_)
    found: Flags = ascending.take(np.searchsorted(ascending, indices), mode="clip") == indices
    return found


def _enough(sizes: Numbers, over: int) -> int:
    """How many of them, one after the other, have so many bytes; all if they have fewer."""
    return min(len(sizes), int(np.searchsorted(np.cumsum(sizes), over)) + 1)
