"""How long each augmentation of a recipe takes on one thread, beside torchvision v2's transform of that name.

    python bench/augmentations.py --out results [--only RandomInvert,GaussianNoise] [--size 224] [--rounds 7]

Each is drawn and done for a batch: by gpupipe as in its workers (programs of the batch, the kernels in place), by
torchvision image by image, on uint8 tensors and on Pillow images. Probabilities are 1, or as they are by default where
an operation is made of several. All three take turns. Microseconds are of the thread's CPU time an image, which what
else the machine does changes least: the median of the rounds, the smallest and the largest. The others' turns have
emptied the cache before each.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent))

from in_turn import words, write
from recipe_loaders.in_torchvision import augmentations

import gpupipe
from gpupipe.host.machine import machine
from gpupipe.kernels import augment
from gpupipe.plan import augmentation

__all__ = ["OPERATIONS", "main"]

OPERATIONS: tuple[gpupipe.recipe.Augmenting, ...] = (
    gpupipe.RandAugment(),
    gpupipe.TrivialAugmentWide(),
    gpupipe.AutoAugment(),
    gpupipe.AugMix(),
    gpupipe.ColorJitter(0.4, 0.4, 0.4, 0.1),
    gpupipe.RandomPhotometricDistort(),
    gpupipe.RandomGrayscale(1.0),
    gpupipe.RandomChannelPermutation(),
    gpupipe.RandomInvert(1.0),
    gpupipe.RandomPosterize(4, 1.0),
    gpupipe.RandomSolarize(128, 1.0),
    gpupipe.RandomAutocontrast(1.0),
    gpupipe.RandomEqualize(1.0),
    gpupipe.RandomAdjustSharpness(2.0, 1.0),
    gpupipe.GaussianBlur(9, (0.1, 2.0)),
    gpupipe.GaussianBlur(23, (0.1, 2.0)),
    gpupipe.RandomGamma(p=1.0),
    gpupipe.RandomHSV(),
    gpupipe.CoarseDropout(p=1.0),
    gpupipe.GaussianNoise(),
    gpupipe.RandomVerticalFlip(1.0),
    gpupipe.RandomRotation(30),
    gpupipe.RandomAffine(30, (0.1, 0.1), (0.8, 1.2), 10, interpolation="bilinear"),
    gpupipe.RandomPerspective(p=1.0),
    gpupipe.ElasticTransform(),
)
CONTENDERS = ("gpupipe", "torchvision v2, tensors", "torchvision v2, Pillow")


@dataclass(frozen=True)
class Row:
    """Microseconds an image, over the rounds; none where a contender can't do it."""

    operation: str
    contender: str
    median_us: float | None = None
    low_us: float | None = None
    high_us: float | None = None


def ways(operation: gpupipe.recipe.Augmenting, images: torch.Tensor) -> dict[str, Callable[[], object]]:
    """By contender what does it once to all images, uint8 (N, height, width, 3)."""
    recipe = gpupipe.Recipe((gpupipe.RandomResizedCrop(tuple(images.shape[1:3])), operation))
    positions, work = np.arange(len(images)), images.clone()
    planes = [image.permute(2, 0, 1).contiguous() for image in images]
    opened = [Image.fromarray(image.numpy()) for image in images]
    try:
        (transform,) = augmentations((operation,))
    except ValueError:  # torchvision has none
        return {CONTENDERS[0]: _ours(recipe, positions, work)}

    def on_tensors() -> None:
        for image in planes:
            transform(image)

    def on_pillow() -> None:
        for image in opened:
            transform(image)

    return dict(zip(CONTENDERS, (_ours(recipe, positions, work), on_tensors, on_pillow), strict=True))


def _ours(recipe: gpupipe.Recipe, positions: NDArray[np.int64], work: torch.Tensor) -> Callable[[], object]:
    def ours() -> None:
        drawn = augmentation(recipe, 0, 0, positions)
        assert drawn is not None
        augment(work, drawn.ops, drawn.values, fill=drawn.fill, out=work, threads=1)

    return ours


def measured(operation: gpupipe.recipe.Augmenting, images: torch.Tensor, rounds: int) -> list[Row]:
    """A row for each contender."""
    found = ways(operation, images)
    times: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    for number in range(rounds + 1):  # the first warms up
        for name, way in found.items():
            begin = time.thread_time()
            try:
                way()
            except (TypeError, ValueError):  # torchvision's GaussianNoise takes no Pillow images
                continue
            if number:
                times[name].append(1e6 * (time.thread_time() - begin) / len(images))
    return [
        Row(repr(operation), name, *((statistics.median(some), min(some), max(some)) if some else ()))
        for name, some in times.items()
    ]


def table(rows: Sequence[Row]) -> str:
    """Markdown: a line for each operation."""
    heads = [f"{name}, us" for name in CONTENDERS]
    lines = [f"| operation | {' | '.join(heads)} | gpupipe to tensors |", "|---" * (len(heads) + 2) + "|"]
    for operation in dict.fromkeys(row.operation for row in rows):
        own = {row.contender: row for row in rows if row.operation == operation}
        cells = [
            "-" if row.median_us is None else f"{row.median_us:,.0f} ({row.low_us:,.0f} - {row.high_us:,.0f})"
            for row in (own[name] for name in CONTENDERS)
        ]
        ours, theirs = (own[name].median_us or 0.0 for name in CONTENDERS[:2])
        faster = f"{theirs / ours:.1f}" if theirs else "-"
        lines.append(f"| `{operation}` | {' | '.join(cells)} | {faster} |")
    return "\n".join(lines)


def pictures(count: int, size: int) -> torch.Tensor:
    """Smooth pictures with noise, uint8 (N, size, size, 3)."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(count, 3, 8, 8, generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, (size, size), mode="bicubic").permute(0, 2, 3, 1)
    noise = torch.randn(count, size, size, 1, generator=generator)
    return (255 * smooth + 12 * noise).clamp(0, 255).to(torch.uint8).contiguous()


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the results")
    parser.add_argument("--only", type=words, default=[""], metavar="A,B", help="operations with one of these in them")
    parser.add_argument("--batch-size", type=int, default=64, metavar="N")
    parser.add_argument("--size", type=int, default=224, metavar="PX", help="side of the images")
    parser.add_argument("--rounds", type=int, default=7, metavar="N")
    args = parser.parse_args(argv)
    threads, images, rows = torch.get_num_threads(), pictures(args.batch_size, args.size), list[Row]()
    torch.set_num_threads(1)
    try:
        for operation in OPERATIONS:
            if any(text in repr(operation) for text in args.only):
                rows += measured(operation, images, args.rounds)
    finally:
        torch.set_num_threads(threads)
    print(table(rows))
    settings = {"batch_size": args.batch_size, "size": args.size, "rounds": args.rounds, "threads": 1}
    write(args.out, "augmentations", table(rows), rows, {"environment": machine() | {"settings": settings}})
    return 0


if __name__ == "__main__":
    sys.exit(main())
