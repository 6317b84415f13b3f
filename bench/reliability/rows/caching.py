"""Rows 31, 41 to 46, 50, 54 and 55: the disk cache of what was read from a storage, by itself."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

from gpupipe import Cache
from gpupipe.sources.remote.cache import BlockCache, folder, ledger, on_disk, store
from gpupipe.sources.remote.cache.keys import file_name
from gpupipe.sources.remote.cache.ledger import Ledger
from reliability.cached import (
    MS_RDONLY,
    MS_REMOUNT,
    SIZE,
    Fetches,
    Readers,
    block_files,
    content,
    expect_tidy,
    fill,
    free_of,
    keys_of,
    libc,
    mounted,
    readable,
    settings_of,
    settings_size,
    taken,
    warnings,
    work,
)
from reliability.case import Case, Context, Row, expect, expect_equal

__all__ = ["ROWS"]

# Row 31


def read_only(context: Context) -> None:
    """Nothing can be written there."""
    settings = settings_of(context)
    with mounted(context.folder / "cache", "4m"):
        libc().mount(b"tmpfs", os.fsencode(context.folder / "cache"), b"tmpfs", MS_REMOUNT | MS_RDONLY, None)
        expect_no_cache(settings, "ead-only")


def expect_no_cache(settings: Cache, reason: str) -> None:
    """All comes from the storage, which is said once."""
    cache, keys = BlockCache(settings), keys_of(5)
    with warnings() as said:
        for _ in range(3):
            expect_equal(cache.claim(keys, hold=True), (set(keys), set(), set()), "claims")
            expect_equal(cache.put({key: content(key) for key in keys}), set(), "stored")
            expect_equal((cache.find(keys), cache.wait(keys, 5), cache.size()), (set(), set(), 0), "what is there")
            expect_equal(cache.read(keys[:1]), {}, "what is read")
            cache.drop(keys)
            cache.give_back(keys)
        cache.close()
    expect(len(said) == 1 and reason in said[0], f"was said: {said}")


def full(context: Context) -> None:
    """Others fill the disk while blocks are written."""
    keys, filler = keys_of(60), context.folder / "cache/filler"
    with mounted(context.folder / "cache", "1m"), warnings() as said:
        settings = replace(settings_of(context), size="1T")
        cache = BlockCache(settings)
        before = fill(cache, keys[:5])
        expect_equal(before, set(keys[:5]), "stored while there is room")
        claimed = cache.claim(keys[5:15], hold=False).mine
        with suppress_full(), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        stored = cache.put({key: content(key) for key in claimed})
        expect(len(stored) < 10, "more was stored than there is room for")
        expect_equal(len(said), 1, f"times that something was said: {said}")
        for key in keys[15:]:
            fill(cache, [key])
        expect_equal(len(said), 1, f"times that something was said: {said}")
        readable(cache, keys)
        expect(before <= readable(cache, keys), "what was there before can't be read")
        expect(not [path for path in block_files(settings) if path.name.count(".") > 1], "half a block")
        cache.close()


@contextmanager
def suppress_full() -> Iterator[None]:
    """Until the disk is full."""
    try:
        yield
    except OSError as error:
        expect("space" in str(error), str(error))


def with_reserve(context: Context) -> None:
    """The disk is never filled beyond the reserve, by several processes."""
    keys = keys_of(300, context.random)
    with mounted(context.folder / "cache", "4m"), Readers() as readers:
        settings = replace(settings_of(context), size="1T", reserve=1_500_000)
        one, other = BlockCache(settings), BlockCache(settings)
        claims = [(cache, cache.claim(keys[:150], hold=False).mine) for cache in (one, other)]
        claims += [(cache, cache.claim(keys[150:], hold=False).mine) for cache in (other, one)]
        for cache, mine in claims:
            cache.put({key: content(key) for key in mine})
        expect(free_of(settings) >= 1_500_000 - 700_000, f"{free_of(settings)} bytes are free")
        one.close()
        other.close()
        for _ in range(3):
            readers.start(work, settings, keys, context.random.random(), 60)
        deadline = time.monotonic() + 10
        while readers.any_alive() and time.monotonic() < deadline:
            free = free_of(settings)
            expect(free >= 1_500_000 - 700_000, f"{free} bytes are free")  # less what folders and the ledger take
            time.sleep(0.002)
        readers.all_well()


def deleted(context: Context) -> None:
    """The whole folder, while four processes work with it."""
    keys, settings = keys_of(100, context.random), settings_of(context)
    with Readers() as readers:
        for _ in range(4):
            readers.start(work, settings, keys, context.random.random(), 60)
        for _ in range(3):
            time.sleep(context.random.uniform(0, 0.1))
            shutil.rmtree(settings.place, ignore_errors=True)
        readers.all_well()
    later = BlockCache(settings)
    readable(later, keys)  # which finds out what was listed before it was deleted
    later.close()
    expect_tidy(settings)


def shared(context: Context) -> None:
    """Each block is fetched once by four processes, and by two runs."""
    keys, settings = keys_of(150, context.random), settings_of(context)
    fetches = Fetches(len(keys))
    with Readers() as readers:
        for place in range(8):
            run = replace(settings, run=str(place % 2))
            readers.start(work, run, keys, context.random.random(), 25, fetches)
        readers.all_well()
    expect(fetches.counts.max() <= 1, f"a block was fetched {fetches.counts.max()} times")
    expect_tidy(settings)


STEPS = ((os, "open"), (os, "writev"), (os, "rename"), (os, "unlink"), (Ledger, "execute"), (Ledger, "select"))


def dies_at(step: int, settings: Cache, keys: Sequence[str], seed: int) -> None:
    """A worker that is killed before so many steps that change something, at whatever point that is."""
    left = [step]

    def counted(function: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **named: object) -> object:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **named)

        return call

    for owner, name in STEPS:
        setattr(owner, name, counted(getattr(owner, name)))
    work(settings, keys, seed, 1000)


def leftovers(context: Context) -> None:
    """Of processes that are killed at any point: nothing is left, and nothing is wrong."""
    keys, settings = keys_of(60, context.random), settings_of(context, 40)
    for _ in range(3):
        with Readers() as readers:
            for _ in range(2):
                arguments = (context.random.randint(20, 600), settings, keys, context.random.random())
                readers.start(dies_at, *arguments)
            for pid in readers.pids:
                os.waitpid(pid, 0)
            readers.pids.clear()
        expect_tidy(settings)
        cache = BlockCache(settings)
        readable(cache, keys)
        cache.close()


def killed(context: Context) -> None:
    """The same by the clock, beside one that lives on."""
    keys, settings = keys_of(60, context.random), settings_of(context, 40)
    with Readers() as readers:
        readers.start(work, settings, keys, context.random.random(), 80)
        for _ in range(4):
            pid = readers.start(work, settings, keys, context.random.random(), 10**6)
            time.sleep(context.random.uniform(0.02, 0.15))
            readers.kill(pid)
        readers.all_well()
    expect_tidy(settings)


# Row 41


def held(context: Context) -> None:
    """What one rank holds is there, whatever three others put, until it drops it."""
    keys, settings = keys_of(80), settings_of(context, 30)
    cache = BlockCache(settings)
    mine, theirs = keys[:20], keys[20:]
    expect_equal(fill(cache, mine, hold=True), set(mine), "held")
    with Readers() as readers:
        for _ in range(3):
            readers.start(work, replace(settings, run="other"), theirs, context.random.random(), 30)
        while readers.any_alive():
            expect_equal(readable(cache, mine), set(mine), "what is held and there")
        readers.all_well()
    cache.close()
    expect_tidy(settings)


def unlinked(context: Context) -> None:
    """A block is removed again and again while another process reads it."""
    settings, key = settings_of(context), keys_of(1)[0]
    with Readers() as readers:
        readers.start(removes, settings, key)
        cache = BlockCache(settings)
        found = {True: 0, False: 0}
        while min(found.values()) < 50:
            found[bool(readable(cache, [key]))] += 1
        cache.close()
        readers.kill(readers.pids[0])
    expect_tidy(settings)


def removes(settings: Cache, key: str) -> None:
    """Puts and drops a block until it is killed."""
    cache = BlockCache(settings)
    while True:
        fill(cache, [key], hold=True)
        time.sleep(0.0005)
        cache.drop([key])


# Row 42


def shrinks(context: Context) -> None:
    """A smaller size than before, and a run before it that was killed with all that it held."""
    keys, settings = keys_of(60, context.random), settings_of(context, 60)
    with Readers() as readers:
        pid = readers.start(holds, settings, keys, context.folder / "ready")
        while not (context.folder / "ready").exists():
            time.sleep(0.01)
        readers.kill(pid)
    before, smaller = taken(settings), settings_of(context, 10, run="two")
    cache = BlockCache(smaller)
    cache.find(keys[:1])
    expect(before > settings_size(smaller) >= taken(smaller), f"{taken(smaller)} of {before} bytes are still there")
    expect(len(fill(cache, keys_of(70)[60:], hold=True)) >= 9, "no room for a new run")
    cache.close()
    expect_tidy(smaller)


def holds(settings: Cache, keys: Sequence[str], ready: Path) -> None:
    """A run that has come to hold all, and waits to be killed."""
    fill(BlockCache(settings), keys, hold=True)
    ready.touch()
    time.sleep(60)


# Row 43


def too_small(context: Context) -> None:
    """A size below that of one block: nothing is kept, nothing waits."""
    settings, keys = replace(settings_of(context), size=on_disk(SIZE) - 1), keys_of(5)
    fetches = Fetches(len(keys))
    with Readers() as readers:
        for _ in range(2):
            readers.start(work, settings, keys, context.random.random(), 20, fetches)
        readers.all_well()
    expect(int(fetches.counts.min()) > 1, "something was kept")
    expect_equal(block_files(settings), [], "files")


# Rows 45 and 46


def partial(context: Context) -> None:
    """Eight runs are killed while they write; the files that they have begun are gone once another begins."""
    settings = settings_of(context)
    for number in range(8):
        with Readers() as readers:
            pid = readers.start(dies_writing, replace(settings, run=str(number)), context.random.randint(1, 20))
            os.waitpid(pid, 0)
            readers.pids.clear()
    expect_tidy(settings)


def dies_writing(settings: Cache, count: int) -> None:
    """In the middle of its so many-th block."""
    cache, keys, write, left = BlockCache(settings), keys_of(20), os.writev, [count]

    def half(file: int, parts: Sequence[memoryview]) -> int:
        left[0] -= 1
        if left[0] == 0:
            write(file, [parts[0][: SIZE // 2]])
            os.kill(os.getpid(), signal.SIGKILL)
        return write(file, parts)

    os.writev = half  # type: ignore[assignment]
    fill(cache, keys, hold=True)


def never_above(context: Context) -> None:
    """Eight processes of two runs, with too little room for half of what they read; its size holds at every moment."""
    keys, settings = keys_of(120, context.random), settings_of(context, 50)
    most = 0
    with Readers() as readers:
        for place in range(8):
            readers.start(work, replace(settings, run=str(place % 2)), keys, context.random.random(), 20)
        while readers.pids:
            with readers.standing():
                most = max(most, taken(settings))
            time.sleep(context.random.uniform(0, 0.02))
    expect(0 < most <= settings_size(settings), f"{most} bytes were taken of {settings.size}")
    expect_tidy(settings)


def stopped(context: Context) -> None:
    """A process that is stopped while it has the ledger's lock: others wait a bounded time, say so once, and go on."""
    settings, keys = settings_of(context), keys_of(20)
    folder.PATIENCE = ledger.PATIENCE = 0.5  # instead of 5 s
    cache = BlockCache(settings)
    fill(cache, keys[:10])
    with Readers() as readers, warnings() as said:
        pid = readers.start(stops_itself, settings)
        os.waitpid(pid, os.WUNTRACED)
        begun = time.monotonic()
        expect_equal(cache.claim(keys, hold=True), (set(keys[10:]), set(keys[:10]), set()), "the claim")
        expect(time.monotonic() - begun < 3, f"waited for {time.monotonic() - begun:.1f} s")
        for _ in range(5):
            expect_equal(cache.put({key: content(key) for key in keys[10:]}), set(), "stored")
            expect_equal(readable(cache, keys), set(keys[:10]), "what can be read")
            cache.drop(keys)
        expect(time.monotonic() - begun < 3, f"waited for {time.monotonic() - begun:.1f} s in all")
        other = BlockCache(settings)
        expect_equal(other.size(), 0, "what one that comes now may use")
        expect(time.monotonic() - begun < 6, "it waits too long")
        expect(len(said) == 2 and "locked" in said[0] + said[1], f"was said: {said}")  # by each of the two
        readers.kill(pid)
    other.close()
    cache.close()
    expect_tidy(settings)


