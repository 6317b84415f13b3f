"""Ready recipes."""

from __future__ import annotations

from typing import Any

from gpupipe.recipe.checks import check_pair
from gpupipe.recipe.operations import Normalize, RandomHorizontalFlip, RandomResizedCrop, ResizeCenterCrop
from gpupipe.recipe.recipe import Decode, Layout, Operation, Recipe, dtype_name

__all__ = ["imagenet_eval", "imagenet_train"]


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
    operations: tuple[Operation, ...] = (RandomResizedCrop(size), RandomHorizontalFlip(), *_normalization(dtype))
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
    operations: tuple[Operation, ...] = (ResizeCenterCrop(size, resize), *_normalization(dtype))
    return Recipe(operations, dtype=dtype, layout=layout, exif_orientation=exif_orientation, decode=decode)


def _normalization(dtype: Any) -> tuple[Normalize, ...]:
    return () if dtype_name(dtype) == "uint8" else (Normalize(),)
