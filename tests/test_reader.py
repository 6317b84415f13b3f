"""What a process reads ahead of storage: against a server that fails as it is told, and a cache in memory."""

from __future__ import annotations

import os
import pickle
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen
from weakref import WeakValueDictionary

import numpy as np
import pytest
from servers.faults import Fault, FaultServer

from gpupipe import Cache
from gpupipe.batch import Coming
from gpupipe.sources.remote import reader as module
from gpupipe.sources.remote.cache import Claim, key_of
from gpupipe.sources.remote.client import Counts
from gpupipe.sources.remote.objects import Extent, Object, ReadError
from gpupipe.sources.remote.parts import Taker
from gpupipe.sources.remote.reader import Reader, Reading

SIZE = 50_000
PARTS = 60
DATA = np.random.default_rng(5).integers(0, 256, SIZE * PARTS, np.uint8)
APART = 40_000  # of the bytes of each; the gap is too small to be read alone


def until(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "what is waited for does not come"
        time.sleep(0.002)


class Asking:
    """As Client, by Python's own: a process that has used a real one must not be forked for whoever uses another."""

    def __init__(self) -> None:
        self.bytes = self.requests = self.retries = 0
        self.pool = ThreadPoolExecutor(16)

    def give(self, extents: Iterable[Extent], takers: Iterable[Taker]) -> None:
        for extent, taker in zip(extents, takers, strict=True):
            self.pool.submit(self.answer, extent, taker)

    def answer(self, extent: Extent, taker: Taker) -> None:
        if taker.set_running_or_notify_cancel():
            try:
                taker.set_result(self.get(extent))
            except BaseException as error:
                taker.set_exception(error)

    def counts(self) -> Counts:
        return Counts(self.requests, self.retries, self.bytes, 0.0)

    def get(self, extent: Extent) -> Any:
        found, offset, size = extent
        headers = {} if size < 0 else {"Range": f"bytes={offset}-{offset + size - 1}", "If-Match": found.etag}
        for _ in range(5):
            self.requests += 1
            try:
                with urlopen(Request(found.url, headers=headers), timeout=60) as answer:
                    data = np.frombuffer(answer.read(), np.uint8)
            except HTTPError as error:
                raise ReadError(f"{found.url}, bytes {offset} to {offset + size}: {error.code}") from None
            except (OSError, HTTPException):
                self.retries += 1
                continue
            self.bytes += len(data)
            return data
        raise AssertionError("given up")


class Blocks:
    """As BlockCache, in memory; what is `elsewhere` another process fetches."""

    def __init__(self) -> None:
        self.there: dict[str, Any] = {}
        self.elsewhere: set[str] = set()
        self.claimed: dict[str, bool] = {}
        self.asked: list[str] = []
        self.dropped: list[str] = []
        self.read_keys: list[str] = []
        self.closed = False

    def find(self, keys: Iterable[str]) -> set[str]:
        return set(keys) & set(self.there)

    def holds(self, keys: Iterable[str]) -> bool:
        return set(keys) <= set(self.there)

    def claim(self, keys: Iterable[str], hold: bool) -> Claim:
        keys = set(keys)
        there, elsewhere = self.find(keys), keys & self.elsewhere
        mine = keys - there - elsewhere
        assert "" not in keys
        assert not mine & set(self.claimed)
        self.claimed |= dict.fromkeys(mine, hold)
        self.asked += sorted(keys)
        return Claim(mine, there, elsewhere)

    def read(self, keys: Iterable[str]) -> dict[str, Any]:
        found = {key: self.there[key] for key in keys if key in self.there}
        self.read_keys += found
        for key in [key for key, data in found.items() if data is None]:
            del self.there[key], found[key]
        return found

    def put(self, blocks: Mapping[str, Any]) -> set[str]:
        for key, data in blocks.items():
            del self.claimed[key]
            self.there[key] = data
        return set(blocks)

    def give_back(self, keys: Iterable[str]) -> None:
        for key in keys:
            del self.claimed[key]

    def wait(self, keys: Iterable[str], timeout: float) -> set[str]:
        time.sleep(timeout / 10)
        return self.find(keys)

    def drop(self, keys: Iterable[str]) -> None:
        self.dropped += keys

    def close(self) -> None:
        self.closed = True


@pytest.fixture(autouse=True)
def asking(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(module, "LINGER", 0.05)
    client = Asking()
    monkeypatch.setattr(module, "client", lambda: client)
    monkeypatch.setattr(Reader, "_all", WeakValueDictionary())
    yield
    client.pool.shutdown(cancel_futures=True)


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> Blocks:
    found = Blocks()
    monkeypatch.setattr(module, "BlockCache", lambda settings: found)
    return found


@pytest.fixture
def storage(fault_server: FaultServer) -> FaultServer:
    fault_server.put("data.tar", DATA.tobytes())
    return fault_server


@pytest.fixture
def extents(storage: FaultServer) -> list[Extent]:
    """Parts that lie too far apart to be read together, in no order."""
    with urlopen(Request(storage.url_of("data.tar"), method="HEAD")) as answer:
        found = Object(answer.url, len(DATA), answer.headers["ETag"])
    order = random.Random(3).sample(range(PARTS), PARTS)
    return [Extent(found, SIZE * number, SIZE - APART) for number in order]


@pytest.fixture
def opened() -> Iterator[Callable[..., Reading]]:
    """A Reading with a Reader of its own."""
    readers = []

    def make(cache: Cache | None = None, memory: int = 1 << 30) -> Reading:
        reading, reader = Reading(cache), Reader(cache, memory)
        reading._here = os.getpid(), reader, []
        readers.append(reader)
        return reading

    yield make
    for reader in readers:
        until(lambda reader=reader: reader._thread is None)
        assert (reader._held, reader._parts) == (0, {})


def announce(reading: Reading, jobs: list[list[Extent]], keep: bool | None = None) -> None:
    for turns, job in enumerate(jobs):
        kept = None if keep is None else np.full(len(job), keep)
        reading.announce(job, Coming(np.arange(len(job)), kept, turns=turns))


def right(extent: Extent, found: Any) -> bool:
    return np.array_equal(found, DATA[extent.offset : extent.offset + extent.size])


def check(reading: Reading, job: list[Extent]) -> None:
    assert all(map(right, job, reading.take(job)))


def jobs_of(extents: list[Extent], size: int = 6) -> list[list[Extent]]:
    return [extents[first : first + size] for first in range(0, len(extents), size)]


def asked(storage: FaultServer) -> int:
    return len(storage.requests("data.tar", "GET"))


def test_what_is_announced_is_there_when_it_is_taken(
    storage: FaultServer, extents: list[Extent], opened: Callable[..., Reading]
) -> None:
    reading, jobs = opened(), jobs_of(extents)
    announce(reading, jobs[:5])
    assert reading._here is not None
    parts = reading._here[1]._parts
    until(lambda: len(parts) == 30 and all(part.found is not None for part in parts.values()))
    storage.script("data.tar", Fault(500), forever=True)
    for job in jobs[:5]:
        check(reading, job)
    use = reading.usage()
    assert (use.cache_hits, use.cache_misses, use.storage_bytes) == (0, 30, 30 * (SIZE - APART))
    assert use.storage_requests - use.storage_retries == 30  # a busy machine resets a connection now and then
    assert reading.usage().storage_bytes == 0


def test_what_an_earlier_client_did_is_not_taken_off(
    extents: list[Extent], opened: Callable[..., Reading], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process may have been forked since."""
    first, later = jobs_of(extents)[:2]
    reading = opened()
    check(reading, first)
    assert reading.usage().storage_bytes == sum(extent.size for extent in first)
    with ThreadPoolExecutor(4) as pool:
        another = Asking()
        another.pool = pool
        monkeypatch.setattr(module, "client", lambda: another)
        check(reading, later)
        use = reading.usage()
    assert (use.storage_bytes, use.storage_requests) == (sum(extent.size for extent in later), another.requests)


def test_what_nobody_announced_is_read_at_once_and_what_is_wanted_twice_once(
    storage: FaultServer, extents: list[Extent], opened: Callable[..., Reading]
) -> None:
    reading = opened()
    announce(reading, [extents[:3], extents[2:5]])
    empty = Extent(extents[0].object, 5, 0)
    check(reading, [*extents[:3], empty, extents[30], extents[30]])
    check(reading, extents[2:5])
    assert asked(storage) == 6
    assert reading.usage().storage_wait_s > 0


def test_no_more_is_read_ahead_than_there_is_room_for(
    storage: FaultServer, extents: list[Extent], opened: Callable[..., Reading]
) -> None:
    jobs = jobs_of(extents)
    reading = opened(memory=2 * 6 * (SIZE - APART))
    announce(reading, jobs)
    for number, job in enumerate(jobs):
        most = min(6 * (number + 2), PARTS)
        until(lambda most=most: asked(storage) >= most)
        time.sleep(0.01)
        assert asked(storage) == most
        check(reading, job)


def test_a_job_beyond_the_memory_is_read_all_the_same(
    storage: FaultServer, extents: list[Extent], opened: Callable[..., Reading]
) -> None:
    reading, jobs = opened(memory=10), jobs_of(extents)
    announce(reading, jobs)
    for job in reversed(jobs):  # nor does another order block
        check(reading, job)
    assert asked(storage) == PARTS


def test_what_another_stream_had_announced_is_void(
    storage: FaultServer, extents: list[Extent], opened: Callable[..., Reading]
) -> None:
    storage.script("*", Fault(delay=0.05), forever=True)
    reading, jobs = opened(memory=6 * (SIZE - APART)), jobs_of(extents)
    announce(reading, jobs[:5])
    until(lambda: asked(storage) > 0)
    announce(reading, [jobs[0], *jobs[7:]])  # the first is there already, or under way
    for job in (jobs[0], *jobs[7:]):
        check(reading, job)
    assert asked(storage) == 6 * (1 + len(jobs[7:]))
    reading.announce((), Coming.nothing())


def test_a_source_that_is_gone_leaves_nothing(storage: FaultServer, extents: list[Extent]) -> None:
    reading = Reading()
    reader = Reader.of(None)
    announce(reading, jobs_of(extents))
    until(lambda: len(reader._parts) > 0 and all(part.found is not None for part in reader._parts.values()))
    del reading
    other = Reading()
    check(other, extents[:3])
    other.announce((), Coming.nothing())
    until(lambda: reader._thread is None)
    assert (reader._held, reader._parts) == (0, {})
    assert not any(thread.name == "gpupipe-reader" for thread in threading.enumerate())


def test_what_cannot_be_had_is_told_in_its_place_and_nothing_is_asked_for_twice_because_of_it(
    storage: FaultServer, extents: list[Extent], opened: Callable[..., Reading]
) -> None:
    missing = Extent(Object(storage.url_of("gone.tar"), 10, '"x"'), 0, 10)
    for is_announced in (True, False):
        reading = opened()
        job = [*extents[:2], missing, *extents[2:5]]
        announce(reading, [job] if is_announced else [])
        before = asked(storage), len(storage.requests("gone.tar"))
        found = list(reading.take(job))
        assert [number for number, one in enumerate(found) if isinstance(one, ReadError)] == [2]
        assert "gone.tar, bytes 0 to 10" in str(found[2])
        for extent in job:
            (one,) = reading.take([extent])
            assert isinstance(one, ReadError) if extent is missing else right(extent, one)
        assert (asked(storage), len(storage.requests("gone.tar"))) == (before[0] + 5, before[1] + 1)
        check(reading, extents[6:8])
        check(reading, extents[:1])
        assert asked(storage) == before[0] + 8


def test_an_error_is_told_once_more_and_then_it_is_asked_again(
    storage: FaultServer, extents: list[Extent], opened: Callable[..., Reading]
) -> None:
    """Who asks again and again has it when the storage is back."""
    reading, missing = opened(), Extent(Object(storage.url_of("late.tar"), -1, ""), 0, -1)
    for job in ([missing, extents[0]], [missing], [extents[0]], [missing], [missing]):
        found = list(reading.take(job))
        assert isinstance(found[0], ReadError) == (job[0] is missing)
    storage.put("late.tar", bytes(10))
    (found,) = reading.take([missing])
    assert np.array_equal(found, np.zeros(10))


def test_what_is_left_of_a_fetch_with_a_bad_sample_takes_no_room(
    storage: FaultServer, extents: list[Extent], opened: Callable[..., Reading]
) -> None:
    """As of a source that is joined to another, in which the sample is bad."""
    jobs = jobs_of(extents)
    reading = opened(memory=2 * 6 * (SIZE - APART))
    announce(reading, jobs)
    for number, job in enumerate(jobs[:-1]):
        check(reading, job[:-1])
        check(reading, jobs[-1][number % 6 :][:1])  # nor is anything void because of one that comes later
        until(lambda number=number: asked(storage) >= min(PARTS, 6 * (number + 2)))
    check(reading, jobs[-1])
    reading.announce((), Coming.nothing())


def test_two_sources_of_the_same_data_read_it_once_as_long_as_both_have_it_ahead(
    storage: FaultServer, extents: list[Extent]
) -> None:
    train, evaluation = Reading(), Reading()
    jobs = jobs_of(extents)
    for reading in (train, evaluation):
        announce(reading, jobs[:4])
    for job in jobs[:4]:
        check(train, job)
    assert not train._here[2]
    for job in jobs[:4]:
        check(evaluation, job)
    assert asked(storage) == 24


def test_whatever_goes_wrong_is_raised_where_it_is_waited_for(
    blocks: Blocks, extents: list[Extent], opened: Callable[..., Reading], monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = opened(Cache())
    blocks.there = dict.fromkeys(map(key_of, extents[:3]), DATA)
    monkeypatch.setattr(Blocks, "read", lambda blocks, keys: 1 // 0)
    announce(reading, [extents[:2]], keep=True)
    with pytest.raises(ZeroDivisionError):
        list(reading.take(extents[:2]))
    monkeypatch.setattr(module, "client", lambda: 1 // 0)
    announce(reading, [extents[5:7]], keep=True)
    with pytest.raises(ZeroDivisionError):
        list(reading.take(extents[5:7]))
    until(lambda: not blocks.claimed)


class TestCache:
    def test_what_is_kept_is_put_and_found_again(
        self, blocks: Blocks, storage: FaultServer, extents: list[Extent], opened: Callable[..., Reading]
    ) -> None:
        reading, (one, two, three, *_) = opened(Cache()), jobs_of(extents)
        for turns, (job, keep) in enumerate(((one, True), (two, None), (three, False))):
            reading.announce(job, Coming(np.arange(6), None if keep is None else np.full(6, keep), turns=turns))
        until(lambda: len(blocks.there) == 12 and asked(storage) == 18)
        assert blocks.asked == sorted(map(key_of, one)) + sorted(map(key_of, two))
        for job in (one, two, three):
            check(reading, job)
        again = [*two[:3], *three[:2]]
        reading.announce(again, Coming(np.arange(5), np.array([True, True, False, True, False])))
        check(reading, again)
        assert asked(storage) == 20
        check(reading, [*one, *three[4:]])  # nor is what nobody has announced put
        assert asked(storage) == 22
        until(lambda: len(blocks.there) == 13 and not blocks.claimed)
        use = reading.usage()
        assert (use.cache_hits, use.cache_misses, use.cache_bytes) == (9, 22, 9 * (SIZE - APART))

    def test_what_it_has_damaged_is_fetched_and_put_again(
        self, blocks: Blocks, storage: FaultServer, extents: list[Extent], opened: Callable[..., Reading]
    ) -> None:
        reading = opened(Cache())
        blocks.there = dict.fromkeys(map(key_of, extents[:6]))
        announce(reading, [extents[:6]], keep=True)
        check(reading, extents[:6])
        until(lambda: all(right(extent, blocks.there.get(key_of(extent))) for extent in extents[:6]))
        assert asked(storage) == 6

    def test_what_it_has_is_read_when_it_is_taken_and_takes_no_room_before(
        self, blocks: Blocks, storage: FaultServer, extents: list[Extent], opened: Callable[..., Reading]
    ) -> None:
        reading = opened(Cache(), memory=10)
        keys = list(map(key_of, extents[:24]))
        blocks.there = {key: DATA[each.offset :][: each.size] for key, each in zip(keys, extents, strict=False)}
        jobs = jobs_of(extents[:24])
        announce(reading, jobs, keep=False)
        parts = reading._here[1]._parts
        until(lambda: len(parts) == 24 and all(part.found is not None for part in parts.values()))
        assert (blocks.read_keys, reading._here[1]._held) == ([], 0)
        check(reading, jobs[0])
        assert blocks.read_keys == keys[:6]
        for key in keys[7:9]:  # others have made room meanwhile
            del blocks.there[key]
        for job in jobs[1:]:
            check(reading, job)
        assert asked(storage) == 2
        use = reading.usage()
        assert (use.cache_hits, use.cache_misses, use.cache_bytes) == (22, 2, 22 * (SIZE - APART))

    def test_where_it_holds_all_nobody_has_to_be_asked_for_it(
        self, blocks: Blocks, storage: FaultServer, extents: list[Extent], opened: Callable[..., Reading]
    ) -> None:
        reading, jobs = opened(Cache()), jobs_of(extents[:24])
        blocks.there = {key_of(each): DATA[each.offset :][: each.size] for each in extents[:24]}
        reader = reading._here[1]
        announce(reading, jobs[:1], keep=True)  # nobody knows yet
        until(lambda: reader._thread is None)
        assert blocks.asked == sorted(map(key_of, jobs[0]))
        check(reading, jobs[0])
        until(lambda: reader._thread is None)
        announce(reading, jobs[1:3], keep=True)
        for key in map(key_of, jobs[1][2:4]):  # others have made room, or cleared it
            del blocks.there[key]
        assert (reader._thread, reader._parts) == (None, {})
        check(reading, jobs[1])
        check(reading, jobs[2])
        assert asked(storage) == 2
        announce(reading, [[*jobs[3], *extents[24:26]]], keep=True)  # of which it has a part
        check(reading, [*jobs[3], *extents[24:26]])
        assert asked(storage) == 4
        until(lambda: key_of(extents[25]) in blocks.there)
        use = reading.usage()
        assert (use.cache_hits, use.cache_misses) == (22, 4)

    def test_where_the_disk_has_to_be_waited_for_it_is_read_ahead(
        self,
        blocks: Blocks,
        extents: list[Extent],
        opened: Callable[..., Reading],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        sectors = 0
        monkeypatch.setattr(module, "_sectors_read", lambda: sectors)
        reading, jobs = opened(Cache()), jobs_of(extents)
        blocks.there = {key_of(each): DATA[each.offset :][: each.size] for each in extents}
        ahead = []
        for turn, job in enumerate(jobs[:9]):
            announce(reading, [job])
            parts = reading._here[1]._parts
            until(lambda parts=parts: all(part.found is not None for part in parts.values()))
            ahead.append(len(blocks.read_keys) == 6 * (turn + 1))
            check(reading, job)
            assert len(blocks.read_keys) == 6 * (turn + 1)
            sectors += [0, 5, 116, 200, 10, 0, 0, 300, 0][turn]  # of 117 that a job has
            reading.usage()
        assert ahead == [False, False, False, True, True, False, False, False, True]

    def test_what_another_process_fetches_is_waited_for_and_then_fetched(
        self,
        blocks: Blocks,
        storage: FaultServer,
        extents: list[Extent],
        opened: Callable[..., Reading],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(module, "SHARED", 0.3)
        reading = opened(Cache())
        keys = list(map(key_of, extents[:6]))
        blocks.elsewhere = set(keys)
        announce(reading, [extents[:6]], keep=True)
        taken = reading.take(extents[:6])
        for extent, key in zip(extents[:2], keys, strict=False):  # two come
            blocks.there[key] = DATA[extent.offset : extent.offset + extent.size]
        blocks.elsewhere.difference_update(keys[2:4])  # two are given back; and of two nothing is heard
        assert all(map(right, extents[:6], taken))
        assert asked(storage) == 4
        until(lambda: not blocks.claimed)
        assert set(blocks.there) == set(keys[:4])

    def test_what_cannot_be_had_is_given_back_and_what_has_no_etag_is_never_kept(
        self, blocks: Blocks, storage: FaultServer, extents: list[Extent], opened: Callable[..., Reading]
    ) -> None:
        reading = opened(Cache())
        missing = Extent(Object(storage.url_of("gone.tar"), 10, '"x"'), 0, 10)
        whole = Extent(Object(extents[0].object.url, -1, ""), 0, -1)
        announce(reading, [[missing, extents[0], whole]], keep=True)
        found = list(reading.take([missing, extents[0], whole]))
        assert isinstance(found[0], ReadError)
        assert right(extents[0], found[1])
        assert np.array_equal(found[2], DATA)
        until(lambda: not blocks.claimed)
        assert list(blocks.there) == [key_of(extents[0])]

    def test_what_comes_again_soon_and_is_kept_then_is_put(
        self, blocks: Blocks, storage: FaultServer, extents: list[Extent], opened: Callable[..., Reading]
    ) -> None:
        storage.script("data.tar", Fault(delay=0.1))
        reading = opened(Cache())
        announce(reading, [extents[:1]], keep=False)
        until(lambda: asked(storage) == 1)
        reading.announce(extents[:1], Coming(np.arange(1), np.array([True]), turns=1))
        check(reading, extents[:1])
        reading.announce(extents[1:2], Coming(np.arange(1), np.array([False]), turns=2))
        until(lambda: asked(storage) == 2 and reading._here[1]._parts[extents[1]].found is not None)
        reading.announce(extents[1:2], Coming(np.arange(1), np.array([True]), turns=3))
        for extent in (extents[0], extents[1], extents[1]):
            check(reading, [extent])
        until(lambda: set(blocks.there) == set(map(key_of, extents[:2])))
        assert asked(storage) == 2

    def test_it_is_closed_when_no_source_is_left(
        self, blocks: Blocks, storage: FaultServer, extents: list[Extent]
    ) -> None:
        one, other = Reading(Cache()), Reading(Cache())
        check(one, extents[:1])
        check(other, extents[:2])
        del one
        time.sleep(0.1)
        assert not blocks.closed
        del other
        until(lambda: blocks.closed)

    def test_what_is_dropped_is_dropped_when_the_rest_is_taken(
        self, blocks: Blocks, storage: FaultServer, extents: list[Extent], opened: Callable[..., Reading]
    ) -> None:
        reading = opened(Cache())
        drop = [*extents[20:23], Extent(extents[0].object, 0, 0)]
        reading.announce(extents[:4], Coming(np.arange(4)), drop=drop)
        reading.announce((), Coming(np.arange(0), turns=1), drop=extents[23:24])
        check(reading, extents[:3])
        until(lambda: blocks.dropped == [key_of(extents[23])])
        check(reading, extents[3:4])
        until(lambda: blocks.dropped == [key_of(extent) for extent in (extents[23], *extents[20:23])])


def test_a_reading_is_sent_without_what_it_has_read(storage: FaultServer, extents: list[Extent]) -> None:
    reading = Reading(Cache("folder"))
    assert pickle.loads(pickle.dumps(reading)).cache == Cache("folder")
    reading = Reading()
    check(reading, extents[:2])
    copy = pickle.loads(pickle.dumps(reading))
    assert copy._here is None
    check(copy, extents[:2])


@pytest.mark.parametrize("seed", range(4))
def test_by_chance(
    seed: int, blocks: Blocks, storage: FaultServer, extents: list[Extent], opened: Callable[..., Reading]
) -> None:
    """Streams that are left, threads that share a job, samples that come again, faults: what is given is right."""
    draw = random.Random(seed)
    storage.script("data.tar", *[Fault(delay=0.02), Fault(cut=100)] * 2)
    reading = opened(Cache() if seed % 2 else None, memory=draw.choice([0, 60_000, 1 << 30]))
    with ThreadPoolExecutor(3) as pool:
        for _ in range(6):
            jobs = [draw.choices(extents, k=draw.randint(1, 12)) for _ in range(10)]
            turns = draw.randint(1, 6)
            for number, job in enumerate(jobs[: draw.randint(1, 10)]):
                first, last = (0 if number == 0 else number + turns), number + turns
                for turn, coming in enumerate(jobs[first : last + 1], first - number):
                    some = draw.random() < 0.5
                    keep = np.array([not some or draw.random() < 0.5 for _ in coming])
                    drop = draw.sample(job, 1) if some else []
                    reading.announce(coming, Coming(np.arange(len(coming)), keep, turns=turn), drop=drop)
                if draw.random() < 0.1:
                    blocks.there = {}  # it is cleared by somebody
                shares = [job[share::3] for share in range(draw.choice([1, 3]))] if len(job) > 2 else [job]
                for share, found in zip(shares, pool.map(lambda share: list(reading.take(share)), shares), strict=True):
                    assert all(map(right, share, found))
    reading.announce((), Coming.nothing())
    until(lambda: not blocks.claimed)
