"""One thread that waits for the answers to many requests."""

from __future__ import annotations

import logging
import select
import threading
import time
from collections.abc import Callable
from typing import Protocol

__all__ = ["Begun", "Waiting"]

log = logging.getLogger("gpupipe")

NAP = 0.002  # seconds in which answers gather: 110 kB cost 60 to 90 us then, 85 to 95 where each wakes the thread
LOOK = 0.25  # seconds between two looks for what takes too long
LINGER = 1.0  # seconds that the thread waits for more


class Begun(Protocol):
    """A request that was sent. deadline: when it has taken too long."""

    deadline: float

    def fileno(self) -> int:
        """Of its connection."""

    def advance(self) -> bool:
        """Take what has come; whether there is nothing more to wait for."""

    def end(self, error: Exception) -> None:
        """It is over."""


class Waiting:
    """Threads share it."""

    def __init__(self) -> None:
        self._events = select.epoll()
        self._lock = threading.Lock()
        self._begun: dict[int, tuple[Begun, Callable[[], None]]] = {}
        self._thread: threading.Thread | None = None

    def add(self, begun: Begun, over: Callable[[], None]) -> None:
        """Call `over` when there is nothing more to wait for."""
        with self._lock:
            self._begun[begun.fileno()] = begun, over
            self._events.register(begun.fileno(), select.EPOLLIN)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="gpupipe-answers", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        look = 0.0
        while True:
            ready = self._events.poll(LOOK if self._begun else LINGER)
            with self._lock:
                if not ready and not self._begun:
                    self._thread = None
                    return
            for number, _ in ready:
                if self._begun[number][0].advance():
                    self._over(number)
            now = time.monotonic()
            if now > look:
                look = now + LOOK
                for number, (begun, _) in list(self._begun.items()):
                    if begun.deadline < now:
                        begun.end(TimeoutError("timed out"))
                        self._over(number)
            time.sleep(NAP)

    def _over(self, number: int) -> None:
        self._events.unregister(number)
        with self._lock:
            _, over = self._begun.pop(number)
        try:
            over()
        except Exception:  # what nobody thought of must not leave others waiting for this thread
            log.exception("gpupipe: reading from storage: please report this")
