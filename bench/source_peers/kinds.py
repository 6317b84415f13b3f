"""Kinds of data, each written once from the images of a folder, in its order."""

from __future__ import annotations

import csv
import io
import shutil
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from peers.common import convert, converted, images

from gpupipe.batch import Field
from gpupipe.order import Order
from gpupipe.sources import Source

__all__ = ["KINDS", "Kind", "copied", "prepare", "stored"]

VERSION = 1  # another number when other things are written
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
    paths, labels = images(folder)
    with open(place / "data.csv", "w", newline="") as file:
        csv.writer(file).writerows([("image", "label"), *zip(paths, labels, strict=True)])


KINDS = {
    "tar": Kind("tar shards", write_tar, str, ("webdataset", "source_peers.rivals:Tar")),
    "csv": Kind(
        "CSV of paths", write_csv, lambda place: place / "data.csv", ("torch Dataset", "source_peers.rivals:Csv")
    ),
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
