"""What is asked of storages, as much at once as it pays."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from gpupipe.sources.remote.flight import Flight

__all__ = ["Pool", "Task"]


class Task(Protocol):
    """One request."""

    def is_wanted(self) -> bool:
        """Whether to begin."""

    def begin(self, ended: Callable[[int], None], blocks: Callable[[], None]) -> bool:
        """Ask without a thread that waits, if that is possible. `ended` is called when it is done, with the bytes that
        came, or `blocks` where a thread has to go on with it."""

    def run(self) -> int:
        """Do it, or what is left of it; the bytes that came."""


class Pool:
    """Runs tasks, first come, first served, `flight.limit` at once; those that can't begin otherwise in threads.

    Threads and not an event loop: obstore's requests for 110 kB cost 100 to 130 us of CPU time (4 to 64 threads), with
    asyncio 250 to 300, those of http.client in threads 210 to 260 (nginx on loopback, two cores of an Intel Xeon).
    """

    def __init__(self, flight: Flight) -> None:
        self._flight = flight
        self._tasks: deque[Task] = deque()
        self._blocking: deque[Task] = deque()  # for threads
        self._ready = threading.Condition()
        self._busy = self._threads = 0
        self._spare = 0  # threads that take what is blocking next
        self._closing = False

    def submit(self, tasks: Sequence[Task]) -> None:
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
            while (self._busy or self._threads) and time.monotonic() < end:
                self._ready.wait(0.05)

    def _fill(self) -> None:
        while True:
            with self._ready:
                if not self._tasks or self._busy >= self._flight.limit:
                    return
                task = self._tasks.popleft()
                self._busy += 1
            if not task.is_wanted():
                with self._ready:
                    self._busy -= 1
            elif not task.begin(self._ended, partial(self._block, task)):
                self._block(task)

    def _ended(self, size: int) -> None:
        with self._ready:
            self._busy -= 1
            self._flight.answered(size, time.monotonic(), bool(self._tasks))
        self._fill()

    def _block(self, task: Task) -> None:
        with self._ready:
            self._blocking.append(task)
            if self._spare:
                self._spare -= 1
                self._ready.notify()
                return
            try:
                threading.Thread(target=self._run, name="gpupipe-storage", daemon=True).start()
                self._threads += 1
            except RuntimeError:  # the machine, or the container, has no more of them
                if not self._threads:
                    raise

    def _run(self) -> None:
        while (task := self._next()) is not None:
            size = task.run()
            with self._ready:
                self._spare += 1
            self._ended(size)

    def _next(self) -> Task | None:
        with self._ready:
            while not self._blocking and not self._closing:
                self._ready.wait()
            if self._blocking:
                return self._blocking.popleft()
            self._threads -= 1
            return None
