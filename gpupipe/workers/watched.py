"""A `torch.utils.data.DataLoader` whose worker processes are watched: a death or a hang is an error, and none is left.

What torch's own iterator leaves open, and this one closes:

- With a timeout it looks for dead workers when that is over. Its handler of SIGCHLD, which is faster, belongs to the
  main thread: there it raises in whatever line that thread is, and a loader that another thread iterates learns
  nothing. Nor does a fork server's worker send it. This one waits for data and for the workers' ends at once.
- It waits for ever for a lock that a dead worker held, and at the exit of the process for a worker that is stopped.
- A SIGINT while workers are started or ended leaves some behind.

It works on inner parts of torch's iterator, which torch 2.4, 2.6, 2.9 and 2.15 have alike.
"""

from __future__ import annotations

import atexit
import os
import queue
import signal
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing import connection, forkserver, resource_tracker
from typing import Any

import torch.multiprocessing
import torch.utils.data
from torch._utils import ExceptionWrapper
from torch.utils.data._utils import signal_handling
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from gpupipe.host import processes
from gpupipe.workers.interrupts import interrupts_held

__all__ = ["WatchedDataLoader", "WorkersDied", "WorkersHang", "start_method"]

LOOK_EVERY = 0.5  # seconds
GRACE = 5.0  # seconds in which workers may end what they do, as in torch
REAPING = 5.0  # seconds for what has been killed to be gone


class WorkersDied(Exception):
    """Worker processes have died: `exit_codes` by worker's number, `pids` of all."""

    def __init__(self, exit_codes: dict[int, int], pids: list[int]) -> None:
        self.exit_codes, self.pids = exit_codes, pids
        super().__init__(f"workers died: {exit_codes}")


class WorkersHang(Exception):
    """Nothing came within the timeout; the next batch is due from worker `due`, None if all are asked to begin anew.

    The workers still live.
    """

    def __init__(self, due: int | None, pids: list[int]) -> None:
        self.due, self.pids = due, pids
        super().__init__(f"nothing came from worker {due}")


def start_method(context: Any) -> str:
    """How a DataLoader's `multiprocessing_context` starts processes: "fork", "forkserver" or "spawn".

    As things are now: it leaves the program free to call `multiprocessing.set_start_method` later.
    """
    chosen = (torch.multiprocessing if context is None else context).get_start_method(allow_none=True)
    return str(chosen or torch.multiprocessing.get_all_start_methods()[0])  # the first is the default


class WatchedDataLoader(torch.utils.data.DataLoader[Any]):
    """As DataLoader. `received` is applied to what a worker sent, before the worker is given its next task.

    Its iterator raises WorkersDied and WorkersHang; after them, its `end` should be called.
    """

    def __init__(self, *args: Any, received: Callable[[Any], Any], **options: Any) -> None:
        super().__init__(*args, **options)
        self.received = received

    def _get_iterator(self) -> Any:
        if self.num_workers == 0:
            return super()._get_iterator()
        self.check_worker_number_rationality()
        return _Watched(self)


class _Watched(_MultiProcessingDataLoaderIter):
    def __init__(self, loader: WatchedDataLoader) -> None:
        self._received = loader.received
        self._owner = os.getpid()
        self._starting = ExitStack()
        _LIVE.add(self)
        try:
            with self._starting as starting:
                starting.enter_context(interrupts_held())
                starting.enter_context(_sigint_blocked(start_method(loader.multiprocessing_context)))
                super().__init__(loader)
        except BaseException:
            self.end(at_once=True)
            raise

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        if first_iter:  # all workers have been started
            signal_handling._remove_worker_pids(id(self))  # type: ignore[attr-defined]
            self._worker_pids_set = False
            self._starting.close()  # the first tasks, made now, come from code of the user's
        super()._reset(loader, first_iter)

    # Waiting for data.

    def _get_data(self) -> Any:
        waited = 0.0
        while True:
            begun = time.monotonic()
            found, data = self._look()
            if found:
                return data
            # Not more than it was meant to be: this process itself may have been stopped, by Ctrl-Z say.
            waited += min(time.monotonic() - begun, 2 * LOOK_EVERY)
            if 0 < self._timeout <= waited:
                due = self._task_info[self._rcvd_idx][0] if self._task_info else None
                raise WorkersHang(due, self._pids())

    def _look(self) -> tuple[bool, Any]:
        """What has arrived within a moment. Raises WorkersDied."""
        wait = min(LOOK_EVERY, self._timeout or LOOK_EVERY)
        sentinels = [worker.sentinel for worker in self._workers]
        if self._pin_memory:
            try:
                found, data = True, self._data_queue.get(timeout=wait)
            except queue.Empty:
                found, data = False, None
            died = bool(connection.wait(sentinels, 0))
            if not (found or self._pin_memory_thread.is_alive()):
                raise RuntimeError("the thread that pins memory has ended; what it printed says why")
        else:
            reader: Any = self._worker_result_queue._reader  # type: ignore[attr-defined]
            ready = connection.wait([reader, *sentinels], wait)
            died, found, data = any(one is not reader for one in ready), reader in ready, None
        if died or not found:
            self._check_workers(died)
        if found and not self._pin_memory:
            data = self._worker_result_queue.get()
        return found, data

    def _check_workers(self, died: bool) -> None:
        """Raises WorkersDied if there is one. A child of a dead worker's may keep its sentinel quiet."""
        if died:  # the sentinel falls a moment before the exit code is known; others may die of the same cause
            time.sleep(0.05)
            for worker in self._workers:
                if connection.wait([worker.sentinel], 0):
                    worker.join(REAPING)
        codes = {number: worker.exitcode for number, worker in enumerate(self._workers)}
        dead = {number: code for number, code in codes.items() if code is not None}
        if dead:
            raise WorkersDied(dead, self._pids())

    def _process_data(self, data: Any, *more: Any) -> Any:
        if isinstance(data, ExceptionWrapper):
            data.reraise()
        return super()._process_data(self._received(data), *more)  # type: ignore[no-untyped-call]

    def _pids(self) -> list[int]:
        return [worker.pid or 0 for worker in self._workers]

    # The end.

    def _shutdown_workers(self) -> None:
        self.end()

    def end(self, at_once: bool = False) -> None:
        """End the workers: those that are asked may end what they do, within 5 s or until a Ctrl-C."""
        if getattr(self, "_shutdown", True) or self._owner != os.getpid():
            return
        self._shutdown = True
        with interrupts_held() as held:
            try:
                if not at_once and self._asked_to_end():
                    deadline = time.monotonic() + GRACE
                    while (ending := self._ending()) and not held.pending and time.monotonic() < deadline:
                        connection.wait([worker.sentinel for worker in ending], 0.05)
            finally:  # asking starts a thread for each queue, which can't be had while the interpreter shuts down
                orderly = all(worker.exitcode == 0 for worker in self._workers)
                self.kill()
                self._close_queues(orderly)

    def kill(self) -> None:
        """End the workers at once."""
        self.interrupt()
        deadline = time.monotonic() + REAPING
        for worker in self._workers:
            worker.join(max(0, deadline - time.monotonic()))

    def interrupt(self) -> None:
        """Kill the workers, without waiting; another thread that waits for one of them sees that they died."""
        for worker in self._workers:
            worker.kill()

    def _ending(self) -> list[Any]:
        """The workers that still live and are not stopped, so that they can end by themselves."""
        alive = [worker for worker in self._workers if worker.is_alive()]
        return [worker for worker in alive if not processes.is_stopped(worker.pid or 0)]

    def _asked_to_end(self) -> bool:
        """Whether all workers could be told to end."""
        done: Any = self._workers_done_event
        if len(self._ending()) < len(self._workers) or not done._cond.acquire(timeout=1):
            return False  # done.set() would wait for ever for a lock that a worker held when it died or was stopped
        try:
            done._flag.acquire(False)
            done._flag.release()
        finally:
            done._cond.release()
        for tasks in self._index_queues:
            tasks.put(None)
        return True

    def _close_queues(self, orderly: bool) -> None:
        results = [self._worker_result_queue]
        pinning = getattr(self, "_pin_memory_thread", None)
        if pinning is not None:
            self._pin_memory_thread_done_event.set()
            if orderly:
                self._worker_result_queue.put((None, None))  # wakes it up
                pinning.join(2 * GRACE)
            else:
                # The lock of this queue may be one that a dead worker held. The thread looks every 5 s whether it is
                # done, and drops the queue then.
                results = []
        for messages in (*results, *self._index_queues):
            messages.cancel_join_thread()
            messages.close()


_LIVE: weakref.WeakSet[_Watched] = weakref.WeakSet()


@atexit.register  # after that of multiprocessing, so it runs before, which would wait for workers that are stopped
def _end_all() -> None:
    for iterator in list(_LIVE):
        iterator.end(at_once=True)


@contextmanager
def _sigint_blocked(method: str) -> Iterator[None]:
    """Processes that are started meanwhile begin with SIGINT blocked.

    Those of a fork server inherit from the server, which other code may use, too: they begin with SIGINT as it is.
    """
    # These unblock SIGINT when they are started, so they come first.
    if method != "fork":
        resource_tracker.ensure_running()
    if method == "forkserver":
        forkserver.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