def stops_itself(settings: Cache) -> None:
    """In the middle of a transaction."""
    cache = BlockCache(settings)
    cache.find(keys_of(1))
    assert cache._session is not None
    with cache._session.stock.writing():
        os.kill(os.getpid(), signal.SIGSTOP)


# Rows 50 and 54


def flipped_block(context: Context) -> None:
    """A bit of a block: it is fetched again, and kept again."""
    settings, keys = settings_of(context), keys_of(10, context.random)
    cache = BlockCache(settings)
    fill(cache, keys)
    for key in context.random.sample(keys, 5):
        path = settings.place / file_name(key)[6:8] / file_name(key)
        flip(path, context.random)
        expect(not cache.read([key]), "a damaged block was read")
        expect_equal(readable(cache, keys), set(keys) - {key}, "the others")
        expect_equal(fill(cache, [key]), {key}, "stored again")
        expect_equal(readable(cache, keys), set(keys), "all")
    path = settings.place / file_name(keys[0])[6:8] / file_name(keys[0])
    os.truncate(path, context.random.randrange(path.stat().st_size))
    expect_equal(readable(cache, keys), set(keys[1:]), "what can be read beside one that is cut")
    cache.close()
    expect_tidy(settings)


def flip(path: Path, random: Random) -> None:
    """One bit."""
    place, bit = random.randrange(path.stat().st_size), 1 << random.randrange(8)
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ bit]))


