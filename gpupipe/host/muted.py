"""What native libraries print."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

__all__ = ["muted"]

_lock = threading.Lock()
_inside = 0  # blocks, of all threads


@contextmanager
def muted() -> Iterator[None]:
    """Nothing that C code of this process prints to its `stderr` meanwhile is seen: decoders print of damaged files
    without their names, and who calls them names these. What Python prints, and who aborts a process, goes on."""
    global _inside
    streams = _streams()
    if streams is None:
        yield
        return
    place, usual, nowhere = streams
    with _lock:
        _inside += 1
        place.value = nowhere
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside:
                place.value = usual


@cache
def _streams() -> tuple[ctypes.c_void_p, int | None, int] | None:
    """The variable, its value, and one that prints nowhere; None for C libraries other than glibc, where it may be a
    constant."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "gnu_get_libc_version"):
        return None
    libc.fopen.restype = ctypes.c_void_p
    place = ctypes.c_void_p.in_dll(libc, "stderr")
    nowhere = libc.fopen(b"/dev/null", b"we")
    return (place, place.value, nowhere) if nowhere else None
