"""Processes that claim, fetch, keep, read and drop blocks of the disk cache as a loader's workers do."""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import signal
import sqlite3
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
from numpy.typing import NDArray

from gpupipe import Cache
from gpupipe.sources.remote.cache import BlockCache, key_of, on_disk, store
from gpupipe.sources.remote.cache.keys import block_size, named
from gpupipe.sources.remote.cache.leases import alive
from reliability.case import Context, NoFunction, expect, expect_equal

__all__ = [
    *(
        "MS_RDONLY",
        "MS_REMOUNT",
        "SIZE",
        "Fetches",
        "Readers",
        "block_files",
        "content",
        "expect_tidy",
        "fill",
        "free_of",
    ),
    *("keys_of", "libc", "mounted", "readable", "settings_of", "settings_size", "taken", "warnings", "work"),
]

SIZE = 20_000  # bytes of a block, about
MS_RDONLY, MS_REMOUNT = 1, 32  # mount(2)


def keys_of(count: int, random: Random | None = None) -> list[str]:
    """Names of blocks, of several sizes where they are drawn."""
    sizes = [random.randint(1, 2 * SIZE) if random else SIZE for _ in range(count)]
    return [key_of(((f"s3://b/d/{place}.tar", 1 << 40, '"e"'), place, size)) for place, size in enumerate(sizes)]


def content(key: str) -> NDArray[np.uint8]:
    """What is in a block."""
    return np.random.default_rng(int(key[:24], 16)).integers(0, 256, block_size(key), np.uint8)


def settings_of(context: Context, blocks: float = 1000, run: str = "one") -> Cache:
    """With room for so many blocks."""
    return Cache(folder=context.folder / "cache", size=int(blocks * on_disk(SIZE)), reserve=0, run=run)


def fill(cache: BlockCache, keys: Sequence[str], hold: bool = False) -> set[str]:
    """Those that are stored."""
    mine = cache.claim(keys, hold).mine
    return cache.put({key: content(key) for key in keys if key in mine})


def readable(cache: BlockCache, keys: Sequence[str]) -> set[str]:
    """Those that can be read; their bytes are right."""
    found = cache.read(keys)
    for key, data in found.items():
        expect(np.array_equal(data, content(key)), f"other bytes under {key}")
    return set(found)


@contextmanager
def warnings() -> Iterator[list[str]]:
    """What is logged at WARNING or above meanwhile, as in a new process: also what was said before."""
    said: list[str] = []
    store._said.clear()

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    handler = Handler(logging.WARNING)
    logging.getLogger("gpupipe").addHandler(handler)
    try:
        yield said
    finally:
        logging.getLogger("gpupipe").removeHandler(handler)


def block_files(settings: Cache) -> list[Path]:
    """All files in the folders of blocks, whole or not."""
    return [path for path in settings.place.glob("[0-9a-f][0-9a-f]/*") if path.is_file()]


def taken(settings: Cache) -> int:
    """Bytes of the disk that they take."""
    return sum(path.lstat().st_blocks * 512 for path in block_files(settings))


def expect_tidy(settings: Cache) -> None:
    """What is listed is there, nothing else is, and the sums are right."""
    cache = BlockCache(replace(settings, run="later"))
    cache.find(keys_of(1))
    cache.close()
    (path,) = settings.place.glob("ledger-*.sqlite")
    with sqlite3.connect(path) as database:
        blocks = database.execute("SELECT data_set, id, size FROM blocks").fetchall()
        claims = database.execute("SELECT lease FROM claims").fetchall()
        total, pending = database.execute("SELECT total, pending FROM facts").fetchone()
    database.close()
    expect_equal(claims, [], "claims of the dead")
    there = {file.name for file in block_files(settings)}
    listed = {named(*block) for block in blocks}
    expect_equal((there - listed, listed - there), (set(), set()), "files that are not listed, and the other way round")
    expect_equal((total, pending), (sum(on_disk(size) for _, _, size in blocks), 0), "the sums")
    leases = settings.place / "leases"
    expect_equal([name for name in os.listdir(leases) if not alive(leases, name)], [], "leases of the dead")
    expect(taken(settings) <= settings_size(settings), f"{taken(settings)} bytes are taken of {settings.size}")


