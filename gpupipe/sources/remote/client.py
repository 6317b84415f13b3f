"""The client of storage that a process has: ranges of objects as they were indexed, as many at once as it pays."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import islice
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpupipe.errors import ConfigError
from gpupipe.sources.remote.coalescing import Span, coalesce, pieces
from gpupipe.sources.remote.faults import Fault, Kind
from gpupipe.sources.remote.flight import Flight
from gpupipe.sources.remote.objects import Extent, MissingError, Object, ReadError, ReplacedError, is_web, parent, shown
from gpupipe.sources.remote.patience import Patience
from gpupipe.sources.remote.pool import Pool
from gpupipe.sources.remote.store import Found, Store
from gpupipe.sources.remote.stores import Stores, object_at, placed

__all__ = ["Client", "Counts", "client", "used_here"]

log = logging.getLogger("gpupipe")

Result = TypeVar("Result")
Bytes = NDArray[np.uint8]
Objects = list[Object]  # in the class below `list` is a method
Futures = list[Future[Bytes]]
Page = list[tuple[str, Found]]
Tasks = list[Callable[[], int]]

MOST_WHOLE = 16 << 20  # bytes of an object that is read whole where its server ignores ranges
PINS = 1 << 20  # objects of unknown size whose ETags a process remembers
LISTED = 16  # objects of a folder for which one page of its listing, of a thousand names, is read instead
LOUD = 3  # tries after which each further one is told of
EXIT = 2.0  # seconds that requests get when the process ends: a thread in one of them can't be ended
INDEX = "it was replaced: index the data anew, and let nothing change it during a run"


class Counts(NamedTuple):
    """What a client has done: `requests` sent, `retries` of them, `bytes` that came, `seconds` the requests took, added
    up."""

    requests: int
    retries: int
    bytes: int
    seconds: float


class Client:
    """Asks storages. Threads may share it; a process has one, see `client`.

    What can't be had raises ReadError (ReplacedError for another version of an object), which names object and range.
    """

    def __init__(self, patience: Patience | None = None) -> None:
        self._patience = patience or Patience()
        self._stores = Stores()
        self.flight = Flight()
        self._pool = Pool(self.flight)
        self._lock = threading.Lock()
        self._requests = self._retries = self._bytes = 0
        self._seconds = 0.0
        self._rangeless: set[str] = set()
        self._pins: dict[int, str] = {}

    def read(self, wanted: Sequence[Extent]) -> Futures:
        """Start reading these parts, coalesced, in their order; each future gives the bytes of one, read-only.

        One that is cancelled before its turn is not asked for.
        """
        futures: Futures = [Future() for _ in wanted]
        tasks: Tasks = []
        for span in coalesce(wanted):
            tasks += self._tasks(span, wanted, futures)
        self._pool.submit(tasks)
        return futures

    def head(self, urls: Sequence[str]) -> Sequence[Object | None]:
        """The objects as they are now, asked at once; None for what is not there.

        Of many in one folder a listing is tried first, as far as it costs fewer requests.
        """
        known = self._from_listings(urls)
        asked = {url: self._start(partial(self._head, url)) for url in urls if url not in known}
        return [known[url] if url in known else asked[url].result() for url in urls]

    def list(self, url: str) -> Objects:
        """All objects below a folder or a bucket, sorted by URL."""
        found: dict[str, Object] = {}
        for page in self._pages(url):
            found |= {each.url: each for each in page}
        return sorted(found.values())

    def counts(self) -> Counts:
        """Up to now."""
        with self._lock:
            return Counts(self._requests, self._retries, self._bytes, self._seconds)

    def close(self) -> None:
        """Begin no more requests, and wait for those under way, but not for long."""
        self._pool.close(EXIT)

    def _start(self, question: Callable[[], Result]) -> Future[Result]:
        future: Future[Result] = Future()

        def task() -> int:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(question())
                except BaseException as error:
                    future.set_exception(error)
            return 0

        self._pool.submit([task])
        return future

    def _tasks(self, span: Span, wanted: Sequence[Extent], futures: Sequence[Future[Bytes]]) -> Tasks:
        """The requests of a span: one, unless it is long."""
        if span.size == 0:
            for part in span.parts:
                futures[part].set_result(np.empty(0, np.uint8))
            return []
        whole = _Whole(span, wanted, futures)
        cuts = pieces(span)
        if len(cuts) == 1:
            return [partial(self._one, whole)]
        whole.left, whole.data = len(cuts), np.empty(span.size, np.uint8)
        return [partial(self._piece, whole, offset, size) for offset, size in cuts]

    def _one(self, whole: _Whole) -> int:
        span = whole.span
        if not whole.wanted_still():
            return 0
        try:
            data = self._range(span.object, span.offset, span.size)
        except BaseException as error:
            whole.fail(error)
            return 0
        whole.give(data)
        return len(data)

    def _piece(self, whole: _Whole, offset: int, size: int) -> int:
        if not whole.wanted_still():
            return 0
        try:
            data = self._range(whole.span.object, offset, size)
        except BaseException as error:
            whole.fail(error)
            return 0
        begin = offset - whole.span.offset
        whole.data[begin : begin + size] = data
        whole.done()
        return size

    def _range(self, found: Object, offset: int, size: int) -> Bytes:
        where = f"{shown(found.url)}" + ("" if size < 0 else f", bytes {offset:,} to {offset + size:,}")
        return self._ask(found.url, where, partial(self._read, found, offset, size))

    def _read(self, found: Object, offset: int, size: int, store: Store, path: str) -> Bytes:
        """One try."""
        try:
            if found.url in self._rangeless:
                raise Fault(Kind.WHOLE, "")
            data, now = store.read(path, offset, size, found.etag)
        except Fault as fault:
            if fault.kind is not Kind.WHOLE:
                raise
            if found.size > MOST_WHOLE:
                reason = f"the server ignores ranges: it would send all {found.size:,} bytes for each part"
                raise Fault(Kind.WRONG, reason, "serve the data by one that knows them, such as nginx") from None
            self._rangeless.add(found.url)
            data, now = store.read(path, 0, -1, found.etag)
            self._check(found, now)
            self._complete(data, found.size)
            return data[offset : offset + size]
        self._check(found, now)
        self._complete(data, now.size if size < 0 else size)
        return data

    def _complete(self, data: Bytes, size: int) -> None:
        with self._lock:
            self._bytes += len(data)
        if len(data) != size:
            raise Fault(Kind.BROKEN, f"the answer had {len(data):,} of {size:,} bytes")

    def _check(self, then: Object, now: Found) -> None:
        """Raise Fault unless an answer is of the object that the index saw."""
        if then.size < 0:  # it has not seen it: the first answer here is what the later ones have to be
            etag = self._pins.get(hash(then.url), now.etag)
            if len(self._pins) < PINS:
                self._pins[hash(then.url)] = etag
            then = Object(then.url, now.size, etag)
        if now.size != then.size:
            raise Fault(Kind.REPLACED, f"it has {now.size:,} bytes where the index says {then.size:,}")
        if then.etag not in ("", now.etag):
            raise Fault(Kind.REPLACED, f"its ETag is {now.etag or 'missing'} where the index says {then.etag}")

    def _head(self, url: str) -> Object | None:
        try:
            return Object(url, *self._ask(url, shown(url), lambda store, path: store.head(path)))
        except MissingError:
            return None

    def _from_listings(self, urls: Sequence[str]) -> dict[str, Object | None]:
        """Those of these that the listings of their folders name, as far as these are the shorter way."""
        known: dict[str, Object | None] = {}
        for folder, count in Counter(parent(url) for url in urls if not is_web(url)).items():
            for page in islice(self._pages(folder), count // LISTED):
                known |= {each.url: each for each in page}
        return known

    def _pages(self, url: str) -> Iterator[Objects]:
        """Pages of a listing: where one fails, it goes on behind the last that came."""
        path, mark, query = url.partition("?") if is_web(url) else (url, "", "")
        url = path.rstrip("/") + mark + query
        after, pages = "", None

        def page(store: Store, path: str) -> Page:
            nonlocal pages
            pages = store.pages(path, after) if pages is None else pages
            try:
                return next(pages, [])
            except Fault:
                pages = None
                raise

        while found := self._ask(url, f"the listing of {shown(url)}", page):
            after = found[-1][0]
            root = placed(url).root
            yield [object_at(root, *each) for each in found]

    def _ask(self, url: str, what: str, question: Callable[[Store, str], Result]) -> Result:
        """The answer to a question, tried again as long as there is patience. Raises ReadError."""
        begin = time.monotonic()
        tries = slow = 0
        renewed = False
        while True:
            tries += 1
            tried = time.monotonic()
            store, root = None, ""
            try:
                root, path = placed(url)
                store = self._stores.of(root, self._patience.timeout(slow))
                return question(store, path)
            except Fault as fault:
                if fault.kind is Kind.EXPIRED and store is not None and not renewed:
                    self._stores.forget(root, store)
                    renewed, pause = True, 0.0
                else:
                    pause = self._patience.pause(tries)
                    spent = time.monotonic() - begin
                    if not fault.again or tries == self._patience.tries or spent + pause > self._patience.seconds:
                        raise _error(what, fault, tries, spent) from None
                slow += fault.kind is Kind.SLOW
                if fault.kind is Kind.BUSY:
                    self.flight.throttled()
                if tries >= LOUD:
                    log.warning("gpupipe: %s: %s; trying again (%d)", what, fault.text, tries)
            finally:
                with self._lock:
                    self._requests += 1
                    self._retries += tries > 1
                    self._seconds += time.monotonic() - tried
            if self._pool.closing.wait(pause):
                raise ReadError(f"{what}: the process ends")


class _Whole:
    """What becomes of a span: the bytes of each of its parts, or an error."""

    def __init__(self, span: Span, wanted: Sequence[Extent], futures: Sequence[Future[Bytes]]) -> None:
        self.span = span
        self._parts = [(futures[part], wanted[part]) for part in span.parts]
        self._lock = threading.Lock()
        self._begun = self._over = False
        self.data: Bytes = np.empty(0, np.uint8)  # of several requests
        self.left = 0

    def wanted_still(self) -> bool:
        """Whether to ask: some part has not been cancelled, and none has failed."""
        with self._lock:
            if not self._begun:
                self._begun = True
                self._parts = [part for part in self._parts if part[0].set_running_or_notify_cancel()]
                self._over = not self._parts
            return not self._over

    def fail(self, error: BaseException) -> None:
        """It can't be had."""
        with self._lock:
            over, self._over = self._over, True
        if not over:
            for future, _ in self._parts:
                future.set_exception(error)

    def done(self) -> None:
        """One request more has brought its bytes into `data`."""
        with self._lock:
            self.left -= 1
            complete = self.left == 0 and not self._over
        if complete:
            self.give(self.data)

    def give(self, data: Bytes) -> None:
        """All bytes of the span are there."""
        data.flags.writeable = False
        for future, (_, offset, size) in self._parts:
            begin = offset - self.span.offset
            future.set_result(data if size in (-1, len(data)) else data[begin : begin + size])


