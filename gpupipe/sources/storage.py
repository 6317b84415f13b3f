"""The index file: an .npz archive of NumPy's, without compression. Its member `header` is JSON (version, fingerprint,
info, the arrays' names, the inodes of the data's folder and of the file itself), all others are arrays.

It is read into memory and checked, by the archive's checksums, when it is opened. As a memory map it would end the
process with a bus error where the file is cut, and a flipped bit would be another label. 1.28 million samples take
80 ms and 79 MB, where a map took 8 ms (`python bench/sources_open.py`, one core of an Intel Xeon); worker processes
that are forked share the memory.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from zipfile import ZIP_STORED, ZipFile

import numpy as np
from numpy.typing import NDArray

from gpupipe.host.files import open_own, replacing
from gpupipe.sources.values import npy_array

__all__ = [
    "BadIndexError",
    "StoredIndex",
    "Strings",
    "open_index",
    "pack_strings",
    "verdict_of",
    "with_verdict",
    "write_index",
]

VERSION = 3
VERDICT = ("bad", "reasons", "reason_offsets")


class BadIndexError(ValueError):
    """The file is no index of this version, or is cut or damaged."""


@dataclass(frozen=True)
class StoredIndex:
    """An opened index: `info` is what its writer noted of the data, `arrays` are read-only.

    folder: the inode of the folder of the data as they were indexed; 0 of a file that is a copy of the one that was
    written then, or where none was noted.
    """

    path: str
    fingerprint: str
    info: dict[str, Any]
    arrays: dict[str, NDArray[Any]]
    folder: int = 0

    def is_in_place(self, folder: str | os.PathLike[str]) -> bool:
        """Whether it and the data in `folder` lie where they lay when they were indexed: copies, on this machine or
        another one, have other inodes. Devices are not compared, which have another number on each client of a network
        file system."""
        with suppress(OSError):
            return self.folder != 0 and self.folder == os.stat(folder).st_ino
        return False


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


def with_verdict(arrays: Mapping[str, NDArray[Any]], bad: Mapping[int, str]) -> dict[str, NDArray[Any]]:
    """The arrays of an index that also says which samples are bad, and why."""
    indices = sorted(bad)
    reasons = pack_strings([bad[index] for index in indices])
    others = {name: array for name, array in arrays.items() if name not in VERDICT}
    return others | dict(zip(VERDICT, [np.array(indices, np.int64), *reasons], strict=True))


def verdict_of(arrays: Mapping[str, NDArray[Any]]) -> dict[int, str]:
    """Why samples are bad, by their numbers; nothing where that was not looked into."""
    if not arrays.keys() >= set(VERDICT):
        return {}
    bad, *reasons = (arrays[name] for name in VERDICT)
    return dict(zip(bad.tolist(), Strings(*reasons), strict=True))


def write_index(
    path: Path, fingerprint: str, info: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], folder: int = 0
) -> None:
    """Write an index atomically: it appears whole under `path` or not at all. folder: as of a `StoredIndex`. Raises
    OSError."""
    header = {"version": VERSION, "fingerprint": fingerprint, "info": info, "arrays": list(arrays), "folder": folder}
    with replacing(path) as file:
        header["inode"] = os.fstat(file.fileno()).st_ino
        members: dict[str, Any] = {"header": np.frombuffer(json.dumps(header).encode(), np.uint8), **arrays}
        np.savez(file, **members)


def open_index(path: Path) -> StoredIndex:
    """Read an index. Raises OSError (FileNotFoundError where there is none, PermissionError for another's: see
    `open_own`) and BadIndexError."""
    with open(open_own(path), "rb") as file:
        try:
            arrays = _arrays(file)
            header = json.loads(arrays.pop("header").tobytes())
            if header["version"] != VERSION:
                raise ValueError(f"its version is {header['version']}, not {VERSION}")
            if header["arrays"] != list(arrays):
                raise ValueError(f"its arrays are {list(arrays)}, not {header['arrays']}")
            is_own = header.get("inode") == os.fstat(file.fileno()).st_ino
            folder = header.get("folder", 0) if is_own else 0
            return StoredIndex(str(path), header["fingerprint"], header["info"], arrays, folder)
        except OSError:
            raise
        except Exception as error:  # of damaged archives zipfile raises nearly every kind
            reason = f"it is damaged, or none of this release ({type(error).__name__}: {error})"
            raise BadIndexError(reason) from error


def _arrays(file: IO[bytes]) -> dict[str, NDArray[Any]]:
    """By name. What is no plain array of numbers, or larger than the file, is refused before it takes memory."""
    with ZipFile(file) as archive:
        members = archive.infolist()
        stored = all(member.compress_type == ZIP_STORED for member in members)
        if not stored or sum(member.file_size for member in members) > os.fstat(file.fileno()).st_size:
            raise ValueError("its members are compressed, or larger than the file")
        return {
            member.filename.removesuffix(".npy"): npy_array(np.frombuffer(archive.read(member), np.uint8))
            for member in members
        }
