"""The disk cache as those see it who read: it has a block or has it not, and never stops them."""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from gpupipe.sources.remote.cache.files import Blocks
from gpupipe.sources.remote.cache.keys import block_id
from gpupipe.sources.remote.cache.leases import Lease
from gpupipe.sources.remote.cache.ledger import PAUSE, Damaged, Gone, Unwritable, condemn
from gpupipe.sources.remote.cache.session import Claim, Session
from gpupipe.sources.remote.cache.settings import Cache

__all__ = ["BlockCache", "Claim", "keep_alive"]

Answer = TypeVar("Answer")

log = logging.getLogger("gpupipe")


class BlockCache:
    """Blocks on the disk of this machine, shared by all processes that name the same folder.

    Nothing here raises, or waits longer than it says, 5 s at most: what can't be had is not there. Trouble is logged
    once, and after a minute it is tried again. Threads may share it; in a process that was forked it opens anew.
    """

    def __init__(self, settings: Cache) -> None:
        self._settings = settings
        self._session: Session | None = None
        self._unsettled: set[str] = set()
        self._undropped: list[str] = []  # for want of the ledger's lock
        self._lock = threading.RLock()
        self._off_until = 0.0
        self._made_anew = -PAUSE
        _here.add(self)

    def size(self) -> int:
        """The most that its blocks take, the same for all that leave it to the cache; 0 where it can't be used."""
        return self._ask(lambda session: session.stock.limit, 0)

    def find(self, keys: Iterable[str]) -> set[str]:
        """Those that can be read."""
        keys = list(keys)
        return self._ask(lambda session: session.find(keys), set()) if keys else set()

    def holds(self, keys: Sequence[str]) -> bool:
        """Whether all can be read and this run holds them. Said at once: False, too, where the cache would have to be
        opened, or there is trouble, with which `claim` deals."""
        session = self._session
        try:
            return session is not None and session.holds(list(dict.fromkeys(keys)))
        except (OSError, Unwritable, Gone, Damaged):
            return False

    def claim(self, keys: Iterable[str], hold: bool) -> Claim:
        """Say that blocks are to be kept, each with room of its own from now on, as far as there is.

        hold: until this run drops them or ends, rather than until room is needed for others. For what is there, too.
        """
        keys = list(dict.fromkeys(keys))
        if not keys:
            return Claim(set(), set(), set())
        claim = self._ask(lambda session: session.claim(keys, hold), None)
        if claim is None:
            there = self.find(keys)
            claim = Claim(set(keys) - there, there, set())
        return claim

    def read(self, keys: Iterable[str]) -> dict[str, NDArray[np.uint8]]:
        """Blocks, read-only; those that are not there, or damaged, have to be fetched."""
        return self._ask(lambda session: session.read(keys), {})

    def put(self, blocks: Mapping[str, NDArray[np.uint8]]) -> set[str]:
        """Store blocks that this process has claimed; those that were stored. For others there was no room."""

        def put(session: Session) -> set[str]:
            stored, trouble = session.stock.store(blocks)
            if trouble is not None:
                self._say("nothing more is kept", trouble)
            return stored

        return self._ask(put, set()) if blocks else set()

    def give_back(self, keys: Iterable[str]) -> None:
        """Claimed blocks that will not be put, as they could not be fetched."""
        ids = [block_id(key) for key in keys]
        if ids:
            self._ask(lambda session: session.stock.give_back(ids), None)

    def wait(self, keys: Iterable[str], timeout: float) -> set[str]:
        """Wait for blocks that other processes are fetching: until none is any more, or `timeout` seconds; those that
        can be read then."""
        keys = list(keys)
        return self._ask(lambda session: session.wait(keys, timeout), set()) if keys else set()

    def drop(self, keys: Iterable[str]) -> None:
        """This run needs them no more: they are removed, unless another run holds them."""
        keys = [*self._undropped, *keys]
        if keys:
            done = self._ask(lambda session: session.drop(keys), False)
            self._undropped = [] if done or self._session is None else keys

    def close(self) -> None:
        """Give back all that is claimed."""
        with self._lock:
            with suppress(OSError, Unwritable, Gone, Damaged):
                if self._unsettled:
                    self._opened()
                session, self._session = self._session, None
                if session is not None:
                    session.close()
            self._remove_unsettled()

    def _ask(self, what: Callable[[Session], Answer], otherwise: Answer) -> Answer:
        for _ in range(2):  # another time where the ledger had to be made anew
            session = None
            try:
                session = self._opened()
                return otherwise if session is None else what(session)
            except Unwritable as error:
                self._say("nothing more is kept", error)
                return otherwise
            except OSError as error:
                self._turn_off(error)
                return otherwise
            except (Gone, Damaged) as error:
                self._begin_anew(session, error)
        return otherwise

    def _opened(self) -> Session | None:
        with self._lock:
            if self._session is None and time.monotonic() >= self._off_until:
                try:
                    self._session = Session(self._settings, self._unsettled)
                except Unwritable as error:
                    raise OSError(str(error)) from None
                self._unsettled = set()
                if not self._session.stock.has_reserve():
                    self._say("nothing more is kept", OSError("the disk has no more free than Cache(reserve=...) says"))
            return self._session

    def _begin_anew(self, session: Session | None, error: Gone | Damaged) -> None:
        with self._lock:
            if session is not self._session:  # another thread was faster
                return
            if session is not None:
                self._session = None
                self._unsettled |= session.end()
            if isinstance(error, Damaged):
                self._make_anew(error)

    def _make_anew(self, error: Damaged) -> None:
        if time.monotonic() < self._made_anew + PAUSE:
            self._turn_off(OSError(str(error)))
            return
        self._made_anew = time.monotonic()
        self._say("its ledger is made anew from the blocks", error)
        log.debug("the ledger %s", error.path, exc_info=error)
        try:
            condemn(error.path)
        except OSError as trouble:
            self._turn_off(trouble)

    def _turn_off(self, error: OSError) -> None:
        """For a while."""
        with self._lock:
            self._off_until = time.monotonic() + PAUSE
            session, self._session = self._session, None
            if session is not None:
                self._unsettled |= session.end()
            self._remove_unsettled()
        self._say("it is not used", error)

    def _remove_unsettled(self) -> None:
        """What is listed and not there is found out, the other way round it is not."""
        files = Blocks(self._settings.place)
        for name in self._unsettled:
            with suppress(OSError):
                files.remove(name)
        self._unsettled = set()

    def _say(self, what: str, error: Exception) -> None:
        reason = (error.strerror if isinstance(error, OSError) else "") or str(error)
        place = self._settings.place
        if reason and (place, what) not in _said:  # a pause goes on without one
            _said.add((place, what))
            log.warning("gpupipe: the cache in %s: %s (%s); data comes from its storage meanwhile", place, what, reason)

    def _forget(self) -> None:
        """In a child that was forked: all that is open is its parent's. Closing SQLite's would take its locks away."""
        if self._session is not None:
            _parents.append(self._session)
            self._session.stock.lease.close()
        self._session, self._lock = None, threading.RLock()


_said: set[tuple[Path, str]] = set()  # of this process
_here: weakref.WeakSet[BlockCache] = weakref.WeakSet()
_parents: list[Session] = []


def _forget_all() -> None:
    for store in _here:
        store._forget()


os.register_at_fork(after_in_child=_forget_all)


def keep_alive(settings: Cache, owner: object) -> None:
    """The run of these settings lives as long as this process has the owner, however often its workers begin anew;
    otherwise what it holds could be removed between its epochs."""
    if owner in _alive:
        return
    store = BlockCache(settings)
    if store.size():  # by which an earlier run of the same name is over
        with suppress(OSError):
            _alive[owner] = lease = Lease(settings.place / "leases", settings.run, settings.size)
            weakref.finalize(owner, lease.close)
    store.close()


_alive: weakref.WeakKeyDictionary[object, Lease] = weakref.WeakKeyDictionary()
