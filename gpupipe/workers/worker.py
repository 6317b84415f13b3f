"""What a worker process does before its first task."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from gpupipe.host.heap import keep_freed
from gpupipe.host.processes import Identity
from gpupipe.workers.board import Board
from gpupipe.workers.watched import show_dataset

__all__ = ["WorkerInit", "start_worker"]

WorkerInit = Callable[[int], Any]
"""A `worker_init_fn`, as torch has it."""

LOOK_EVERY = 1.0  # seconds


def start_worker(
    board: Board,
    loader: Identity,
    dataset: Any,
    init: WorkerInit | None,
    environment: dict[str, str] | None,
    worker: int,
) -> None:
    """Make this process the worker of that number, for the process `loader`; `init` is the user's own part of it.

    dataset: what the user's code finds in `torch.utils.data.get_worker_info()`. environment: the loader's variables;
    None in a fork of it. A forkserver's workers have those of its start else, which may be an earlier loader's.
    """
    if environment is not None:
        os.environ.clear()
        os.environ.update(environment)
    # A terminal sends SIGINT to the whole process group. The loader's process decides what becomes of it; it starts
    # workers with the signal blocked, so that none interrupts their imports either.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.signal(signal.SIGBUS, signal.SIG_DFL)  # torch's handler blames shared memory; the loader's error says more
    threading.Thread(target=_end_with, args=(loader,), name="gpupipe-watch", daemon=True).start()
    keep_freed()
    show_dataset(dataset)
    if init is not None:
        try:
            init(worker)
        except StopIteration as error:  # torch would raise it again in the loader's process, as the end of an epoch
            raise RuntimeError("worker_init_fn raised StopIteration") from error
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
