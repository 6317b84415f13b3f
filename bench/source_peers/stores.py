"""Files that hold many images, as users read them in a dataset: by h5py, lmdb and zipfile, opened in each worker."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np

from source_peers.rivals import Rival, Sample, decoded

__all__ = ["Hdf5", "Lmdb", "Zip"]


class Stored(Sequence[Sample]):
    """Samples of a file that is opened when the first is asked for, in whichever process that is."""

    def __init__(self, open: Callable[[], Any], read: Callable[[Any, int], bytes], labels: Sequence[int]) -> None:
        self.open = open
        self.read = read
        self.labels = labels
        self.opened = None

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: Any) -> Any:
        if index >= len(self):
            raise IndexError(index)
        if self.opened is None:
            self.opened = self.open()
        return decoded(self.read(self.opened, index)), int(self.labels[index])


class Zip(Rival):
    """zipfile."""

    name = "zipfile + torchvision v2, DataLoader"
    kind = "zip"

    def samples(self, place: Path) -> Sequence[Sample]:
        """By the members' names."""
        with zipfile.ZipFile(place / "images.zip") as archive:
            names = archive.namelist()
        classes = sorted({name.partition("/")[0] for name in names})
        return Stored(
            partial(zipfile.ZipFile, place / "images.zip"),
            partial(_member, names),
            [classes.index(name.partition("/")[0]) for name in names],
        )


class Lmdb(Rival):
    """lmdb, opened as its users do for reading by many processes."""

    name = "lmdb + torchvision v2, DataLoader"
    kind = "lmdb"

    def samples(self, place: Path) -> Sequence[Sample]:
        """By the keys, which are listed before."""
        path = str(place / "lmdb")
        with _environment(path) as opened, opened.begin() as transaction:
            keys = list(transaction.cursor().iternext(values=False))
        return Stored(
            partial(_begun, path),
            partial(_value, keys),
            np.load(place / "labels.npy"),
        )


class Hdf5(Rival):
    """h5py."""

    name = "h5py + torchvision v2, DataLoader"
    kind = "hdf5"

    def samples(self, place: Path) -> Sequence[Sample]:
        """By the rows."""
        with h5py.File(place / "images.h5") as file:
            labels = file["labels"][:]
        return Stored(
            partial(_images, place / "images.h5"),
            _row,
            labels,
        )


# Functions with names: workers are sent what they read by, from Python 3.14 on by default.


def _member(names: Sequence[str], archive: zipfile.ZipFile, index: int) -> bytes:
    return archive.read(names[index])


def _environment(path: str) -> lmdb.Environment:
    return lmdb.open(path, readonly=True, lock=False, readahead=False, meminit=False)


def _begun(path: str) -> lmdb.Transaction:
    return _environment(path).begin(buffers=True)


def _value(keys: Sequence[bytes], transaction: lmdb.Transaction, index: int) -> Any:
    return transaction.get(keys[index])


def _images(path: Path) -> Any:
    return h5py.File(path)["images"]


def _row(dataset: Any, index: int) -> bytes:
    return dataset[index].tobytes()  # type: ignore[no-any-return]
