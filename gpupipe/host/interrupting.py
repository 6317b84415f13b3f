"""A limit for code of others that the main thread runs: what it waits for is interrupted, as by a Ctrl-C.

    main thread:  | begin |  user's code ... a read that never ends ...  Interrupted | end |
    watching one: | looks every 0.5 s ...                     signal ─┘

Other threads can't be interrupted, nor is what is being debugged. Code that keeps the GIL is not either.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["Interrupted", "Interrupter"]

LOOK_EVERY = 0.5  # seconds
ARRIVES = 1.0  # seconds in which a signal that was sent does; who has blocked it waits no longer


class Interrupted(KeyboardInterrupt):
    """The limit has passed."""


class Interrupter:
    """seconds: of one block. The thread that watches starts with the first, and ends with `close`."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._since: float | None = None  # None: nothing is to be interrupted
        self._sent = self._arrived = False
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="gpupipe-limit", daemon=True)
        self._thread.start()

    @contextmanager
    def limited(self) -> Iterator[None]:
        """In the main thread: a block that raises Interrupted after so many seconds."""
        self._before = signal.getsignal(signal.SIGINT)
        if self._before is None:  # set by what Python is embedded in, which alone could set it again
            yield
            return
        signal.signal(signal.SIGINT, self._handle)
        try:
            with self._lock:
                self._since, self._sent, self._arrived = time.monotonic(), False, False
            yield
        finally:
            try:
                with self._lock:
                    self._since = None
                deadline = time.monotonic() + ARRIVES
                while self._sent and not self._arrived and time.monotonic() < deadline:  # as the block ended
                    time.sleep(0.001)
            finally:
                signal.signal(signal.SIGINT, self._before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._sent and not self._arrived:
            self._arrived = True
            raise Interrupted
        if callable(self._before):
            self._before(number, frame)
        elif self._before == signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)  # which ends the process

    def _watch(self) -> None:
        main = threading.main_thread()
        while not self._closed.wait(min(LOOK_EVERY, self._seconds / 4)):
            with self._lock:
                since = self._since
                if since is None or self._sent or time.monotonic() - since < self._seconds or _is_debugged(main):
                    continue
                self._sent = True
                assert main.ident is not None
                signal.pthread_kill(main.ident, signal.SIGINT)

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        if self._thread is not threading.current_thread():  # a garbage collection that happened to run there
            self._thread.join()


def _is_debugged(thread: threading.Thread) -> bool:
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None:
        if frame.f_trace is not None:
            return True
        frame = frame.f_back
    return False
