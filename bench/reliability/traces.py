"""What a process has open, and what it leaves behind. From /proc, as Linux has it."""

from __future__ import annotations

import ctypes
import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from pathlib import Path

__all__ = ["SHM", "Usage", "held_elsewhere", "left_behind", "members", "own_shm", "shm_entries", "threads"]

PROC, SHM = Path("/proc"), Path("/dev/shm")
CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 0x40000  # mount(2)


@dataclass(frozen=True)
class Process:
    """A line of /proc/PID/stat."""

    pid: int
    name: str
    state: str
    parent: int
    session: int

    def __str__(self) -> str:
        return f"{self.pid} ({self.name}{', a zombie' if self.state == 'Z' else ''})"


def processes() -> Iterator[Process]:
    """All processes of the machine."""
    for entry in os.listdir(PROC):
        if entry.isdigit():
            with suppress(OSError):
                head, _, tail = (PROC / entry / "stat").read_text().rpartition(")")
                state, parent, _, session = tail.split()[:4]
                yield Process(int(entry), head.partition("(")[2], state, int(parent), int(session))


def members(session: int) -> list[Process]:
    """The living processes of a session; zombies don't count, as they wait for init alone."""
    return [process for process in processes() if process.session == session and process.state != "Z"]


@dataclass(frozen=True)
class Usage:
    """What this process has: open files by what they are, threads by name, children.

    What multiprocessing keeps for the life of a process doesn't count: its resource tracker and its fork server.
    """

    files: Counter[str]
    threads: Counter[str]
    children: Counter[str]

    @classmethod
    def now(cls) -> Usage:
        """Of this process."""
        return cls(Counter(_files()), Counter(threads()), Counter(_children()))

    def beyond(self, earlier: Usage) -> str:
        """What there is more of than there was, in words; empty if nothing."""
        more = [
            f"{kind}: {', '.join(sorted(extra.elements()))}"
            for kind, extra in (
                ("open files", self.files - earlier.files),
                ("threads", self.threads - earlier.threads),
                ("children", self.children - earlier.children),
            )
            if extra
        ]
        return "; ".join(more)


def _files() -> Iterator[str]:
    kept = (getattr(resource_tracker._resource_tracker, "_fd", None), forkserver._forkserver._forkserver_alive_fd)
    for name in os.listdir(PROC / "self" / "fd"):
        if int(name) not in kept:
            with suppress(OSError):  # the one that lists the folder is closed again
                yield re.sub(r"\[\d+\]", "", os.readlink(PROC / "self" / "fd" / name))


def threads() -> Iterator[str]:
    """The names of this process's threads."""
    for task in os.listdir(PROC / "self" / "task"):
        with suppress(OSError):
            yield (PROC / "self" / "task" / task / "comm").read_text().strip()


def _children() -> Iterator[str]:
    kept = (getattr(resource_tracker._resource_tracker, "_pid", None), forkserver._forkserver._forkserver_pid)
    for process in processes():
        if process.parent == os.getpid() and process.pid not in kept:
            yield str(process)


def own_shm() -> None:
    """As root: a /dev/shm for this process and its later children, in which no other program leaves anything."""
    libc = ctypes.CDLL(None)
    if libc.unshare(CLONE_NEWNS) == 0:
        libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None)
        libc.mount(b"tmpfs", os.fsencode(SHM), b"tmpfs", 0, None)


def shm_entries() -> set[str]:
    """The names in /dev/shm."""
    return set(os.listdir(SHM))


def left_behind(before: set[str], session: int) -> set[str]:
    """New entries of /dev/shm since `before`, without those of other programs, which run at the same time."""
    return {name for name in shm_entries() - before if not held_elsewhere(name, session)}


def held_elsewhere(name: str, session: int) -> bool:
    """Whether a process outside of the session has this entry of /dev/shm open or mapped."""
    path = str(SHM / name)
    for process in processes():
        if process.session != session and process.pid != os.getpid():
            with suppress(OSError):
                folder = PROC / str(process.pid)
                links = (os.readlink(folder / "fd" / fd) for fd in os.listdir(folder / "fd"))
                if path in links or path in (folder / "maps").read_text():
                    return True
    return False
