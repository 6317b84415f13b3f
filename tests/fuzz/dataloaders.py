"""DataLoaders with transforms in which nothing is left to chance, beside what `from_dataloader` makes of them.

An input is the seed of the transforms, the images, and how they are batched.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import torch
from images import encode, picture
from torch.utils.data import BatchSampler, ConcatDataset, DataLoader, SequentialSampler, Subset
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import InterpolationMode, v2

import gpupipe
from fuzz.harness import Finding, Target
from fuzz.items import SEED, seeds

COUNT = 9  # files
SIDES = (1, 5, 16, 23, 40, 64)
FILTERS = (InterpolationMode.BILINEAR, InterpolationMode.BICUBIC, InterpolationMode.NEAREST, InterpolationMode.LANCZOS)
KINDS = (
    ("JPEG", "RGB", {"quality": 90, "subsampling": 0}),
    ("JPEG", "RGB", {"quality": 90, "subsampling": 2, "progressive": True}),
    ("JPEG", "L", {}),
    ("JPEG", "CMYK", {}),
    ("PNG", "RGB", {}),
    ("PNG", "RGBA", {}),
    ("PNG", "P", {}),
    ("PNG", "LA", {}),
    ("WEBP", "RGB", {"lossless": True}),
    ("BMP", "RGB", {}),
)
NEAREST = InterpolationMode.NEAREST  # else Pillow has other pixels at the border than tensors, which gpupipe follows
MOST = {"bilinear": 1.001, "bicubic": 32.0}  # levels of 0 to 255, where Pillow 13 resizes columns first
MEAN = (0.6, 8.0)  # levels, without and with operations on colours: Pillow has 256 hues, some colours are 9 levels off


def folder_of(draw: random.Random, root: Path) -> Path:
    """An image folder of two classes, made once for each of its kinds."""
    number = draw.randrange(12)
    root = root / f"images-{number}"
    if root.exists():
        return root
    chosen = random.Random(number)
    for index in range(COUNT):
        kind, mode, options = chosen.choice(KINDS)
        place = root / f"class_{index % 2}" / f"{index}.{kind.lower()}"
        place.parent.mkdir(parents=True, exist_ok=True)
        pixels = picture(chosen.choice(SIDES), chosen.choice(SIDES), index)
        place.write_bytes(encode(pixels, kind, mode, **options))
    return root


def geometry(draw: random.Random, lib: Any) -> list[Any]:
    """That ends in images of one size."""
    side, other = draw.randint(1, 40), draw.randint(1, 40)
    size = draw.choice((side, (side, other), [other, side]))
    interpolation = draw.choice(FILTERS[: draw.choice((2, 2, 2, 4))])
    antialias = draw.choice((True,) * 8 + (None, False)) if lib is v1 else True
    resize = lib.Resize(draw.randint(1, 50), interpolation, antialias=antialias)
    largest = lib.Resize(10, interpolation, max_size=draw.randint(11, 60), antialias=antialias)
    squash = lib.Resize((side, other), interpolation, antialias=antialias)
    crop = lib.CenterCrop(size)
    pad = lib.Pad(draw.randint(0, 9), draw.choice((0, 7, (1, 2, 3))), draw.choice(("constant", "constant", "edge")))
    steps = (
        [resize, crop],
        [resize, crop],
        [squash],
        [largest, crop],
        [squash, crop],
        [crop],
        [pad, crop],
        [crop, squash],
        [resize, pad, crop],
        [resize, lib.CenterCrop(12), pad],
        [lib.RandomResizedCrop(size, (1, 1), (1, 1))],
    )
    return list(draw.choice(steps[: draw.choice((5, 5, len(steps)))]))


def flips(draw: random.Random, lib: Any) -> list[Any]:
    kinds = (lib.RandomHorizontalFlip, lib.RandomHorizontalFlip, lib.RandomVerticalFlip)
    return [draw.choice(kinds)(draw.choice((0.0, 1.0, 1.0))) for _ in range(draw.choice((0, 1, 1, 2)))]


def colours(draw: random.Random, lib: Any) -> list[Any]:
    """Up to two; those that make much of a level's difference come first."""
    factor = round(draw.uniform(0.3, 1.9), 2)
    turned = round(draw.uniform(-60, 60), 1)
    fill = draw.choice((0, 9, (1, 2, 3)))
    either: tuple[Callable[[], Any], ...] = (
        lambda: lib.ColorJitter(brightness=(factor, factor)),
        lambda: lib.ColorJitter(contrast=(factor, factor)),
        lambda: lib.ColorJitter(saturation=(factor, factor)),
        lambda: lib.ColorJitter(hue=(factor / 4, factor / 4)),
        lambda: lib.RandomGrayscale(1.0),
        lambda: lib.Grayscale(draw.choice((1, 3, 3, 3))),
        lambda: lib.RandomInvert(1.0),
        lambda: lib.RandomAdjustSharpness(factor, 1.0),
        lambda: lib.GaussianBlur(draw.choice((3, 5, (3, 5))), (factor, factor)),
        lambda: lib.RandomRotation((turned, turned), NEAREST, fill=fill),
        lambda: lib.RandomAffine((turned, turned), None, (factor, factor), (9, 9), NEAREST),
        lambda: lib.RandomApply([lib.RandomInvert(1.0), lib.RandomGrayscale(1.0)], draw.choice((0.0, 1.0))),
        lambda: lib.RandomPerspective(0.5, 0.0),
    )
    first: tuple[Callable[[], Any], ...] = (
        *either,
        lambda: lib.RandomPosterize(draw.randint(1, 8), 1.0),
        lambda: lib.RandomSolarize(draw.randint(0, 255), 1.0),
        lambda: lib.RandomAutocontrast(1.0),
        lambda: lib.RandomEqualize(1.0),
        lambda: lib.RandomChoice([lib.RandomSolarize(128, 1.0)]),
    )
    return [draw.choice(kinds)() for kinds in (first, either)[: draw.choice((0, 0, 0, 1, 1, 2))]]


