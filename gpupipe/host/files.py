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
import os
import stat
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from gpupipe.errors import GpupipeError
from gpupipe.host.processes import state

__all__ = [
    *(
        "NOT_REGULAR",
        "folder_lock",
        "is_folder",
        "make_private",
        "not_regular",
        "open_own",
        "open_regular",
        "opened",
        "private",
    ),
    *("read_own", "read_regular", "replacing", "unsafe"),
]

log = logging.getLogger("gpupipe")

KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
    stat.S_IFDIR: "a folder",
}
NOT_REGULAR = "not a regular file"
MORE_FILES = "raise `ulimit -n`, or close loaders and files that are not used"
POLL = 0.1  # seconds between two looks at a lock
BEAT = 1.0  # seconds between two signs of life

FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY  # the last two mean nothing to regular files


def not_regular(mode: int) -> str:
    """What a file of this `st_mode` is, where it is no regular one; else an empty string."""
    kind = stat.S_IFMT(mode)
    return "" if kind == stat.S_IFREG else f"it is {KINDS.get(kind, 'of an unknown kind')}, {NOT_REGULAR}"


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
    """As `open_regular`, and what is known of the file that was opened. Raises GpupipeError where too many are open."""
    try:
        descriptor = os.open(path, FLAGS)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):  # which says nothing of this file
            raise GpupipeError(f"{os.fspath(path)} can't be opened: {error.strerror}; {MORE_FILES}") from error
        if error.errno != errno.ENXIO:  # what opening a socket gives
            raise
        raise OSError(errno.ENXIO, not_regular(os.stat(path).st_mode) or error.strerror, os.fspath(path)) from error
    facts = os.fstat(descriptor)
    reason = not_regular(facts.st_mode)
    if reason:
        os.close(descriptor)
        raise OSError(errno.EINVAL, reason, os.fspath(path))
    return descriptor, facts


def unsafe(facts: os.stat_result, owners: Collection[int] = ()) -> str:
    """Why others may have written what this is of, a file or a folder; an empty string where this user or root has, or
    one of the `owners`. What is in a sticky folder others can't replace."""
    if facts.st_uid not in (os.geteuid(), 0, *owners):
        return f"it belongs to user {facts.st_uid}, and this process is user {os.geteuid()}"
    kept = stat.S_ISLNK(facts.st_mode) or (stat.S_ISDIR(facts.st_mode) and facts.st_mode & stat.S_ISVTX)
    loose = facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not kept
    return f"others can write into it (mode {stat.S_IMODE(facts.st_mode):o})" if loose else ""


def open_own(path: str | os.PathLike[str]) -> int:
    """As `open_regular`, of what this user, root or the owner of its folder, who may change all in it, has written, and
    nobody else can have. Raises OSError (EPERM) for another's."""
    descriptor, facts = opened(path)
    reason = unsafe(facts, (os.stat(os.path.dirname(path) or ".").st_uid,))
    if reason:
        os.close(descriptor)
        raise OSError(errno.EPERM, reason, os.fspath(path))
    return descriptor


def read_own(path: str | os.PathLike[str], most: int) -> bytes:
    """As `read_regular`, of what `open_own` opens."""
    return read_regular(path, most, open_own)


def make_private(folder: Path) -> None:
    """Make a folder, with those above it that are not there, for this user alone. Raises OSError."""
    if not folder.is_dir():
        make_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def private(folder: Path, *below: str) -> Path:
    """A folder, with one below it, made for this user alone. Raises OSError (EPERM) where others can write into it."""
    for name in (".", *below):
        folder /= name
        make_private(folder)
        reason = unsafe(folder.stat())
        if reason:
            raise OSError(errno.EPERM, reason, str(folder))
    return folder


def read_regular(
    path: str | os.PathLike[str], most: int, opening: Callable[[str | os.PathLike[str]], int] = open_regular
) -> bytes:
    """All bytes of a regular file. Raises OSError, where there are more than `most` too."""
    with open(opening(path), "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise OSError(errno.EFBIG, f"it has {size:,} bytes, more than the {most:,} that are read", os.fspath(path))
        return file.read(most)


@contextlib.contextmanager
def replacing(path: Path, stale: float = 3600.0) -> Iterator[io.BufferedWriter]:
    """A file to write that becomes `path` when the block ends well: others see the old one, or the new one, whole. They
    can't write into it, whatever the umask.

    What a killed process has left of it is removed once it is `stale` seconds old: a younger file may belong to a
    process on another machine. Raises OSError.
    """
    with contextlib.suppress(OSError):
        for old in path.parent.glob(f"{glob.escape(path.name)}.*tmp"):
            if time.time() - old.lstat().st_mtime >= stale:
                old.unlink(missing_ok=True)
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, 0o644)) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


@contextlib.contextmanager
def folder_lock(
    folder: Path, *, doing: str = "", patience: float | None = None, alive: Callable[[], object] = time.monotonic
) -> Iterator[None]:
    """Keep other processes of this machine out of the block. The folder itself is locked: no lock file stays behind.

    Without `patience` raises BlockingIOError where another process is in. With it waits for that, and raises
    TimeoutError when it has given no sign of life for so many seconds: it touches the folder now and then as long as
    `alive` changes, which that of a stopped process doesn't. `doing` says in the log what is waited for. On a file
    system without locks (some network ones) all go in. Who can read a folder can lock it: data is no place for locks.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _lock(descriptor, folder, doing, patience)
        with contextlib.nullcontext() if patience is None else _pulse(folder, alive):
            yield
    finally:
        # closing alone would leave the lock with a child that was forked meanwhile, for as long as it lives
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _lock(descriptor: int, folder: Path, doing: str, patience: float | None) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        if patience is None:
            raise
        holder = f"{_holder(descriptor)} {doing}"
        log.warning("gpupipe: %s: this process waits for it, as long as it gives signs of life", holder)
        _wait(descriptor, patience, f"{holder}, and has given no sign of life for {patience:.0f} s (lock: {folder})")
    except OSError:
        log.debug("no lock on %s", folder, exc_info=True)


def _holder(descriptor: int) -> str:
    """Which process has locked a file, and its state, as far as that can be seen from here."""
    file = os.fstat(descriptor)
    wanted = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}:{file.st_ino}"
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/locks").read_text().splitlines():
            _, *kind, pid, place, _, _ = line.split()
            if place == wanted and "FLOCK" in kind and int(pid) > 0:
                return f"process {pid}, which {state(int(pid))},"
    return "another process"


def _wait(descriptor: int, patience: float, otherwise: str) -> None:
    touched, since = -1, time.monotonic()
    while True:
        with contextlib.suppress(BlockingIOError):
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        now = os.fstat(descriptor).st_mtime_ns
        if now != touched:
            touched, since = now, time.monotonic()
        elif time.monotonic() - since > patience:
            raise TimeoutError(otherwise)
        time.sleep(POLL)


@contextlib.contextmanager
def _pulse(folder: Path, alive: Callable[[], object]) -> Iterator[None]:
    ended = threading.Event()

    def beat() -> None:
        before: object = None
        while not ended.wait(BEAT):
            now = alive()
            if now != before:
                before = now
                with contextlib.suppress(OSError):
                    os.utime(folder)

    threading.Thread(target=beat, name="gpupipe-pulse", daemon=True).start()
    try:
        yield
    finally:
        ended.set()
