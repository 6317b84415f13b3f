"""The CPUs that candidates run on, and what other processes take of them."""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from pathlib import Path

from gpupipe.tools.benchmark.usage import cpu_seconds

__all__ = ["BUSY", "Others", "busy_seconds", "chosen", "some_cpus"]

BUSY = 0.10
"""From this share of the CPUs' time on, others decide with which settings are fastest: those differ by less."""

TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology"
STAT = Path("/proc/stat")
WORK = (1, 2, 3, 8)  # user, nice, system, steal (what a virtual machine's host takes): words of a line; not interrupts


def chosen(count: int) -> list[int]:
    """So many of the CPUs that this process may use: those that candidates run on."""
    return some_cpus(os.sched_getaffinity(0), count)


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


class Others:
    """Counts, from its making on, how long these CPUs worked for anyone but this process and its descendants."""

    def __init__(self, cpus: Collection[int]) -> None:
        self._cpus = cpus
        self._start = time.monotonic()
        self._before = self._taken()

    def share(self) -> float:
        """Their part of the CPUs' time so far, 0 to 1."""
        seconds = len(self._cpus) * (time.monotonic() - self._start)
        return min(max(self._taken() - self._before, 0.0) / seconds, 1.0) if seconds else 0.0

    def _taken(self) -> float:
        return busy_seconds(self._cpus) - cpu_seconds()


def busy_seconds(cpus: Collection[int], stat: Path = STAT) -> float:
    """How long these CPUs have worked since the machine was started."""
    names = {f"cpu{cpu}" for cpu in cpus}
    lines = (line.split() for line in stat.read_text().splitlines())
    ticks = sum(int(words[column]) for words in lines if words and words[0] in names for column in WORK)
    return ticks / os.sysconf("SC_CLK_TCK")
