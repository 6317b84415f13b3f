"""torchvision's first ImageNet recipes, which most others start from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpupipe.recipe.checks import check_pair
from gpupipe.recipe.operations import Normalize, RandomHorizontalFlip, RandomResizedCrop, ResizeCenterCrop
from gpupipe.recipe.recipe import Decode, Layout, Operation, Recipe, dtype_name

__all__ = ["imagenet_eval", "imagenet_train", "normalization"]


def imagenet_train(
    size: int | tuple[int, int] = 224,
    *,
    dtype: Any = "float32",
    layout: Layout = "NCHW",
    exif_orientation: bool = False,
    decode: Decode = "exact",
) -> Recipe:
    """The training recipe of torchvision's ImageNet reference: random resized crop, flip, normalize.

    >>> imagenet_train(224).output_spec(256)
    OutputSpec(shape=(256, 3, 224, 224), dtype='float32', layout='NCHW')
    """
    operations: tuple[Operation, ...] = (
        RandomResizedCrop(size),
        RandomHorizontalFlip(),
        *normalization({"dtype": dtype}),
    )
    return Recipe(operations, dtype=dtype, layout=layout, exif_orientation=exif_orientation, decode=decode)


def imagenet_eval(
    size: int | tuple[int, int] = 224,
    *,
    resize: int | None = None,
    dtype: Any = "float32",
    layout: Layout = "NCHW",
    exif_orientation: bool = False,
    decode: Decode = "exact",
) -> Recipe:
    """The evaluation recipe of torchvision's ImageNet reference: resize, center crop, normalize.

    `resize` is the shorter side before the crop; by default the crop takes 0.875 of it (224 of 256).
    """
    if resize is None:
        resize = round(max(check_pair("imagenet_eval", "size", size)) / 0.875)
    operations: tuple[Operation, ...] = (ResizeCenterCrop(size, resize), *normalization({"dtype": dtype}))
    return Recipe(operations, dtype=dtype, layout=layout, exif_orientation=exif_orientation, decode=decode)


def normalization(settings: Mapping[str, Any]) -> tuple[Normalize, ...]:
    """ImageNet's, unless the `dtype` among a recipe's settings is uint8, which holds no normalized images."""
    return () if dtype_name(settings.get("dtype", "float32")) == "uint8" else (Normalize(),)
