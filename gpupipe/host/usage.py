"""CPUs and how busy they are; what this process and its descendants take of them, and of memory."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

__all__ = ["busy_seconds", "cpu_seconds", "memory_mb", "process_tree", "some_cpus"]

TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology"
STAT = Path("/proc/stat")
WORK = (1, 2, 3, 8)  # user, nice, system, steal (what a virtual machine's host takes): words of a line; not interrupts


def some_cpus(allowed: set[int], count: int, topology: str = TOPOLOGY) -> list[int]:
    """`count` of these CPUs, of few sockets and whole cores.

    On a machine that several processes share, each has as many halves of cores as the next; the first CPUs by number
    are often the first halves of all cores, and so faster than a fair part.
    """
    return sorted(allowed, key=lambda cpu: (*_place(topology.format(cpu)), cpu))[:count]


def _place(folder: str) -> tuple[int, int]:
    """Socket and core; 0 where the kernel does not tell."""
    try:
        package, core = ((Path(folder) / name).read_text() for name in ("physical_package_id", "core_id"))
        return int(package), int(core)
    except (OSError, ValueError):
        return 0, 0


def busy_seconds(cpus: Collection[int], stat: Path = STAT) -> float:
    """How long these CPUs have worked since the machine was started."""
    names = {f"cpu{cpu}" for cpu in cpus}
    lines = (line.split() for line in stat.read_text().splitlines())
    ticks = sum(int(words[column]) for words in lines if words and words[0] in names for column in WORK)
    return ticks / os.sysconf("SC_CLK_TCK")


def process_tree() -> list[Any]:
    """This process and its living descendants."""
    import psutil

    own = psutil.Process()
    return [own, *own.children(recursive=True)]


def cpu_seconds() -> float:
    """CPU time so far of these processes, and of those of their children that have ended and were waited for."""
    import psutil

    total = 0.0
    for process in process_tree():
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def memory_mb(pids: Iterable[int]) -> float:
    """Megabytes of memory of the processes together; what they share counts once.

    Unlike the sum of their PSS it does not shrink when a process elsewhere maps the same libraries, as the other
    contenders do: anonymous memory counts by PSS (a page that forks share in parts that make one), and each part of
    a mapped file that is resident once.
    """
    anonymous, files = 0, dict[tuple[str, str], int]()
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            anonymous += sum(int(line.split()[1]) for line in lines if line.startswith("Pss_Anon:"))
            for key, kilobytes in file_mappings(pid):
                files[key] = max(files.get(key, 0), kilobytes)
        except (FileNotFoundError, ProcessLookupError, PermissionError):  # it ended just now
            continue
    return (anonymous + sum(files.values())) * 1024 / 1e6


def file_mappings(pid: int) -> Iterator[tuple[tuple[str, str], int]]:
    """((inode, offset), resident kilobytes that are the file's own) of each mapping of a file or shared memory."""
    inode, offset, resident = "0", "0", 0
    with open(f"/proc/{pid}/smaps", errors="replace") as file:
        for line in file:
            words = line.split(maxsplit=5)
            if not words[0].endswith(":"):  # a mapping's head: addresses, rights, offset, device, inode, path
                offset, inode = words[2], f"{words[3]} {words[4]}"
            elif words[0] == "Rss:":
                resident = int(words[1])
            elif words[0] == "Anonymous:" and not inode.endswith(" 0"):
                yield (inode, offset), resident - int(words[1])
