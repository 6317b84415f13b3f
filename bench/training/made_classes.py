"""A made training set of ten visually distinct classes: each has its own pattern and a hue of its own, both varied.

Random crops keep pattern and hue, so a small model learns the classes within minutes, even on a CPU.
"""

from __future__ import annotations

import colorsys
import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from gpupipe.host.cache import cache_folder
from gpupipe.host.progress import progress
from gpupipe.tools.benchmark.sample_set import make_folder

__all__ = ["PATTERNS", "draw", "made_classes"]

Plane = np.ndarray  # (height, width) float64
Pattern = Callable[[Plane, Plane], Plane]  # coordinates in periods -> values whose sign tells the two colours apart

SIDES = (96, 161)  # smallest side, and one more than the largest
SEED = 11
VERSION = 1

PATTERNS: dict[str, Pattern] = {
    "blobs": lambda x, y: np.sin(3 * x + 2 * np.sin(2 * y)) + np.sin(3 * y + 2 * np.sin(2.5 * x)),
    "bricks": lambda x, y: np.minimum(np.sin(6 * y) ** 2, np.sin(3 * x + 1.57 * np.sign(np.sin(6 * y))) ** 2) - 0.1,
    "checks": lambda x, y: np.sin(6 * x) * np.sin(6 * y),
    "crosses": lambda x, y: np.maximum(np.cos(6 * x), np.cos(6 * y)) - 0.7,
    "diagonals": lambda x, y: np.sin(5 * (x + y)),
    "dots": lambda x, y: np.cos(6 * x) + np.cos(6 * y) - 1.0,
    "pillars": lambda x, y: np.sin(6 * x) + 0 * y,
    "rings": lambda x, y: np.sin(6 * np.hypot(x - 2, y - 2)),
    "shelves": lambda x, y: np.sin(6 * y) + 0 * x,
    "zigzags": lambda x, y: np.sin(6 * y + 4 * np.arcsin(np.sin(4 * x))),
}


def made_classes(folder: str | Path | None = None, train: int = 120, val: int = 30) -> tuple[Path, Path]:
    """Image folders (training, validation) with that many JPEGs of each of ten classes; made now if not there yet.

    They lie in `folder`, or in gpupipe's cache folder, under a name that carries their parameters. The same
    parameters give the same images.
    """
    parent = Path(folder) if folder is not None else cache_folder() / "samples"
    digest = hashlib.sha256(repr((VERSION, SEED, SIDES, sorted(PATTERNS))).encode()).hexdigest()[:8]
    target = parent / f"ten-classes-{train}-{val}-{digest}"
    if sum(1 for _ in target.glob("*/*/*.jpg")) != (train + val) * len(PATTERNS):
        shutil.rmtree(target, ignore_errors=True)
        make_folder(target, lambda root: write_splits(root, {"train": train, "val": val}))
    return target / "train", target / "val"


def write_splits(root: Path, counts: dict[str, int]) -> None:
    """Write `split/class/NNN.jpg`; no image is in two splits."""
    with progress("Making ten classes (once)", sum(counts.values()) * len(PATTERNS)) as advance:
        for split, (name, count) in enumerate(counts.items()):
            for label, pattern in enumerate(sorted(PATTERNS)):
                (root / name / pattern).mkdir(parents=True)
                for number in range(count):
                    rng = np.random.default_rng((SEED, split, label, number))
                    Image.fromarray(draw(rng, label)).save(root / name / pattern / f"{number:04d}.jpg", quality=90)
                    advance(1)


def draw(rng: np.random.Generator, label: int) -> np.ndarray:
    """A random picture of class `label`: uint8 (height, width, 3), with shifted, scaled, tilted pattern and noise."""
    height, width = (int(side) for side in rng.integers(*SIDES, 2))
    period = rng.uniform(35, 70)
    tilt = rng.normal(0, 0.12)
    rows, columns = np.mgrid[0:height, 0:width] / period
    x = np.cos(tilt) * columns - np.sin(tilt) * rows + rng.uniform(0, 3)
    y = np.sin(tilt) * columns + np.cos(tilt) * rows + rng.uniform(0, 3)
    mask = PATTERNS[sorted(PATTERNS)[label]](x, y) > 0
    fore, back = colours(rng, label)
    picture = np.where(mask[..., None], fore, back) + rng.normal(0, 10, (height, width, 3))
    return np.clip(picture, 0, 255).astype(np.uint8)


def colours(rng: np.random.Generator, label: int) -> tuple[np.ndarray, np.ndarray]:
    """A bright colour whose hue lies near the class's, and a dark one of any hue; RGB in [0, 255]."""
    hue = (label / len(PATTERNS) + rng.normal(0, 0.02)) % 1.0
    fore = colorsys.hsv_to_rgb(hue, rng.uniform(0.6, 1.0), rng.uniform(0.7, 1.0))
    back = colorsys.hsv_to_rgb(rng.random(), rng.uniform(0.0, 0.5), rng.uniform(0.1, 0.35))
    return 255 * np.array(fore), 255 * np.array(back)