def _error(what: str, fault: Fault, tries: int, seconds: float) -> ReadError:
    kinds = {Kind.MISSING: MissingError, Kind.REPLACED: ReplacedError}
    remedy = INDEX if fault.kind is Kind.REPLACED else fault.remedy
    tried = f", tried {tries} times in {seconds:.0f} s" if tries > 1 else ""
    return kinds.get(fault.kind, ReadError)(f"{what}: {fault.text}{tried}" + (f"; {remedy}" if remedy else ""))


_client: Client | None = None
_inherited: list[Client] = []  # never ended: their threads are not here
_making = threading.Lock()


def client() -> Client:
    """That of this process, made when it is first asked for.

    Raises ConfigError in a process that was forked from one which had one: its requests would wait for threads that
    are not there.
    """
    global _client
    if _inherited:
        raise ConfigError(
            "this process was forked from one that had read from storage, whose client does not survive that: pass "
            "multiprocessing_context='forkserver' or 'spawn'"
        )
    with _making:
        if _client is None:
            _client = Client()
            atexit.register(_client.close)
        return _client


def used_here() -> bool:
    """Whether a fork of this process could not read from storage."""
    return _client is not None or bool(_inherited)


def _after_fork() -> None:
    global _client, _making
    _making = threading.Lock()
    if _client is not None:
        _inherited.append(_client)
        _client = None


os.register_at_fork(after_in_child=_after_fork)
