"""Threads that read what may never come, as from a mount whose server is gone: nobody has to wait for them.

Those of `concurrent.futures` are waited for when the interpreter ends, whatever they wait for.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, TimeoutError as NotYet
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from typing import Any, TypeVar

from gpupipe.host.interrupting import Interrupted, Interrupter
from gpupipe.host.whereabouts import NOWHERE, note, note_apart, whereabouts

__all__ = ["Readers", "StuckError"]

Item = TypeVar("Item")
Result = TypeVar("Result")

LOOK_EVERY = 1.0  # seconds: a signal that comes just before a wait begins, or to another thread, does not end it
GRACE = 5.0  # seconds in which a thread may end what it does, as worker processes may


class StuckError(Exception):
    """Nothing came within the timeout; the thread has been at sample `index` for so many `seconds`, None: at no one."""

    def __init__(self, index: int | None, seconds: float) -> None:
        self.index, self.seconds = index, seconds
        super().__init__(f"stuck at sample {index}")


class Readers:
    """Up to `count` threads, which start when there is work for them. timeout: seconds, 0: as long as it takes."""

    def __init__(self, count: int, timeout: float = 0) -> None:
        self.count = count
        self.timeout = timeout
        self._interrupter: Interrupter | None = None
        self._open()

    def _open(self) -> None:
        self._owner = os.getpid()
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []

    def _check_owner(self) -> None:
        if self._owner != os.getpid():  # a fork has none of the threads
            self._interrupter = None
            self._open()

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """`function(item)` of every item, in order, or what the first one that fails has raised.

        Raises StuckError after the timeout; the threads are then left to themselves.
        """
        self._check_owner()
        tasks = [_Task(function, item) for item in items]
        while len(self._threads) < min(self.count, len(tasks)):
            name = f"gpupipe-read_{len(self._threads)}"
            thread = threading.Thread(target=_run, args=(self._tasks,), name=name, daemon=True)
            thread.start()
            self._threads.append(thread)
        for task in tasks:
            self._tasks.put(task)
        deadline = time.monotonic() + (self.timeout or math.inf)
        try:
            return [self._result(task, deadline) for task in tasks]
        except BaseException as error:
            for task in tasks:
                task.future.cancel()
            if not isinstance(error, Exception):  # a Ctrl-C: who wants to go is not kept by a read
                self._dismiss()
            raise

    def _result(self, task: _Task, deadline: float) -> Any:
        while True:
            left = deadline - time.monotonic()
            with suppress(TimeoutError, NotYet):
                return task.future.result(max(0.0, min(LOOK_EVERY, left)))
            if task.future.done():  # it has raised that itself, or came as this was looked at
                return task.future.result()
            if left <= LOOK_EVERY:
                self._dismiss()
                raise StuckError(*task.whereabouts())

    def _dismiss(self) -> list[threading.Thread]:
        """Have the threads end when they can; the next work starts others."""
        threads = self._threads
        for _ in threads:
            self._tasks.put(None)
        self._open()
        return threads

    @contextmanager
    def limited(self) -> Iterator[None]:
        """The same limit for code of others that this thread runs, if it is the main one. Raises StuckError."""
        if not self.timeout or threading.current_thread() is not threading.main_thread():
            yield
            return
        self._check_owner()
        if self._interrupter is None:
            self._interrupter = Interrupter(self.timeout)
        try:
            with self._interrupter.limited():
                yield
        except Interrupted as interrupt:
            raise StuckError(*whereabouts()) from interrupt

    def close(self) -> None:
        """End them; one that reads may end that within 5 s, and is then left to itself. The next work starts others."""
        if self._owner != os.getpid():
            return
        if self._interrupter is not None:
            self._interrupter.close()
            self._interrupter = None
        deadline = time.monotonic() + GRACE
        for thread in self._dismiss():
            if thread is not threading.current_thread():  # a garbage collection that happened to run there
                thread.join(max(0.0, deadline - time.monotonic()))


class _Task:
    def __init__(self, function: Callable[[Any], Any], item: Any) -> None:
        self.function, self.item = function, item
        self.future: Future[Any] = Future()
        self.cell: memoryview | None = None  # of the thread that has it

    def whereabouts(self) -> tuple[int | None, float]:
        """The sample that it is at, and for how many seconds."""
        return (None, 0.0) if self.cell is None else whereabouts(self.cell)  # None: the others have all threads

    def run(self, cell: memoryview) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        self.cell = cell
        note(NOWHERE)
        try:
            result = self.function(self.item)
        except BaseException as error:
            self.future.set_exception(error)
        else:
            self.future.set_result(result)


def _run(tasks: SimpleQueue[_Task | None]) -> None:
    cell = note_apart()
    while (task := tasks.get()) is not None:
        task.run(cell)
        del task  # with what it has made
