"""Threads that ask, as many at once as it pays."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from gpupipe.sources.remote.flight import Flight

__all__ = ["Pool"]


class Pool:
    """Runs tasks, first come, first served, in up to `flight.limit` threads; a task returns the bytes that it brought.

    Threads and not an event loop: obstore's requests for 110 kB cost 100 to 130 us of CPU time (4 to 64 threads), with
    asyncio 250 to 300, those of http.client in threads 210 to 260 (nginx on loopback, two cores of an Intel Xeon).
    """

    def __init__(self, flight: Flight) -> None:
        self._flight = flight
        self._tasks: deque[Callable[[], int]] = deque()
        self._ready = threading.Condition()
        self._busy = self._threads = 0
        self._closing = False

    def submit(self, tasks: list[Callable[[], int]]) -> None:
        """Have them run, in this order, after what was submitted before."""
        with self._ready:
            self._tasks.extend(tasks)
            self._fill()

    def close(self, seconds: float) -> None:
        """Wait until all is done, but not longer than this; the threads end."""
        end = time.monotonic() + seconds
        with self._ready:
            self._closing = True
            self._ready.notify_all()
            while self._threads and time.monotonic() < end:
                self._ready.wait(0.05)

    def _run(self) -> None:
        with self._ready:
            while self._tasks or not self._closing:
                if not self._tasks or self._busy >= self._flight.limit:
                    self._ready.wait()
                    continue
                task = self._tasks.popleft()
                self._busy += 1
                self._ready.release()
                try:
                    size = task()
                finally:
                    self._ready.acquire()
                    self._busy -= 1
                self._flight.answered(size, time.monotonic(), bool(self._tasks))
                self._fill(but=1)
            self._threads -= 1

    def _fill(self, but: int = 0) -> None:
        """Have as many threads at work as may be; but: so many are about to take a task anyway."""
        more = min(len(self._tasks), self._flight.limit - self._busy) - but
        if more > 0:
            self._ready.notify(more)
        idle = self._threads - self._busy
        for _ in range(min(more - idle, self._flight.limit - self._threads)):
            try:
                threading.Thread(target=self._run, name="gpupipe-storage", daemon=True).start()
            except RuntimeError:  # the machine, or the container, has no more of them
                if not self._threads:
                    raise
                return
            self._threads += 1
