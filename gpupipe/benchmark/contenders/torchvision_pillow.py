"""Plain torchvision: ImageFolder, Pillow, the reference transforms. What most training scripts do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchvision import transforms

from gpupipe.benchmark.contenders.torch_loader import ImageFolderContender
from gpupipe.recipe import IMAGENET_MEAN, IMAGENET_STD

__all__ = ["TorchvisionPillow"]


class TorchvisionPillow(ImageFolderContender):
    """ImageFolder + DataLoader with Pillow."""

    name = "torchvision-pillow"

    def transform(self, size: int) -> Callable[[Any], Any]:
        """From a Pillow image to float32."""
        steps = [
            transforms.RandomResizedCrop(size),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(IMAGENET_MEAN, IMAGENET_STD),
        ]
        return transforms.Compose(steps)  # type: ignore[no-any-return]
