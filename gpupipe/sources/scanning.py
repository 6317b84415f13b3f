"""Run the scan of many files or shards in a few threads, with a progress bar."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import TypeVar

from gpupipe.host.progress import progress
from gpupipe.host.system import usable_cpus

__all__ = ["Advance", "scan_in_threads"]

Item = TypeVar("Item")
Result = TypeVar("Result")
Advance = Callable[[int], None]

# Reading waits for storage without the interpreter's lock, parsing holds it: threads overlap the waiting. Processes
# would parse in parallel too, but spawning them from inside a training script runs that script again.
THREADS_PER_CPU = 2
MOST_THREADS = 32


def scan_in_threads(
    description: str, total: int, function: Callable[[Item, Advance], Result], items: Iterable[Item]
) -> list[Result]:
    """`function(item, advance)` of every item, in order.

    The function calls `advance` now and then with how much of `total` is done. After the first exception,
    KeyboardInterrupt included, `advance` raises in all threads, so that none goes on for long.
    """
    stopped = threading.Event()
    threads = min(MOST_THREADS, THREADS_PER_CPU * usable_cpus())
    with progress(description, total) as tick:

        def advance(steps: int) -> None:
            if stopped.is_set():
                raise CancelledError
            tick(steps)

        pool = ThreadPoolExecutor(threads, thread_name_prefix="gpupipe-scan")
        try:
            return list(pool.map(lambda item: function(item, advance), items))
        finally:
            stopped.set()
            pool.shutdown(cancel_futures=True)
