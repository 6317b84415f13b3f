"""The samples: one small JPEG under many numbers. A number comes out as its sample's label."""

from __future__ import annotations

import io
import random
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

__all__ = ["JPEG", "Numbered", "write_shards"]


def _jpeg() -> bytes:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=75)
    return buffer.getvalue()


JPEG = _jpeg()


class Numbered:
    """`dataset[i]` is (the JPEG, i). A subclass may do things in `touch(i)`, which each contender calls for a sample.

    nap: seconds; `touch` sleeps for a random part of it, as storage does.
    """

    def __init__(self, samples: int, nap: float = 0.0) -> None:
        self.samples = samples
        self.nap = nap

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[bytes, int]:
        self.touch(index)
        return JPEG, index

    def touch(self, index: int) -> None:
        """Whatever happens when a sample is read."""
        if self.nap:
            time.sleep(random.random() * self.nap)


def write_shards(folder: Path, samples: int, shards: int) -> list[str]:
    """The same samples in tar files, of nearly equal length; written once in a folder."""
    folder.mkdir(exist_ok=True)
    paths = [folder / f"{samples}-{shards}-{number:05d}.tar" for number in range(shards)]
    for number, path in enumerate(paths):
        if not path.exists():
            unfinished = path.with_suffix(f".{time.monotonic_ns()}")  # ranks may write at the same time
            _write_shard(unfinished, range(number * samples // shards, (number + 1) * samples // shards))
            unfinished.rename(path)
    return [str(path) for path in paths]


def _write_shard(path: Path, numbers: range) -> None:
    with tarfile.open(path, "w") as tar:
        for name, content in _members(numbers):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


def _members(numbers: range) -> Iterator[tuple[str, bytes]]:
    for number in numbers:
        yield f"{number:09d}.jpg", JPEG
        yield f"{number:09d}.cls", str(number).encode()
