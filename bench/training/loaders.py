"""The loaders that `train_imagenet.py` trains with, all of the same recipe.

Each has `dataset.classes`, a length and a shuffle by epoch, and gives (images, labels). With `images`, an epoch has so
many samples, of as many passes over the data as that takes: what `--compare` measures is as long, however few they are.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from typing import Any

import torch
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler

import gpupipe
from gpupipe.host.system import default_workers
from gpupipe.loader.distributed import rank_and_world_size
from gpupipe.recipe import IMAGENET_MEAN, IMAGENET_STD

__all__ = ["LOADERS", "Cached", "make_loader", "set_epoch", "workers"]

LOADERS = ("gpupipe", "gpupipe-torch", "torchvision-v2", "torchvision-pillow", "device")
CACHED = 4  # batches of `device`: more would not change what a step costs
TIMEOUT = 120  # seconds after which DataLoader workers that give nothing are an error


def make_loader(args: argparse.Namespace, data: str, train: bool, images: int | None = None) -> Any:
    """The loader that `args.loader` names, one of LOADERS; rank and world size come from torch.distributed."""
    if args.loader.startswith("torchvision"):
        return torch_loader(args, data, train, images)
    loader = gpupipe_loader(args, data, train, images)
    return Cached(loader) if args.loader == "device" and train else loader


def set_epoch(loader: Any, epoch: int) -> None:
    """All shuffle by the epoch's number."""
    (loader if hasattr(loader, "set_epoch") else loader.sampler).set_epoch(epoch)


def workers(args: argparse.Namespace) -> int:
    """Processes of a DataLoader."""
    return default_workers() if args.workers is None else int(args.workers)


def gpupipe_loader(args: argparse.Namespace, data: str, train: bool, images: int | None = None) -> gpupipe.Loader:
    """Batches as the model takes them, so that a step converts nothing.

    With `--amp` they are bfloat16: autocast rounds images to that at the first convolution, so the values are the same,
    in half the memory. Without `--workers`, their number is what `gpupipe tune` has found, or the default. With
    "gpupipe-torch" the CPU does all the decoding, and leaves the GPU to the model.
    """
    recipe = gpupipe.imagenet_train if train else gpupipe.imagenet_eval
    source = gpupipe.open_source(data)
    return gpupipe.Loader(
        source,
        recipe(
            args.size,
            dtype="bfloat16" if args.amp else "float32",
            layout="channels_last" if args.channels_last else "NCHW",
        ),
        batch_size=args.batch_size,
        shuffle=train and images is None,
        order=None if images is None else gpupipe.VirtualEpochs(gpupipe.Shuffled(len(source)), images),
        drop_last=train,
        seed=args.seed,
        num_workers=args.workers,
        persistent_workers=images is None and args.workers != 0,
        engine="torch" if args.loader == "gpupipe-torch" else args.engine,
    )


def torch_loader(args: argparse.Namespace, data: str, train: bool, images: int | None = None) -> DataLoader[Any]:
    """What gpupipe replaces: torchvision's ImageFolder behind a DataLoader, with v2 on tensors or with Pillow."""
    from torchvision.datasets import ImageFolder

    options = v2_on_tensors(args.size, train) if args.loader == "torchvision-v2" else with_pillow(args.size, train)
    dataset = ImageFolder(data, **options)
    rank, world = rank_and_world_size(None, None)
    sampler: Any = DistributedSampler(dataset, world, rank, train, args.seed, drop_last=train)
    count = workers(args)
    return DataLoader(
        dataset,
        args.batch_size,
        sampler=sampler if images is None else RandomSampler(dataset, num_samples=images),
        num_workers=count,
        pin_memory=torch.cuda.is_available(),
        drop_last=train,
        persistent_workers=count > 0 and images is None,
        timeout=TIMEOUT if count else 0,
    )


def v2_on_tensors(size: int, train: bool) -> dict[str, Callable[..., Any]]:
    """torchvision's own JPEG decoder, and v2 on uint8 tensors: its fastest way on the CPU."""
    from torchvision.transforms import v2

    from gpupipe.tools.benchmark.contenders.torch_loader import read_rgb

    crop = [v2.RandomResizedCrop(size, antialias=True), v2.RandomHorizontalFlip()]
    whole = [v2.Resize(round(size / 0.875), antialias=True), v2.CenterCrop(size)]
    finish = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(IMAGENET_MEAN, IMAGENET_STD)]
    return {"transform": v2.Compose([*(crop if train else whole), *finish]), "loader": read_rgb}


def with_pillow(size: int, train: bool) -> dict[str, Callable[..., Any]]:
    """torchvision's first transforms on Pillow images: what most training scripts do."""
    from torchvision import transforms

    crop = [transforms.RandomResizedCrop(size), transforms.RandomHorizontalFlip()]
    whole = [transforms.Resize(round(size / 0.875)), transforms.CenterCrop(size)]
    finish = [transforms.ToTensor(), transforms.Normalize(IMAGENET_MEAN, IMAGENET_STD)]
    return {"transform": transforms.Compose([*(crop if train else whole), *finish])}


class Cached:
    """The ceiling: a few batches of `loader` that lie on its device, given again and again; nothing is loaded."""

    def __init__(self, loader: gpupipe.Loader) -> None:
        self.dataset = loader.dataset
        self.batches = [(images.clone(), labels.clone()) for images, labels in islice(loader, CACHED)]
        self._steps = len(loader)
        loader.close()

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        return islice(cycle(self.batches), self._steps)

    def set_epoch(self, epoch: int) -> None:
        """Every epoch has the same batches."""
