"""Belady's rule over a list ("A study of replacement algorithms", 1966), plainly: the most hits that a cache can have.

What is needed last goes, be it what was just read. For `cache_rules.py` and `cache_hits.py`.
"""

from __future__ import annotations

import heapq
import math

import numpy as np
from numpy.typing import NDArray

__all__ = ["belady"]


def belady(reads: NDArray[np.int64], space: NDArray[np.int64], size: int) -> list[bool]:
    """Whether each of the reads, sample indices, hits. space: what each sample takes of the cache, which has `size`."""
    listed, spaces = reads.tolist(), space.tolist()
    following, last = [math.inf] * len(listed), {}
    for at in range(len(listed) - 1, -1, -1):
        following[at] = last.get(listed[at], math.inf)
        last[listed[at]] = at
    held: dict[int, float] = {}  # the next use of each
    furthest: list[tuple[float, int]] = []
    hits, room = [], size
    for at, sample in enumerate(listed):
        hits.append(sample in held)
        room -= 0 if sample in held else spaces[sample]
        held[sample] = following[at]
        heapq.heappush(furthest, (-following[at], sample))
        while room < 0:
            use, gone = heapq.heappop(furthest)
            if held.get(gone) == -use:  # else it was used since
                del held[gone]
                room += spaces[gone]
    return hits
