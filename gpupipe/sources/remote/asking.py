"""One question to a storage, asked until it is answered or there is no patience left."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from gpupipe.sources.remote.credentials import remedy_of
from gpupipe.sources.remote.faults import Fault, Kind, panics_told
from gpupipe.sources.remote.flight import Flight
from gpupipe.sources.remote.objects import MissingError, ReadError, ReplacedError, is_web, scheme
from gpupipe.sources.remote.patience import Patience
from gpupipe.sources.remote.retry_after import RetryAfter
from gpupipe.sources.remote.store import Store
from gpupipe.sources.remote.stores import Stores, placed

__all__ = ["Asker", "Counts"]

log = logging.getLogger("gpupipe")

Answer = TypeVar("Answer")

LOUD = 3  # tries after which each further one is told of,
GIVEN_UP = 4096  # objects that are remembered
QUIET = 5.0  # seconds, though, between two such lines
INDEX = "index the data anew, and let nothing change it during a run"
ERRORS = {Kind.MISSING: MissingError, Kind.REPLACED: ReplacedError}


class Counts(NamedTuple):
    """What was asked: `requests` that were sent, `retries` of them, `bytes` that came, `seconds` that the requests
    took, added up."""

    requests: int
    retries: int
    bytes: int
    seconds: float


class Asker:
    """Threads share it; `flight` hears where a storage asks for patience, and after `closing` nothing is asked."""

    def __init__(self, patience: Patience, flight: Flight) -> None:
        self.closing = threading.Event()
        self._patience = patience
        self._flight = flight
        self._stores = Stores()
        self._retry_after = RetryAfter()
        self._lock = threading.Lock()
        self._requests = self._retries = self._bytes = 0
        self._seconds = 0.0
        self._told = 0.0
        self._given_up: dict[str, tuple[float, str]] = {}  # URL -> until when, and why

    def counts(self) -> Counts:
        """Up to now."""
        with self._lock:
            return Counts(self._requests, self._retries, self._bytes, self._seconds)

    def came(self, size: int) -> None:
        """An answer had so many bytes."""
        with self._lock:
            self._bytes += size

    def begin(self, url: str, question: Callable[[Store, str], Answer | None]) -> Answer | None:
        """What the question begins that is to be asked of a storage; None where `ask` is the way."""
        if self.closing.is_set() or url in self._given_up:
            return None
        try:
            root, path = placed(url)
        except Fault:
            return None
        store = self._stores.known(root, self._patience.timeout(0))
        return None if store is None else question(store, path)

    def answered(self, size: int, seconds: float) -> None:
        """What was begun has brought so many bytes."""
        with self._lock:
            self._requests += 1
            self._bytes += size
            self._seconds += seconds

    def ask(self, url: str, what: Callable[[], str], question: Callable[[Store, str], Answer]) -> Answer:
        """The answer of the storage of this URL; the question gets it and the object's path.

        what: the object and its part, for messages. Raises ReadError.
        """
        begin = time.monotonic()
        most = self._tries_left(url, what, begin)
        tries = slow = 0
        renewed = False
        while not self.closing.is_set():
            tries += 1
            store, root = None, ""
            try:
                root, path = placed(url)
                with panics_told(remedy_of(scheme(url))):
                    store = self._stores.of(root, self._patience.timeout(slow))
                    answer = self._counted(question, store, path, tries)
                self._given_up.pop(url, None)
                return answer
            except Fault as fault:
                if fault.kind is Kind.SLOW:
                    slow += 1
                if fault.kind in (Kind.BUSY, Kind.CROWDED) or slow > 1:  # a single one that stood still says nothing
                    self._flight.throttled(time.monotonic())
                if fault.kind is Kind.EXPIRED and store is not None and not renewed:
                    self._stores.forget(root, store)
                    renewed = True
                    continue
                pause = self._pause(url, fault, tries)
                spent = time.monotonic() - begin
                if not fault.again or tries >= most or spent + pause > self._patience.seconds:
                    self._give_up(url, fault)
                    raise _error(url, what(), fault, tries, spent) from None
                self._tell(what, fault, tries)
            self.closing.wait(pause)
        raise ReadError(f"{what()}: it was not read, as the process ends")

    def _tries_left(self, url: str, what: Callable[[], str], now: float) -> int:
        """How often an object may be asked for. One that was given up is left alone for a while, then asked once:
        otherwise a shard that can't be had would cost all patience for each of its samples."""
        until, why = self._given_up.get(url, (0.0, ""))
        if now < until:
            raise ReadError(f"{what()}: not asked for, as the object was given up a short while ago: {why}")
        return 1 if why else self._patience.tries

    def _give_up(self, url: str, fault: Fault) -> None:
        if fault.again:
            while len(self._given_up) >= GIVEN_UP:
                self._given_up.pop(next(iter(self._given_up)), None)
            why = fault.text + (f"; {fault.remedy}" if fault.remedy else "")
            self._given_up[url] = time.monotonic() + self._patience.rest, why

    def _counted(self, question: Callable[[Store, str], Answer], store: Store, path: str, tries: int) -> Answer:
        begin = time.monotonic()
        try:
            return question(store, path)
        finally:
            with self._lock:
                self._requests += 1
                self._retries += tries > 1
                self._seconds += time.monotonic() - begin

    def _pause(self, url: str, fault: Fault, tries: int) -> float:
        """Seconds before the next try."""
        pause = self._patience.pause(tries)
        told = self._retry_after.of(url) if fault.kind is Kind.BUSY and is_web(url) else 0.0
        if told > pause:
            fault.text += f" and asks for {told:.0f} s of patience"
        return max(pause, told)

    def _tell(self, what: Callable[[], str], fault: Fault, tries: int) -> None:
        now = time.monotonic()
        if tries >= LOUD and now - self._told > QUIET:
            self._told = now
            log.warning("gpupipe: %s: %s, %d times; trying again", what(), fault.text, tries)


def _error(url: str, what: str, fault: Fault, tries: int, seconds: float) -> ReadError:
    remedy = INDEX if fault.kind is Kind.REPLACED else fault.remedy
    if fault.kind in (Kind.DENIED, Kind.EXPIRED):
        remedy = remedy_of(scheme(url))
    tried = f", tried {tries} times in {seconds:.0f} s" if tries > 1 else ""
    return ERRORS.get(fault.kind, ReadError)(f"{what}: {fault.text}{tried}" + (f"; {remedy}" if remedy else ""))
