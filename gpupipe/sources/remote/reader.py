"""What a process reads of storages, in memory before it is asked for.

    announce ──► queue ──► cache ─┬─ there ───────► stays on the disk ───────────┐
       as far as there is room    ├─ mine ────────► requests ──► answers ─┬──────┼──► memory ──► take
                                  └─ elsewhere ───► waited for ───────────│──────┘
                                                                          └──► put into the cache

One thread asks the cache and the client, in the order of use, and has the cache put what has come; the client's threads
wait for the storage. `take` waits for what comes too late, and what was not announced is read at once. The thread ends
when there is nothing to do, so that a source that is left leaves nothing behind.

What the cache has is read when it is taken, as files are: by the thread it would go through the memory once more than
that. Only while the disk has to be waited for, as the page cache has not got it, the thread reads that ahead, too.
Where it has all of a fetch, as from the second epoch on, whoever announces that sees so itself, and the thread sleeps:
taking turns with it at the interpreter cost four percent of a decoding worker's time.
"""

from __future__ import annotations

import atexit
import logging
import os
import resource
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from functools import partial
from typing import Any, ClassVar
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from gpupipe.batch import Coming, StorageUse
from gpupipe.host.system import memory_limit, usable_cpus
from gpupipe.sources.remote.cache import BlockCache, Cache, key_of
from gpupipe.sources.remote.client import Client, Counts, client
from gpupipe.sources.remote.objects import Extent, ReadError, shown

__all__ = ["LOOKS_AHEAD", "MOST", "Reader", "Reading"]

log = logging.getLogger("gpupipe")

Bytes = NDArray[np.uint8]


class _Stored:
    """In the place of bytes that lie in the cache."""


STORED = _Stored()
Found = Bytes | Exception

LOOKS_AHEAD = 2048
"""Samples that a source is told of before they are fetched: two seconds of a fast worker, if their bytes have room."""

MOST, LEAST, PART = 256 << 20, 32 << 20, 8
UNKNOWN = 128 << 10  # bytes that are reckoned with where nobody knows how many there are
PATIENCE = 600.0  # seconds that nobody waits longer: the client gives up before, and says why
SHARED = 15.0  # seconds after which what another process fetches is fetched here as well
LOOK_EVERY = 0.05  # seconds, at that
BEHIND = 4  # puts and drops that wait at most while there is something to read
LINGER = 1.0  # seconds that the thread waits for more
EXIT = 2.0  # seconds that it gets to end
DISK = 8  # of what the cache gives this part comes from the disk itself where that is to be read ahead
SECTOR = 512  # bytes, in which the system counts that
NOTHING: Bytes = np.empty(0, np.uint8)
NO_COUNTS = Counts(0, 0, 0, 0.0)


