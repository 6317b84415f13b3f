"""Blocks as files: written under another name first, with a checksum at the end."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.errors import ConfigError
from gpupipe.sources.remote.cache.keys import FILE, ID, SET, file_name, seed_of
from gpupipe.sources.remote.cache.settings import TRAILER

__all__ = ["BadBlock", "Blocks"]

# O_NOATIME, or the first read of a block would change its inode; another user's file can't be opened so, but by root.
READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOATIME
WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
GET_FLAGS, SET_FLAGS, TOP = 0x80086601, 0x40086602, 0x20000  # ioctls of Linux, and FS_TOPDIR_FL: chattr +T
# A link, a socket, a bad sector, a folder, another user's.
NOT_ITS_OWN = (errno.ELOOP, errno.ENXIO, errno.EIO, errno.EISDIR, errno.EPERM)


class BadBlock(ValueError):
    """What lies there is not what was put there."""


@cache
def _checksum() -> Any:
    try:
        from xxhash import xxh3_64_intdigest
    except ImportError:
        raise ConfigError("a cache needs xxhash; install it with: pip install 'gpupipe[remote]'") from None
    return xxh3_64_intdigest


class Blocks:
    """The files in 256 folders below the cache's own."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self._user = os.geteuid()

    def _path(self, name: str) -> str:
        return f"{self._root}/{name[SET : SET + 2]}/{name}"

    def write(self, key: str, data: NDArray[np.uint8], lease: str) -> None:
        """Whole or not at all. Raises OSError."""
        name = file_name(key)
        path, temporary = self._path(name), self._path(f"{name}.{lease}")
        trailer = _checksum()(data, seed_of(key)).to_bytes(TRAILER, "little")
        try:
            file = os.open(temporary, WRITE, 0o600)
        except FileNotFoundError:  # its folder
            self._make_folder(os.path.dirname(path))
            file = os.open(temporary, WRITE, 0o600)
        try:
            if os.writev(file, [data.data, trailer]) != len(data) + TRAILER:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
            os.rename(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
        finally:
            os.close(file)

    def _make_folder(self, path: str) -> None:
        """Told of folders that have nothing to do with each other, ext4 spreads them on the disk. Files of one part of
        it take their inodes there, and making one passes over all that were freed in the last minutes: while blocks of
        110 kB come and go that took 95 to 260 us of the CPU a file, and 35 to 45 where they are spread."""
        with suppress(OSError):  # other file systems have no such flag
            folder = os.open(self._root, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
            try:
                flags = fcntl.ioctl(folder, GET_FLAGS, bytes(8))
                fcntl.ioctl(folder, SET_FLAGS, struct.pack("=q", struct.unpack("=q", flags)[0] | TOP))
            finally:
                os.close(folder)
        os.makedirs(path, 0o700, exist_ok=True)

    def read(self, key: str) -> NDArray[np.uint8]:
        """Read-only. Raises BadBlock for another's or a damaged one, and OSError."""
        name = file_name(key)
        size = int(name[ID + 1 :])
        try:
            file = os.open(self._path(name), READ)
        except OSError as error:
            if error.errno in NOT_ITS_OWN:
                raise BadBlock(error.strerror) from None
            raise
        try:
            facts = os.fstat(file)
            if not stat.S_ISREG(facts.st_mode) or facts.st_uid != self._user or facts.st_size != size + TRAILER:
                raise BadBlock("it is of another kind, user or size")
            block, trailer = np.empty(size, np.uint8), bytearray(TRAILER)
            try:
                count = os.preadv(file, [block.data, trailer], 0)
            except OSError as error:
                raise BadBlock(error.strerror) from None
        finally:
            os.close(file)
        if count != size + TRAILER or _checksum()(block, seed_of(key)) != int.from_bytes(trailer, "little"):
            raise BadBlock("its checksum is another")
        block.flags.writeable = False
        return block

    def is_there(self, name: str) -> bool:
        """Whether there is such a file."""
        return os.path.lexists(self._path(name))

    def remove(self, name: str) -> bool:
        """Whether there was such a file. Raises OSError."""
        try:
            os.unlink(self._path(name))
        except (FileNotFoundError, IsADirectoryError):
            return False
        return True

    def scan(self) -> Iterator[tuple[int, int, int, str]]:
        """Data set, ID, size, and of those that are not whole the lease of who writes, or wrote, it; "" for others. By
        their IDs, as far as they are of one data set: the ledger has them in that order."""
        for folder in range(256):
            try:
                with os.scandir(f"{self._root}/{folder:02x}") as entries:
                    names = [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]
            except FileNotFoundError:
                continue
            for match in filter(None, map(FILE.fullmatch, sorted(names))):
                yield int(match[1], 16), int(match[2], 16), int(match[3]), match[4] or ""
