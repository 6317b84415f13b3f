"""Ctrl-C held back while processes are started or ended, so that none is lost halfway."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

__all__ = ["Held", "interrupts_held"]


@dataclass
class Held:
    """`pending` says whether a SIGINT has come, which waits."""

    pending: bool = False


@contextmanager
def interrupts_held() -> Iterator[Held]:
    """A SIGINT that comes meanwhile goes to its handler at the end, once.

    It goes nowhere where a KeyboardInterrupt is already on its way to the user, nor where a generator is closed: mostly
    that is an iteration that an earlier KeyboardInterrupt has ended, and what is raised in a finalizer reaches nobody.
    Only Python's main thread runs handlers, so in other threads nothing is held.
    """
    held = Held()
    before = signal.getsignal(signal.SIGINT)
    if not callable(before) or threading.current_thread() is not threading.main_thread():
        yield held
        return

    def wait(number: int, frame: Any) -> None:
        held.pending = True

    signal.signal(signal.SIGINT, wait)
    try:
        yield held
    finally:
        signal.signal(signal.SIGINT, before)
        if held.pending and not isinstance(sys.exc_info()[1], (KeyboardInterrupt, GeneratorExit)):
            before(signal.SIGINT, None)
