"""Run the scan of many files or shards in a few threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from gpupipe.system import usable_cpus

__all__ = ["map_in_threads"]

Item = TypeVar("Item")
Result = TypeVar("Result")

# Reading waits for storage without the interpreter's lock, parsing holds it: threads overlap the waiting. Processes
# would parse in parallel too, but spawning them from inside a training script runs that script again.
THREADS_PER_CPU = 2
MOST_THREADS = 32


def map_in_threads(function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """`function` of every item, in order. The first exception, KeyboardInterrupt included, drops what has not begun."""
    threads = min(MOST_THREADS, THREADS_PER_CPU * usable_cpus())
    pool = ThreadPoolExecutor(threads, thread_name_prefix="gpupipe-scan")
    try:
        return list(pool.map(function, items))
    finally:
        pool.shutdown(cancel_futures=True)
