"""The original's transform behind torch's DataLoader, on Pillow images."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from field_peers.data import Samples
from peers.common import Peer, images
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision.datasets.folder import default_loader
from torchvision.io import ImageReadMode, decode_image

from gpupipe.tools.benchmark.contenders import Batch, BatchStream
from gpupipe.tools.benchmark.contenders.torch_loader import PREFETCH_FACTOR, EndlessShuffle
from gpupipe.tools.benchmark.measurement import BenchSettings
from preset_peers.code import Missing, Original
from preset_peers.originals import ORIGINALS
from preset_peers.ours import first
from preset_peers.table import PRESETS

__all__ = ["Theirs", "dataset_of"]


class Made(Dataset[Any]):
    """(what the original makes of a sample, its label), by torchvision's order of the image folder."""

    def __init__(self, folder: str, case: str, original: Original) -> None:
        self.paths, self.labels = images(folder)
        self.samples = None if case == "label" else Samples(folder, case)
        self.transform = original.transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        if self.samples is None:
            return self.transform(default_loader(self.paths[index])), self.labels[index]
        sample = self.samples[index]
        beside = {name: sample[name] for name in ("boxes", "classes") if name in sample}
        if "mask" in sample:
            beside["mask"] = decode_image(torch.from_numpy(sample["mask"]), ImageReadMode.UNCHANGED)
        picture = Image.open(io.BytesIO(sample["image"])).convert("RGB")
        return self.transform(picture, beside), self.labels[index]


def dataset_of(folder: str, case: str, original: Original) -> Any:
    """What the original makes of the samples of a folder."""
    return original.dataset(folder) if original.dataset else Made(folder, case, original)


def dense(samples: list[Any]) -> Any:
    """Images stacked where they have one size, what lies beside them in a list."""
    made, labels = zip(*samples, strict=True)
    pictures = [one.pop("image") for one in made]
    stacked = torch.stack(pictures) if len({one.shape for one in pictures}) == 1 else pictures
    return [stacked, list(made)], torch.tensor(labels)


@dataclass
class Stream:
    """Its batches' images, of the first view where there are several, finished by the consumer."""

    loader: Any
    original: Original

    def __iter__(self) -> Iterator[Batch]:
        for views, labels in self.loader:
            yield self.original.finish(first(views), labels)

    def close(self) -> None:
        """Nothing is left once the iterator is gone."""


class Theirs(Peer):
    """Each worker makes whole batches."""

    name = "original"
    ahead = PREFETCH_FACTOR

    def __init__(self, preset: str) -> None:
        self.preset = PRESETS[preset]
        self.make = ORIGINALS[preset]

    def available(self, settings: BenchSettings) -> str | None:
        """Its code has to be there."""
        try:
            self.make(self.preset.size)
        except Missing as error:
            return str(error)
        return super().available(settings)

    def open(self, settings: BenchSettings) -> BatchStream:
        """The workers start with the first batch."""
        original = self.make(self.preset.size)
        dataset = dataset_of(settings.data, self.preset.samples, original)
        loader: Any = DataLoader(
            dataset,
            settings.batch_size,
            sampler=EndlessShuffle(len(dataset)),
            num_workers=settings.workers,
            prefetch_factor=PREFETCH_FACTOR,
            multiprocessing_context="fork",  # some of the originals are lambdas
            collate_fn=original.collate if self.preset.samples == "label" else dense,
            drop_last=True,
        )
        return Stream(loader, original)