def flipped_ledger(context: Context) -> None:
    """A bit of the ledger, closed or in use: no block is ever wrong, and its size holds afterwards."""
    keys, settings = keys_of(60, context.random), settings_of(context, 30)
    for _ in range(6):
        cache = BlockCache(settings)
        fill(cache, context.random.sample(keys, 30), hold=context.random.random() < 0.5)
        if context.random.random() < 0.5:
            cache.close()
        flip(max(settings.place.glob("ledger-*.sqlite*"), key=lambda path: context.random.random()), context.random)
        store.PAUSE = 0.0
        for _ in range(4):
            fill(cache, context.random.sample(keys, 10))
            readable(cache, keys)
        cache.close()
    again = BlockCache(settings)
    again.size()
    expect(taken(settings) <= settings_size(settings) + 2 * on_disk(2 * SIZE), f"{taken(settings)} bytes are taken")
    again.close()


def lost_ledger(context: Context) -> None:
    """It is deleted, or is nothing of a ledger any more, while two processes work: it is made again from the blocks."""
    keys, settings = keys_of(60, context.random), settings_of(context, 40)
    cache, other = BlockCache(settings), BlockCache(settings)
    stored = fill(cache, keys[:5])
    for damage in (remove_ledger, spoil_sums):
        for path in settings.place.glob("ledger-*.sqlite"):
            damage(path)
        stored |= fill(other, [key for key in keys[:15] if key not in stored][:5])
        expect_equal(cache.find(keys), stored, "what another finds")
        expect_tidy(settings)
    other.close()
    with Readers() as readers:
        for _ in range(2):
            readers.start(work, settings, keys, context.random.random(), 60)
        for damage in (remove_ledger, empty_ledger):
            time.sleep(context.random.uniform(0.05, 0.2))
            for path in settings.place.glob("ledger-*.sqlite"):
                damage(path)
        readers.all_well()
    expect(stored, "nothing was stored")
    readable(cache, keys)
    cache.close()
    expect_tidy(settings)


