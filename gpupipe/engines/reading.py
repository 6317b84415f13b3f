"""Fetches the encoded samples of a job, whole files on several threads at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gpupipe.engines.base import Fetched, Job, fetch
from gpupipe.errors import SampleError

if TYPE_CHECKING:
    from gpupipe.sources import Source

__all__ = ["Reader"]


class Reader:
    """`fetch` from one source; where each sample is a file of its own, up to `threads` of them are waited for at once.

    A user's dataset is asked by one thread, and shards lie in memory.
    """

    def __init__(self, source: Source, threads: int) -> None:
        self._source = source
        self._threads = threads

    @cached_property
    def _pool(self) -> ThreadPoolExecutor | None:
        if self._threads < 2 or self._source.paths(np.zeros(1, np.int64)) is None:
            return None
        return ThreadPoolExecutor(self._threads, "gpupipe-read")

    def __call__(self, job: Job) -> Fetched:
        """Encoded bytes and facts of the samples, and an error for each row that can't be read."""
        if self._pool is None:
            return fetch(self._source, job)
        indices = job.indices
        encoded: list[NDArray[np.uint8] | None] = [None] * len(indices)
        failures: dict[int, SampleError] = {}

        def read(first: int) -> None:
            for row in range(first, len(indices), self._threads):
                try:
                    encoded[row] = self._source.read(int(indices[row]))
                except SampleError as error:
                    failures[row] = error

        list(self._pool.map(read, range(min(self._threads, len(indices)))))
        return encoded, self._source.meta(indices), failures

    def close(self) -> None:
        """End the threads; the next call starts new ones."""
        pool = self.__dict__.pop("_pool", None)
        if pool is not None:
            pool.shutdown()
