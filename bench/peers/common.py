"""What several contenders share: the folder's images, a place for converted data, sensible answers to the runner."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from gpupipe.recipe import IMAGENET_MEAN, IMAGENET_STD
from gpupipe.sources.building import cache_folder
from gpupipe.tools.benchmark.contenders import needs_folder
from gpupipe.tools.benchmark.measurement import BenchSettings
from gpupipe.tools.benchmark.sample_set import make_folder

__all__ = ["MEAN_255", "RATIO", "SCALE", "STD_255", "Peer", "cache", "convert", "converted", "images", "random_box"]

SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
MEAN_255 = tuple(255 * value for value in IMAGENET_MEAN)
STD_255 = tuple(255 * value for value in IMAGENET_STD)


class Peer:
    """The answers that most contenders give: an image folder is needed, workers take turns, each is two ahead."""

    name: str
    ahead = 2

    def available(self, settings: BenchSettings) -> str | None:
        """An image folder is needed."""
        return needs_folder(settings)

    def cycle(self, settings: BenchSettings) -> int:
        """Workers take turns."""
        return settings.workers

    def queued(self, settings: BenchSettings) -> int:
        """What the workers prefetch."""
        return settings.workers * self.ahead


def cache() -> Path:
    """The folder for environments and converted data: $GPUPIPE_PEERS, else `peers` in gpupipe's cache folder."""
    return Path(os.environ.get("GPUPIPE_PEERS") or cache_folder() / "peers")


def images(folder: str) -> tuple[list[str], list[int]]:
    """Paths and labels of an image folder, in torchvision's order."""
    classes = sorted(path for path in Path(folder).iterdir() if path.is_dir())
    found = [(str(path), label) for label, one in enumerate(classes) for path in sorted(one.iterdir())]
    return [path for path, _ in found], [label for _, label in found]


def converted(folder: str, kind: str) -> Path:
    """Where the images of `folder` lie, or will lie, as `kind`: decided by their names and sizes in bytes."""
    digest = hashlib.blake2b(digest_size=8)
    for path in images(folder)[0]:
        digest.update(f"{Path(path).relative_to(folder)} {os.path.getsize(path)}\n".encode())
    return cache() / "data" / f"{kind}-{digest.hexdigest()}"


def convert(folder: str, kind: str, write: Callable[[Path], None]) -> bool:
    """Let `write` fill the folder `converted(folder, kind)`, if it is not there; whether it was not."""
    target = converted(folder, kind)
    if target.is_dir():
        return False
    make_folder(target, write)
    return True


def random_box(rng: np.random.Generator, height: int, width: int) -> tuple[int, int, int, int]:
    """Top, left, height and width of a random box as torchvision's RandomResizedCrop draws them."""
    for _ in range(10):
        area = height * width * rng.uniform(*SCALE)
        ratio = np.exp(rng.uniform(*np.log(RATIO)))
        w, h = round((area * ratio) ** 0.5), round((area / ratio) ** 0.5)
        if 0 < w <= width and 0 < h <= height:
            return int(rng.integers(0, height - h + 1)), int(rng.integers(0, width - w + 1)), h, w
    w, h = min(width, round(height * RATIO[1])), min(height, round(width / RATIO[0]))
    return (height - h) // 2, (width - w) // 2, h, w