def remove_ledger(path: Path) -> None:
    """It is gone."""
    path.unlink(missing_ok=True)


def empty_ledger(path: Path) -> None:
    """It is no database."""
    path.write_bytes(b"no database" * 1000)


def spoil_sums(path: Path) -> None:
    """A bit of what is taken in all."""
    with sqlite3.connect(path) as database:
        database.execute("UPDATE facts SET total = total + (1 << 40)")
    database.close()


# Row 55


def planted(context: Context) -> None:
    """What others put in the place of blocks is never read, nor written through."""
    settings, keys = settings_of(context), keys_of(6)
    cache = BlockCache(settings)
    fill(cache, keys)
    paths = [settings.place / file_name(key)[6:8] / file_name(key) for key in keys]
    victim = context.folder / "victim"
    victim.write_bytes(b"mine")
    if os.geteuid() == 0:
        os.chown(paths[0], 12345, 12345)  # the right bytes
        expect_equal(readable(cache, keys[:1]), set(), "what can be read of another user's")
        fill(cache, keys[:1])
    for path in paths[:5]:
        path.unlink()
    paths[0].write_bytes(bytes(SIZE + 8))
    paths[1].symlink_to(victim)
    os.mkfifo(paths[2])
    os.link(paths[5], paths[3])  # another block's bytes, with their checksum
    paths[4].mkdir()
    expect_equal(readable(cache, keys), {keys[5]}, "what can be read")
    fill(cache, keys)
    expect({keys[0], keys[1], keys[3], keys[5]} <= readable(cache, keys), "what was replaced can't be kept again")
    expect_equal(victim.read_bytes(), b"mine", "a file elsewhere")
    cache.close()


