"""The same images, by number, in every form in which they lie on a disk; a number comes out as its sample's label.

`write(kind, folder, samples)` writes them, `NAMES` has what to open below the folder.
"""

from __future__ import annotations

import csv
import json
import pickle
import zipfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from reliability.case import NoFunction
from reliability.data import write_samples

__all__ = ["NAMES", "TABLES", "TARS", "Photos", "file_of", "write", "write_folder"]

TARS = 4
TABLES = (".csv", ".jsonl")
"""How files end that have no images in them."""


def file_of(number: int) -> str:
    """In a folder of classes: a class for each number."""
    return f"{number:05d}/{number:05d}.jpg"


def write_folder(folder: Path, samples: Mapping[int, bytes]) -> None:
    """As ImageFolder has it."""
    for number, image in samples.items():
        path = folder / file_of(number)
        path.parent.mkdir(parents=True)
        path.write_bytes(image)


def _write_tars(folder: Path, samples: Mapping[int, bytes], beside: Any = None) -> None:
    more = {} if beside is None else {"pyd": pickle.dumps(beside)}
    for number in range(TARS):
        write_samples(folder / f"{number}.tar", {key: samples[key] for key in list(samples)[number::TARS]}, more)


def _write_parquet(folder: Path, samples: Mapping[int, bytes], compression: str = "none") -> None:
    """Not compressed, as Hugging Face's newer ones: images lie in the file as they are."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    images = [{"bytes": image, "path": file_of(number)} for number, image in samples.items()]
    table = pa.table({"image": images, "label": list(samples)})
    pq.write_table(table, folder / "train.parquet", row_group_size=5, compression=compression)


def _write_manifest(folder: Path, samples: Mapping[int, bytes]) -> None:
    write_folder(folder, samples)
    with (folder / "train.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("image", "label"), *((file_of(number), number) for number in samples)])


def _write_lines(folder: Path, samples: Mapping[int, bytes]) -> None:
    write_folder(folder, samples)
    lines = (json.dumps({"image": file_of(number), "label": number}) for number in samples)
    (folder / "train.jsonl").write_text("\n".join(lines) + "\n")


def _write_zip(folder: Path, samples: Mapping[int, bytes]) -> None:
    with zipfile.ZipFile(folder / "images.zip", "w") as file:
        for number, image in samples.items():
            file.writestr(file_of(number), image)


def _write_lmdb(folder: Path, samples: Mapping[int, bytes]) -> None:
    import lmdb

    path = str(folder / "images.lmdb")
    with lmdb.open(path, map_size=1 << 26, subdir=False, lock=False) as opened, opened.begin(write=True) as transaction:
        for number, image in samples.items():
            transaction.put(file_of(number).encode(), image)


def _write_hdf5(folder: Path, samples: Mapping[int, bytes]) -> None:
    import h5py

    with h5py.File(folder / "images.h5", "w") as file:
        images = file.create_dataset("image", len(samples), h5py.vlen_dtype(np.uint8), chunks=(1,))
        for row, image in enumerate(samples.values()):
            images[row] = np.frombuffer(image, np.uint8)
        file["label"] = list(samples)


class Photos:
    """A dataset of the user's own over such a folder, which reads each file when it is asked for it."""

    def __init__(self, folder: Path) -> None:
        self.files = sorted(folder.glob("*/*"))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[bytes, int]:
        return self.files[index].read_bytes(), int(self.files[index].stem)


_WRITERS = {
    "tar": _write_tars,
    "folder": write_folder,
    "parquet": _write_parquet,
    "snappy": partial(_write_parquet, compression="snappy"),
    "manifest": _write_manifest,
    "lines": _write_lines,
    "zip": _write_zip,
    "lmdb": _write_lmdb,
    "hdf5": _write_hdf5,
    "dataset": write_folder,
}

NAMES = {
    "tar": f"{{0..{TARS - 1}}}.tar",
    "folder": "",
    "parquet": "train.parquet",
    "snappy": "train.parquet",
    "manifest": "train.csv",
    "lines": "train.jsonl",
    "zip": "images.zip",
    "lmdb": "images.lmdb",
    "hdf5": "images.h5",
    "dataset": "",
}
"""What to open below the folder; it is the folder itself where there is no name."""


def write(kind: str, folder: Path, samples: Mapping[int, bytes], beside: Any = None) -> None:
    """In a form of data; with a pickle of an object beside each, where such things lie in the form."""
    if beside is not None and kind != "tar":
        raise NoFunction(f"nothing lies beside the images of a {kind}")
    folder.mkdir(parents=True, exist_ok=True)
    _WRITERS[kind](folder, samples, *([] if beside is None else [beside]))
