"""The operations that most recipes have: crop, flip, normalize and, after that, random erasing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Literal, TypeAlias, get_args

from gpupipe.errors import ConfigError
from gpupipe.recipe.checks import PROBABILITY, count, filling, floats, named, number, pair, settle, shown, span, triple

__all__ = [
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "Crop",
    "Filter",
    "LetterBox",
    "MultiScaleCrop",
    "Normalize",
    "RandomCrop",
    "RandomErasing",
    "RandomHorizontalFlip",
    "RandomIoUCrop",
    "RandomResizedCrop",
    "Resize",
    "ResizeCenterCrop",
    "ResizeCornerCrop",
    "ScaleJitter",
]

Filter: TypeAlias = Literal["bilinear", "bicubic"]
Padding: TypeAlias = Literal["constant", "edge", "reflect", "symmetric"]  # those of kernels, which import torch
Place: TypeAlias = Literal["top_left", "top_right", "bottom_left", "bottom_right", "center"]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
"""Mean of ImageNet's RGB values in [0, 1], as torchvision's reference training uses it."""
IMAGENET_STD = (0.229, 0.224, 0.225)
"""Standard deviation that goes with `IMAGENET_MEAN`."""
LONGEST = 1 << 16
"""Pixels that a side may be resized to or padded with."""


Filling: TypeAlias = float | tuple[float, float, float]


class Crop:
    """What every recipe begins with: images of any size become `size`, by a resize with an antialiased filter; of one
    that `varies` each gets a size of its own.

    Those with a `fill` may show what lies outside of the image: images are that level from 0 to 255 there, or the three
    of R, G and B, cut off to integers as torchvision's, masks what their field ignores.
    """

    size: int | tuple[int, int]
    interpolation: Filter | Literal["random"]
    fill: Filling | None = None
    padding_mode: Padding = "constant"

    varies: ClassVar[bool] = False

    def _settle(self, *more: str) -> None:
        settle(self, size=pair, interpolation=(named, *get_args(Filter), *more))
        if self.fill is not None:
            settle(self, fill=filling)

    def __repr__(self) -> str:
        return shown(self, "interpolation", "fill", "max_size", "padding_mode", "pad_if_needed")

    @property
    def output_size(self) -> tuple[int, int]:
        """(height, width) of what comes out, in pixels; of one that varies the largest of each."""
        assert isinstance(self.size, tuple)
        return self.size

    @property
    def most_pixels(self) -> int:
        """So many pixels an output has at most."""
        return math.prod(self.output_size)

    @property
    def color(self) -> tuple[int, int, int] | None:
        """R, G and B of what lies outside of the image; None where nothing does."""
        assert self.fill is None or isinstance(self.fill, tuple)
        return None if self.fill is None else (int(self.fill[0]), int(self.fill[1]), int(self.fill[2]))


@dataclass(frozen=True, repr=False)
class RandomResizedCrop(Crop):
    """A random box of the image, resized to `size` with an antialiased filter.

    The box has `scale` of the image's area (drawn uniformly) and an aspect ratio in `ratio` (drawn
    log-uniformly), as in torchvision's transform of that name. `size` is an int or (height, width) in pixels,
    `interpolation` "bilinear", "bicubic" or "random": one of both, drawn for each image, as timm's training does.
    """

    size: int | tuple[int, int]
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    interpolation: Filter | Literal["random"] = "bilinear"

    def __post_init__(self) -> None:
        self._settle("random")
        settle(self, scale=span, ratio=span)


@dataclass(frozen=True, repr=False)
class MultiScaleCrop(Crop):
    """TSN's: one of some boxes at one of some places of the image, resized to `size`.

    scales: each side of a box is such a part of the image's shorter side, in whole pixels, and both are the same or
            neighbours in this list: of four scales there are ten boxes.
    places: 5: the corners and the middle; 13: half of the way between them, and a quarter of the way in, too.

    The boxes and places of mmaction2's `MultiScaleCrop(random_crop=False, max_wh_scale_gap=1)`.
    """

    size: int | tuple[int, int]
    scales: tuple[float, ...] = (1.0, 0.875, 0.75, 0.66)
    places: Literal[5, 13] = 5
    interpolation: Filter = "bilinear"

    def __post_init__(self) -> None:
        self._settle()
        if self.places not in (5, 13):
            raise ConfigError(f"MultiScaleCrop: places={self.places!r} must be 5 or 13")
        scales = floats(self.scales)
        if not scales or not 0 < min(scales) <= max(scales) <= 1:
            raise ConfigError(f"MultiScaleCrop: scales={self.scales!r} must be numbers above 0, and at most 1")
        object.__setattr__(self, "scales", scales)


@dataclass(frozen=True, repr=False)
class ResizeCenterCrop(Crop):
    """The image resized so that its shorter side is `resize` pixels, then its centre of `size`.

    resize:   an int, or (height, width), to which the whole image is then stretched: with `size` the same nothing is
              cut off. None: the longer side becomes `max_size`.
    max_size: what the longer side becomes where it would be longer.
    fill:     what surrounds an image that is smaller than `size`; None: `size` must fit into `resize`.

    The same as torchvision's `Resize(resize, max_size=max_size, antialias=True)` and `CenterCrop(size)`.
    `interpolation` is "bilinear" or "bicubic".
    """

    size: int | tuple[int, int]
    resize: int | tuple[int, int] | None = 256
    interpolation: Filter = "bilinear"
    max_size: int | None = None
    fill: Filling | None = None

    def __post_init__(self) -> None:
        self._settle()
        if isinstance(self.resize, Sequence):
            settle(self, resize=pair)
        if self.max_size is not None:
            if isinstance(self.resize, tuple):
                raise ConfigError(f"ResizeCenterCrop: max_size={self.max_size!r} goes with an int for resize, or None")
            settle(self, max_size=(count, 1 + (self.resize or 0), LONGEST))
        tall, wide = self.resize if isinstance(self.resize, tuple) else (self.resize or 0, self.resize or 0)
        known = isinstance(tall, int) and tall + (self.max_size or 0) > 0
        fits = known and self.max_size is None and self.output_size[0] <= tall and self.output_size[1] <= wide
        if not known or (self.fill is None and not fits):
            raise ConfigError(
                f"{type(self).__name__}: resize={self.resize!r} must be an int of at least the crop's longer side "
                f"{max(self.output_size)}, or a height and width of at least {self.output_size}, without max_size, "
                "else the crop would reach beyond the image; with fill=0 it may, and is black there"
            )


@dataclass(frozen=True, repr=False)
class ResizeCornerCrop(ResizeCenterCrop):
    """The image resized as by `ResizeCenterCrop`, then a corner of `size`, or the centre.

    place: "top_left", "top_right", "bottom_left", "bottom_right" or "center", of the image after a flip, if the recipe
           has one: the parts of torchvision's `FiveCrop` and `TenCrop`, pixel by pixel. See `eval_views`.
    """

    place: Place = "center"

    def __post_init__(self) -> None:
        super().__post_init__()
        settle(self, place=(named, *get_args(Place)))


@dataclass(frozen=True, repr=False)
class Resize(Crop):
    """The whole image, resized in its own ratio, so that images of a batch have sizes of their own; see `Image` for
    what then becomes of them.

    shorter:  what the shorter side becomes: an int, or a tuple of which one is drawn for each image. None: the longer
              side becomes `max_size`.
    max_size: what the longer side becomes where it would be longer, and the shorter one is less then. It has to be
              given, as memory is set aside for images of that size.

    With an int the same as torchvision's `v2.Resize(shorter, max_size=max_size)`, with a tuple, also of one, as its
    `v2.RandomShortestSize(shorter, max_size)`, which rounds otherwise. `interpolation` is "bilinear" or "bicubic".
    """

    shorter: int | tuple[int, ...] | None
    max_size: int = None  # type: ignore[assignment]  # which is refused with what to pass
    interpolation: Filter = "bilinear"

    varies = True

    def __post_init__(self) -> None:
        if self.max_size is None:
            raise ConfigError(
                f"Resize: max_size is not given; pass what the longer side may become, as Resize({self.shorter!r}, "
                "max_size=1333): memory is set aside for images of that size"
            )
        settle(self, interpolation=(named, *get_args(Filter)), max_size=(count, 1, LONGEST))
        sides: Any = self.shorter if isinstance(self.shorter, list | tuple) and self.shorter else (self.shorter,)
        for side in () if self.shorter is None else sides:
            count(f"Resize: shorter={self.shorter!r}, and each of several,", side, 1, LONGEST)
        if isinstance(self.shorter, list):
            object.__setattr__(self, "shorter", tuple(self.shorter))
        elif isinstance(self.shorter, int) and self.shorter > self.max_size:
            raise ConfigError(
                f"Resize: max_size={self.max_size} must be at least shorter={self.shorter}, as torchvision's Resize "
                f"has it; where the longer side decides, give shorter=({self.shorter},), as RandomShortestSize has it"
            )

    @property
    def output_size(self) -> tuple[int, int]:
        return self.max_size, self.max_size

    @property
    def most_pixels(self) -> int:
        longest = max(self.shorter) if isinstance(self.shorter, tuple) else self.shorter
        return self.max_size * min(longest or self.max_size, self.max_size)


@dataclass(frozen=True, repr=False)
class LetterBox(Crop):
    """The whole image, resized so that it just fits into `size`, in the middle; the rest is `fill`.

    Sides and place are rounded as YOLO's loaders do (Ultralytics' LetterBox); the filter is antialiased, where theirs,
    OpenCV's, is not. `interpolation` is "bilinear" or "bicubic".
    """

    size: int | tuple[int, int]
    fill: Filling = 114
    interpolation: Filter = "bilinear"

    def __post_init__(self) -> None:
        self._settle()
        _filled(self)


@dataclass(frozen=True, repr=False)
class RandomCrop(Crop):
    """A random part of `size` of the image, which is resized and padded before if so wanted.

    resize:  what the shorter side becomes: an int, or (low, high), of which one from `low` to below `high` is drawn, as
             torchvision's `v2.RandomResize` does; None: as it is.
    padding: pixels on each side.
    place:   where an image lies that is smaller than `size` all the same: "random", as with torchvision's
             `RandomCrop(size, padding, pad_if_needed=True)`; "top_left", as its segmentation reference pads, also where
             the image is mirrored, which comes before the crop there.
    padding_mode: what an image is padded with: "constant", `fill`; "edge", its outermost pixels; "reflect" or
             "symmetric", itself mirrored, without or with the outermost pixels once more. As torchvision's of these
             names; masks too, but boxes and points only go with "constant".
    pad_if_needed: whether such a smaller image is padded; False: it is a bad sample, where torchvision's, whose default
             that is, raises ValueError.

    `interpolation` is "bilinear" or "bicubic".
    """

    size: int | tuple[int, int]
    _: KW_ONLY  # torchvision's second one is padding
    resize: int | tuple[int, int] | None = None
    padding: int = 0
    place: Literal["random", "top_left"] = "random"
    fill: Filling = 0
    interpolation: Filter = "bilinear"
    padding_mode: Padding = "constant"
    pad_if_needed: bool = True

    def __post_init__(self) -> None:
        self._settle()
        _filled(self)
        settle(self, padding=(count, 0, LONGEST), padding_mode=(named, *get_args(Padding)))
        settle(self, place=(named, "random", "top_left"), pad_if_needed=(named, True, False))
        if isinstance(self.resize, Sequence):
            settle(self, resize=pair)
            if self.resize[0] >= self.resize[1]:
                raise ConfigError(f"RandomCrop: resize={self.resize!r} must be (low, high) with low < high")
        elif self.resize is not None:
            settle(self, resize=(count, 1, LONGEST))


@dataclass(frozen=True, repr=False)
class ScaleJitter(Crop):
    """The image in a random scale, then a random part of `size` of it; a smaller one lies top left, the rest is `fill`.

    scale: (low, high), of the sides with which the image just fits into `size`.

    The same as torchvision's `v2.ScaleJitter((size, size), scale)` and its detection reference's `FixedSizeCrop` of a
    square: large scale jitter (Ghiasi et al. 2021, arXiv 2012.07177). Of other sizes torchvision's takes the width
    first. `interpolation` is "bilinear" or "bicubic".
    """

    size: int | tuple[int, int]
    scale: tuple[float, float] = (0.1, 2.0)
    fill: Filling = 0
    interpolation: Filter = "bilinear"

    def __post_init__(self) -> None:
        self._settle()
        _filled(self)
        settle(self, scale=span)


@dataclass(frozen=True, repr=False)
class RandomIoUCrop(Crop):
    """A part of the image that is chosen by its boxes, maybe with `fill` around the image, resized to `size`: SSD's
    (Liu et al. 2016, arXiv 1512.02325).

    zoom_out: (low, high): with probability `p` the image lies somewhere on a canvas whose sides are that many times its
              own; None: never.
    min_scale, max_scale, min_aspect_ratio, max_aspect_ratio: of the part, its sides as shares of the canvas's.
    sampler_options: one is drawn: the part has that IoU or more with a box whose centre it has; 1 or more: all of the
              canvas. After so many `trials` without another is drawn, 50 times at most, then it is all of the canvas.

    The same as torchvision's `v2.RandomZoomOut(fill, zoom_out, p)`, `v2.RandomIoUCrop` and `v2.Resize(size)` on both
    sides, with `SanitizeBoundingBoxes`: boxes whose centres lie outside are dropped. Samples need boxes.
    `interpolation` is "bilinear" or "bicubic".
    """

    size: int | tuple[int, int]
    zoom_out: tuple[float, float] | None = None
    p: float = 0.5
    min_scale: float = 0.3
    max_scale: float = 1.0
    min_aspect_ratio: float = 0.5
    max_aspect_ratio: float = 2.0
    sampler_options: tuple[float, ...] = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
    trials: int = 40
    fill: Filling = 0
    interpolation: Filter = "bilinear"

    def __post_init__(self) -> None:
        self._settle()
        _filled(self)
        settle(self, p=PROBABILITY, trials=(count, 1, 255), sampler_options=_options)
        settle(self, max_scale=(number, 0, 1), max_aspect_ratio=(number, 0))
        settle(self, min_scale=(number, 0, self.max_scale), min_aspect_ratio=(number, 0, self.max_aspect_ratio))
        if self.zoom_out is not None:
            settle(self, zoom_out=span)
            if self.zoom_out[0] < 1:
                raise ConfigError(f"RandomIoUCrop: zoom_out={self.zoom_out} must be (low, high) from 1 on, or None")


def _options(said: str, value: Any) -> tuple[float, ...]:
    numbers = () if isinstance(value, str) else floats(value)
    if not numbers or not all(option >= 0 for option in numbers):
        raise ConfigError(f"{said} must be one number of 0 or more, or several")
    return numbers


def _filled(crop: Crop) -> None:
    if crop.fill is None:
        raise ConfigError(f"{type(crop).__name__}: fill=None must be a level from 0 to 255 or three of them")


@dataclass(frozen=True)
class RandomHorizontalFlip:
    """Mirrors the image left to right with probability `p`."""

    p: float = 0.5

    def __post_init__(self) -> None:
        settle(self, p=PROBABILITY)


@dataclass(frozen=True)
class Normalize:
    """`(x - mean) / std` per channel, for x in [0, 1]: the arithmetic of torchvision's `Normalize` after `ToTensor`."""

    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD

    def __post_init__(self) -> None:
        settle(self, mean=triple, std=triple)
        if min(self.std) <= 0:
            raise ConfigError(f"Normalize: std={self.std!r} must be above 0 in every channel")


