"""Forked processes must not collect native objects that they inherit as garbage.

The destructor of a DALI pipeline waits for its threads. A fork copies the pipeline but not the threads, so a child (a
DataLoader's worker) whose garbage collection met one would hang or crash, in whatever line it happened to be.
"""

from __future__ import annotations

import gc
import os
from functools import cache

__all__ = ["guard_forks"]


@cache
def guard_forks() -> None:
    """From now on, whatever a forked child inherits is exempt from its cyclic garbage collection.

    The collector is off during the fork itself, since a child may collect in the hooks that run before ours.
    """
    enabled: list[bool] = []

    def before() -> None:
        enabled.append(gc.isenabled())
        gc.disable()

    def in_parent() -> None:
        if enabled.pop():
            gc.enable()

    def in_child() -> None:
        gc.freeze()
        in_parent()

    os.register_at_fork(before=before, after_in_parent=in_parent, after_in_child=in_child)
