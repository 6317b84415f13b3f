"""HDF5 files. Each process opens its own, when it first reads."""

from __future__ import annotations

import logging
import math
import os
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpupipe.errors import DataError
from gpupipe.host.files import opened
from gpupipe.sources.needing import library
from gpupipe.sources.reading import ChangedError, Stamp
from gpupipe.sources.stores.hdf5_heaps import Heaps
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
        self._then: os.stat_result | None = None  # of when this process opened it
        self._datasets: dict[str, Any] = {}
        self._heaps: dict[str, Heaps | None] = {}

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
            self._check_heaps(name, dataset, 0, len(dataset))
            return Held(dataset.asstr()[:] if is_text else dataset[:])
        except (OSError, ValueError) as error:  # of texts UnicodeDecodeError
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
            dataset = self._dataset(name)
            self._check_stamp()  # before it is taken for granted what is known of heaps
            self._check_heaps(name, dataset, row, row + 1)
            value = dataset[row]
        except (OSError, RuntimeError, KeyError, DataError) as error:
            raise ValueError(f"can't be read: {error}") from error
        self._check_stamp()
        return value

    def _check_stamp(self) -> None:
        changed = self.stamp.difference(Stamp.of(self._file.id.get_vfd_handle()), "file", "opened")
        if changed:
            raise ChangedError(changed)

    def _check_heaps(self, name: str, dataset: Any, begin: int, end: int) -> None:
        """Those of rows, where they are of varying length. Raises ValueError."""
        if name not in self._heaps:
            self._heaps[name] = Heaps(dataset) if dataset.dtype.kind == "O" else None
        heaps = self._heaps[name]
        if heaps is not None:
            heaps.check(begin, end)

    def _dataset(self, name: str) -> Any:
        file = self._opened()
        if name not in self._datasets:
            self._datasets[name] = file[name]
        return self._datasets[name]

    def _opened(self) -> Any:
        """The file as this process has it: after a fork HDF5's state belongs to the parent."""
        if self._process != os.getpid():
            self._forget()
            try:
                _close_older(os.stat(self.path))
                self._file = self._h5py.File(self.path, "r", rdcc_nbytes=CACHE)
                self._then = os.fstat(self._file.id.get_vfd_handle())
            except OSError as error:
                said = str(error)
                why = next((reason for part, reason in REASONS.items() if part in said), said)
                raise DataError(f"{self.path} can't be opened: {why}") from error
            self._process = os.getpid()
            _open.add(self)
        return self._file

    def close(self) -> None:
        """It is opened again when it is next read."""
        self._file.close()
        self._forget()

    def _forget(self) -> None:
        self._datasets, self._heaps, self._process = {}, {}, 0


_open: weakref.WeakSet[Hdf5File] = weakref.WeakSet()


def _close_older(now: os.stat_result) -> None:
    """HDF5 opens a file once in a process, and shares what it has read of it, be it of before it was written to."""
    for file in list(_open):
        then = file._then
        if then is not None and os.path.samestat(then, now) and Stamp.from_stat(then) != Stamp.from_stat(now):
            file.close()


@dataclass(frozen=True)
class _Rows:
    file: Hdf5File
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def read(self, row: int) -> Any:
        return self.file.read(self.name, row)
