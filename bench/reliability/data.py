"""The samples: one small JPEG under many numbers. A number comes out as its sample's label."""

from __future__ import annotations

import io
import random
import tarfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

__all__ = ["JPEG", "Numbered", "gray", "gray_jpegs", "write_samples", "write_shards"]


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
    write_samples(path, dict.fromkeys(numbers, JPEG))


def write_samples(path: Path, samples: Mapping[int, bytes]) -> None:
    """A tar with an image and its number for each."""
    with tarfile.open(path, "w") as tar:
        for number, image in samples.items():
            for ending, content in (("jpg", image), ("cls", str(number).encode())):
                info = tarfile.TarInfo(f"{number:09d}.{ending}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))


def gray_jpegs(levels: Sequence[int]) -> dict[int, bytes]:
    """An image of each gray level, under its place; of several kilobytes, most of which is a comment."""
    found = {}
    for number, level in enumerate(levels):
        buffer = io.BytesIO()
        comment = random.Random(number).randbytes(3000)
        Image.new("RGB", (16, 16), (level,) * 3).save(buffer, "JPEG", quality=95, comment=comment)
        found[number] = buffer.getvalue()
    return found


def gray(image: bytes) -> float:
    """Its mean gray level."""
    with Image.open(io.BytesIO(image)) as opened:
        return float(np.asarray(opened.convert("RGB"), np.float32).mean())
