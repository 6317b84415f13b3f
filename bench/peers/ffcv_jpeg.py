"""FFCV: its own file format, JPEGs encoded again with quality 96 (about the originals' bytes), its compiled pipeline.

There is no wheel: pip builds it with OpenCV and libturbojpeg (Debian: libopencv-dev libturbojpeg0-dev pkg-config).
It refuses more workers than there are cores.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from ffcv.fields import IntField, RGBImageField
from ffcv.fields.decoders import IntDecoder
from ffcv.fields.rgb_image import RandomResizedCropRGBImageDecoder
from ffcv.loader import Loader, OrderOption
from ffcv.transforms import NormalizeImage, RandomHorizontalFlip, Squeeze, ToTensor, ToTorchImage
from ffcv.writer import DatasetWriter
from torchvision.datasets import ImageFolder

from gpupipe.tools.benchmark.contenders import Batch, BatchStream
from gpupipe.tools.benchmark.measurement import BenchSettings
from peers.common import MEAN_255, RATIO, SCALE, STD_255, Peer, convert, converted, images

__all__ = ["Ffcv"]

REQUIREMENTS = ("ffcv", "numpy<2")
BATCHES_AHEAD = 3  # its default
EPOCH = 1_000_000  # images in an epoch: passes are joined in it, since it stops between epochs


@dataclass
class FfcvStream:
    """The loader's epochs."""

    loader: Any

    def __iter__(self) -> Iterator[Batch]:
        while True:
            yield from self.loader

    def close(self) -> None:
        """Its threads end with the iterator."""


class Ffcv(Peer):
    """Loader(os_cache=True) with RandomResizedCropRGBImageDecoder; it resizes with an area filter."""

    name = "ffcv"

    def cycle(self, settings: BenchSettings) -> int:
        """All threads work on one batch."""
        return 1

    def queued(self, settings: BenchSettings) -> int:
        """Its queue and the batch in the making."""
        return BATCHES_AHEAD + 1

    def prepare(self, settings: BenchSettings) -> bool:
        """Encode the images again into its file."""

        def write(target: Path) -> None:
            fields = {"image": RGBImageField(write_mode="jpg", jpeg_quality=96), "label": IntField()}
            writer = DatasetWriter(str(target / "data.beton"), fields, num_workers=settings.workers)
            writer.from_indexed_dataset(ImageFolder(settings.data))

        return convert(settings.data, "ffcv-q96", write)

    def open(self, settings: BenchSettings) -> BatchStream:
        """Compile and start."""
        rng, count = np.random.default_rng(1), len(images(settings.data)[0])
        steps = [
            RandomResizedCropRGBImageDecoder((settings.size, settings.size), SCALE, RATIO),
            RandomHorizontalFlip(),
        ]
        if settings.dtype == "float32":
            normalize = NormalizeImage(np.array(MEAN_255), np.array(STD_255), np.float32)
            steps += [normalize, ToTensor(), ToTorchImage(channels_last=False)]
        else:
            steps += [ToTensor()]
        loader = Loader(
            str(converted(settings.data, "ffcv-q96") / "data.beton"),
            batch_size=settings.batch_size,
            num_workers=settings.threads,
            os_cache=True,
            order=OrderOption.SEQUENTIAL,
            indices=np.concatenate([rng.permutation(count) for _ in range(-(-EPOCH // count))]),
            pipelines={"image": steps, "label": [IntDecoder(), ToTensor(), Squeeze()]},
            batches_ahead=BATCHES_AHEAD,
        )
        return FfcvStream(loader)