def of_others(context: Context) -> None:
    """Folders that others can write into, or own, or have linked."""
    settings = settings_of(context)
    settings.place.mkdir(parents=True)
    settings.place.chmod(0o777)
    expect_no_cache(settings, "others can write into it")
    settings.place.chmod(0o700)
    if os.geteuid() == 0:
        os.chown(settings.place, 12345, 12345)
        expect_no_cache(settings, "belongs to user 12345")
        settings.place.rmdir()
        (context.folder / "elsewhere").mkdir(mode=0o700)
        settings.place.symlink_to(context.folder / "elsewhere")
        os.chown(settings.place, 12345, 12345, follow_symlinks=False)
        expect_no_cache(settings, "a link that user 12345")
        settings.place.unlink()
    else:
        settings.place.rmdir()
    settings.place.write_bytes(b"")
    expect_no_cache(settings, "File exists")


GPUPIPE = ("gpupipe",)


def case(name: str, run: Callable[[Context], None], limit: float = 30.0) -> Case:
    """For gpupipe's cache alone."""
    return Case(name, run, only=GPUPIPE, limit=limit)


ROWS = (
    Row(
        31,
        "The cache's folder",
        "samples come from storage, which is said once; nothing of dead processes is left",
        (
            case("read-only", read_only),
            case("a full disk", full),
            case("the disk's reserve", with_reserve),
            case("deleted midway", deleted),
            case("shared by 8 processes of two runs", shared),
            case("processes killed at any step", leftovers),
            case("processes killed at any moment", killed),
        ),
    ),
    Row(
        41,
        "A block is deleted while another rank needs it",
        "what is held is there until it is dropped; what is removed while it is read is whole or not there",
        (case("held by a rank", held), case("removed while it is read", unlinked)),
    ),
    Row(
        42, "The cache never shrinks", "a smaller size holds at once", (case("a smaller size, after a crash", shrinks),)
    ),
    Row(43, "A limit below one shard", "nothing is kept, nothing waits", (case("below one block", too_small),)),
    Row(45, "Partial files pile up", "none is left", (case("killed while writing", partial),)),
    Row(
        46,
        "Concurrent runs race",
        "the size holds at every moment; a stopped process stops no other",
        (case("two runs, eight processes", never_above), case("stopped with the lock", stopped)),
    ),
    Row(50, "A checksum that does not match", "fetched again", (case("a bit of a block", flipped_block),)),
    Row(
        54,
        "A bit of a cache's file flips",
        "made anew or fetched again, never other bytes",
        (case("a bit of the ledger", flipped_ledger), case("a ledger that is lost", lost_ledger)),
    ),
    Row(
        55,
        "A cache entry planted by another user",
        "never read, never written through",
        (case("entries", planted), case("folders", of_others)),
    ),
)
