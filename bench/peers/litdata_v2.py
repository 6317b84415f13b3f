"""litdata: chunks of JPEG bytes, which it decodes with torchvision before the data set sees them, and v2 transforms.

Its `optimize` first removes two folders with all that is in them, by default `chunks` and `data` in the folder for
temporary files, whoever put things there. So it runs with both pointed into the folder that is being made.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from litdata import StreamingDataset, optimize
from PIL import Image
from torch.utils.data import DataLoader, IterableDataset

from gpupipe.tools.benchmark.contenders import BatchStream
from gpupipe.tools.benchmark.contenders.torch_loader import PREFETCH_FACTOR, DataLoaderStream, TorchvisionV2
from gpupipe.tools.benchmark.measurement import BenchSettings
from peers.common import Peer, convert, converted, images

__all__ = ["LitData"]

REQUIREMENTS = ("litdata",)
CHUNK_IMAGES = 32  # small, so that small data sets have a chunk for each worker


SCRATCH = {"DATA_OPTIMIZER_CACHE_FOLDER": "scratch-chunks", "DATA_OPTIMIZER_DATA_CACHE_FOLDER": "scratch-data"}


@dataclass(frozen=True)
class Stored:
    """What is stored of an image: its file's bytes, as litdata does with a JPEG that Pillow has opened."""

    paths: list[str]
    labels: list[int]

    def __call__(self, index: int) -> dict[str, Any]:
        return {"image": Image.open(self.paths[index]), "label": self.labels[index]}


class Transformed(StreamingDataset):
    """A StreamingDataset of (image, label)."""

    def __init__(self, transform: Any, folder: str) -> None:
        super().__init__(folder, shuffle=True)
        self.apply = transform

    def __getitem__(self, index: Any) -> Any:
        stored = super().__getitem__(index)
        image = stored["image"]
        return self.apply(image.expand(3, -1, -1) if len(image) == 1 else image), stored["label"]


class Endless(IterableDataset[Any]):
    """One pass after another."""

    def __init__(self, dataset: StreamingDataset) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from self.dataset


class LitData(Peer):
    """StreamingDataset(shuffle=True) in the workers of a DataLoader."""

    name = "litdata"
    ahead = PREFETCH_FACTOR
    exact_passes = False

    def prepare(self, settings: BenchSettings) -> bool:
        """Write the files' bytes into chunks."""

        def write(target: Path) -> None:
            os.environ.update({name: str(target / folder) for name, folder in SCRATCH.items()})
            paths, labels = images(settings.data)
            numbers = list(range(len(paths)))  # and no paths: it removes files that it takes for downloaded copies
            options = dict(chunk_size=CHUNK_IMAGES, num_workers=1, verbose=False)
            optimize(Stored(paths, labels), numbers, str(target / "chunks"), **options)

        return convert(settings.data, "litdata", write)

    def open(self, settings: BenchSettings) -> BatchStream:
        """The workers start with the first batch."""
        folder = str(converted(settings.data, "litdata") / "chunks")
        dataset = Endless(Transformed(TorchvisionV2().transform(settings), folder))
        loader = DataLoader(dataset, settings.batch_size, num_workers=settings.workers, prefetch_factor=self.ahead)
        return DataLoaderStream(loader, "cpu")
