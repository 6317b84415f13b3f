"""NumPy's files, .npy and .npz. Rows are read, not mapped: a map of a file that is cut ends the process."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.errors import ConfigError, DataError
from gpupipe.host.files import opened
from gpupipe.sources.reading import OpenFiles, Stamp
from gpupipe.sources.source import Encoded
from gpupipe.sources.stores.rows import MOST_HELD, Held, Rows
from gpupipe.sources.stores.zips import data_offset, directory, unpacked
from gpupipe.sources.values import npy_header

__all__ = ["NpyFile", "NpzFile"]

MOST_HEADER = 64 << 10


class NpyFile:
    """One array, by the name of its file or another."""

    def __init__(self, path: str, name: str = "") -> None:
        self.path = path
        self._name = name or Path(path).stem
        descriptor, stat = opened(path)
        os.close(descriptor)
        self.stamp = Stamp.from_stat(stat)
        self._files = OpenFiles()

    def names(self) -> list[str]:
        return [self._name]

    def rows(self, name: str) -> Rows:
        return self._rows(0, self.stamp.size, self.path)

    def _rows(self, begin: int, size: int, what: str) -> Rows:
        """Of the .npy of so many bytes that begins there."""
        try:
            shape, columns_first, dtype, header = npy_header(self._read(begin, min(size, MOST_HEADER)))
            if math.prod(shape) * dtype.itemsize != size - header:
                raise ValueError(f"is cut or damaged: an array {dtype} {shape} is not in {size - header:,} bytes")
            if columns_first and len(shape) > 1:
                raise ValueError("has its columns first: write it by np.save(path, np.ascontiguousarray(array))")
            rows = _Plain(self, begin + header, shape, dtype)
            return rows.held() if len(shape) == 1 and size <= MOST_HELD else rows
        except ValueError as error:
            raise DataError(f"{what} {error}") from error

    def _read(self, offset: int, size: int) -> Encoded:
        """Bytes of the file, fewer where it ends. Raises ValueError."""
        size = max(0, min(size, self.stamp.size - offset))
        return self._files.unchanged(self.path, self.stamp, offset, size, "file", "opened")


class NpzFile(NpyFile):
    """The arrays of an archive; those that are compressed are held."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        members, self.stamp = directory(Path(path))
        self._members = {name.removesuffix(".npy"): member for name, member in members.items()}

    def names(self) -> list[str]:
        return list(self._members)

    def rows(self, name: str) -> Rows:
        member, what = self._members[name], f"{self.path}, {name!r}"
        if member.is_deflated and member.size > MOST_HELD:
            raise ConfigError(
                f"{what} is compressed and has {member.size:,} bytes, more than the {MOST_HELD:,} that are read whole: "
                "write it by np.savez, which compresses nothing"
            )
        try:
            if not member.is_deflated:
                return self._rows(data_offset(member, self._read), member.size, what)
            data = unpacked(member, self._read)
            shape, columns_first, dtype, begin = npy_header(data)
            return Held(data[begin:].view(dtype).reshape(shape, order="F" if columns_first else "C"))
        except ValueError as error:
            raise DataError(f"{what} {error}") from error


@dataclass(frozen=True)
class _Plain:
    """An array that lies in a file as it would in memory, from `offset` on."""

    file: NpyFile
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def read(self, row: int) -> NDArray[Any]:
        size = math.prod(self.shape[1:]) * self.dtype.itemsize
        return self._bytes(row * size, size).view(self.dtype).reshape(self.shape[1:])

    def held(self) -> Held:
        """All of it."""
        return Held(self._bytes(0, math.prod(self.shape) * self.dtype.itemsize).view(self.dtype))

    def _bytes(self, offset: int, size: int) -> Encoded:
        return self.file._read(self.offset + offset, size)
