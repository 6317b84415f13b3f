"""What is done to an image, as small frozen dataclasses. Nothing here says who does it or draws a number."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeAlias

from gpupipe.errors import ConfigError

__all__ = [
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "Layout",
    "Normalize",
    "OutputSpec",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "Recipe",
    "ResizeCenterCrop",
    "imagenet_eval",
    "imagenet_train",
]

Decode: TypeAlias = Literal["exact", "fast"]
Layout: TypeAlias = Literal["NCHW", "channels_last"]

DTYPES = ("float32", "float16", "bfloat16", "uint8")
LAYOUTS = ("NCHW", "channels_last")
DECODES = ("exact", "fast")

IMAGENET_MEAN = (0.485, 0.456, 0.406)
"""Mean of ImageNet's RGB values in [0, 1], as torchvision's reference training uses it."""
IMAGENET_STD = (0.229, 0.224, 0.225)
"""Standard deviation that goes with `IMAGENET_MEAN`."""


def _pair(owner: str, field: str, value: int | Sequence[int]) -> tuple[int, int]:
    """`value` as (height, width), both at least 1."""
    pair = tuple(value) if isinstance(value, Sequence) else (value, value)
    if len(pair) != 2 or not all(isinstance(side, int) and side >= 1 for side in pair):
        raise ConfigError(f"{owner}: {field}={value!r} must be a positive int or a (height, width) pair of them")
    return (pair[0], pair[1])


def _range(owner: str, field: str, value: Sequence[float]) -> tuple[float, float]:
    """`value` as (low, high) with 0 < low <= high."""
    pair = _floats(value)
    if len(pair) != 2 or not 0 < pair[0] <= pair[1] < math.inf:
        raise ConfigError(f"{owner}: {field}={value!r} must be (low, high) with 0 < low <= high")
    return (pair[0], pair[1])


def _floats(value: Any) -> tuple[float, ...]:
    """`value` as floats; empty where it is no sequence of numbers."""
    try:
        return tuple(float(v) for v in value)
    except (TypeError, ValueError):
        return ()


def _triple(owner: str, field: str, value: Sequence[float]) -> tuple[float, float, float]:
    triple = _floats(value)
    if len(triple) != 3 or not all(math.isfinite(v) for v in triple):
        raise ConfigError(f"{owner}: {field}={value!r} must have one value for each of R, G, B")
    return (triple[0], triple[1], triple[2])


@dataclass(frozen=True)
class RandomResizedCrop:
    """A random box of the image, resized to `size` with an antialiased bilinear filter.

    The box has `scale` of the image's area (drawn uniformly) and an aspect ratio in `ratio` (drawn
    log-uniformly), as in torchvision's transform of that name. `size` is an int or (height, width) in pixels.
    """

    size: int | tuple[int, int]
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _pair("RandomResizedCrop", "size", self.size))
        object.__setattr__(self, "scale", _range("RandomResizedCrop", "scale", self.scale))
        object.__setattr__(self, "ratio", _range("RandomResizedCrop", "ratio", self.ratio))

    @property
    def output_size(self) -> tuple[int, int]:
        """(height, width) of what comes out, in pixels."""
        return _pair("RandomResizedCrop", "size", self.size)


@dataclass(frozen=True)
class ResizeCenterCrop:
    """The image resized so that its shorter side is `resize` pixels, then its centre of `size`.

    The same as torchvision's `Resize(resize, antialias=True)` and `CenterCrop(size)`; `size` must fit into `resize`.
    """

    size: int | tuple[int, int]
    resize: int = 256

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _pair("ResizeCenterCrop", "size", self.size))
        if not isinstance(self.resize, int) or self.resize < max(self.output_size):
            raise ConfigError(
                f"ResizeCenterCrop: resize={self.resize!r} must be an int of at least the crop's longer side "
                f"{max(self.output_size)}, else the crop would reach beyond the image"
            )

    @property
    def output_size(self) -> tuple[int, int]:
        """(height, width) of what comes out, in pixels."""
        return _pair("ResizeCenterCrop", "size", self.size)


@dataclass(frozen=True)
class RandomHorizontalFlip:
    """Mirrors the image left to right with probability `p`."""

    p: float = 0.5

    def __post_init__(self) -> None:
        p = _floats([self.p])
        if not p or not 0 <= p[0] <= 1:
            raise ConfigError(f"RandomHorizontalFlip: p={self.p!r} must lie in [0, 1]")
        object.__setattr__(self, "p", p[0])


@dataclass(frozen=True)
class Normalize:
    """`(x - mean) / std` per channel, for x in [0, 1]: the arithmetic of torchvision's `Normalize` after `ToTensor`."""

    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", _triple("Normalize", "mean", self.mean))
        object.__setattr__(self, "std", _triple("Normalize", "std", self.std))
        if min(self.std) <= 0:
            raise ConfigError(f"Normalize: std={self.std!r} must be above 0 in every channel")


Crop: TypeAlias = RandomResizedCrop | ResizeCenterCrop
Operation: TypeAlias = Crop | RandomHorizontalFlip | Normalize

# The order in which operations stand in a recipe: one crop, then at most one of each other kind.
STAGES: tuple[tuple[type, ...], ...] = ((RandomResizedCrop, ResizeCenterCrop), (RandomHorizontalFlip,), (Normalize,))


