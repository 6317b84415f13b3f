"""What a source is told of the samples that its process is asked for next.

Jobs come to their readers, worker processes or the loader's own, in turn. Of three that are told two turns ahead

    job            0        1        2        3    4    5    6    ...
    of reader      0        1        2        0    1    2    0
    tells of       0, 3, 6  1, 4, 7  2, 5, 8  9    10   11   12
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["Coming", "looking_ahead"]

Item = TypeVar("Item")

NONE: NDArray[np.int64] = np.empty(0, np.int64)


@dataclass(frozen=True)
class Coming:
    """The samples of a fetch that comes, told before other fetches, of which this is known to be one.

    indices: int64 (N,). keep: bool (N,), whether a cache of theirs is to hold each from then on; None: as it likes.
    drop:    int64 (M,), other samples, which it need not hold any longer then.
    turns:   so many fetches come before it. 0: it is the next one and begins a stream; what was told before is void.
    """

    indices: NDArray[np.int64]
    keep: NDArray[np.bool_] | None = None
    drop: NDArray[np.int64] = field(default_factory=lambda: NONE)
    turns: int = 0

    @classmethod
    def nothing(cls) -> Coming:
        """Nothing comes any more."""
        return cls(NONE)

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_] | slice) -> Coming:
        """Some of the rows; all that is dropped."""
        return replace(self, indices=self.indices[rows], keep=None if self.keep is None else self.keep[rows])

    def mapped(self, numbers: Callable[[NDArray[np.int64]], NDArray[np.int64]]) -> Coming:
        """The same samples by their numbers elsewhere."""
        return replace(self, indices=numbers(self.indices), drop=numbers(self.drop) if len(self.drop) else self.drop)


def looking_ahead(
    items: Iterable[Item], coming: Callable[[Item], Coming], readers: int, turns: int
) -> Iterator[tuple[Item, tuple[Coming, ...]]]:
    """The items, each with what its reader is told before it, see above; with 0 turns nothing.

    What can't be had of the items is raised after those before it.
    """
    waiting: deque[Item] = deque()
    fails: Exception | None = None
    feed = iter(items)
    number = 0
    while True:
        try:
            waiting.extend(islice(feed, readers * turns + 1 - len(waiting)))
        except Exception as error:
            fails, feed = error, iter(())
        if not waiting:
            break
        told = range(turns + 1) if number < readers and turns else range(turns, turns + bool(turns))
        ahead = [(turn, turn * readers) for turn in told if turn * readers < len(waiting)]
        yield waiting[0], tuple(replace(coming(waiting[at]), turns=turn) for turn, at in ahead)
        waiting.popleft()
        number += 1
    if fails is not None:
        raise fails
