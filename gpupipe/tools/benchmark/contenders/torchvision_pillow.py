"""Plain torchvision: ImageFolder, Pillow, the reference transforms. What most training scripts do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchvision import transforms

from gpupipe.recipe import IMAGENET_MEAN, IMAGENET_STD
from gpupipe.tools.benchmark.contenders.torch_loader import ImageFolderContender
from gpupipe.tools.benchmark.settings import Settings

__all__ = ["TorchvisionPillow"]


class TorchvisionPillow(ImageFolderContender):
    """ImageFolder + DataLoader with Pillow."""

    name = "torchvision-pillow"

    def transform(self, settings: Settings) -> Callable[[Any], Any]:
        """From a Pillow image to a tensor."""
        as_float = [transforms.ToTensor(), transforms.Normalize(IMAGENET_MEAN, IMAGENET_STD)]
        steps = [
            transforms.RandomResizedCrop(settings.size),
            transforms.RandomHorizontalFlip(),
            *(as_float if settings.dtype == "float32" else [transforms.PILToTensor()]),
        ]
        return transforms.Compose(steps)  # type: ignore[no-any-return]