def settings_size(settings: Cache) -> int:
    """A number."""
    assert isinstance(settings.size, int)
    return settings.size


class Readers:
    """Processes that were forked; killed at the end, if they are still there."""

    def __init__(self) -> None:
        self.pids: list[int] = []

    def start(self, work: Callable[..., None], *arguments: object) -> int:
        """In a process of its own, which ends with 0 if the work raises nothing."""
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                work(*arguments)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        self.pids.append(pid)
        return pid

    def kill(self, pid: int) -> None:
        """Kill -9."""
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        self.pids.remove(pid)

    def all_well(self) -> None:
        """Wait for all to end."""
        while self.pids:
            _, status = os.waitpid(pid := self.pids.pop(), 0)
            expect_equal(os.waitstatus_to_exitcode(status), 0, f"exit code of reader {pid}")

    def any_alive(self) -> bool:
        """Whether one has not ended."""
        return any(os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None for pid in self.pids)

    @contextmanager
    def standing(self) -> Iterator[None]:
        """All of them stand still: what is seen of the disk then was there at one moment."""
        for pid in list(self.pids):
            os.kill(pid, signal.SIGSTOP)
            _, status = os.waitpid(pid, os.WUNTRACED)
            if not os.WIFSTOPPED(status):
                self.pids.remove(pid)
                expect_equal(os.waitstatus_to_exitcode(status), 0, f"exit code of reader {pid}")
        try:
            yield
        finally:
            for pid in self.pids:
                os.kill(pid, signal.SIGCONT)

    def __enter__(self) -> Readers:
        return self

    def __exit__(self, *_: object) -> None:
        for pid in list(self.pids):
            self.kill(pid)


class Fetches:
    """How often each block was fetched, and whether a process has begun, by all processes."""

    def __init__(self, count: int) -> None:
        self.counts = np.frombuffer(mmap.mmap(-1, 8 * count), np.int64)


def work(settings: Cache, keys: Sequence[str], seed: int, rounds: int, fetches: Fetches | None = None) -> None:
    """Read batches as a loader's worker does: each block from the cache, else from storage."""
    random, cache = Random(seed), BlockCache(settings)
    for _ in range(rounds):
        batch, hold = random.sample(keys, min(len(keys), random.randint(1, 12))), random.random() < 0.5
        claim = cache.claim(batch, hold)
        random.shuffle(batch)
        fetched = {key: content(key) for key in batch if key in claim.mine}
        if fetches is not None:
            for key in fetched:
                fetches.counts[keys.index(key)] += 1
        lost = [key for key in fetched if random.random() < 0.1] if fetches is None else []
        cache.give_back(lost)
        cache.put({key: data for key, data in fetched.items() if key not in lost})
        waited = cache.wait(claim.elsewhere, 10)
        expect(waited <= claim.elsewhere, "what nobody waited for")
        readable(cache, [*claim.there, *waited])
        if hold and fetches is None:
            cache.drop(random.sample(batch, len(batch) // 2))
    cache.close()


def libc() -> ctypes.CDLL:
    """The system's calls."""
    return ctypes.CDLL(None, use_errno=True)


@contextmanager
def mounted(path: Path, size: str) -> Iterator[None]:
    """A disk of its own, where this user may mount one; the sandbox has mounts of its own."""
    path.mkdir()
    if libc().mount(b"tmpfs", os.fsencode(path), b"tmpfs", 0, f"size={size}".encode()):
        raise NoFunction("only root may mount a disk")
    try:
        yield
    finally:
        libc().umount2(os.fsencode(path), 2)


def free_of(settings: Cache) -> int:
    """Bytes of its disk."""
    disk = os.statvfs(settings.place)
    return disk.f_bavail * disk.f_frsize