@dataclass(frozen=True)
class OutputSpec:
    """Shape, dtype and memory layout of one batch of images: shape is (N, 3, height, width) in either layout."""

    shape: tuple[int, int, int, int]
    dtype: str
    layout: str


def _stage(operation: object) -> int:
    for number, kinds in enumerate(STAGES):
        if isinstance(operation, kinds):
            return number
    known = ", ".join(kind.__name__ for kinds in STAGES for kind in kinds)
    raise ConfigError(f"Recipe: {operation!r} is not an operation; known are {known}")


def _dtype_name(dtype: Any) -> str:
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise ConfigError(f"Recipe: dtype={dtype!r} must be one of {', '.join(DTYPES)} (a name or a torch dtype)")
    return name


@dataclass(frozen=True)
class Recipe:
    """A crop, then optionally a flip and a normalization, and the form in which the batch comes out.

    operations:   one `RandomResizedCrop` or `ResizeCenterCrop`, then optionally `RandomHorizontalFlip`, `Normalize`.
    dtype:        "float32", "float16", "bfloat16" or "uint8" (or the torch dtype). Without `Normalize` float images
                  lie in [0, 1], as from torchvision's `ToTensor`; "uint8" images lie in [0, 255] and take none.
    layout:       "NCHW" (contiguous) or "channels_last" (the same shape, torch's channels_last strides).
    exif_orientation: turn images upright by their EXIF tag; torchvision's ImageFolder does not, hence False.
    decode:       "exact", or "fast": an engine may let libjpeg shrink a JPEG by 2, 4 or 8 while it decodes, where the
                  box is at least that many times the output. The torch engine does; DALI decodes exactly.

    Raises ConfigError for operations that are unknown, repeated or out of order, and for an unknown dtype or layout.
    """

    operations: tuple[Operation, ...]
    dtype: str = "float32"
    layout: Layout = "NCHW"
    exif_orientation: bool = False
    decode: Decode = "exact"

    def __post_init__(self) -> None:
        if not isinstance(self.operations, Iterable):
            raise ConfigError(f"Recipe: operations={self.operations!r} must be a tuple of operations; put it in ( , )")
        object.__setattr__(self, "operations", tuple(self.operations))
        object.__setattr__(self, "dtype", _dtype_name(self.dtype))
        stages = [_stage(operation) for operation in self.operations]
        if not stages or stages[0] != 0 or stages != sorted(set(stages)):
            raise ConfigError(
                "Recipe: operations must be one crop, then at most one RandomHorizontalFlip, then at most one "
                f"Normalize; got {[type(operation).__name__ for operation in self.operations]}"
            )
        if self.layout not in LAYOUTS:
            raise ConfigError(f"Recipe: layout={self.layout!r} must be one of {', '.join(LAYOUTS)}")
        if self.decode not in DECODES:
            raise ConfigError(f"Recipe: decode={self.decode!r} must be one of {', '.join(DECODES)}")
        if self.dtype == "uint8" and self.normalize is not None:
            raise ConfigError(
                "Recipe: dtype='uint8' can't hold normalized images; drop Normalize or take a float dtype"
            )

    @property
    def crop(self) -> Crop:
        """The first operation."""
        crop = self.operations[0]
        assert isinstance(crop, RandomResizedCrop | ResizeCenterCrop)
        return crop

    @property
    def flip(self) -> RandomHorizontalFlip | None:
        """The flip, where there is one."""
        return next((op for op in self.operations if isinstance(op, RandomHorizontalFlip)), None)

    @property
    def normalize(self) -> Normalize | None:
        """The normalization, where there is one."""
        return next((op for op in self.operations if isinstance(op, Normalize)), None)

    @property
    def statistics(self) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
        """Mean and standard deviation to normalize with, for values in [0, 1]; 0 and 1 without `Normalize`."""
        normalize = self.normalize
        return (normalize.mean, normalize.std) if normalize else ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))

    def output_spec(self, batch_size: int) -> OutputSpec:
        """Shape, dtype and layout of a batch of `batch_size` images."""
        return OutputSpec((batch_size, 3, *self.crop.output_size), self.dtype, self.layout)

    @property
    def fingerprint(self) -> str:
        """16 hex digits that differ between recipes whose crops or flips differ; dtype, layout, normalization and
        decode may change when a run is resumed."""
        drawn = [repr(op) for op in self.operations if not isinstance(op, Normalize)]
        text = "|".join([*drawn, f"exif_orientation={self.exif_orientation}"])
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def __repr__(self) -> str:
        lines = [f"        {operation!r}," for operation in self.operations]
        settings = [
            f"    {field.name}={getattr(self, field.name)!r},"
            for field in fields(self)
            if field.name in ("dtype", "layout")
            or (field.name in ("exif_orientation", "decode") and getattr(self, field.name) != field.default)
        ]
        return "\n".join(["Recipe(", "    (", *lines, "    ),", *settings, ")"])


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
        resize = round(max(_pair("imagenet_eval", "size", size)) / 0.875)
    operations: tuple[Operation, ...] = (ResizeCenterCrop(size, resize), *_normalization(dtype))
    return Recipe(operations, dtype=dtype, layout=layout, exif_orientation=exif_orientation, decode=decode)


def _normalization(dtype: Any) -> tuple[Normalize, ...]:
    return () if _dtype_name(dtype) == "uint8" else (Normalize(),)