def default_memory() -> int:
    """Bytes that a process reads ahead: an eighth of the machine's memory, divided by its CPUs, as there may be a
    process on each, but no more than hides a storage's bad seconds."""
    return min(MOST, max(LEAST, (memory_limit() or 0) // (PART * usable_cpus())))


class _Part:
    """An extent on its way.

    told:  the fetches that it is announced for and was not taken for. begun: it has been asked for, or found.
    uses:  one for all fetches, one until it has come and the cache has it. Its bytes count until there is none, if
           they are in memory, or to come there: `held`.
    block: its name in the cache, once that is known. mine: the cache is to have it. late: that was known when it was
           begun already.
    until: when another process that fetches it is given up.
    """

    __slots__ = (
        *("awaited", "begun", "block", "extent", "found", "held", "keep", "late", "mine", "told", "until"),
        *("request", "uses"),
    )

    def __init__(self, extent: Extent, keep: bool | None) -> None:
        self.extent = extent
        self.keep = keep
        self.told: list[_Told] = []
        self.begun = self.awaited = self.late = self.mine = False
        self.uses = self.held = 0
        self.block = ""
        self.until = 0.0
        self.found: Found | _Stored | None = None
        self.request: _Request | None = None

    @property
    def size(self) -> int:
        return self.extent.size if self.extent.size >= 0 else UNKNOWN


class _Told:
    """A fetch that comes: its parts, how many of them are not taken yet, and what is dropped when all are."""

    __slots__ = ("drop", "left", "parts", "size")

    def __init__(self, drop: Sequence[Extent]) -> None:
        self.drop = drop
        self.parts: list[_Part] = []
        self.left = self.size = 0


class _Asked:
    """Parts that were asked for at once, and how many have not come."""

    __slots__ = ("left", "parts")

    def __init__(self, parts: list[_Part]) -> None:
        self.parts = parts
        self.left = len(parts)


class _Request:
    """What the client gives a part's bytes, as to a Future: see there."""

    __slots__ = ("asked", "begun", "over", "part", "reader")

    def __init__(self, reader: Reader, part: _Part, asked: _Asked) -> None:
        self.reader, self.part, self.asked = reader, part, asked
        self.begun = self.over = False

    def cancel(self) -> bool:
        """Whether it is not sent; with the lock."""
        if not self.begun and not self.over:
            self.over = True
            self.reader._answered(self, CancelledError())
        return self.over

    def set_running_or_notify_cancel(self) -> bool:
        with self.reader._lock:
            self.begun = not self.over
            return self.begun

    def set_result(self, data: Bytes) -> None:
        self.reader._answered(self, data)

    def set_exception(self, error: BaseException) -> None:
        self.reader._answered(self, error if isinstance(error, Exception) else ReadError(repr(error)))


class Reading:
    """What a source reads by; several threads may share it. Pickled, and in a fork, it begins anew.

    cache: what the machine's disk keeps; None: nothing.
    """

    def __init__(self, cache: Cache | None = None) -> None:
        self.cache = cache
        self._here: tuple[int, Reader, list[_Told]] | None = None
        self._again: dict[Extent, _Part] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"cache": self.cache, "_here": None, "_again": {}}

    def announce(
        self,
        extents: Sequence[Extent],
        coming: Coming,
        counts: NDArray[np.int64] | int = 1,
        drop: Sequence[Extent] = (),
    ) -> None:
        """These are taken when the samples of `coming` are fetched, so many of each as `counts` says. drop: what it
        says is to be dropped."""
        keep = [None] * len(extents) if coming.keep is None else np.repeat(coming.keep, counts).tolist()
        reader, told = self._reader()
        reader.announce(told, extents, keep, drop, begins=not coming.turns)

    def take(self, extents: Sequence[Extent]) -> Iterator[Bytes | ReadError]:
        """The bytes of each, read-only, or why they can't be had. All are begun before the first is waited for."""
        reader, told = self._reader()
        again, self._again = self._again, {}
        known = {extent: again.pop(extent) for extent in extents if extent in again} if again else again
        if known:  # others of that batch may follow
            self._again = again
        return self._given(reader, reader.take(told, extents, known), known)

    def usage(self) -> StorageUse:
        """What this process has read since it was last asked."""
        here = self._here
        return StorageUse() if here is None or here[0] != os.getpid() else here[1].usage()

    def _reader(self) -> tuple[Reader, list[_Told]]:
        pid = os.getpid()
        if self._here is None or self._here[0] != pid:
            reader: Reader = Reader.of(self.cache)
            told: list[_Told] = []
            weakref.finalize(self, reader.gone.append, told).atexit = False
            self._again, self._here = {}, (pid, reader, told)
        return self._here[1:]

    def _given(self, reader: Reader, parts: list[_Part], known: Mapping[Extent, _Part]) -> Iterator[Bytes | ReadError]:
        reader.load([part for part in parts if part.found is STORED])
        for part in parts:
            found = part.found if isinstance(part.found, np.ndarray) else reader.wait(part)
            if isinstance(found, Exception):
                if not isinstance(found, ReadError):
                    raise found
                # Of a batch with a bad sample each is asked for once more, one after the other.
                self._again |= {each.extent: each for each in parts if each.extent not in known}
            yield found


class Reader:
    """Of a process, for one cache; see above. memory: bytes that are read ahead.

    The fetches that a source has announced are its `owner` list.
    """

    _all: ClassVar[WeakValueDictionary[tuple[int, Cache | None], Reader]] = WeakValueDictionary()
    _counted: ClassVar[WeakKeyDictionary[Client, Counts]] = WeakKeyDictionary()
    """What the process's client had done when it was last asked. By client: a fork's has done nothing."""

    def __init__(self, cache: Cache | None, memory: int | None = None) -> None:
        self._pid = os.getpid()
        self._cache = None if cache is None else BlockCache(cache)
        if self._cache is not None:
            weakref.finalize(self, _close, self._cache, self._pid)
        self._memory = default_memory() if memory is None else memory
        self._lock = threading.RLock()  # a future that is cancelled calls back at once
        self._arrived, self._wanted = threading.Condition(self._lock), threading.Condition(self._lock)
        self._parts: dict[Extent, _Part] = {}  # with a use
        self._held = 0  # bytes of those that are begun
        self._queue: deque[_Told] = deque()  # not begun
        self._urgent: deque[Callable[[], object]] = deque()  # what the thread has to do at once
        self._steps: deque[Callable[[], object]] = deque()  # and when nothing else is to be begun
        self._elsewhere: list[_Part] = []  # what other processes fetch; the thread's own
        self._thread: threading.Thread | None = None
        self._ends = False
        self._hits = self._misses = self._cached = 0
        self._warm = False  # the cache had all that was asked of it last
        self._trusts = False  # it held a whole fetch: what was not announced may lie there
        self._sectors, self._waits_for_disk = _sectors_read(), False
        self._waited = 0.0
        self.gone: deque[list[_Told]] = deque()  # of sources that are no more

    @classmethod
    def of(cls, cache: Cache | None) -> Reader:
        """That of this process; it lives as long as a source that reads by it."""
        key = os.getpid(), cache
        return cls._all.get(key) or cls._all.setdefault(key, cls(cache))

    # In the threads of those who fetch.

    def announce(
        self,
        owner: list[_Told],
        extents: Sequence[Extent],
        keep: Sequence[bool | None],
        drop: Sequence[Extent],
        begins: bool,
    ) -> None:
        """See `Reading.announce`. begins: what was announced before is void."""
        told = _Told(drop)
        there = not drop and self._is_held(extents, keep)
        with self._lock:
            if not there:
                for extent, kept in zip(extents, keep, strict=True):
                    if extent.size:
                        self._tell(told, extent, kept)
            if begins:
                self._void(owner)
            while self.gone:
                self._void(self.gone.popleft())
            if not there:
                self._queue.append(told)
                owner.append(told)
                if not told.parts:
                    self._dropped(told)
            if self._urgent or self._steps or self._queue:
                self._work()

    def _is_held(self, extents: Sequence[Extent], keep: Sequence[bool | None]) -> bool:
        """Whether the cache has all of a fetch, and this run holds it: then nothing is to be done about it."""
        if self._cache is None or not self._warm or self._waits_for_disk or not extents or not all(keep):
            return False
        blocks = [key_of(extent) for extent in extents if extent.size]
        self._warm = all(blocks) and self._cache.holds(blocks)
        self._trusts |= self._warm
        return self._warm

    def take(self, owner: list[_Told], extents: Sequence[Extent], known: Mapping[Extent, _Part]) -> list[_Part]:
        """The parts, all begun; of those that are known, these."""
        taken, now = [], []
        with self._lock:
            last: _Told | None = None
            for extent in extents:
                part = known.get(extent)
                if part is None:
                    part = self._parts.get(extent) or self._new(extent)
                    if not part.begun:
                        self._parts[extent] = part
                        self._commit(part)
                        now.append(part)
                    if part.told:
                        last = self._taken(part, owner)
                taken.append(part)
            if last in owner:  # what is left of those before it nobody wants: a sample of which something else was bad
                passed = [told for told in owner[: owner.index(last)] if 0 < told.left < len(told.parts)]
                for told in passed:
                    told.left = 0
                    self._dropped(told)
                self._void(passed)
            owner[:] = [told for told in owner if told.left]
            if now:
                self._urgent.append(partial(self._begin, now))
            if self._urgent or self._steps or self._queue:
                self._work()
        return taken

    def _new(self, extent: Extent) -> _Part:
        """One that was not announced, or is held. Where some are, the cache is looked into before it is asked."""
        part = _Part(extent, False)
        if not extent.size:
            part.begun, part.found = True, NOTHING
        elif self._trusts and (block := key_of(extent)):
            part.begun, part.block, part.found = True, block, STORED
        return part

    def load(self, parts: list[_Part]) -> None:
        """From the cache, which has them. Those that it has not after all come from the storage."""
        found = self._loaded(parts)
        with self._lock:
            for part in parts:
                data = found.get(part.block)
                if part.found is not STORED:  # another thread was faster
                    continue
                if data is None:
                    self._anew(part)
                else:
                    part.found = data
                    self._hold(part, part.size if part.told else 0)

    def wait(self, part: _Part) -> Found:
        """What comes of it."""
        self._await(part)
        while part.found is STORED:
            self.load([part])
            self._await(part)
        if isinstance(part.found, np.ndarray | Exception):
            return part.found
        found, offset, size = part.extent
        where = "" if size < 0 else f", bytes {offset:,} to {offset + size:,}"
        return ReadError(f"{shown(found.url)}{where}: nothing came within {PATIENCE:.0f} s")

    def _await(self, part: _Part) -> None:
        if part.found is not None:
            return
        begin = now = time.monotonic()
        with self._arrived:
            part.awaited = True
            while part.found is None and now < begin + PATIENCE:
                self._arrived.wait(begin + PATIENCE - now)
                now = time.monotonic()
            self._waited += now - begin

    def _loaded(self, parts: list[_Part]) -> dict[str, Bytes]:
        """What the cache has of these."""
        if self._cache is None or not parts:
            return {}
        found = self._cache.read([part.block for part in parts])
        with self._lock:
            self._hits += len(found)
            self._cached += sum(map(len, found.values()))
        return found

    def usage(self) -> StorageUse:
        """What was read since it was last asked, and of all readers what the process's client did."""
        with self._lock:
            use = StorageUse(self._hits, self._misses, self._cached, storage_wait_s=self._waited)
            self._hits = self._misses = self._cached = 0
            self._waited = 0.0
            if use.cache_bytes:
                sectors, self._sectors = self._sectors, _sectors_read()
                self._waits_for_disk = DISK * SECTOR * (self._sectors - sectors) > use.cache_bytes
        if not use.cache_misses:
            return use
        asked = client()
        before, now = Reader._counted.get(asked, NO_COUNTS), asked.counts()
        Reader._counted[asked] = now
        requests, retries = now.requests - before.requests, now.retries - before.retries
        return use + StorageUse(
            storage_bytes=now.bytes - before.bytes, storage_requests=requests, storage_retries=retries
        )

    def end(self) -> None:
        """The process ends: nothing more is begun."""
        with self._lock:
            self._ends = True
            self._queue.clear()
            self._wanted.notify()
            thread = self._thread
        if thread is not None:
            thread.join(EXIT)

    # With the lock.

    def _tell(self, told: _Told, extent: Extent, keep: bool | None) -> None:
        part = self._parts.get(extent)
        if part is None:
            part = self._parts[extent] = _Part(extent, keep)
        elif part.keep is False and keep is not False:  # it comes again soon, and is to be kept then
            part.keep = keep
            part.late = part.begun
            if part.found is not None:
                self._keep_late(part)
        part.uses += not part.told
        part.told.append(told)
        told.parts.append(part)
        told.left += 1
        told.size += part.size

    def _commit(self, part: _Part) -> None:
        """It is begun."""
        part.begun = True
        part.uses += 1
        self._hold(part, part.size)

    def _hold(self, part: _Part, size: int) -> None:
        """So many bytes of it count."""
        self._held += size - part.held
        part.held = size

    def _anew(self, part: _Part) -> None:
        """It has to come, as the cache has not got it after all."""
        part.found = None
        self._parts.setdefault(part.extent, part)
        self._commit(part)
        self._urgent.append(partial(self._begin, [part], trusts=False))
        self._work()

    def _unuse(self, part: _Part) -> None:
        part.uses -= 1
        if not part.uses:
            if self._parts.get(part.extent) is part:
                del self._parts[part.extent]
            self._hold(part, 0)

    def _taken(self, part: _Part, owner: list[_Told]) -> _Told:
        """It is taken for the next fetch of this owner's; another may have announced it, too."""
        told = part.told[0]
        if len(part.told) > 1:
            told = next((told for told in part.told if told in owner), told)
        part.told.remove(told)
        told.left -= 1
        if not told.left:
            self._dropped(told)
        if not part.told:
            self._unuse(part)
        return told

    def _dropped(self, told: _Told) -> None:
        if told.drop and self._cache is not None:
            self._steps.append(partial(self._cache.drop, [key for each in told.drop if (key := key_of(each))]))

    def _void(self, owner: list[_Told]) -> None:
        """Nobody takes these any more: what is not under way need not come."""
        for told in owner:
            told.size = 0
            for part in told.parts:
                if told in part.told:
                    part.told.remove(told)
                    if not part.told:
                        self._unuse(part)
                        if part.request is not None and part.request.cancel():
                            self._parts.pop(part.extent, None)
        owner.clear()

    def _keep_late(self, part: _Part) -> None:
        if part.late and self._cache is not None:
            part.late = False
            self._steps.append(partial(self._put_late, part, self._cache))

    def _settle(self, part: _Part, found: Found | _Stored) -> None:
        part.found = found
        if found is STORED:
            self._hold(part, 0)
        self._keep_late(part)
        if not part.mine:
            self._unuse(part)
            if not part.uses and self._queue:
                self._work()
        if part.awaited:
            self._arrived.notify_all()

    def _work(self) -> None:
        """There is something to do for the thread."""
        if self._thread is None and not self._ends:
            self._thread = threading.Thread(target=self._run, name="gpupipe-reader", daemon=True)
            self._thread.start()
        else:
            self._wanted.notify()

    def _next(self) -> Callable[[], object] | None:
        """What the thread does now: for what is waited for, then for the cache, by which that has room, then for what
        comes."""
        if self._urgent and len(self._steps) < BEHIND:
            return self._urgent.popleft()
        if self._steps:
            return self._steps.popleft()
        while self._queue and (not self._held or self._held + self._queue[0].size <= self._memory):
            parts = []
            for part in self._queue.popleft().parts:
                if part.uses and not part.begun:
                    self._commit(part)
                    parts.append(part)
            if parts:
                return partial(self._begin, parts)
        return self._look if self._elsewhere else None

    # In the thread.

    def _run(self) -> None:
        while True:
            with self._wanted:
                step = self._next()
                if step is None and not self._ends:
                    self._wanted.wait(LINGER)
                    step = self._next()
                if step is None:
                    self._thread = None
                    return
            try:
                step()
            except Exception:  # what nobody thought of must not leave others waiting for this thread
                log.exception("gpupipe: reading ahead: please report this")

    def _begin(self, parts: list[_Part], trusts: bool = True) -> None:
        """Have them come. trusts: the cache, in that what is there can be read."""
        there, asked = list[_Part](), parts
        try:
            if self._cache is not None:
                there, asked = self._claimed(parts, self._cache)
            if not trusts:
                there, asked = [], [*asked, *there]
            self._ask(asked)
            damaged = self._there(there)
        except Exception as error:  # the memory is full, there is no client: whoever waits for them gets it
            self._fail([part for part in parts if part not in self._elsewhere], error)
            return
        if damaged:
            self._begin(damaged, trusts=False)

    def _fail(self, parts: list[_Part], error: Exception) -> None:
        with self._lock:
            failed = [part for part in parts if part.found is None and part.request is None]
            for part in failed:
                self._settle(part, error)
        self._put([part for part in failed if part.mine])

    def _claimed(self, parts: list[_Part], cache: BlockCache) -> tuple[list[_Part], list[_Part]]:
        """What the cache has, and what is to be asked for."""
        keys: dict[str, _Part] = {}
        asked = []
        for part in parts:
            part.block = part.block or key_of(part.extent)
            if part.block:
                keys[part.block] = part
            else:
                asked.append(part)
        there, elsewhere = set[str](), set[str]()
        for keep in (True, None):
            wanted = [key for key, part in keys.items() if part.keep is keep]
            if wanted:
                claim = cache.claim(wanted, hold=keep is True)
                there, elsewhere = there | claim.there, elsewhere | claim.elsewhere
                for key in claim.mine:
                    keys[key].mine = True
        passing = [key for key, part in keys.items() if part.keep is False]
        if passing:
            there |= cache.find(passing)
        now = time.monotonic()
        for key, part in keys.items():
            if key in there:
                continue
            part.until = part.until or now + SHARED
            if key in elsewhere and now < part.until:
                self._elsewhere.append(part)
            else:
                asked.append(part)
        self._warm = there >= keys.keys() and not asked
        return [part for key, part in keys.items() if key in there], asked

    def _there(self, parts: list[_Part]) -> list[_Part]:
        """The cache has them; those that it has not after all."""
        found: Mapping[str, Bytes | _Stored] = {part.block: STORED for part in parts}
        if self._waits_for_disk:
            found = self._loaded(parts)
        with self._lock:
            for part in parts:
                if part.block in found:
                    self._settle(part, found[part.block])
        return [part for part in parts if part.block not in found]

    def _look(self) -> None:
        """Whether other processes have fetched what they were at."""
        assert self._cache is not None
        parts, self._elsewhere = self._elsewhere, []
        self._cache.wait([part.block for part in parts], LOOK_EVERY)
        self._begin(parts)

    def _ask(self, parts: list[_Part]) -> None:
        """Fetch them; those with a key are put into the cache when all of them have come."""
        asked = _Asked([part for part in parts if part.mine])
        if not parts:
            return
        asking, requests = client(), [_Request(self, part, asked) for part in parts]
        if asking not in Reader._counted:
            Reader._counted[asking] = asking.counts()
        for part, request in zip(parts, requests, strict=True):
            part.request = request
        try:
            asking.give([part.extent for part in parts], requests)
        except BaseException:
            for part in parts:
                part.request = None
            raise

    def _put(self, parts: list[_Part]) -> None:
        """The cache gets what has come."""
        if self._cache is None:
            return
        blocks = {part.block: part.found for part in parts if isinstance(part.found, np.ndarray)}
        self._cache.put(blocks)
        self._cache.give_back([part.block for part in parts if part.block not in blocks])
        with self._lock:
            for part in parts:
                self._unuse(part)

    def _put_late(self, part: _Part, cache: BlockCache) -> None:
        if part.block and not isinstance(part.found, Exception):
            mine = cache.claim([part.block], hold=part.keep is True).mine
            if isinstance(part.found, np.ndarray):
                cache.put(dict.fromkeys(mine, part.found))
            else:
                cache.give_back(mine)

    # In the client's threads.

    def _answered(self, request: _Request, found: Found) -> None:
        part, asked = request.part, request.asked
        with self._lock:
            if part.request is not request:
                return
            part.request = None
            self._misses += isinstance(found, np.ndarray)
            self._settle(part, found)
            if not part.mine:
                return
            asked.left -= 1
            if request.over:  # it may be asked for anew at once
                asked.parts.remove(part)
                self._urgent.appendleft(partial(self._put, [part]))
            if not asked.left:
                self._steps.append(partial(self._put, asked.parts))
            if self._urgent or self._steps:  # not for each answer: a change of threads costs as much as its bytes
                self._work()


def _sectors_read() -> int:
    """By this process, from any disk."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_inblock


def _close(cache: BlockCache, pid: int) -> None:
    if pid == os.getpid():
        cache.close()


@atexit.register
def _end_all() -> None:
    for (pid, _), reader in list(Reader._all.items()):
        if pid == os.getpid():
            reader.end()
