"""The index file: a JSON header and raw arrays behind it, with checksums of both.

8 bytes   magic
8 bytes   length of the header, little-endian
header    UTF-8 JSON: version, fingerprint, info, arrays (name, dtype, shape, offset), data_bytes, data_crc32
4 bytes   CRC-32 of all before, little-endian
arrays    each at its offset from the data's start, all aligned to 64 bytes

It is read into memory and checked when it is opened. As a memory map it would end the process with a bus error where
the file is cut, and a flipped bit would be another label. 1.28 million samples take 76 ms and 79 MB, where the map took
8 ms (`python bench/index_open.py`, one core of an Intel Xeon); worker processes that are forked share the memory.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.host.files import open_regular, replacing
from gpupipe.sources.reading import read_at

__all__ = ["BadIndexError", "StoredIndex", "Strings", "open_index", "pack_strings", "write_index"]

MAGIC = b"gpupipe\n"
VERSION = 2
ALIGN = 64
START = 16
CRC_BYTES = 4
MOST_HEADER = 256 << 20  # the folders of an image folder stand in it: 100 bytes each


class BadIndexError(ValueError):
    """The file is no index of this version, or is cut or damaged."""


@dataclass(frozen=True)
class StoredIndex:
    """An opened index: `info` is what its writer noted of the data, `arrays` are read-only."""

    path: str
    fingerprint: str
    info: dict[str, Any]
    arrays: dict[str, NDArray[Any]]


class Strings(Sequence[str]):
    """N strings kept as one UTF-8 `blob` (uint8) and N + 1 `offsets` (int64) into it."""

    def __init__(self, blob: NDArray[np.uint8], offsets: NDArray[np.int64]) -> None:
        self.blob = blob
        self.offsets = offsets

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: Any) -> Any:
        """One string; bytes that are no UTF-8 come back as surrogates, as file names do."""
        begin, end = self.offsets[index], self.offsets[index + 1]
        return self.blob[begin:end].tobytes().decode("utf-8", "surrogateescape")


def pack_strings(strings: Sequence[str]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """`blob` and `offsets` for `Strings`."""
    encoded = [string.encode("utf-8", "surrogateescape") for string in strings]
    offsets = np.zeros(len(encoded) + 1, np.int64)
    np.cumsum([len(part) for part in encoded], out=offsets[1:])
    return np.frombuffer(b"".join(encoded), np.uint8), offsets


def write_index(path: Path, fingerprint: str, info: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write an index atomically: it appears whole under `path` or not at all. Raises OSError."""
    entries, end, checksum = [], 0, 0
    for name, array in arrays.items():
        entries.append({"name": name, "dtype": array.dtype.str, "shape": list(array.shape), "offset": end})
        for part in _padded(array):
            checksum = zlib.crc32(part, checksum)
        end = _aligned(end + array.nbytes)
    header = {"version": VERSION, "fingerprint": fingerprint, "info": info, "arrays": entries}
    text = json.dumps(header | {"data_bytes": end, "data_crc32": checksum}).encode()
    start = MAGIC + len(text).to_bytes(8, "little") + text
    start += zlib.crc32(start).to_bytes(CRC_BYTES, "little")
    with replacing(path) as file:
        file.write(start.ljust(_aligned(len(start)), b"\0"))
        for array in arrays.values():
            file.writelines(_padded(array))


def open_index(path: Path) -> StoredIndex:
    """Read an index. Raises OSError (FileNotFoundError where there is none) and BadIndexError."""
    with open(open_regular(path), "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        header, begin = _header(file.fileno(), size)
        end = begin + _number(header, "data_bytes")
        if size != end:
            raise BadIndexError(f"it has {size} bytes instead of {end}")
        data = read_at(file.fileno(), begin, end - begin)
    if zlib.crc32(data.data) != _number(header, "data_crc32"):
        raise BadIndexError("it is damaged: the checksum of its arrays does not fit")
    data.flags.writeable = False
    try:
        arrays = {entry["name"]: _view(data, entry) for entry in header["arrays"]}
        return StoredIndex(str(path), header["fingerprint"], header["info"], arrays)
    except (KeyError, TypeError, ValueError) as error:
        raise BadIndexError(f"its header does not fit: {error}") from error


def _header(descriptor: int, size: int) -> tuple[dict[str, Any], int]:
    """The header, and where the arrays begin."""
    start = os.pread(descriptor, START, 0)
    if start[:8] != MAGIC:
        raise BadIndexError("it does not begin as an index does")
    length = int.from_bytes(start[8:], "little")
    end = START + length + CRC_BYTES
    if length > MOST_HEADER or end > size:
        raise BadIndexError(f"its header of {length} bytes is cut or damaged")
    text = os.pread(descriptor, length, START)
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadIndexError(f"its header can't be read ({error})") from error
    if not isinstance(header, dict):
        raise BadIndexError("its header is no JSON object")
    if header.get("version") != VERSION:
        raise BadIndexError(f"its version is {header.get('version')}, not {VERSION}")
    checksum = int.from_bytes(os.pread(descriptor, CRC_BYTES, START + length), "little")
    if zlib.crc32(start + text) != checksum:
        raise BadIndexError("it is damaged: the checksum of its header does not fit")
    return header, _aligned(end)


def _number(header: Mapping[str, Any], name: str) -> int:
    value = header.get(name)
    if not isinstance(value, int) or value < 0:
        raise BadIndexError(f"its header does not fit: {name} is {value!r}")
    return value


def _view(data: NDArray[np.uint8], entry: Mapping[str, Any]) -> NDArray[Any]:
    dtype, shape, offset = np.dtype(entry["dtype"]), tuple(entry["shape"]), entry["offset"]
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    view: NDArray[Any] = data[offset : offset + size].view(dtype)
    return view.reshape(shape)


def _padded(array: NDArray[Any]) -> tuple[memoryview, bytes]:
    """An array's bytes, and zeros up to where the next one begins."""
    return np.ascontiguousarray(array).view(np.uint8).data, bytes(_aligned(array.nbytes) - array.nbytes)


def _aligned(position: int) -> int:
    return -(-position // ALIGN) * ALIGN
