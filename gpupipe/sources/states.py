"""What the system says of files that lie one by one: whether any has changed since, without reading them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from gpupipe.sources.building import Advance, scan_in_threads

__all__ = ["states_of"]

CHUNK = 1024
State = tuple[int, int, int]
GONE = (-1, -1, -1)


def states_of(paths: Sequence[str]) -> NDArray[np.int64]:
    """Of each file bytes, when they were last changed and when anything of it was (in ns), (N, 3); -1 of one that is
    not there."""

    def states(begin: int, advance: Advance) -> list[State]:
        part = paths[begin : begin + CHUNK]
        advance(len(part))
        return list(map(_state, part))

    parts = scan_in_threads("looking at files", len(paths), states, range(0, len(paths), CHUNK))
    return np.array(list(chain(*parts)), np.int64).reshape(-1, 3)


def _state(path: str) -> State:
    try:
        stat = os.stat(path)
    except (OSError, ValueError):  # ValueError: of a path with a null byte
        return GONE
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns
