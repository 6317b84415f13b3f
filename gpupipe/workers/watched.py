"""A `torch.utils.data.DataLoader` whose worker processes are watched: a death or a hang is an error, and none is left.

What torch's own iterator leaves open, and this one closes:

- With a timeout it looks for dead workers when that is over. Its handler of SIGCHLD, which is faster, belongs to the
  main thread: there it raises in whatever line that thread is, and a loader that another thread iterates learns
  nothing. Nor does a fork server's worker send it. This one waits for data and for the workers' ends at once.
- It waits for ever for a lock that a dead worker held, and at the exit of the process for a worker that is stopped.
- A SIGINT while workers are started or ended leaves some behind.

It works on inner parts of torch's iterator, which torch 2.4, 2.6, 2.9 and 2.15 have alike; no other file uses any.
Where a torch lacks one of them, its own DataLoader does the work, with its own errors.
"""

from __future__ import annotations

import atexit
import logging
import os
import queue
import signal
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from multiprocessing import connection, forkserver, resource_tracker
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch.multiprocessing
import torch.utils.data

from gpupipe.host import processes
from gpupipe.workers.interrupts import interrupts_held

if TYPE_CHECKING:
    from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter as _Inner
else:
    _Inner = object  # torch's class comes in when it is known to have all parts

__all__ = ["GRACE", "WorkersDied", "WorkersHang", "missing_parts", "open_loader", "show_dataset", "start_method"]

log = logging.getLogger("gpupipe")

# What is used of torch's iterator.
PARTS = (
    "_data_queue",
    "_get_data",
    "_index_queues",
    "_pin_memory",
    "_pin_memory_thread",
    "_pin_memory_thread_done_event",
    "_process_data",
    "_rcvd_idx",
    "_reset",
    "_shutdown",
    "_shutdown_workers",
    "_task_info",
    "_timeout",
    "_worker_pids_set",
    "_worker_result_queue",
    "_workers",
    "_workers_done_event",
)

LOOK_EVERY = 0.5  # seconds
GRACE = 5.0  # seconds in which workers may end what they do, as in torch
REAPING = 5.0  # seconds for what has been killed to be gone


class WorkersDied(Exception):
    """Worker processes have died: `exit_codes` by worker's number, `pids` of all."""

    def __init__(self, exit_codes: dict[int, int], pids: list[int]) -> None:
        self.exit_codes, self.pids = exit_codes, pids
        super().__init__(f"workers died: {exit_codes}")


class WorkersHang(Exception):
    """Nothing came within the timeout; the next batch is due from worker `due`.

    None: within it, or GRACE, they have not ended what they had when they were asked to begin anew.

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


def missing_parts() -> list[str]:
    """The inner parts of torch's DataLoader that this torch lacks: names of which its code says nothing."""
    inner = _torchs()
    known = {name for one in getattr(inner, "__mro__", ()) for name in _names(one)}
    missing = [name for name in PARTS if name not in known]
    missing += [] if hasattr(torch.utils.data.DataLoader, "_get_iterator") else ["_get_iterator"]
    return missing + ([] if _forget_workers() else ["_remove_worker_pids"])


def _torchs() -> Any:
    """torch's iterator."""
    from torch.utils.data import dataloader

    return getattr(dataloader, "_MultiProcessingDataLoaderIter", None)


def _forget_workers() -> Callable[[int], object] | None:
    """Takes an iterator's workers from those whose deaths torch's handler of SIGCHLD raises."""
    with suppress(ImportError):
        from torch.utils.data._utils import signal_handling

        return getattr(signal_handling, "_remove_worker_pids", None)
    return None


def _names(one: type) -> set[str]:
    """Names of a class's methods, and of all attributes in their code."""
    functions = [value for value in vars(one).values() if isinstance(value, FunctionType)]
    return set(vars(one)) | {name for function in functions for name in function.__code__.co_names}


def open_loader(*args: Any, received: Callable[[Any], Any], **options: Any) -> torch.utils.data.DataLoader[Any]:
    """A DataLoader; with all inner parts in this torch, one whose iterators over worker processes are watched.

    `received` is then applied to what a worker sent, before the worker is given its next task.
    """
    missing = missing_parts()
    if missing:
        _say(torch.__version__, ", ".join(missing))
        return torch.utils.data.DataLoader(*args, **options)
    return _WatchedDataLoader(*args, received=received, **options)


@cache
def _say(version: str, missing: str) -> None:
    """Once in a process."""
    log.warning(
        "gpupipe: torch %s lacks %s, inner parts by which workers are watched: its own DataLoader does the work, whose "
        "errors name no sample; update gpupipe",
        version,
        missing,
    )


def show_dataset(dataset: Any) -> None:
    """In a worker: what `torch.utils.data.get_worker_info()` has as the dataset, else it would be the engine's own."""
    with suppress(AttributeError, TypeError):  # torch has no word for it
        object.__setattr__(torch.utils.data.get_worker_info(), "dataset", dataset)


class _WatchedDataLoader(torch.utils.data.DataLoader[Any]):
    def __init__(self, *args: Any, received: Callable[[Any], Any], **options: Any) -> None:
        super().__init__(*args, **options)
        self.received = received

    def _get_iterator(self) -> Any:
        if self.num_workers > 0:
            return _watched(_torchs())(self)
        with torch.device("cpu"):
            return super()._get_iterator()


@cache
def _watched(inner: type) -> Any:
    return type("Watched", (_Watched, inner, _on_cpu(inner.__base__)), {})


def _on_cpu(base: Any) -> type:
    """What torch's iterators have in common, set up with the CPU as the default device: the workers' seed is drawn then
    by a generator of the CPU. Workers are started after that, so that forks of this process keep the program's device.
    """

    def __init__(self: Any, loader: Any) -> None:
        with torch.device("cpu"):
            base.__init__(self, loader)

    return type("OnCpu", (base,), {"__init__": __init__})


class _Watched(_Inner):
    """Its iterator raises WorkersDied and WorkersHang; after them, its `end` should be called."""

    def __init__(self, loader: Any) -> None:
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
            forget = _forget_workers()
            assert forget is not None
            forget(id(self))
            self._worker_pids_set = False
            self._starting.close()  # the first tasks, made now, come from code of the user's
        timeout = self._timeout
        if not first_iter:  # until they have ended what nobody wants any more
            self._timeout = min(timeout or GRACE, GRACE)
        super()._reset(loader, first_iter)
        self._timeout = timeout

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
        return super()._process_data(self._received(data), *more)  # type: ignore[no-untyped-call]

    def _pids(self) -> list[int]:
        return [worker.pid or 0 for worker in self._workers]

    def ready(self) -> int:
        """Answers in the workers' queue, and those taken from it that wait for an earlier one."""
        # A task of two entries holds its answer. A thread that logs may ask.
        return int(self._data_queue.qsize()) + sum(len(task) == 2 for task in list(self._task_info.values()))

    # The end.

    def _shutdown_workers(self) -> None:
        self.end()

    def end(self, at_once: bool = False) -> None:
        """End the workers: those that are asked may end what they do, within 5 s or until a Ctrl-C."""
        if getattr(self, "_shutdown", True) or self._owner != os.getpid():
            return
        with interrupts_held() as held:
            self._shutdown = True  # not before: a Ctrl-C in between would leave the workers to nobody
            try:
                self._mend_queues()
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

    def _mend_queues(self) -> None:
        """Undo what a Ctrl-C leaves of a lock that it came upon: held for good, or its waiter not to be woken again.

        Python's `with condition:` and `notify` have a moment for each. A task, or the word to end, would then wait for
        ever to be sent, or stay unsent.
        """
        for tasks in self._index_queues:
            sending: Any = tasks._notempty  # type: ignore[attr-defined]
            sending.acquire(timeout=1)
            sending.notify_all()
            sending.release()
        if getattr(self, "_pin_memory_thread", None) is not None:
            self._data_queue.mutex.acquire(timeout=1)
            self._data_queue.mutex.release()

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
