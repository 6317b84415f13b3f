"""How far the levels of `augment` lie from those of torchvision v2's functions on uint8.

    python bench/augment_agreement.py [--sizes 224x224 97x131 33x300] [--steps 15] [--out FOLDER]

Each operation is done to four images of each size (noise, ramps, a dark and a flat one) at `--steps` magnitudes over
its whole range, by the plain reference and by the C++ kernels in each instruction set that this CPU has. The table has
the largest difference to torchvision in levels of 0 to 255, and the share of all levels that differ. SOLARIZE_ADD and
AFFINE_BICUBIC are compared with Pillow's functions, as timm calls them.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import permutations
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torchvision.transforms.v2 import InterpolationMode, functional as F

from gpupipe.host.machine import machine
from gpupipe.kernels import (
    Op,
    affine_matrix,
    augment,
    augment_reference,
    elastic_values,
    gaussian_weights,
    native,
    noise,
    noise_key,
    perspective_matrix,
)
from gpupipe.kernels.augment_reference import displacement

__all__ = ["Case", "cases", "made_images", "main"]

GRAY = (124.0, 116.0, 104.0)
KERNEL_SIZES = (3, 13, 23)
INTERPOLATIONS = {
    Op.AFFINE_NEAREST: InterpolationMode.NEAREST,
    Op.AFFINE_BILINEAR: InterpolationMode.BILINEAR,
}
PERSPECTIVES = {
    Op.PERSPECTIVE_NEAREST: InterpolationMode.NEAREST,
    Op.PERSPECTIVE_BILINEAR: InterpolationMode.BILINEAR,
}
ELASTICS = {Op.ELASTIC_NEAREST: InterpolationMode.NEAREST, Op.ELASTIC_BILINEAR: InterpolationMode.BILINEAR}
Way = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Case:
    """An operation with its values, and what does the same to uint8 (N, 3, height, width)."""

    op: Op
    values: Sequence[float] | NDArray[np.float32]
    truth: Callable[[torch.Tensor], torch.Tensor]
    fill: tuple[float, float, float] | None = None

    def program(self, count: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Operations and values for `count` images."""
        values = np.zeros((count, 1, max(6, len(self.values))), np.float32)
        values[:, 0, : len(self.values)] = self.values
        return np.full((count, 1), self.op, np.int32), values


@dataclass(frozen=True)
class Row:
    """How far one way of doing an operation lies from torchvision."""

    operation: str
    cases: int
    path: str
    largest: int
    differing: float


