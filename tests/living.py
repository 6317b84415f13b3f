"""Which processes run."""

from __future__ import annotations

from contextlib import suppress

import psutil

__all__ = ["lives"]


def lives(pid: int) -> bool:
    """Whether a process runs; one that has ended, which an init may leave lying about, does not."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False
