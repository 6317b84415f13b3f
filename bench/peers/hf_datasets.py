"""Hugging Face datasets: an Arrow table with an `Image` feature, decoded by Pillow, and torchvision's v1 transforms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from datasets import Dataset, Features, Image, Value, load_from_disk
from torch.utils.data import DataLoader

from gpupipe.tools.benchmark.contenders import BatchStream
from gpupipe.tools.benchmark.contenders.torch_loader import (
    PREFETCH_FACTOR,
    DataLoaderStream,
    EndlessShuffle,
    TorchvisionPillow,
)
from gpupipe.tools.benchmark.measurement import BenchSettings
from peers.common import Peer, convert, converted, images

__all__ = ["HfDatasets"]

REQUIREMENTS = ("datasets",)
FEATURES = Features({"image": Image(), "label": Value("int64")})


def rows(folder: str) -> Iterator[dict[str, Any]]:
    """What is stored of each image: its file's bytes."""
    for path, label in zip(*images(folder), strict=True):
        yield {"image": {"path": None, "bytes": Path(path).read_bytes()}, "label": label}


class HfDatasets(Peer):
    """`with_transform` behind a DataLoader."""

    name = "hf-datasets"
    ahead = PREFETCH_FACTOR

    def prepare(self, settings: BenchSettings) -> bool:
        """Write the files' bytes into Arrow files."""

        def write(target: Path) -> None:
            made = Dataset.from_generator(
                rows, features=FEATURES, cache_dir=str(target / "work"), gen_kwargs={"folder": settings.data}
            )
            made.save_to_disk(str(target / "arrow"))

        return convert(settings.data, "arrow", write)

    def open(self, settings: BenchSettings) -> BatchStream:
        """The workers start with the first batch."""
        changed = partial(_changed, TorchvisionPillow().transform(settings))
        dataset = load_from_disk(str(converted(settings.data, "arrow") / "arrow")).with_transform(changed)
        loader = DataLoader(
            dataset,
            settings.batch_size,
            sampler=EndlessShuffle(len(dataset)),
            num_workers=settings.workers,
            prefetch_factor=self.ahead,
            collate_fn=self.collate,
        )
        return DataLoaderStream(loader, "cpu")

    @staticmethod
    def collate(samples: list[dict[str, Any]]) -> Any:
        """Tuples instead of dictionaries."""
        from torch.utils.data import default_collate

        return default_collate([(sample["image"], sample["label"]) for sample in samples])


def _changed(transform: Callable[[Any], Any], batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {"image": [transform(image.convert("RGB")) for image in batch["image"]], "label": batch["label"]}
