"""Items of an iterator, made by a thread of their own ahead of the consumer.

    thread:    |item 1|item 2|item 3| waits: `depth` lie ready |item 4| ...
    consumer:         |take 1|  work  |take 2|  work  |take 3|

The thread and the queue know nothing of GPUs; a lane is told where an item is made and where it is taken.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from gpupipe.host.tracing import AHEAD

if TYPE_CHECKING:
    from gpupipe.device.handover import HandOver

__all__ = ["Ahead"]

log = logging.getLogger("gpupipe")

T = TypeVar("T")
Made = TypeVar("Made", covariant=True)

GRACE = 5.0  # seconds in which the thread may end the item that it is making, and then what it waits for

END: Any = object()


class Items(Protocol[Made]):
    """What the thread takes one after the other; StopIteration is their end."""

    def __next__(self) -> Made: ...

    def close(self) -> None:
        """Called in the thread, when no more are wanted."""
        ...


class Ahead(Generic[T]):
    """Iterates over `items`; the thread, which `iter` starts, makes up to `depth` that wait to be taken.

    What `items` raises is raised here, after the items before it. `close` ends the thread, which closes `items`;
    `interrupt` is called if that takes long, and should make `items` raise soon, whatever it waits for. `ended` says
    whether the thread has ended, and no longer works with what `items` works with.
    """

    def __init__(self, items: Items[T], depth: int, lane: HandOver, interrupt: Callable[[], None]) -> None:
        self._items = items
        self._depth = depth
        self._lane = lane
        self._interrupt = interrupt
        self._ready: deque[T] = deque()
        self._error: BaseException | None = None
        self._begun = self.ended = self._closed = False
        self._owner = os.getpid()
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=AHEAD, daemon=True)

    def __iter__(self) -> Ahead[T]:
        if not self._begun:
            _LIVE.add(self)
            # Handlers run from the last one registered to the first: so this one's comes before DALI's, which would
            # shut down the pipeline that the thread works with.
            atexit.unregister(_end_all)
            atexit.register(_end_all)
            self._begun = True
            self._thread.start()
        return self

    def __len__(self) -> int:
        """Items that lie ready."""
        return len(self._ready)

    def __next__(self) -> T:
        with self._changed:
            while not (self._ready or self.ended):
                self._changed.wait()
            if not self._ready:
                error, self._error = self._error, None
                try:
                    raise StopIteration if error is None else error
                finally:
                    del error  # else it and this frame would hold each other, and a batch in another of its frames
            item = self._ready.popleft()
        self._lane.taken(item)
        # Last: until then the thread sleeps, where it waits for room, and does not compete with this one for the GIL.
        with self._changed:
            self._changed.notify_all()
        return item

    def close(self) -> None:
        """End the thread; what lies ready is dropped. May be called twice, and by the thread itself."""
        if self._owner != os.getpid():  # a fork has no such thread, and the lock may be as the thread held it
            return
        with self._changed:
            self._closed = True
            self._ready.clear()
            self._changed.notify_all()
            self.ended = self.ended or not self._begun
        if threading.current_thread() is self._thread:  # a garbage collection that happened to run there
            return
        if not self._wait_for_end():
            self._interrupt()
            if not self._wait_for_end():
                log.warning("gpupipe: the thread that makes batches still waits for a sample; it is left to itself")

    def _wait_for_end(self) -> bool:
        with self._changed:  # `join` raises where a Ctrl-C came while the thread was started
            self._changed.wait_for(lambda: self.ended, GRACE)
        if self.ended and self._begun:
            self._thread.join(GRACE)
        return self.ended

    # In the thread.

    def _run(self) -> None:
        try:
            with self._lane.entered():
                self._make()
        except BaseException as error:  # for the consumer
            self._error = error
        finally:
            with self._changed:
                self.ended = True
                self._changed.notify_all()

    def _make(self) -> None:
        try:
            while self._wanted():
                self._lane.before()
                item: Any = next(self._items, END)
                if item is END:
                    return
                self._lane.made(item)
                with self._changed:
                    if not self._closed:
                        self._ready.append(item)
                    self._changed.notify_all()
                del item  # the consumer's alone from now on
        finally:
            self._items.close()

    def _wanted(self) -> bool:
        """Waits for room; False when closed."""
        with self._changed:
            while len(self._ready) >= self._depth and not self._closed:
                self._changed.wait()
            return not self._closed


_LIVE: weakref.WeakSet[Ahead[Any]] = weakref.WeakSet()


def _end_all() -> None:
    """At exit, before the interpreter takes itself apart, under the feet of a daemon thread."""
    for one in list(_LIVE):
        one.close()
