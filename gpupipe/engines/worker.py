"""What a worker process does before its first task."""

from __future__ import annotations

import os
import signal
import threading
import time

from gpupipe.engines.board import Board
from gpupipe.processes import Identity

__all__ = ["start_worker"]

LOOK_EVERY = 1.0  # seconds


def start_worker(board: Board, loader: Identity, worker: int) -> None:
    """Make this process the worker of that number, for the process `loader`."""
    # A terminal sends SIGINT to the whole process group. The loader's process decides what becomes of it; it starts
    # workers with the signal blocked, so that none interrupts their imports either.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_end_with, args=(loader,), name="gpupipe-watch", daemon=True).start()
    board.open_row(worker)


def _end_with(loader: Identity) -> None:
    """End this process when the loader's has ended, whatever a read of the user's code waits for.

    torch's own watch looks between tasks alone. PR_SET_PDEATHSIG of prctl(2) is tied to the *thread* that forked: it
    would end the workers of a loader that was iterated in a thread that has ended. Code that keeps the GIL while it
    hangs keeps this thread from looking, too.
    """
    while loader.runs():
        time.sleep(LOOK_EVERY)
    os.kill(os.getpid(), signal.SIGKILL)
