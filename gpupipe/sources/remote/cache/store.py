"""The disk cache of one process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpupipe.sources.remote.cache.settings import Cache

__all__ = ["BlockCache", "Claim"]


class Claim(NamedTuple):
    """mine: blocks that this process shall fetch, then `put` or `give_back`. there: those that can be read. elsewhere:
    those that another live process is fetching; `wait` for them."""

    mine: set[str]
    there: set[str]
    elsewhere: set[str]


class BlockCache:
    """Blocks on the disk of this machine, shared by all processes that name the same folder.

    Nothing here raises, or waits longer than it says: what can't be had is not there, and trouble is logged once.
    Threads may share it, processes not: make one in each.
    """

    def __init__(self, settings: Cache) -> None:
        self._settings = settings

    def find(self, keys: Iterable[str]) -> set[str]:
        """Those that can be read."""
        return set()

    def claim(self, keys: Iterable[str], hold: bool) -> Claim:
        """Say that blocks are to be kept, each with room of its own from now on.

        hold: until this run drops them or ends, rather than until room is needed for others. For what is there, too.
        """
        return Claim(set(keys), set(), set())

    def read(self, key: str) -> NDArray[np.uint8] | None:
        """A block, read-only; None where it is not there, or damaged, and has to be fetched."""
        return None

    def put(self, blocks: Mapping[str, NDArray[np.uint8]]) -> set[str]:
        """Store blocks that this process has claimed; those that were stored. For others there was no room."""
        return set()

    def give_back(self, keys: Iterable[str]) -> None:
        """Claimed blocks that will not be put, as they could not be fetched."""

    def wait(self, keys: Iterable[str], timeout: float) -> set[str]:
        """Wait for blocks that other processes are fetching: until none is any more, or `timeout` seconds; those that
        can be read then."""
        return set()

    def drop(self, keys: Iterable[str]) -> None:
        """This run needs them no more: they are removed, unless another run holds them."""

    def close(self) -> None:
        """Give back all that is claimed."""
