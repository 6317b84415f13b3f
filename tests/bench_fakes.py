"""Contenders that behave badly, for the benchmark's tests; its child processes import them from here."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import numpy as np
import torch
from PIL import Image
from torchvision.datasets import ImageFolder

from gpupipe.recipe import IMAGENET_MEAN, IMAGENET_STD
from gpupipe.tools.benchmark.measurement import BenchSettings


class Crude:
    """Makes proper batches, but resizes the whole image without a filter."""

    name = "crude"

    def available(self, settings: BenchSettings) -> str | None:
        return None

    def cycle(self, settings: BenchSettings) -> int:
        return 1

    def queued(self, settings: BenchSettings) -> int:
        return 0

    def open(self, settings: BenchSettings) -> Crude:
        self.settings, self.images = settings, ImageFolder(settings.data)
        return self

    def tensor(self, image: Image.Image) -> torch.Tensor:
        small = image.resize((self.settings.size, self.settings.size), Image.Resampling.NEAREST)
        pixels = (np.asarray(small, dtype=np.float32) / 255 - IMAGENET_MEAN) / IMAGENET_STD
        return torch.from_numpy(pixels.astype(np.float32)).permute(2, 0, 1)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        turn = 0
        while True:
            chosen = [(turn + i) % len(self.images) for i in range(self.settings.batch_size)]
            turn += self.settings.batch_size
            images = torch.stack([self.tensor(self.images[i][0]) for i in chosen])
            yield images, torch.tensor([self.images.targets[i] for i in chosen])

    def close(self) -> None:
        pass


class Unavailable(Crude):
    """Can't run anywhere."""

    def available(self, settings: BenchSettings) -> str | None:
        return "no such machine"


class Fails(Crude):
    """Raises when opened."""

    def open(self, settings: BenchSettings) -> Crude:
        raise RuntimeError("the data are\nnot to its taste")


class Dies(Crude):
    """Ends its process."""

    def open(self, settings: BenchSettings) -> Crude:
        print("last words", flush=True)
        os._exit(3)


class Aborts(Crude):
    """Ends its process as native code does that has found memory corrupted."""

    def open(self, settings: BenchSettings) -> Crude:
        os.abort()


class Hangs(Crude):
    """Never opens."""

    def open(self, settings: BenchSettings) -> Crude:
        time.sleep(3600)
        return self


class DiesLater(Crude):
    """Filters, and so passes the checks, and ends its process during the measurement."""

    def tensor(self, image: Image.Image) -> torch.Tensor:
        size = self.settings.size
        return super().tensor(image.resize((size, size), Image.Resampling.BILINEAR))

    def cycle(self, settings: BenchSettings) -> int:
        os._exit(4)
