"""Memory that processes share, in a file without a name, which ends with the last process that has it."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterable
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any

import torch

from gpupipe.errors import ConfigError
from gpupipe.host.system import docker_size

__all__ = ["SharedMemory"]

FOLDER = Path("/dev/shm")


class SharedMemory:
    """`size` bytes that are mapped, for tensors; and a file behind them, which grows as it is written.

    Pickles only while a worker process is started.

    The pages that are mapped are reserved here: a full /dev/shm is an error now, not a SIGBUS of whom writes later.
    """

    def __init__(self, size: int) -> None:
        # As torch's own shared memory: limited by what the container gave /dev/shm.
        with tempfile.TemporaryFile(dir=FOLDER if FOLDER.is_dir() else None, buffering=0) as file:
            self._fd = os.dup(file.fileno())
        try:
            os.posix_fallocate(self._fd, 0, max(size, 1))
        except OSError as error:
            raise ConfigError(
                f"{FOLDER} has no room for the {size >> 20} MiB in which workers make batches ({error.strerror}); "
                f"start the container with --shm-size={docker_size(2 * size)}, or lower batch_size or num_workers"
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
        if hasattr(self, "_fd"):
            os.close(self._fd)

    def append(self, place: int, parts: Iterable[memoryview]) -> None:
        """Write the parts one behind the other into the file, `place` bytes behind what is mapped.

        Raises OSError where there is no room; a write into a mapping would end the process.
        """
        place += self.size
        for part in parts:
            while part:
                written = os.pwrite(self._fd, part, place)
                part, place = part[written:], place + written

    def read(self, place: int, sizes: Iterable[int]) -> list[bytearray]:
        """The parts that `append` has written."""
        place += self.size
        parts = []
        for size in sizes:
            part, done = bytearray(size), 0
            while done < size:
                done += os.preadv(self._fd, [memoryview(part)[done:]], place + done)
            parts.append(part)
            place += size
        return parts