def conversion(draw: random.Random, lib: Any, of_tensors: bool) -> list[Any]:
    """To tensors of floats, or of uint8; of what may be tensors already."""
    if of_tensors:
        floats = draw.choice(([v2.ToDtype(torch.float32, scale=True)], [v1.ConvertImageDtype(torch.float32)], []))
    else:
        floats = draw.choice(
            (
                [v1.ToTensor()],
                [v1.PILToTensor(), v1.ConvertImageDtype(torch.float32)],
                [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)],
                [v1.PILToTensor()],
            )
        )
    mean, std = [[round(draw.uniform(0.1, 0.9), 3) for _ in range(3)] for _ in range(2)]
    is_float = bool(floats) and not isinstance(floats[-1], v1.PILToTensor)
    normalized = [lib.Normalize(mean, std)] if is_float and draw.random() < 0.6 else []
    return [*floats, *normalized, *([lib.RandomErasing(0.0)] if is_float and draw.random() < 0.2 else [])]


def transform_of(draw: random.Random) -> tuple[Any, bool]:
    """And whether some of its operations are on colours."""
    lib = draw.choice((v1, v2))
    of_tensors = lib is v2 and draw.random() < 0.3
    changed = colours(draw, lib)
    steps = [*geometry(draw, lib), *flips(draw, lib)]
    if draw.random() < 0.1:
        draw.shuffle(steps)
    steps = [*changed, *steps] if draw.random() < 0.1 else [*steps, *changed]
    first = [draw.choice((v2.ToImage(), v2.PILToTensor()))] if of_tensors else []
    return lib.Compose([*first, *steps, *conversion(draw, lib, of_tensors)]), bool(changed)


def loader_of(draw: random.Random, dataset: Any) -> DataLoader[Any]:
    size = draw.randint(1, COUNT + 2)
    if draw.random() < 0.2:
        sampler = BatchSampler(SequentialSampler(dataset), size, draw.random() < 0.5)
        return DataLoader(dataset, batch_sampler=sampler)
    return DataLoader(dataset, size, drop_last=draw.random() < 0.3)


def dataset_of(draw: random.Random, root: Path, transform: Any) -> Any:
    relabelled = draw.choice((None, None, None, lambda label: 5 - label))
    dataset = ImageFolder(root, transform, target_transform=relabelled)
    return draw.choice(
        (
            dataset,
            dataset,
            Subset(dataset, draw.sample(range(COUNT), draw.randint(1, COUNT))),
            ConcatDataset([dataset, Subset(dataset, [3, 1])]),
        )
    )


def check_of(scratch: Path) -> Callable[[bytes], Hashable]:
    def check(data: bytes) -> Hashable:
        draw = random.Random(data)
        transform, coloured = transform_of(draw)
        theirs = loader_of(draw, dataset_of(draw, folder_of(draw, scratch), transform))
        try:
            expected = list(theirs)
        except Exception as error:
            return f"torchvision raises: {type(error).__name__}"
        with gpupipe.from_dataloader(theirs, engine="torch") as loader:
            compare(loader, expected, coloured)
            return "translated" if loader.translation.complete else "as it is written"

    return check


def compare(loader: gpupipe.Loader, expected: list[Any], coloured: bool) -> None:
    made = list(loader)
    recipe = loader.recipe if loader.translation.complete else None
    most, mean = (0, 0) if recipe is None else (256 if coloured else MOST[recipe.crop.interpolation], MEAN[coloured])
    normalize = recipe and recipe.normalize
    if len(loader) != len(expected) or len(made) != len(expected):
        raise Finding(f"{len(made)} batches of {len(loader)}, {len(expected)} of the DataLoader")
    for step, ((images, labels), (their_images, their_labels)) in enumerate(zip(made, expected, strict=True)):
        if not torch.equal(labels, their_labels) or labels.dtype != their_labels.dtype:
            raise Finding(f"labels {labels} at step {step}, {their_labels} of the DataLoader")
        if images.shape != their_images.shape or images.dtype != their_images.dtype:
            raise Finding(f"{images.dtype} {images.shape} at step {step}, {their_images.dtype} {their_images.shape}")
        apart = (images.double() - their_images.double()).abs()
        if images.dtype != torch.uint8:
            apart *= 255 * torch.tensor(normalize.std if normalize else (1.0,)).double().view(-1, 1, 1)
        if apart.max() > most or apart.mean() > mean:
            raise Finding(f"pixels at step {step} are {apart.max():.2f} levels apart, {apart.mean():.3f} in the mean")


TARGETS = [Target("dataloaders", seeds, check_of, lambda draw, data, others: draw.randbytes(SEED))]
