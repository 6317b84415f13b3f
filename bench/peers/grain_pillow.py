"""grain: a MapDataset with a random_map that crops and resizes with Pillow, in worker processes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grain
import numpy as np
from PIL import Image, ImageOps

from gpupipe.tools.benchmark.contenders import Batch, BatchStream
from gpupipe.tools.benchmark.measurement import BenchSettings
from peers.common import MEAN_255, STD_255, Peer, images, random_box

__all__ = ["Grain"]

REQUIREMENTS = ("grain",)
BUFFER = 2  # batches of a worker


@dataclass(frozen=True)
class Crop:
    """Random crop, flip, and normalizing; sent to the workers, so it is no closure."""

    size: int
    dtype: str

    def __call__(self, sample: tuple[str, int], rng: np.random.Generator) -> Batch:
        path, label = sample
        with Image.open(path) as image:
            top, left, height, width = random_box(rng, image.height, image.width)
            box = (left, top, left + width, top + height)
            size = (self.size, self.size)
            image = image.convert("RGB").resize(size, Image.Resampling.BILINEAR, box=box)
        pixels = np.asarray(ImageOps.mirror(image) if rng.random() < 0.5 else image)
        if self.dtype == "float32":
            pixels = (pixels.astype(np.float32) - np.float32(MEAN_255)) / np.float32(STD_255)
            pixels = np.ascontiguousarray(pixels.transpose(2, 0, 1))
        return pixels, np.int64(label)


@dataclass
class GrainStream:
    """The data set's batches."""

    dataset: Any

    def __iter__(self) -> Iterator[Batch]:
        yield from self.dataset

    def close(self) -> None:
        """The workers end with the iterator."""


class Grain(Peer):
    """MapDataset.shuffle().repeat().random_map().batch() with `mp_prefetch`."""

    name = "grain"
    ahead = BUFFER + 4  # seen: 12 batches of 2 workers lie ready after a pause

    def open(self, settings: BenchSettings) -> BatchStream:
        """The workers start with the first batch."""
        samples = list(zip(*images(settings.data), strict=True))
        dataset = (
            grain.MapDataset.source(samples)
            .seed(1)
            .shuffle()
            .repeat()
            .random_map(Crop(settings.size, settings.dtype))
            .batch(settings.batch_size, drop_remainder=True)
            .to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=1))
            .mp_prefetch(grain.MultiprocessingOptions(settings.workers, per_worker_buffer_size=BUFFER))
        )
        return GrainStream(dataset)
