"""The cache's own folder: nobody else writes there, and it is on a disk of this machine."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from gpupipe.host.files import folder_lock, make_private

__all__ = ["CHOSEN", "PATIENCE", "chosen_size", "locked", "own_folder"]

CHOSEN = "size"  # the file that has it
PATIENCE = 5.0  # seconds that anything here waits for another process, which may be stopped
# Several machines would write into one ledger there, which no lock of theirs keeps in order.
NETWORK = {
    "9p",
    "afs",
    "beegfs",
    "ceph",
    "cifs",
    "fuse.sshfs",
    "glusterfs",
    "gpfs",
    "lustre",
    "nfs",
    "nfs4",
    "orangefs",
}
NETWORK |= {"orangefs", "fuse.ceph", "fuse.glusterfs", "panfs", "pvfs2", "smb3", "smbfs", "virtiofs", "wekafs"}


def own_folder(path: Path) -> os.stat_result:
    """Make it if it is not there. Raises OSError for one that others can write into, and on a network file system."""
    make_private(path)
    link, facts = path.lstat(), path.stat()
    if stat.S_ISLNK(link.st_mode) and link.st_uid not in (os.geteuid(), 0):
        raise _refused(path, f"it is a link that user {link.st_uid} has made")
    if facts.st_uid != os.geteuid():
        raise _refused(path, f"it belongs to user {facts.st_uid}; name a folder of your own")
    if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise _refused(path, "others can write into it; empty it, and take that right away: chmod go-w")
    kind = _file_system(facts.st_dev)
    if kind in NETWORK:
        raise _refused(path, f"it is on a network file system ({kind}); name a folder on a disk of this machine")
    return facts


def chosen_size(folder: Path) -> int:
    """The size of a cache for which none is set, from when it was first used on; 0 before."""
    with contextlib.suppress(OSError, ValueError):
        return int((folder / CHOSEN).read_bytes()[:20])
    return 0


def _refused(path: Path, reason: str) -> OSError:
    return OSError(errno.EPERM, reason, str(path))


def _file_system(device: int) -> str:
    """Its type, as mount has it; empty where that can't be told."""
    number = f"{os.major(device)}:{os.minor(device)}"
    with contextlib.suppress(OSError), open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
        for line in mounts:
            before, _, after = line.partition(" - ")
            if before.split()[2] == number:
                return after.split()[0]
    return ""


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Alone in it among those that ask for this. Raises BlockingIOError where another one keeps it, and what it makes
    has not grown for a while."""
    seen, deadline = _growth(folder), time.monotonic() + PATIENCE
    while True:
        lock = folder_lock(folder)
        try:
            lock.__enter__()
        except BlockingIOError:
            if (now := _growth(folder)) != seen:
                seen, deadline = now, time.monotonic() + PATIENCE
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
            continue
        with contextlib.ExitStack() as stack:
            stack.push(lock)
            yield
        return


def _growth(folder: Path) -> int:
    """Bytes of new files that have no name yet that counts."""
    with contextlib.suppress(OSError):
        return sum(path.stat().st_size for path in folder.glob("new-*"))
    return 0
