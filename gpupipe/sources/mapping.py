"""Files as read-only arrays in memory maps that hold no file descriptor."""

from __future__ import annotations

import ctypes
import os
import weakref
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

__all__ = ["map_file"]

PROT_READ = 1
MAP_SHARED = 1


def map_file(path: str | os.PathLike[str]) -> NDArray[np.uint8]:
    """All bytes of a file as a read-only 1-D uint8 array; the map goes when the last view of it does.

    Raises OSError. An empty file gives an empty array.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        return _map(descriptor, size, os.fspath(path)) if size else np.empty(0, np.uint8)
    finally:
        os.close(descriptor)


def _map(descriptor: int, size: int, path: str) -> NDArray[np.uint8]:
    # Python's own mmap keeps a copy of the descriptor open (until 3.13): 1,000 shards would use up the usual limit.
    libc = _libc()
    address = libc.mmap(None, size, PROT_READ, MAP_SHARED, descriptor, 0)
    if address == ctypes.c_void_p(-1).value:
        code = ctypes.get_errno()
        raise OSError(code, f"mmap failed: {os.strerror(code)}", path)
    buffer = (ctypes.c_uint8 * size).from_address(address)
    weakref.finalize(buffer, libc.munmap, address, size).atexit = False
    return np.frombuffer(memoryview(buffer).toreadonly(), np.uint8)


@lru_cache(maxsize=1)
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    integers = [ctypes.c_int, ctypes.c_int, ctypes.c_int]
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *integers, ctypes.c_long]
    libc.mmap.restype = ctypes.c_void_p
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return libc
