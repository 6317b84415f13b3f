"""The samples: one small JPEG under many numbers. A number comes out as its sample's label."""

from __future__ import annotations

import io
import random
import tarfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

__all__ = [
    *("JPEG", "LEVEL", "Numbered", "decoded", "encode", "gray", "gray_jpegs", "picture", "pictures", "pixels_of"),
    *("write_samples", "write_shards"),
]

LEVEL = 5  # gray levels between pictures


def encode(pixels: NDArray[np.uint8], kind: str = "JPEG", **options: Any) -> bytes:
    """By Pillow."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **options)
    return buffer.getvalue()


JPEG = encode(np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8), quality=75)


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


def write_samples(path: Path, samples: Mapping[int, bytes], more: Mapping[str, bytes] = MappingProxyType({})) -> None:
    """A tar with an image and its number for each, and what more there is, by its ending."""
    with tarfile.open(path, "w") as tar:
        for number, image in samples.items():
            for ending, content in (("jpg", image), ("cls", str(number).encode()), *more.items()):
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


def pictures(count: int) -> dict[int, bytes]:
    """Noisy ones whose mean gray levels lie LEVEL apart; of some 3 kB, most of them coded pixels."""
    return {number: encode(picture(number), quality=95) for number in range(count)}


def picture(number: int) -> NDArray[np.uint8]:
    """Of 56 x 56 pixels, with waves and noise of its own around its level."""
    rng = np.random.default_rng(number)
    y, x = np.mgrid[0:56, 0:56]
    waves = [np.sin(x / 6 + channel) * np.sin(y / (7 + channel)) for channel in range(3)]
    pixels = 25 * np.stack(waves, axis=-1) + rng.normal(0, 12, (56, 56, 3))
    return np.clip(pixels - pixels.mean() + 60 + LEVEL * number, 0, 255).astype(np.uint8)


def pixels_of(image: Image.Image, size: int) -> torch.Tensor:
    """As torchvision's Resize(size), CenterCrop(size) and PILToTensor of a Pillow image in RGB."""
    width, height = image.size
    short = min(width, height)
    image = image.convert("RGB").resize((size * width // short, size * height // short), Image.Resampling.BILINEAR)
    left, top = round((image.width - size) / 2), round((image.height - size) / 2)
    cut = image.crop((left, top, left + size, top + size))
    return torch.from_numpy(np.array(cut)).permute(2, 0, 1)


def decoded(image: bytes, size: int) -> torch.Tensor:
    """The same of an encoded image."""
    with Image.open(io.BytesIO(image)) as opened:
        return pixels_of(opened, size)


def gray(image: bytes, size: int = 8) -> float:
    """The mean level of that."""
    return float(decoded(image, size).float().mean())
