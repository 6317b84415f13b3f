"""Kinds of data, each written once from the images of a folder, in its order."""

from __future__ import annotations

import csv
import io
import os
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from peers.common import convert, converted, images

from gpupipe.batch import Field
from gpupipe.order import BlockShuffled, Order, VirtualEpochs
from gpupipe.sources import Source

__all__ = ["KINDS", "Kind", "copied", "prepare", "stored"]

VERSION = 2  # another number when other things are written
SHARDS = 16


@dataclass(frozen=True)
class Kind:
    """write: the images of the folder (the second argument) into an empty one (the first). data: what a Loader gets of
    that; fields: as `open_source` takes them. rival: the contender that its users have today, by the name in tables and
    its reference, a `Rival`. order: of a number of passes over the data, where another one than a full shuffle is
    measured.
    """

    title: str
    write: Callable[[Path, str], None]
    data: Callable[[Path], Any]
    rival: tuple[str, str]
    fields: Mapping[str, Field] | None = None
    order: Callable[[Source, int], Order] | None = None


def write_tar(place: Path, folder: str) -> None:
    paths, labels = images(folder)
    size = -(-len(paths) // SHARDS)
    for first in range(0, len(paths), size):
        with tarfile.open(place / f"{first // size:02}.tar", "w") as tar:
            for number in range(first, min(first + size, len(paths))):
                tar.add(paths[number], f"{number:08}.jpg")
                member = tarfile.TarInfo(f"{number:08}.cls")
                text = str(labels[number]).encode()
                member.size = len(text)
                tar.addfile(member, io.BytesIO(text))


def write_csv(place: Path, folder: str) -> None:
    """With copies of the files, as the folder may be a temporary one."""
    paths, labels = images(folder)
    shutil.copytree(folder, place / "images")
    names = [f"images/{os.path.relpath(path, folder)}" for path in paths]
    with open(place / "data.csv", "w", newline="") as file:
        csv.writer(file).writerows([("image", "label"), *zip(names, labels, strict=True)])


def write_parquet(place: Path, folder: str, **options: Any) -> None:
    """As Hugging Face's repositories have it, in row groups of 100; its own writer does not compress images."""
    paths, labels = images(folder)
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    schema = pa.schema([("image", kind), ("label", pa.int64())])
    (place / "data").mkdir()
    with pq.ParquetWriter(place / "data/train-00000-of-00001.parquet", schema, **options) as file:
        for first in range(0, len(paths), 100):
            rows = slice(first, first + 100)
            cells = [{"bytes": Path(path).read_bytes(), "path": Path(path).name} for path in paths[rows]]
            file.write_table(pa.table([cells, labels[rows]], schema=schema))


def write_saved(place: Path, folder: str) -> None:
    """`save_to_disk`, of what Parquet is loaded as."""
    from datasets import Dataset

    write_parquet(place, folder)
    Dataset.from_parquet(str(place / "data/train-*.parquet"), cache_dir=str(place / "cache")).save_to_disk(
        place / "saved"
    )


def by_blocks(source: Source, passes: int) -> Order:
    """Row groups in a new order in each pass, eight at a time shuffled."""
    return VirtualEpochs(BlockShuffled.of_shards(source, 8), passes * len(source))


PLAIN = {"compression": "none", "use_dictionary": False}
FORMATTED = "datasets, torch format"


def write_zip(place: Path, folder: str) -> None:
    """Stored, as JPEGs should be."""
    with zipfile.ZipFile(place / "images.zip", "w") as archive:
        for path in map(Path, images(folder)[0]):
            archive.write(path, f"{path.parent.name}/{path.name}")


def write_lmdb(place: Path, folder: str) -> None:
    """Under Caffe's keys, and the labels beside it."""
    paths, labels = images(folder)
    with lmdb.open(str(place / "lmdb"), map_size=1 << 40) as opened, opened.begin(write=True) as transaction:
        for number, path in enumerate(map(Path, paths)):
            transaction.put(f"{number:08}_{path.parent.name}/{path.name}".encode(), path.read_bytes())
    np.save(place / "labels.npy", labels)


def write_hdf5(place: Path, folder: str) -> None:
    """Files of different lengths in one dataset."""
    paths, labels = images(folder)
    with h5py.File(place / "images.h5", "w") as file:
        files = file.create_dataset("images", len(paths), h5py.vlen_dtype(np.uint8))
        for row, path in enumerate(paths):
            files[row] = np.fromfile(path, np.uint8)
        file["labels"] = labels


KINDS = {
    "tar": Kind("tar shards", write_tar, str, ("webdataset", "source_peers.rivals:Tar")),
    "csv": Kind(
        "CSV of paths", write_csv, lambda place: place / "data.csv", ("torch Dataset", "source_peers.rivals:Csv")
    ),
    "parquet": Kind("Parquet", partial(write_parquet, **PLAIN), str, (FORMATTED, "source_peers.rivals:Formatted")),
    "parquet-snappy": Kind(
        "Parquet, Snappy", write_parquet, str, (FORMATTED, "source_peers.rivals:Formatted?kind=parquet-snappy")
    ),
    "parquet-zstd": Kind(
        "Parquet, zstd, by row groups",
        partial(write_parquet, compression="zstd"),
        str,
        (FORMATTED, "source_peers.rivals:Formatted?kind=parquet-zstd"),
        order=by_blocks,
    ),
    "hugging-face": Kind(
        "Hugging Face, saved", write_saved, lambda place: place / "saved", ("timm", "source_peers.rivals:Hfds")
    ),
    "zip": Kind("zip", write_zip, lambda place: place / "images.zip", ("zipfile", "source_peers.stores:Zip")),
    "lmdb": Kind("LMDB", write_lmdb, lambda place: place / "lmdb", ("lmdb", "source_peers.stores:Lmdb")),
    "hdf5": Kind("HDF5", write_hdf5, lambda place: place / "images.h5", ("h5py", "source_peers.stores:Hdf5")),
}


def copied(folder: str, copies: int) -> str:
    """A folder with so many copies of each image, which are files of their own."""

    def write(copies: int, place: Path) -> None:
        for path in map(Path, images(folder)[0]):
            (place / path.parent.name).mkdir(exist_ok=True)
            for number in range(copies):
                shutil.copyfile(path, place / path.parent.name / f"{path.stem}_{number}{path.suffix}")

    kind = f"copies-{copies}"
    convert(folder, kind, partial(write, copies))
    return str(converted(folder, kind))


def prepare(folder: str, kind: str) -> bool:
    """Write the kind, if it is not there; whether it was not."""
    return convert(folder, f"source-{kind}-{VERSION}", lambda place: KINDS[kind].write(place, folder))


def stored(folder: str, kind: str) -> Path:
    """Where it lies."""
    return converted(folder, f"source-{kind}-{VERSION}")
