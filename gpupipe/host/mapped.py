"""Arrays in files that are mapped into memory. Where such a file is cut, who reads it is ended by a bus error; the
kernel, where it is asked to copy, says so."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["unmapped"]

CUT = "it lies in a file that is mapped into memory, and was cut meanwhile: put the file back"
MOST = 1 << 30  # bytes of one copy: the kernel's own limit is twice that


class _Part(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


def unmapped(array: NDArray[Any]) -> NDArray[Any]:
    """The array, copied where it lies in a mapped file; 150 kB in 62 us, 39 by NumPy (a core of an Intel Xeon).

    Raises ValueError where the file was cut.
    """
    base: Any = array
    while isinstance(base, np.ndarray | memoryview):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    if not isinstance(base, mmap.mmap):
        return array
    try:
        base.size()
    except OSError:  # memory without a file
        return array
    copy: NDArray[Any] = _copied(np.asarray(array))
    if base.size() < len(base):  # what the last page lacks is read as zeros
        raise ValueError(CUT)
    return copy


def _copied(array: NDArray[Any]) -> NDArray[Any]:
    if array.ndim > 1 and not array.flags.c_contiguous:
        return np.stack([_copied(part) for part in array]) if len(array) else np.array(array)
    read = _system_call()
    if read is None or not array.flags.c_contiguous or not 0 < array.nbytes <= MOST:
        return np.array(array)
    copy: NDArray[Any] = np.empty_like(array, subok=False)
    ours, theirs = _Part(copy.ctypes.data, copy.nbytes), _Part(array.ctypes.data, array.nbytes)
    done = read(os.getpid(), ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0)
    if done == array.nbytes:
        return copy
    if done < 0 and ctypes.get_errno() != errno.EFAULT:  # a sandbox may forbid the call
        return np.array(array)
    raise ValueError(CUT)


@cache
def _system_call() -> Any:
    """process_vm_readv(2), which is Linux's."""
    function = getattr(ctypes.CDLL(None, use_errno=True), "process_vm_readv", None)
    if function is not None:
        part = ctypes.POINTER(_Part)
        function.argtypes = (ctypes.c_int, part, ctypes.c_ulong, part, ctypes.c_ulong, ctypes.c_ulong)
        function.restype = ctypes.c_ssize_t
    return function
