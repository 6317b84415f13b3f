"""What the loaders share: where the data are, the work that is done to each image, and passes over the data."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peers.common import convert
from torchvision.io import ImageReadMode, decode_image

from gpupipe.tools.benchmark.contenders.torch_loader import PREFETCH_FACTOR, TorchvisionV2
from gpupipe.tools.benchmark.measurement import BenchSettings

__all__ = ["S3", "Crop", "Digest", "Passes", "Place", "Remote", "endless"]

S3 = {"key": "bench", "secret": "bench", "region": "us-east-1"}  # the server looks at none of it

Passes = Generator[Iterator[tuple[Any, Any]], None, None]
"""Over the data, in batches of images and labels."""


@dataclass(frozen=True)
class Place:
    """folder: the images as files. url: of a server that has each kind of data below its name, which is a bucket's name
    to those that talk S3. cache: a folder for what a loader keeps, empty at the start."""

    folder: str
    url: str
    cache: str


class Crop:
    """An encoded image: decoded in RGB, cropped, resized with antialiasing, flipped; all by torchvision, on uint8."""

    def __init__(self, settings: BenchSettings) -> None:
        self.transform = TorchvisionV2().transform(settings)

    def __call__(self, data: bytes) -> torch.Tensor:
        encoded = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        return self.transform(decode_image(encoded, ImageReadMode.RGB))  # type: ignore[no-any-return]


class Digest:
    """A number for an encoded image, by which loaders are checked to give the same images."""

    def __call__(self, data: bytes) -> torch.Tensor:
        digest = hashlib.blake2b(bytes(data), digest_size=7).digest()
        return torch.tensor(int.from_bytes(digest, "big"))


class Remote:
    """A loader. kind: of the data that it reads, written once by `write` from an image folder.

    workers: processes; None for as many as all have. keeps: whether a second pass finds what the first one read.
    """

    kind: str
    keeps = True
    ahead = PREFETCH_FACTOR

    def __init__(self, workers: int | None = None) -> None:
        self.workers = workers

    def write(self, folder: str, target: Path) -> None:
        """The data of a folder as this kind."""
        raise NotImplementedError

    def prepare(self, folder: str) -> None:
        """Write what is not there yet."""
        convert(folder, f"remote-{self.kind}", lambda target: self.write(folder, target))

    def passes(self, place: Place, work: Callable[[bytes], torch.Tensor], settings: BenchSettings) -> Passes:
        """One shuffled pass over the data after another, in batches; `work` is done to each image."""
        raise NotImplementedError

    def options(self, settings: BenchSettings) -> dict[str, Any]:
        """Of a DataLoader. A pass in batches of one is asked for to see all images."""
        return {
            "batch_size": settings.batch_size,
            "drop_last": settings.batch_size > 1,
            "num_workers": self.workers or settings.workers,
            "prefetch_factor": self.ahead,
            "persistent_workers": True,
        }


def endless(loader: Any) -> Passes:
    """Each of a DataLoader's passes."""
    while True:
        yield iter(loader)
