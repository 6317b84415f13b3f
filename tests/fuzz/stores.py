"""LMDB, NumPy's files and HDF5: every row is what their own libraries read, or refused."""

from __future__ import annotations

import io
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path

import h5py
import lmdb
import numpy as np
from images import picture
from tars import jpeg

import gpupipe
from fuzz import mutators
from fuzz.harness import Finding, Target, unfit
from gpupipe.sources import Source, open_source
from gpupipe.sources.stores.lmdb_pages import entries

PIXELS = np.stack([picture(6, 7, number) for number in range(4)])
ARRAYS = {"image": gpupipe.Image(source="images"), "label": gpupipe.Scalar(source="labels")}


def rows(source: Source, named: str) -> list[dict[str, object] | None]:
    """What is read of each, None where that is refused, by a fit message."""
    found: list[dict[str, object] | None] = []
    for index in range(min(len(source), 50)):
        try:
            columns = source.fetch(np.array([index]))
        except (gpupipe.SampleError, gpupipe.DataError) as error:
            if fault := unfit(str(error), named):
                raise Finding(fault) from error
            found.append(None)
            continue
        found.append({name: column.data[0] if name == "image" else column[0] for name, column in columns.items()})
    return found


def lmdb_seeds(scratch: Path) -> Sequence[bytes]:
    found = []
    for count in (1, 4, 90):
        path = scratch / f"good-{count}"
        with lmdb.open(str(path), map_size=1 << 24) as opened, opened.begin(write=True) as transaction:
            for number in range(count):
                data = jpeg(number, 9, 9) if number < 4 else bytes(number)
                transaction.put(f"{'ab'[number % 2]}/{number:04d}.jpg".encode(), data)
        found.append((path / "data.mdb").read_bytes())
    return found


def lmdb_check(scratch: Path) -> Callable[[bytes], Hashable]:
    folder = scratch / "hostile.lmdb"
    folder.mkdir(exist_ok=True)
    path = folder / "data.mdb"

    def check(data: bytes) -> Hashable:
        path.write_bytes(data)
        found = entries(path)
        ends = found.offsets + found.sizes
        if (found.offsets < 0).any() or (found.sizes < 0).any() or (ends > len(data)).any():
            raise Finding("a value beyond the end")
        source = open_source(folder, rebuild=True)
        return sum(row is not None for row in rows(source, "hostile.lmdb"))

    return check


def npy_seeds(scratch: Path) -> Sequence[bytes]:
    found = []
    for array in (PIXELS, np.asfortranarray(PIXELS), PIXELS[..., 0], PIXELS.astype(">u2"), PIXELS[:1]):
        buffer = io.BytesIO()
        np.save(buffer, array)
        found.append(buffer.getvalue())
    return found


def npy_check(scratch: Path) -> Callable[[bytes], Hashable]:
    path = scratch / "hostile.npy"

    def check(data: bytes) -> Hashable:
        path.write_bytes(data)
        made = rows(open_source(path, fields={"values": gpupipe.Array(source="hostile")}), "hostile.npy")
        truth = np.load(io.BytesIO(data), allow_pickle=False)
        return _equal(made, {"values": truth})

    return check


def npz_seeds(scratch: Path) -> Sequence[bytes]:
    found = []
    for save in (np.savez, np.savez_compressed):
        buffer = io.BytesIO()
        save(buffer, images=PIXELS, labels=np.arange(4))
        found.append(buffer.getvalue())
    return found


def npz_check(scratch: Path) -> Callable[[bytes], Hashable]:
    path = scratch / "hostile.npz"

    def check(data: bytes) -> Hashable:
        path.write_bytes(data)
        made = rows(open_source(path, fields=ARRAYS), "hostile.npz")
        if not any(row is not None for row in made):
            return "none"
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as archive:
                truth = {"image": archive["images"], "label": archive["labels"]}
        except Exception as error:  # NumPy reads all of a member, and checks it
            return f"NumPy refuses: {type(error).__name__}"
        return _equal(made, truth)

    return check


def hdf5_seeds(scratch: Path) -> Sequence[bytes]:
    found = []
    for number, options in enumerate(({}, {"chunks": (1, 6, 7, 3), "compression": "gzip"})):
        path = scratch / f"good-{number}.h5"
        with h5py.File(path, "w") as file:
            file.create_dataset("images", data=PIXELS, **options)
            file["labels"] = np.arange(4)
        found.append(path.read_bytes())
    for number, options in enumerate(({}, {"chunks": (2,), "compression": "gzip", "shuffle": True})):
        path = scratch / f"varying-{number}.h5"
        with h5py.File(path, "w") as file:
            images = file.create_dataset("images", 4, h5py.vlen_dtype(np.uint8), **options)
            for row in range(4):
                images[row] = np.frombuffer(jpeg(row), np.uint8)
            file["labels"] = ["a", "b", "a", "c"]
        found.append(path.read_bytes())
    return found


def hdf5_check(scratch: Path) -> Callable[[bytes], Hashable]:
    path = scratch / "hostile.h5"

    def check(data: bytes) -> Hashable:
        path.write_bytes(data)
        made = rows(open_source(path, fields=ARRAYS), "hostile.h5")
        return sum(row is not None for row in made)

    return check


def _equal(made: Sequence[dict[str, object] | None], truth: dict[str, np.ndarray]) -> Hashable:
    for index, row in enumerate(made):
        for name, value in (row or {}).items():
            own, there = np.asarray(value), truth[name][index]
            if not np.array_equal(own, there, equal_nan=own.dtype.kind == "f"):
                raise Finding(f"another {name} than NumPy's: {own.ravel()[:5]}, {there.ravel()[:5]}")
    return len(made), sum(row is None for row in made)


HEADER = (
    b"'descr': '|O'",
    b"'shape': (-1,",
    b"(99999999999, ",
    b"True",
    b"'|u1'",
    b"'<f8'",
    b"'>M8[ns]'",
    b"\x93NUMPY\3\0",
)

TARGETS = [
    Target(
        "lmdb",
        lmdb_seeds,
        lmdb_check,
        mutators.plain(b"\xde\xc0\xef\xbe", b"\xff" * 8, b"\2\0", b"\1\0\2\0"),
        named="hostile.lmdb",
    ),
    Target("npy", npy_seeds, npy_check, mutators.plain(*HEADER), named="hostile.npy"),
    Target("npz", npz_seeds, npz_check, mutators.plain(*HEADER, b"PK\3\4", b"PK\1\2"), named="hostile.npz"),
    Target(
        "hdf5",
        hdf5_seeds,
        hdf5_check,
        mutators.plain(b"TREE", b"SNOD", b"HEAP", b"OHDR", b"GCOL", bytes(600), b"\xff" * 8),
        named="hostile.h5",
    ),
]
