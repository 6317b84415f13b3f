"""The preset's original: ImageFolder and the transform class of the package that published it, or has its copy."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch

from gpupipe.tools.benchmark.measurement import BenchSettings
from recipe_loaders.table import Way, maker
from recipe_loaders.torchvision_references import TorchvisionReferences

__all__ = ["ORIGINALS", "Originals"]


def _dinov2(augmentation: Any, size: int) -> Any:
    """With the scales of its ssl_default_config.yaml."""
    made = augmentation((0.32, 1.0), (0.05, 0.32), 8, global_crops_size=size)
    return lambda picture: [made(picture)[kind] for kind in ("global_crops", "local_crops")]


def _siglip(image_transform: Any, size: int) -> Any:
    """As its models' configurations say."""
    return image_transform(size, is_train=True, mean=(0.5,) * 3, std=(0.5,) * 3)


# Recipe: the package, the place of its class, and what makes the transform of that.
ORIGINALS: dict[str, tuple[str, str, Callable[[Any, int], Any]]] = {
    "simclr": ("lightly", "lightly.transforms.simclr_transform:SimCLRTransform", lambda made, size: made(size)),
    "byol": (
        "lightly",
        "lightly.transforms.byol_transform:BYOLTransform",
        lambda made, size: made(),  # 224 by default, of each view
    ),
    "dinov2": ("dinov2", "dinov2.data.augmentations:DataAugmentationDINO", _dinov2),
    "mae": ("lightly", "lightly.transforms.mae_transform:MAETransform", lambda made, size: made(size)),
    "openclip": (
        "open_clip_torch",
        "open_clip.transform:image_transform",
        lambda made, size: made(size, is_train=True),
    ),
    "siglip": ("open_clip_torch", "open_clip.transform:image_transform", _siglip),
}


class Flat:
    """From a Pillow image to a list of each view's tensor, whatever the transform gives them in."""

    def __init__(self, transform: Callable[[Any], Any]) -> None:
        self.transform = transform

    def __call__(self, picture: Any) -> list[torch.Tensor]:
        made = self.transform(picture)
        return [made] if isinstance(made, torch.Tensor) else [view for part in made for view in _listed(part)]


def _listed(part: Any) -> list[torch.Tensor]:
    return part if isinstance(part, list) else [part]


class Originals(TorchvisionReferences):
    """Workers start with the first batch."""

    name = "the original's own code"

    def __init__(self, recipe: str) -> None:
        super().__init__(recipe)
        self.recipe = recipe

    def available(self, settings: BenchSettings) -> str | None:
        """Some presets are torchvision's or timm's; packages may be missing."""
        if self.recipe not in ORIGINALS:
            return "no package of its own"
        package, place, _ = ORIGINALS[self.recipe]
        try:
            importlib.import_module(place.partition(":")[0])
        except ImportError as error:
            return f"{package} can't be imported: {error}"
        return super().available(settings)

    def views(self, size: int) -> Callable[[Any], list[torch.Tensor]]:
        """Its transform."""
        _, place, make = ORIGINALS[self.recipe]
        module, _, name = place.partition(":")
        return Flat(make(getattr(importlib.import_module(module), name), size))


def __getattr__(recipe: str) -> Callable[[], Way]:
    return maker(Originals, recipe)