@dataclass(frozen=True)
class RandomErasing:
    """A random box of the image is replaced, with probability `p` (Zhong et al. 2017, arXiv 1708.04896).

    scale: (low, high), the box's part of the image's area. ratio: (low, high), its height by its width.
    value: a number or three of them, for R, G and B, in what comes out, so after `Normalize`; or "random":
           independent standard normal numbers.

    As torchvision's `v2.RandomErasing` after `Normalize`, in the order of its reference training. Raises ConfigError.
    """

    p: float = 0.5
    scale: tuple[float, float] = (0.02, 0.33)
    ratio: tuple[float, float] = (0.3, 3.3)
    value: float | tuple[float, float, float] | Literal["random"] = 0

    def __post_init__(self) -> None:
        settle(self, p=PROBABILITY, scale=(span, 1.0), ratio=span, value=_erased)

    @property
    def constant(self) -> tuple[float, float, float] | None:
        """The three numbers; None for random ones."""
        return self.value if isinstance(self.value, tuple) else None


def _erased(said: str, value: Any) -> Any:
    if value == "random":
        return "random"
    numbers = floats(value) or (() if isinstance(value, str) else floats([value]) * 3)
    if len(numbers) != 3 or not all(math.isfinite(number) for number in numbers):
        raise ConfigError(f"{said} must be a number, three of them, or 'random'")
    return numbers
