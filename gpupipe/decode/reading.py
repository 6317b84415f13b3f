"""Fetches the encoded samples of a job, those of files on several threads at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gpupipe.decode.engine import Fetched, Job, fetch
from gpupipe.errors import SampleError
from gpupipe.sources.indexed import IndexedSource
from gpupipe.sources.subset import SubsetSource

if TYPE_CHECKING:
    from gpupipe.sources import Source

__all__ = ["Reader"]


class Reader:
    """`fetch` from one source; from files and shards up to `threads` samples are waited for at once.

    500 ImageNet JPEGs in shards outside of the page cache take 112 to 196 us each by 4 threads, 399 to 483 by one (a
    virtual disk, 2 cores of an Intel Xeon). A user's dataset is asked by one thread.
    """

    def __init__(self, source: Source, threads: int) -> None:
        self._source = source
        self._threads = threads

    @cached_property
    def _pool(self) -> ThreadPoolExecutor | None:
        if self._threads < 2 or not _of_files(self._source):
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


def _of_files(source: Source) -> bool:
    while isinstance(source, SubsetSource):
        source = source.source
    return isinstance(source, IndexedSource)
