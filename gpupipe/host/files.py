"""Opening data files, regular ones only and never waiting, writing files that are whole or not there, and a lock
between the processes of a machine that needs no file of its own.

Opening a FIFO waits for whoever writes into it, and reading a device may never end. Both can lie where data belongs.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import io
import logging
import math
import os
import stat
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

__all__ = ["folder_lock", "is_folder", "not_regular", "open_regular", "opened", "read_regular", "replacing"]

log = logging.getLogger("gpupipe")

KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
    stat.S_IFDIR: "a folder",
}
POLL = 0.1  # seconds between two looks at a lock

FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY  # the last two mean nothing to regular files


def not_regular(mode: int) -> str:
    """What a file of this `st_mode` is, where it is no regular one; else an empty string."""
    kind = stat.S_IFMT(mode)
    return "" if kind == stat.S_IFREG else f"it is {KINDS.get(kind, 'of an unknown kind')}, not a regular file"


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether it is a folder, or a link to one; a link to itself is none, and opening it says what it is."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def open_regular(path: str | os.PathLike[str]) -> int:
    """A descriptor to read a regular file with, links followed.

    Raises OSError, for anything else (FIFO, socket, device, folder) too, and at once.
    """
    return opened(path)[0]


def opened(path: str | os.PathLike[str]) -> tuple[int, os.stat_result]:
    """As `open_regular`, and what is known of the file that was opened."""
    try:
        descriptor = os.open(path, FLAGS)
    except OSError as error:
        if error.errno != errno.ENXIO:  # what opening a socket gives
            raise
        raise OSError(errno.ENXIO, not_regular(os.stat(path).st_mode) or error.strerror, os.fspath(path)) from error
    facts = os.fstat(descriptor)
    reason = not_regular(facts.st_mode)
    if reason:
        os.close(descriptor)
        raise OSError(errno.EINVAL, reason, os.fspath(path))
    return descriptor, facts


def read_regular(path: str | os.PathLike[str], most: int) -> bytes:
    """All bytes of a regular file. Raises OSError, where there are more than `most` too."""
    with open(open_regular(path), "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise OSError(errno.EFBIG, f"it has {size:,} bytes, more than the {most:,} that are read", os.fspath(path))
        return file.read(most)


@contextlib.contextmanager
def replacing(path: Path, stale: float = 3600.0) -> Iterator[io.BufferedWriter]:
    """A file to write that becomes `path` when the block ends well: others see the old one, or the new one, whole.

    What a killed process has left of it is removed once it is `stale` seconds old: a younger file may belong to a
    process on another machine. Raises OSError.
    """
    with contextlib.suppress(OSError):
        for old in path.parent.glob(f"{glob.escape(path.name)}.*tmp"):
            if time.time() - old.lstat().st_mtime >= stale:
                old.unlink(missing_ok=True)
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


@contextlib.contextmanager
def folder_lock(folder: Path, *, wait: bool, doing: str = "", patience: float = math.inf) -> Iterator[None]:
    """Keep other processes of this machine out of the block. The folder itself is locked: no lock file stays behind.

    `doing` says in the log what a process that has to wait waits for. Without `wait` raises BlockingIOError where
    another process is in. On a file system without locks (some network ones) all go in. With `patience` raises
    TimeoutError after so many seconds in which the one that is in has not touched the folder, as a stopped one doesn't.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _lock(descriptor, folder, wait, doing, patience)
        yield
    finally:
        # closing alone would leave the lock with a child that was forked meanwhile, for as long as it lives
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _lock(descriptor: int, folder: Path, wait: bool, doing: str, patience: float) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        if not wait:
            raise
        log.info("waiting for another process that %s", doing)
        if patience == math.inf:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        else:
            _wait(descriptor, patience)
    except OSError:
        log.debug("no lock on %s", folder, exc_info=True)


def _wait(descriptor: int, patience: float) -> None:
    touched, since = -1, time.monotonic()
    while True:
        with contextlib.suppress(BlockingIOError):
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        now = os.fstat(descriptor).st_mtime_ns
        if now != touched:
            touched, since = now, time.monotonic()
        elif time.monotonic() - since > patience:
            raise TimeoutError
        time.sleep(POLL)
