"""Contenders of buckets.py: batches of images of several sizes, padded or not, by gpupipe and by torchvision v2."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, Sampler
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import gpupipe
from gpupipe.host.usage import cpu_seconds
from gpupipe.kernels.sizes import nearest_bucket
from gpupipe.order import Order, Shuffled
from gpupipe.tools.benchmark.contenders.torch_loader import PREFETCH_FACTOR, read_rgb
from gpupipe.tools.benchmark.measurement import BenchSettings, Round

__all__ = ["MULTIPLE", "WAYS", "Grouped", "Host", "bucket_crop", "order_of", "resize"]

MULTIPLE = 32
GROUPS = 3  # torchvision's --aspect-ratio-group-factor


def resize(size: int) -> gpupipe.Resize:
    """As detection is evaluated, in the proportions of 800 and 1333."""
    return gpupipe.Resize(size, size * 1333 // 800)


def bucket_crop(size: int) -> gpupipe.BucketCrop:
    """Buckets of as many pixels as size * size, in steps of a sixteenth."""
    return gpupipe.BucketCrop.of_area(size, size // 2, size * 2, max(1, size // 16))


def order_of(kind: str, sizes: np.ndarray, settings: BenchSettings) -> Order:
    """An order of batches for images of these sizes. "random": none of its own."""
    if kind == "random":
        return Shuffled(len(sizes))
    if kind == "groups":
        bins = 2 ** np.linspace(-1, 1, 2 * GROUPS + 1)
        return gpupipe.Buckets(np.searchsorted(bins, sizes[:, 1] / sizes[:, 0], side="right"), settings.batch_size)
    if kind == "aspect":
        return gpupipe.Buckets.by_aspect(sizes, bucket_crop(settings.size).buckets, settings.batch_size)
    outputs = -(-gpupipe.output_sizes(resize(settings.size), sizes) // MULTIPLE) * MULTIPLE
    budget = max(settings.batch_size * int(outputs.prod(axis=1).mean()), int(outputs.max(axis=0).prod()))
    return gpupipe.Buckets.by_size(outputs, budget)


class Grouped(Sampler[list[int]]):
    """Batches of one group each, as torchvision's references make them; short ones at the end."""

    def __init__(self, groups: np.ndarray, batch_size: int) -> None:
        self.groups, self.batch_size = groups, batch_size

    def __len__(self) -> int:
        return int((-(-np.bincount(self.groups) // self.batch_size)).sum())

    def __iter__(self) -> Iterator[list[int]]:
        waiting: dict[int, list[int]] = {}
        for index in torch.randperm(len(self.groups)).tolist():
            batch = waiting.setdefault(int(self.groups[index]), [])
            batch.append(index)
            if len(batch) == self.batch_size:
                yield waiting.pop(int(self.groups[index]))
        yield from waiting.values()


class Ours:
    """gpupipe.Loader with the torch engine."""

    def __init__(self, kind: str, settings: BenchSettings) -> None:
        source = gpupipe.open_source(settings.data)
        sizes = source.image_sizes()
        order = order_of(kind, sizes, settings)
        crop = bucket_crop(settings.size) if kind == "aspect" else resize(settings.size)
        pad = gpupipe.Pad(multiple=MULTIPLE)
        self.loader = gpupipe.Loader(
            gpupipe.open_source(settings.data, fields={"image": gpupipe.Image(collate=pad), "label": gpupipe.Scalar()}),
            gpupipe.Recipe((crop, gpupipe.RandomHorizontalFlip()), dtype="uint8"),
            settings.batch_size if kind == "random" else 1,
            order=order,
            num_workers=settings.workers,
            engine="torch",
            device="cpu",
        )

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)


class Theirs:
    """torchvision v2 on tensors in a DataLoader with persistent workers."""

    def __init__(self, kind: str, settings: BenchSettings) -> None:
        size, sizes = settings.size, gpupipe.open_source(settings.data).image_sizes()
        flip = v2.RandomHorizontalFlip()
        if kind == "aspect":
            buckets = np.array(bucket_crop(size).buckets)
            batches: Any = Grouped(nearest_bucket(sizes, buckets), settings.batch_size)
            steps = [partial(covering, buckets), flip]
        else:
            steps = [v2.Resize(size, max_size=size * 1333 // 800), flip]
            groups = order_of("groups", sizes, settings)
            batches = BatchSampler(Random(len(sizes)), settings.batch_size, drop_last=False)
            if kind == "groups":
                batches = Grouped(np.asarray(groups.groups), settings.batch_size)  # type: ignore[attr-defined]
        self.loader: DataLoader[Any] = DataLoader(
            ImageFolder(settings.data, v2.Compose(steps), loader=read_rgb),
            batch_sampler=batches,
            num_workers=settings.workers,
            prefetch_factor=PREFETCH_FACTOR,
            persistent_workers=True,
            collate_fn=collated,
        )

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)


class Random(Sampler[int]):
    """All in a new order."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(self.size).tolist())


def covering(buckets: np.ndarray, image: torch.Tensor) -> torch.Tensor:
    """Resized so that its bucket is covered, and cut in the middle."""
    shape = np.array([image.shape[1:]])
    bucket = buckets[nearest_bucket(shape, buckets)[0]]
    resized = np.maximum((shape[0] * (bucket / shape[0]).max() + 0.5).astype(int), bucket)
    return v2.functional.center_crop(v2.functional.resize(image, resized.tolist()), bucket.tolist())


def collated(samples: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Padded to the largest of each side, made multiples of 32, as torchvision's detection models do it."""
    height, width = (-(-max(image.shape[side] for image, _ in samples) // MULTIPLE) * MULTIPLE for side in (1, 2))
    images = torch.zeros((len(samples), 3, height, width), dtype=torch.uint8)
    for whole, (image, _) in zip(images, samples, strict=True):
        whole[:, : image.shape[1], : image.shape[2]].copy_(image)
    return images, torch.tensor([label for _, label in samples])


WAYS: dict[str, tuple[type, str]] = {
    "gpupipe, random batches": (Ours, "random"),
    "gpupipe, groups of aspect ratios": (Ours, "groups"),
    "gpupipe, buckets by size": (Ours, "size"),
    "torchvision v2, random batches": (Theirs, "random"),
    "torchvision v2, groups of aspect ratios": (Theirs, "groups"),
    "gpupipe, crops of buckets": (Ours, "aspect"),
    "torchvision v2, crops of buckets": (Theirs, "aspect"),
}


class Host:
    """A contender in a process of its own."""

    def __init__(self, name: str, settings: BenchSettings) -> None:
        self.name, self.settings = name, settings

    @cached_property
    def way(self) -> Any:
        """Its loader."""
        kind, what = WAYS[self.name]
        return kind(what, self.settings)

    def open(self) -> None:
        """Start the workers, and go through an epoch."""
        for _ in self.way:
            pass

    def run(self, seconds: float) -> tuple[Round, int]:
        """Whole epochs for at least so long, and the pixels of their batches, padding counted."""
        cpu, start, images, pixels = cpu_seconds(), time.perf_counter(), 0, 0
        while time.perf_counter() - start < seconds:
            for batch, labels in self.way:
                images += len(labels)
                pixels += batch.shape[0] * batch.shape[2] * batch.shape[3]
        return Round(images, time.perf_counter() - start, cpu_seconds() - cpu), pixels
