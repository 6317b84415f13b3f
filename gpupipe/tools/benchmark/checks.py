"""Contenders are compared only if they make the same thing: batches are looked at before anything is measured."""

from __future__ import annotations

import collections
from pathlib import Path

import numpy as np
from PIL import Image

from gpupipe.recipe import IMAGENET_MEAN, IMAGENET_STD
from gpupipe.tools.benchmark.measurement import BenchSettings, Opened

__all__ = ["COUNTED", "antialiased", "expected_labels", "noise_folder", "noise_problem", "problem"]

COUNTED = 2048  # data sets with more images are not counted label by label: it would take longer than the measurement
TOLERANCE = 0.02  # of normalized values: rounding of the last bit before or after normalizing
OVERLAP = 0.5  # of the images may be missing where passes overlap: drawing with replacement leaves out 37%
NOISE_SIDE = 512
NOISE_LIMIT = 15.0  # gray levels; measured for the smallest of 16 crops: antialiased 6, unfiltered above 30


def expected_labels(settings: BenchSettings) -> dict[int, int] | None:
    """How many images each label has; None for more than `COUNTED` images."""
    from gpupipe.sources import open_source

    source = open_source(settings.data, fields=settings.fields)
    if len(source) > COUNTED:
        return None
    return dict(collections.Counter(np.asarray(source.targets).tolist()))


def problem(opened: Opened, settings: BenchSettings, labels: dict[int, int] | None) -> str | None:
    """What is wrong with a contender's batches; None if they are what all contenders shall make."""
    shapes = [(settings.batch_size, 3, settings.size, settings.size)]
    if settings.dtype == "uint8":
        shapes.append((settings.batch_size, settings.size, settings.size, 3))
    if opened.shape not in shapes:
        return f"batches have shape {opened.shape}, not {' or '.join(map(str, shapes))}"
    if opened.dtype.removeprefix("torch.") != settings.dtype:
        return f"batches are {opened.dtype}, not {settings.dtype}"
    if not opened.contiguous:
        return "batches are not contiguous"
    low, high, least = value_range(settings.dtype)
    if not (low <= opened.low < opened.high <= high) or opened.high - opened.low < least:
        return f"values lie in [{opened.low:.2f}, {opened.high:.2f}], so they are not normalized as asked for"
    return None if labels is None else label_problem(opened, labels)


def value_range(dtype: str) -> tuple[float, float, float]:
    """The lowest and highest value that batches may hold, and the least difference between their lowest and highest."""
    if dtype == "uint8":
        return 0.0, 255.0, 50.0
    low = min(-m / s for m, s in zip(IMAGENET_MEAN, IMAGENET_STD, strict=True))
    high = max((1 - m) / s for m, s in zip(IMAGENET_MEAN, IMAGENET_STD, strict=True))
    return low - TOLERANCE, high + TOLERANCE, 1.0


def label_problem(opened: Opened, labels: dict[int, int]) -> str | None:
    """Whether the first pass lacks labels: some may lack where passes overlap."""
    seen = opened.labels or {}
    missing = sum(max(0, count - seen.get(label, 0)) for label, count in labels.items())
    if missing > (0 if opened.exact_passes else OVERLAP * sum(labels.values())):
        return f"the first pass does not hold every image's label once: {missing} of {sum(labels.values())} lack"
    return None


def noise_problem(deviation: float) -> str | None:
    """Whether crops of white noise, reduced 2.6 to 9 times, were filtered before they were sampled."""
    if antialiased(deviation):
        return None
    return f"does not antialias: white noise comes out with a standard deviation of {deviation:.0f} gray levels, not 6"


def antialiased(deviation: float) -> bool:
    """Whether crops of white noise with this standard deviation, in gray levels, were filtered."""
    return deviation < NOISE_LIMIT


def noise_folder(root: Path) -> Path:
    """An image folder below `root` with two classes of one gray JPEG of white noise each."""
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        (root / name).mkdir(parents=True)
        noise = rng.integers(0, 256, (NOISE_SIDE, NOISE_SIDE), dtype=np.uint8)
        Image.fromarray(noise).save(root / name / "noise.jpg", quality=98)
    return root
