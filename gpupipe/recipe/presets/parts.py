"""What presets share: normalization, unless images are uint8, and the usual evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpupipe.recipe.operations import Filter, Normalize, ResizeCenterCrop
from gpupipe.recipe.recipe import Recipe, dtype_name

__all__ = ["normalization", "resized_center"]

IMAGENET = Normalize()


def normalization(settings: Mapping[str, Any], usual: Normalize = IMAGENET) -> tuple[Normalize, ...]:
    """The usual one, unless the `dtype` among a recipe's settings is uint8, which holds no normalized images."""
    return () if dtype_name(settings.get("dtype", "float32")) == "uint8" else (usual,)


def resized_center(
    size: int | tuple[int, int],
    resize: int | tuple[int, int],
    settings: Mapping[str, Any],
    interpolation: Filter = "bicubic",
    normalize: Normalize = IMAGENET,
) -> Recipe:
    """The image resized, its centre taken, normalized."""
    return Recipe((ResizeCenterCrop(size, resize, interpolation), *normalization(settings, normalize)), **settings)
