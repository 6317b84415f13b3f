"""torchvision's v2 transforms on tensors: its own JPEG decoder, resize on uint8."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torchvision.io import ImageReadMode, decode_image, read_file
from torchvision.transforms import v2

from gpupipe.recipe import IMAGENET_MEAN, IMAGENET_STD
from gpupipe.tools.benchmark.contenders.torch_loader import ImageFolderContender
from gpupipe.tools.benchmark.settings import Settings

__all__ = ["TorchvisionV2"]


def read_rgb(path: str) -> torch.Tensor:
    """uint8 (3, height, width)."""
    return decode_image(read_file(path), mode=ImageReadMode.RGB)  # type: ignore[no-any-return]


class TorchvisionV2(ImageFolderContender):
    """ImageFolder + DataLoader with v2 transforms on tensors."""

    name = "torchvision-v2"

    def transform(self, settings: Settings) -> Callable[[Any], Any]:
        """From a uint8 tensor of any size to one that is cropped and, for float32, normalized."""
        as_float = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(IMAGENET_MEAN, IMAGENET_STD)]
        steps = [
            v2.RandomResizedCrop(settings.size, antialias=True),
            v2.RandomHorizontalFlip(),
            *(as_float if settings.dtype == "float32" else []),
        ]
        return v2.Compose(steps)  # type: ignore[no-any-return]

    def reader(self) -> Callable[[str], Any]:
        """torchvision's own decoder instead of Pillow."""
        return read_rgb
