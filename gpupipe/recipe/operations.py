"""The operations of every recipe: crop, flip and normalize."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, TypeAlias

from gpupipe.errors import ConfigError
from gpupipe.recipe.checks import check_interpolation, check_number, check_pair, check_range, check_triple

__all__ = [
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "Crop",
    "Filter",
    "Normalize",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "ResizeCenterCrop",
]

Filter: TypeAlias = Literal["bilinear", "bicubic"]
FILTERS = ("bilinear", "bicubic")

IMAGENET_MEAN = (0.485, 0.456, 0.406)
"""Mean of ImageNet's RGB values in [0, 1], as torchvision's reference training uses it."""
IMAGENET_STD = (0.229, 0.224, 0.225)
"""Standard deviation that goes with `IMAGENET_MEAN`."""


class Crop:
    """What every recipe begins with: images of any size become `size`, by a resize with an antialiased filter."""

    size: int | tuple[int, int]
    interpolation: Filter

    def _settle(self) -> None:
        object.__setattr__(self, "size", check_pair(type(self).__name__, "size", self.size))
        check_interpolation(type(self).__name__, self.interpolation, FILTERS)

    def __repr__(self) -> str:
        """As a dataclass prints itself, without the filter where it is the usual one: saved states hold these texts'
        fingerprints, and most of them are older than `interpolation`."""
        shown = [f for f in fields(self) if f.name != "interpolation" or self.interpolation != f.default]  # type: ignore[arg-type]
        return f"{type(self).__name__}({', '.join(f'{f.name}={getattr(self, f.name)!r}' for f in shown)})"

    @property
    def output_size(self) -> tuple[int, int]:
        """(height, width) of what comes out, in pixels."""
        assert isinstance(self.size, tuple)
        return self.size


@dataclass(frozen=True, repr=False)
class RandomResizedCrop(Crop):
    """A random box of the image, resized to `size` with an antialiased filter.

    The box has `scale` of the image's area (drawn uniformly) and an aspect ratio in `ratio` (drawn
    log-uniformly), as in torchvision's transform of that name. `size` is an int or (height, width) in pixels,
    `interpolation` "bilinear" or "bicubic".
    """

    size: int | tuple[int, int]
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    interpolation: Filter = "bilinear"

    def __post_init__(self) -> None:
        self._settle()
        object.__setattr__(self, "scale", check_range("RandomResizedCrop", "scale", self.scale))
        object.__setattr__(self, "ratio", check_range("RandomResizedCrop", "ratio", self.ratio))


@dataclass(frozen=True, repr=False)
class ResizeCenterCrop(Crop):
    """The image resized so that its shorter side is `resize` pixels, then its centre of `size`.

    The same as torchvision's `Resize(resize, antialias=True)` and `CenterCrop(size)`; `size` must fit into `resize`.
    `interpolation` is "bilinear" or "bicubic".
    """

    size: int | tuple[int, int]
    resize: int = 256
    interpolation: Filter = "bilinear"

    def __post_init__(self) -> None:
        self._settle()
        if not isinstance(self.resize, int) or self.resize < max(self.output_size):
            raise ConfigError(
                f"ResizeCenterCrop: resize={self.resize!r} must be an int of at least the crop's longer side "
                f"{max(self.output_size)}, else the crop would reach beyond the image"
            )


@dataclass(frozen=True)
class RandomHorizontalFlip:
    """Mirrors the image left to right with probability `p`."""

    p: float = 0.5

    def __post_init__(self) -> None:
        object.__setattr__(self, "p", check_number("RandomHorizontalFlip", "p", self.p, 0, 1))


@dataclass(frozen=True)
class Normalize:
    """`(x - mean) / std` per channel, for x in [0, 1]: the arithmetic of torchvision's `Normalize` after `ToTensor`."""

    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", check_triple("Normalize", "mean", self.mean))
        object.__setattr__(self, "std", check_triple("Normalize", "std", self.std))
        if min(self.std) <= 0:
            raise ConfigError(f"Normalize: std={self.std!r} must be above 0 in every channel")
