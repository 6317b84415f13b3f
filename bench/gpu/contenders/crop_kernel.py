"""gpupipe's CPU kernel by itself: files in memory, one call a batch on all threads, no loader around it."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from peers.common import Peer, images, random_box
from PIL import Image

from gpupipe.kernels import Crops, decode_crops, native
from gpupipe.tools.benchmark.contenders import Batch, BatchStream
from gpupipe.tools.benchmark.contenders.torch_loader import EndlessShuffle
from gpupipe.tools.benchmark.measurement import BenchSettings

__all__ = ["CropKernel"]


@dataclass
class KernelStream:
    """uint8 batches in host memory."""

    files: list[bytes]
    labels: list[int]
    settings: BenchSettings

    def __iter__(self) -> Iterator[Batch]:
        indices, rng, settings = iter(EndlessShuffle(len(self.files))), np.random.default_rng(2), self.settings
        sizes = [read_size(path) for path in self.files]
        while True:
            rows = [next(indices) for _ in range(settings.batch_size)]
            boxes = [random_box(rng, *sizes[row]) for row in rows]
            crops = Crops.of(boxes, (settings.size, settings.size), flips=rng.random(len(rows)) < 0.5)
            made = decode_crops([self.files[row] for row in rows], [crops], threads=settings.threads)
            if made.failures:
                raise RuntimeError(f"{len(made.failures)} images failed: {next(iter(made.failures.values()))}")
            yield made.images[0], np.array([self.labels[row] for row in rows])

    def close(self) -> None:
        """Nothing is left."""


def read_size(data: bytes) -> tuple[int, int]:
    """Height and width."""
    with Image.open(io.BytesIO(data)) as image:
        return image.height, image.width


@dataclass
class CropKernel(Peer):
    """gpupipe.kernels.decode_crops with `settings.threads` threads: uint8 only."""

    name: ClassVar[str] = "crop-kernel"

    def available(self, settings: BenchSettings) -> str | None:
        """The compiled kernels are needed."""
        if native.library() is None:
            return f"the C++ kernels are not built: {native.problem()}"
        return None if settings.dtype == "uint8" else "makes uint8 only"

    def cycle(self, settings: BenchSettings) -> int:
        """One call makes a batch."""
        return 1

    def queued(self, settings: BenchSettings) -> int:
        """Nothing is made ahead."""
        return 0

    def open(self, settings: BenchSettings) -> BatchStream:
        """Read all files."""
        paths, labels = images(settings.data)
        return KernelStream([Path(path).read_bytes() for path in paths], labels, settings)