def cases(height: int, width: int, steps: int) -> Iterator[Case]:
    """Every operation over its whole range, for images of this size."""
    for factor in np.linspace(0, 1.95, steps):
        yield Case(Op.BRIGHTNESS, [factor], partial(F.adjust_brightness, brightness_factor=factor))
        yield Case(Op.CONTRAST, [factor], partial(F.adjust_contrast, contrast_factor=factor))
        yield Case(Op.SATURATION, [factor], partial(F.adjust_saturation, saturation_factor=factor))
        yield Case(Op.SHARPNESS, [factor], partial(F.adjust_sharpness, sharpness_factor=factor))
    for turn in np.linspace(-0.5, 0.5, steps):
        yield Case(Op.HUE, [turn], partial(F.adjust_hue, hue_factor=turn))
    for bits in range(9):
        yield Case(Op.POSTERIZE, [bits], partial(F.posterize, bits=bits))
    for threshold in np.linspace(0, 255, steps):
        yield Case(Op.SOLARIZE, [threshold], partial(F.solarize, threshold=threshold))
    for more in np.linspace(0, 110, steps).astype(int):
        yield Case(Op.SOLARIZE_ADD, [more], partial(pillow_solarize_add, more=int(more)))
    for number, order in enumerate(permutations(range(3))):
        yield Case(Op.CHANNELS, [number], partial(F.permute_channels, permutation=list(order)))
    for sigma in np.linspace(0, 0.5, steps):
        key, mean = np.array([3, round(1e6 * sigma)], np.uint32), float(sigma) - 0.25
        truth = partial(same_noise, key=(int(key[0]), int(key[1])), mean=mean, sigma=float(sigma))
        yield Case(Op.NOISE, [255 * mean, 255 * sigma, *noise_key(key)], truth)
    yield from later_cases(height, width, steps)
    yield Case(Op.AUTOCONTRAST, [0], F.autocontrast)
    yield Case(Op.EQUALIZE, [0], F.equalize)
    yield Case(Op.INVERT, [0], F.invert)
    yield Case(Op.GRAYSCALE, [0], partial(F.rgb_to_grayscale, num_output_channels=3))
    for size in KERNEL_SIZES:
        if size // 2 < min(height, width):  # torchvision refuses others
            for sigma in np.linspace(0.1, 2, max(2, steps // 3)):
                blur = partial(F.gaussian_blur, kernel_size=[size, size], sigma=[float(sigma)] * 2)
                yield Case(Op.GAUSSIAN_BLUR, gaussian_weights(size, sigma), blur)
    yield from affine_cases(height, width, steps)
    yield from perspective_cases(height, width, steps)
    yield from elastic_cases(height, width, steps)


def later_cases(height: int, width: int, steps: int) -> Iterator[Case]:
    """What torchvision has as functions, and what others have."""
    for power in np.linspace(0.1, 3, steps):
        yield Case(Op.GAMMA, [power], partial(F.adjust_gamma, gamma=float(np.float32(power))))
    draw = np.random.default_rng(height + width)
    for hue, saturation, value in draw.uniform(-1, 1, (steps, 3)) * (180, 0.9, 0.9):
        factors = np.float32([hue, 1 + saturation, 1 + value])
        yield Case(Op.HSV, factors, partial(opencv_hsv, factors=factors.astype(np.float64)))
    for _ in range(steps):
        (top, tall), (left, wide) = (np.sort(draw.integers(0, side + 1, 2)).tolist() for side in (height, width))
        hole = partial(F.erase, i=top, j=left, h=tall - top, w=wide - left, v=torch.tensor(GRAY).view(3, 1, 1).byte())
        yield Case(Op.HOLES, [1, top, left, tall - top, wide - left], hole, GRAY)
    yield Case(Op.MIX_BEGIN, [0.3], torch.clone)
    yield Case(Op.MIX_ADD, [0.3], torch.zeros_like)
    yield Case(Op.MIX_END, [0.3], lambda images: (images * torch.tensor(0.3)).to(torch.uint8))


def opencv_hsv(images: torch.Tensor, factors: NDArray[np.float64]) -> torch.Tensor:
    """By OpenCV's tables and Ultralytics' LUTs, which OpenCV 5 itself gave at most 1 level away from the kernels."""
    levels = np.arange(256)
    by_value = np.rint(255 * 4096 / np.maximum(levels, 1)).astype(int) * (levels > 0)
    by_spread = np.rint(180 * 4096 / 6 / np.maximum(levels, 1)).astype(int) * (levels > 0)
    red, green, blue = images.numpy().astype(int).transpose(1, 0, 2, 3)
    value, spread = np.maximum(np.maximum(red, green), blue), np.ptp([red, green, blue], axis=0)
    sector = np.select(
        [value == red, value == green], [green - blue, blue - red + 2 * spread], red - green + 4 * spread
    )
    hue, saturation = (sector * by_spread[spread] + 2048) >> 12, (spread * by_value[value] + 2048) >> 12
    turned = ((levels + factors[0]) % 180).astype(int)[np.where(hue < 0, hue + 180, hue)]
    stronger, lighter = (np.clip(levels * factor, 0, 255).astype(int) for factor in factors[1:])
    s, v, sixth = stronger[saturation] / 255, lighter[value] / 255, turned / 30
    k, part = np.floor(sixth).astype(int) % 6, sixth % 1
    least, falling, rising = v * (1 - s), v * (1 - s * part), v * (1 - s * (1 - part))
    channels = [
        np.choose(k, [v, falling, least, least, rising, v]),
        np.choose(k, [rising, v, v, falling, least, least]),
        np.choose(k, [least, least, rising, v, v, falling]),
    ]
    return torch.from_numpy((np.stack(channels, axis=1) * 255).astype(np.uint8))


def affine_cases(height: int, width: int, steps: int) -> Iterator[Case]:
    """RandAugment's turns, shears and moves, with black and with a fill."""
    size = height, width
    for op, interpolation in INTERPOLATIONS.items():
        for fill in (None, GRAY):
            how = {"interpolation": interpolation, "fill": fill}
            affine = partial(F.affine, scale=1.0, **how)
            for share in np.linspace(-1, 1, steps):
                degrees, right, down = 30 * share, int(width * 0.45 * share), int(height * 0.3 * share)
                matrices = {
                    partial(F.rotate, angle=degrees, **how): affine_matrix(size, angle=-degrees),
                    partial(affine, angle=0.0, translate=[0, 0], shear=[degrees, 0.0], center=[0, 0]): affine_matrix(
                        size, shear=(degrees, 0.0), center=(0, 0)
                    ),
                    partial(affine, angle=0.0, translate=[0, 0], shear=[0.0, degrees], center=[0, 0]): affine_matrix(
                        size, shear=(0.0, degrees), center=(0, 0)
                    ),
                    partial(affine, angle=0.0, translate=[right, down], shear=[0.0, 0.0]): affine_matrix(
                        size, translate=(right, down)
                    ),
                }
                for truth, matrix in matrices.items():
                    yield Case(op, matrix, truth, fill)
                    if op is Op.AFFINE_BILINEAR:
                        yield Case(Op.AFFINE_BICUBIC, matrix, partial(pillow_bicubic, matrix=matrix, fill=fill), fill)


def same_noise(images: torch.Tensor, key: tuple[int, int], mean: float, sigma: float) -> torch.Tensor:
    """torchvision's `gaussian_noise` with our normal numbers, for each image the same, in the place of torch's."""
    normal = torch.from_numpy(noise(key, *images.shape[-2:])).permute(2, 0, 1).expand(images.shape)
    with patch.object(torch, "randn_like", lambda images, dtype: normal):
        return F.gaussian_noise(images, mean, sigma)


def perspective_cases(height: int, width: int, steps: int) -> Iterator[Case]:
    """Corners moved inwards by up to a quarter of the sides, as RandomPerspective's default does."""
    whole = np.array([[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]])
    draw = np.random.default_rng(height)
    for fill in (None, GRAY):
        for _ in range(steps):
            inwards = draw.integers(0, np.array([width, height]) // 4 + 1, (4, 2))
            ends = whole + np.where(whole > 0, -inwards, inwards)
            values = perspective_matrix((height, width), ends)
            for op, interpolation in PERSPECTIVES.items():
                how = {"interpolation": interpolation, "fill": fill}
                if values.any():  # no corners on one line
                    truth = partial(F.perspective, startpoints=whole.tolist(), endpoints=ends.tolist(), **how)
                    yield Case(op, values, truth, fill)


def elastic_cases(height: int, width: int, steps: int) -> Iterator[Case]:
    """The same displacements, of up to some pixels."""
    words = np.random.default_rng(width).integers(0, 2**32, (max(2, steps // 4), 2), dtype=np.uint32)
    for values in elastic_values((50.0, 30.0), 3.0, words):
        found = displacement(torch.from_numpy(values), height, width).permute(1, 2, 0)[None]
        same = found * 2 / torch.tensor([width, height])
        for op, interpolation in ELASTICS.items():
            for fill in (None, GRAY):
                truth = partial(F.elastic, displacement=same, interpolation=interpolation, fill=fill)
                yield Case(op, values, truth, fill)


def pillow_bicubic(images: torch.Tensor, matrix: NDArray[np.float32], fill: tuple[float, ...] | None) -> torch.Tensor:
    """Its pixels' centres lie at halves."""
    a, b, c, d, e, f = matrix.astype(np.float64).tolist()
    data = (a, b, c + 0.5 - (a + b) / 2, d, e, f + 0.5 - (d + e) / 2)
    how = {"resample": Image.Resampling.BICUBIC, "fillcolor": tuple(map(int, fill or (0, 0, 0)))}
    return _by_pillow(images, lambda image: image.transform(image.size, Image.Transform.AFFINE, data, **how))


def pillow_solarize_add(images: torch.Tensor, more: int) -> torch.Tensor:
    """As timm's `solarize_add`."""
    table = [min(255, level + more) if level < 128 else level for level in range(256)] * 3
    return _by_pillow(images, lambda image: image.point(table))


def _by_pillow(images: torch.Tensor, function: Callable[[Image.Image], Image.Image]) -> torch.Tensor:
    made = [np.array(function(Image.fromarray(image.permute(1, 2, 0).numpy()))) for image in images]
    return torch.from_numpy(np.stack(made)).permute(0, 3, 1, 2)


def made_images(height: int, width: int) -> torch.Tensor:
    """Noise, ramps, a dark and a flat image: uint8 (4, height, width, 3)."""
    noise = torch.randint(0, 256, (2, height, width, 3), generator=torch.Generator().manual_seed(height * 1000 + width))
    down = torch.linspace(0, 255, height).view(-1, 1).expand(height, width)
    right = torch.linspace(0, 255, width).expand(height, width)
    ramps = torch.stack([down, right, (down + right) / 2], -1)
    return torch.stack([noise[0], ramps.int(), noise[1] // 4 + 20, torch.full_like(noise[0], 77)]).to(torch.uint8)


def paths() -> dict[str, Way]:
    """The ways of doing it that this machine has."""
    return {"reference": augment_reference} | {
        f"C++ {variant}": partial(augment, variant=variant) for variant in native.variants()
    }


def compare(sizes: Sequence[tuple[int, int]], steps: int) -> list[Row]:
    """A row for each operation and path."""
    counts: dict[Op, int] = {}
    largest: dict[tuple[Op, str], int] = {}
    differing: dict[tuple[Op, str], list[int]] = {}
    for size in sizes:
        images = made_images(*size)
        for case in cases(*size, steps):
            counts[case.op] = counts.get(case.op, 0) + 1
            wanted = case.truth(images.permute(0, 3, 1, 2)).permute(0, 2, 3, 1).int()
            for name, path in paths().items():
                apart = (path(images, *case.program(len(images)), fill=case.fill).int() - wanted).abs()
                key = case.op, name
                largest[key] = max(largest.get(key, 0), int(apart.max()))
                some = differing.setdefault(key, [0, 0])
                some[0] += int((apart > 0).sum())
                some[1] += apart.numel()
    return [Row(op.name, counts[op], path, largest[op, path], n / of) for (op, path), (n, of) in differing.items()]


def table(rows: Sequence[Row]) -> str:
    """Markdown: a line for each operation, two columns for each path."""
    names = list(dict.fromkeys(row.path for row in rows))
    lines = [
        "| operation | cases |" + "".join(f" {name}: largest | differing |" for name in names),
        "|---" * (2 + 2 * len(names)) + "|",
    ]
    for op in dict.fromkeys(row.operation for row in rows):
        own = [row for row in rows if row.operation == op]
        cells = "".join(f" {row.largest} | {100 * row.differing:.4f} % |" for row in own)
        lines.append(f"| {op} | {own[0].cases} |{cells}")
    return "\n".join(lines)


def size_of(text: str) -> tuple[int, int]:
    height, _, width = text.partition("x")
    return int(height), int(width)


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, compare, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = ["224x224", "97x131", "33x300"]
    parser.add_argument("--sizes", nargs="+", default=default, metavar="HEIGHTxWIDTH", help="of the images")
    parser.add_argument("--steps", type=int, default=15, metavar="N", help="magnitudes of each operation")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for results.md, results.csv and results.json")
    args = parser.parse_args(argv)
    rows = compare([size_of(text) for text in args.sizes], args.steps)
    print(table(rows))
    if args.out:
        write(args.out, rows, {"sizes": args.sizes, "steps": args.steps})


def write(folder: Path, rows: Sequence[Row], settings: dict[str, object]) -> None:
    """The table, and where it was made."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.md").write_text(table(rows) + "\n")
    with open(folder / "results.csv", "w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(asdict(rows[0]))
        lines.writerows(asdict(row).values() for row in rows)
    (folder / "results.json").write_text(
        json.dumps({"environment": machine() | {"settings": settings}}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
