"""Memory that processes share, in a file without a name, which ends with the last process that has it."""

from __future__ import annotations

import mmap
import os
import tempfile
from multiprocessing.reduction import DupFd
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.errors import ConfigError
from gpupipe.host.system import shm_size

__all__ = ["PAGE", "SharedMemory"]

PAGE = mmap.ALLOCATIONGRANULARITY

FOLDER = "/dev/shm"


class SharedMemory:
    """`size` bytes that are mapped, for tensors, at the beginning of a file that can grow.

    Pickles only while a worker process is started.

    The pages that are mapped are reserved here: a full /dev/shm is an error now, not a SIGBUS of whom writes later.
    """

    def __init__(self, size: int) -> None:
        self._fd = _unnamed()
        try:
            os.posix_fallocate(self._fd, 0, max(size, 1))
        except OSError as error:
            raise ConfigError(
                f"{FOLDER} has no room for the {size >> 20} MiB in which workers make batches ({error.strerror}); "
                f"start the container with --shm-size={shm_size(2 * size)}, lower batch_size or num_workers, or "
                "close loaders that are not used"
            ) from error
        self._map(size)

    def _map(self, size: int) -> None:
        self.size = size
        self.bytes: torch.Tensor = torch.frombuffer(mmap.mmap(self._fd, max(size, 1)), dtype=torch.uint8)[:size]

    def __getstate__(self) -> tuple[Any, int]:
        return DupFd(self._fd), self.size

    def __setstate__(self, state: tuple[Any, int]) -> None:
        self._fd = state[0].detach()
        self._map(state[1])

    def __del__(self) -> None:
        if os is not None and hasattr(self, "_fd"):  # None: the interpreter takes itself apart
            os.close(self._fd)

    def write(self, place: int, data: memoryview) -> None:
        """Write into the file. Raises OSError where there is no room; a mapping would end the process."""
        while data:
            written = os.pwrite(self._fd, data, place)
            data, place = data[written:], place + written

    def read(self, place: int, size: int) -> bytearray:
        """What was written."""
        data, done = bytearray(size), 0
        while done < size:
            done += os.preadv(self._fd, [memoryview(data)[done:]], place + done)
        return data

    def reserve(self, place: int, size: int) -> None:
        """Make room for a map. Raises OSError where there is none. Of 36 MiB that are there: 0.6 ms."""
        os.posix_fallocate(self._fd, place, size)

    def map(self, place: int, size: int) -> NDArray[np.uint8]:
        """A part of the file that was reserved, whose place is a multiple of `PAGE`.

        36 MiB are mapped and written in 11 ms, in 43 without MAP_POPULATE, in 19 by `write` (a core of an Intel Xeon).
        """
        flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
        return np.frombuffer(mmap.mmap(self._fd, size, flags=flags, offset=place), np.uint8)


def _unnamed() -> int:
    try:  # as torch's own shared memory: limited by what the container gave /dev/shm
        with tempfile.TemporaryFile(dir=FOLDER, buffering=0) as file:
            return os.dup(file.fileno())
    except OSError:  # it is not there, or not for this user
        return os.memfd_create("gpupipe")
