"""HDF5 files. Each process opens its own, when it first reads."""

from __future__ import annotations

import logging
import math
import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpupipe.errors import DataError
from gpupipe.host.files import opened
from gpupipe.sources.needing import library
from gpupipe.sources.reading import ChangedError, Stamp
from gpupipe.sources.stores.rows import MOST_HELD, Held, Rows

__all__ = ["Hdf5File"]

log = logging.getLogger("gpupipe")

CACHE = 32 << 20  # bytes of unpacked chunks that a process keeps of each dataset; HDF5's own default holds few images
WASTE = 2  # values that are unpacked for each that is wanted
MOST_TEXT = 1024  # bytes of a text of one length; longer ones may be files
# By what HDF5 says in the middle of its messages.
REASONS = {
    "unable to lock file": "another process has it open for writing: close it there, or read a copy (on a file system "
    "without locks: HDF5_USE_FILE_LOCKING=FALSE)",
    "already open for write": "another process writes to it, or was killed while it did: wait for that, or mark it as "
    "whole by `h5clear -s FILE`",
    "truncated file": "it is cut, or was never closed: copy or write it again",
    "file signature not found": "it is no HDF5 file",
}


class Hdf5File:
    """Its datasets, by their paths."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._h5py = library("h5py", "arrays")
        descriptor, stat = opened(path)
        os.close(descriptor)
        self.stamp = Stamp.from_stat(stat)
        self._process = 0
        self._file: Any = None
        self._datasets: dict[str, Any] = {}

    def names(self) -> list[str]:
        found: list[str] = []

        def visit(name: str, item: Any) -> None:
            if isinstance(name, str) and isinstance(item, self._h5py.Dataset):  # bytes: no UTF-8, which nobody asks for
                found.append(name)

        try:
            self._opened().visititems(visit)
        except (OSError, RuntimeError, KeyError, ValueError) as error:
            raise DataError(f"{self.path} is damaged: {error}; copy or write it again") from error
        return found

    def rows(self, name: str) -> Rows:
        dataset = self._dataset(name)
        try:
            reason = self._unfit(dataset)
        except TypeError as error:  # of a kind that h5py does not know
            reason = f"can't be read: {error}"
        if reason:
            raise DataError(f"{self.path}: {name!r} {reason}")
        is_text = self._h5py.check_string_dtype(dataset.dtype) is not None and dataset.dtype.itemsize <= MOST_TEXT
        is_list = len(dataset.shape) == 1 and (is_text or dataset.dtype.kind in "biuf")
        if not is_list or dataset.size * dataset.dtype.itemsize > MOST_HELD:
            self._warn(name, dataset)
            return _Rows(self, name, dataset.shape, dataset.dtype)
        try:
            return Held(dataset.asstr()[:] if is_text else dataset[:])
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{self.path}: {name!r} can't be read: {error}") from error

    def _unfit(self, dataset: Any) -> str:
        """Why a dataset can't be taken, or an empty string."""
        if not dataset.shape:
            return "has no rows"
        if dataset.external or dataset.is_virtual or dataset.file.filename != self.path:
            return "lies in other files, which may change by themselves: copy it into one"
        if dataset.dtype.names or (dataset.dtype.kind == "O" and self._h5py.check_ref_dtype(dataset.dtype)):
            return f"is of {dataset.dtype}, no plain values"
        return ""

    def _warn(self, name: str, dataset: Any) -> None:
        """Of chunks of which a row needs much more than itself: those that h5py chooses make a row of 256 x 256 pixels
        take 1.8 ms, where one chunk for each takes 0.06."""
        if dataset.chunks is None:
            return
        sides = zip(dataset.shape[1:], dataset.chunks[1:], strict=True)
        needed = math.prod([dataset.chunks[0], *(-(-side // chunk) * chunk for side, chunk in sides)])
        if needed > WASTE * math.prod(dataset.shape[1:]):
            log.warning(
                "gpupipe: %s: %r has chunks of %s, so a row is read out of %s values: write it with chunks=%s",
                *(self.path, name, dataset.chunks, f"{needed:,}", (1, *dataset.shape[1:])),
            )

    def read(self, name: str, row: int) -> Any:
        """One row. Raises ValueError."""
        try:
            value = self._dataset(name)[row]
            now = Stamp.of(self._file.id.get_vfd_handle())
        except (OSError, RuntimeError, KeyError, DataError) as error:
            raise ValueError(f"can't be read: {error}") from error
        changed = self.stamp.difference(now, "file", "opened")
        if changed:
            raise ChangedError(changed)
        return value

    def _dataset(self, name: str) -> Any:
        file = self._opened()
        if name not in self._datasets:
            self._datasets[name] = file[name]
        return self._datasets[name]

    def _opened(self) -> Any:
        """The file as this process has it: after a fork HDF5's state belongs to the parent."""
        if self._process != os.getpid():
            self._datasets, self._process = {}, 0
            try:
                self._file = self._h5py.File(self.path, "r", rdcc_nbytes=CACHE)
            except OSError as error:
                said = str(error)
                why = next((reason for part, reason in REASONS.items() if part in said), said)
                raise DataError(f"{self.path} can't be opened: {why}") from error
            self._process = os.getpid()
        return self._file


@dataclass(frozen=True)
class _Rows:
    file: Hdf5File
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def read(self, row: int) -> Any:
        return self.file.read(self.name, row)
