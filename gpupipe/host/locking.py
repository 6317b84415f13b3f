"""A lock between the processes of a machine that needs no file of its own."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["folder_lock"]

log = logging.getLogger("gpupipe")


@contextlib.contextmanager
def folder_lock(folder: Path, *, wait: bool, doing: str = "") -> Iterator[None]:
    """Keep other processes of this machine out of the block. The folder itself is locked: no lock file stays behind.

    `doing` says in the log what a process that has to wait waits for. Without `wait` raises BlockingIOError where
    another process is in. On a file system without locks (some network ones) all go in.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _lock(descriptor, folder, wait, doing)
        yield
    finally:
        # closing alone would leave the lock with a child that was forked meanwhile, for as long as it lives
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _lock(descriptor: int, folder: Path, wait: bool, doing: str) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        if not wait:
            raise
        log.info("waiting for another process that %s", doing)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError:
        log.debug("no lock on %s", folder, exc_info=True)
