"""The same images, by number, in every form in which they lie on a disk; a number comes out as its sample's label.

`write(kind, folder, samples)` writes them, `NAMES` has what to open below the folder.
"""

from __future__ import annotations

import csv
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reliability.case import NoFunction
from reliability.data import write_samples

__all__ = ["NAMES", "TARS", "Photos", "file_of", "write", "write_folder"]

TARS = 4


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


def _write_parquet(folder: Path, samples: Mapping[int, bytes]) -> None:
    """Not compressed, as Hugging Face's newer ones."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    images = [{"bytes": image, "path": file_of(number)} for number, image in samples.items()]
    table = pa.table({"image": images, "label": list(samples)})
    pq.write_table(table, folder / "train.parquet", row_group_size=5, compression="none")


def _write_manifest(folder: Path, samples: Mapping[int, bytes]) -> None:
    write_folder(folder, samples)
    with (folder / "train.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("image", "label"), *((file_of(number), number) for number in samples)])


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
    "manifest": _write_manifest,
    "zip": _write_zip,
    "lmdb": _write_lmdb,
    "dataset": write_folder,
}

NAMES = {
    "tar": f"{{0..{TARS - 1}}}.tar",
    "folder": "",
    "parquet": "train.parquet",
    "manifest": "train.csv",
    "zip": "images.zip",
    "lmdb": "images.lmdb",
    "dataset": "",
}
"""What to open below the folder; it is the folder itself where there is no name."""


def write(kind: str, folder: Path, samples: Mapping[int, bytes], beside: Any = None) -> None:
    """In a form of data; with a pickle of an object beside each, where such things lie in the form."""
    if beside is not None and kind != "tar":
        raise NoFunction(f"nothing lies beside the images of a {kind}")
    folder.mkdir(parents=True, exist_ok=True)
    _WRITERS[kind](folder, samples, *([] if beside is None else [beside]))
