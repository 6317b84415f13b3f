"""The client of storage that a process has: ranges of objects as they were indexed, as many at once as it pays."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import cache, partial
from itertools import islice
from typing import TypeVar

import numpy as np

from gpupipe.errors import ConfigError
from gpupipe.sources.remote.asking import Asker, Counts
from gpupipe.sources.remote.coalescing import Span, coalesce, pieces
from gpupipe.sources.remote.faults import LISTING, Fault, Kind
from gpupipe.sources.remote.flight import Flight
from gpupipe.sources.remote.listing import listed, pages
from gpupipe.sources.remote.objects import Extent, MissingError, Object, ReadError, is_web, parent, shown
from gpupipe.sources.remote.parts import Bytes, Parts, Taker
from gpupipe.sources.remote.patience import Patience
from gpupipe.sources.remote.plain import Answer
from gpupipe.sources.remote.pool import Pool, Task
from gpupipe.sources.remote.store import Found, Store
from gpupipe.sources.remote.stores import placed
from gpupipe.sources.remote.waiting import Waiting

__all__ = ["Client", "Counts", "client", "used_here"]

Result = TypeVar("Result")
Objects = list[Object]  # in the class below `list` is a method
Futures = list[Future[Bytes]]
Tasks = list[Task]

log = logging.getLogger("gpupipe")

MOST_WHOLE = 16 << 20  # bytes of an object that is read whole where its server ignores ranges
PINS = 1 << 20  # objects of unknown size whose ETags a process remembers
LISTED = 16  # objects of a folder for which one page of its listing, of a thousand names, is read instead
EXIT = 2.0  # seconds that requests get when the process ends: a thread in one of them can't be ended


class Client:
    """Asks storages. Threads may share it; a process has one, see `client`.

    What can't be had raises ReadError (ReplacedError for another version of an object), which names object and range.
    """

    def __init__(self, patience: Patience | None = None) -> None:
        self.flight = Flight()
        self._asker = Asker(patience or Patience(), self.flight)
        self._pool = Pool(self.flight)
        self._waiting = Waiting()
        self._pins: dict[int, str] = {}

    def read(self, wanted: Sequence[Extent]) -> Futures:
        """Start reading these parts, coalesced, in their order; each future gives the bytes of one, read-only.

        One that is cancelled before its turn is not asked for.
        """
        futures: Futures = [Future() for _ in wanted]
        self.give(wanted, futures)
        return futures

    def give(self, wanted: Sequence[Extent], takers: Sequence[Taker]) -> None:
        """The same, with something else in the place of futures, of which each costs 10 us."""
        self._pool.submit([task for span in coalesce(wanted) for task in self._tasks(span, wanted, takers)])

    def head(self, urls: Sequence[str]) -> Sequence[Object | None]:
        """The objects as they are now, asked at once; None for what is not there.

        Of many in one folder a listing is tried first, as far as it costs fewer requests.
        """
        known = self._from_listings(urls)
        asked = {url: self._start(partial(self._head, url)) for url in urls if url not in known}
        found = [known[url] if url in known else asked[url].result() for url in urls]
        _say_how(each for each in found if each is not None)
        return found

    def list(self, url: str) -> Objects:
        """All objects below a folder or a bucket, sorted by URL."""
        try:
            found = listed(self._asker, url, self._start)
        except ReadError as error:
            raise ReadError(f"{error}; {LISTING}") if is_web(url) else error from None
        if is_web(url) and not found:
            raise ReadError(f"the listing of {shown(url)}: it is empty; {LISTING}")
        _say_how(found)
        return sorted(found)

    def counts(self) -> Counts:
        """What it has done up to now."""
        return self._asker.counts()

    def close(self) -> None:
        """Begin no more requests, and wait for those under way, but not for long; the others' futures raise."""
        self._asker.closing.set()
        self._pool.close(EXIT)

    def _start(self, question: Callable[[], Result]) -> Future[Result]:
        future: Future[Result] = Future()
        self._pool.submit([_Question(future, question)])
        return future

    def _tasks(self, span: Span, wanted: Sequence[Extent], takers: Sequence[Taker]) -> Tasks:
        """The requests of a span: one, unless it is long."""
        if span.size == 0:
            for part in span.parts:
                takers[part].set_result(np.empty(0, np.uint8))
            return []
        cuts = pieces(span)
        parts = Parts(span, wanted, takers, len(cuts))
        return [_Range(self, parts, offset, size) for offset, size in cuts]

    def begin(self, found: Object, offset: int, size: int, over: Callable[[Answer], None]) -> bool:
        """Ask for a range without waiting, if that is possible; `over` is called when nothing more comes of it."""
        begun = self._asker.begin(found.url, lambda store, path: store.begin(path, offset, size, found.etag))
        if begun is not None:
            self._waiting.add(begun, partial(over, begun))
        return begun is not None

    def taken(self, found: Object, begun: Answer) -> Bytes | None:
        """What has come, if it is all, and of the object that the index saw."""
        data = begun.data
        if data is None or begun.found != found[1:]:
            return None
        self._asker.answered(len(data), time.monotonic() - begun.since)
        begun.release()
        return data

    def range(self, found: Object, offset: int, size: int, begun: Answer | None = None) -> Bytes:
        """Its bytes. begun: what was begun, and needs a thread that waits."""

        def what() -> str:
            return shown(found.url) + ("" if size < 0 else f", bytes {offset:,} to {offset + size:,}")

        first = [] if begun is None else [begun]

        def question(store: Store, path: str) -> Bytes:
            return self._read(found, offset, size, store, path, first.pop() if first else None)

        return self._asker.ask(found.url, what, question)

    def _read(self, found: Object, offset: int, size: int, store: Store, path: str, begun: Answer | None) -> Bytes:
        """One try."""
        try:
            data, now = store.read(path, offset, size, found.etag, begun)
        except Fault as fault:
            if fault.kind is not Kind.WHOLE:
                raise
            if found.size > MOST_WHOLE:
                reason = f"the server ignores ranges: it would send all {found.size:,} bytes for each part"
                raise Fault(Kind.WRONG, reason, "serve the data by one that knows them, such as nginx") from None
            data, now = store.read(path, 0, -1, found.etag)
            self._check(found, now)
            self._complete(data, found.size)
            return data[offset : offset + size]
        self._check(found, now)
        self._complete(data, now.size if size < 0 else size)
        return data

    def _complete(self, data: Bytes, size: int) -> None:
        self._asker.came(len(data))
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
            return Object(url, *self._asker.ask(url, partial(shown, url), lambda store, path: store.head(path)))
        except MissingError:
            return None

    def _from_listings(self, urls: Sequence[str]) -> dict[str, Object | None]:
        """Those of these that the listings of their folders name, as far as these are the shorter way."""
        known: dict[str, Object | None] = {}
        for folder, count in Counter(parent(url) for url in urls if not is_web(url)).items():
            with suppress(ReadError):  # reading may be allowed where listing is not
                for page in islice(pages(self._asker, folder), count // LISTED):
                    known |= {each.url: each for each in page}
        return known


class _Question:
    """A task: anything but a range."""

    def __init__(self, future: Future[Result], question: Callable[[], Result]) -> None:
        self._future, self._question = future, question

    def is_wanted(self) -> bool:
        return self._future.set_running_or_notify_cancel()

    def begin(self, ended: Callable[[int], None], blocks: Callable[[], None]) -> bool:
        return False

    def run(self) -> int:
        try:
            self._future.set_result(self._question())
        except BaseException as error:
            self._future.set_exception(error)
        return 0


class _Range:
    """A task: a range of an object, all of a span or a piece of it."""

    def __init__(self, client: Client, parts: Parts, offset: int, size: int) -> None:
        self._client, self._parts = client, parts
        self._range = parts.span.object, offset, size
        self._begun: Answer | None = None

    def is_wanted(self) -> bool:
        return self._parts.wanted_still()

    def begin(self, ended: Callable[[int], None], blocks: Callable[[], None]) -> bool:
        def over(begun: Answer) -> None:
            found, offset, size = self._range
            data = self._client.taken(found, begun)
            if data is None:
                self._begun = begun
                blocks()
            else:
                self._parts.came(offset, data)
                ended(size)

        return self._client.begin(*self._range, over)

    def run(self) -> int:
        try:
            data = self._client.range(*self._range, self._begun)
        except BaseException as error:
            self._parts.fail(error)
            return 0
        self._parts.came(self._range[1], data)
        return len(data)


def _say_how(found: Iterable[Object]) -> None:
    for root in {placed(each.url).root for each in found if not each.etag}:
        _say_sizes_only(shown(root))


@cache
def _say_sizes_only(root: str) -> None:
    log.warning(
        "gpupipe: %s tells no ETags: its objects are known by their sizes, so one that is replaced by another of the "
        "same size is not noticed",
        root,
    )


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
        atexit.unregister(_client.close)  # it would wait for locks that threads held which are not here
        _inherited.append(_client)
        _client = None


os.register_at_fork(after_in_child=_after_fork)
