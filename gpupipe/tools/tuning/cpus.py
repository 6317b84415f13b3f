"""The CPUs that candidates run on."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["chosen", "pin", "some_cpus"]

TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology"


def pin(count: int) -> None:
    """Let this process and its children run on `count` of its CPUs only."""
    os.sched_setaffinity(0, chosen(count))


def chosen(count: int) -> list[int]:
    """The CPUs that `pin` takes of those that this process may use."""
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
