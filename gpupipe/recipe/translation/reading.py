"""Transforms of other libraries, read one after the other into a recipe, or refused by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from gpupipe.errors import ConfigError, TranslationError
from gpupipe.recipe.augmentations import Augmenting, walk
from gpupipe.recipe.mixing import Mixing
from gpupipe.recipe.operations import (
    Crop,
    Normalize,
    RandomCrop,
    RandomErasing,
    RandomHorizontalFlip,
    RandomIoUCrop,
    RandomResizedCrop,
    Resize,
    ResizeCenterCrop,
    ScaleJitter,
)
from gpupipe.recipe.recipe import DTYPES, Recipe
from gpupipe.recipe.translation.alike import Padded, augmentation_like, padding_like
from gpupipe.recipe.translation.code import handed_on
from gpupipe.recipe.translation.untouched import AS_IT_IS, check_made, check_own

__all__ = ["Known", "Reader", "Reading"]

HALF = ("float16", "bfloat16")

Reader: TypeAlias = Callable[..., None]
Known: TypeAlias = Mapping[str, Reader]


KEPT_AS = {("RandomIoUCrop", "sampler_options"): "options"}
"""By class and parameter the attribute under which a transform keeps it, where that has another name."""


@dataclass(frozen=True)
class Resized:
    """A resize whose crop is still to come. size: of the shorter side, None for that of the longer one alone, or of
    both sides; if it is `drawn`, the lowest of the shorter side and what it stays below. scale: (low, high) of those
    with which the image would fit into `size`."""

    said: str
    size: int | tuple[int, int] | None
    interpolation: str
    max_size: int | None = None
    drawn: bool = False
    scale: tuple[float, float] | None = None


class Reading:
    """What the transforms read so far do to RGB images, in the order of a recipe.

    known: by a class's dotted name, of any package that its module is in, the function that is called with the reading
           and with the class's parameters by their names. alternatives: by the name of a class that has none, what
           comes nearest.
    within: the transform in which those to be read stand, where it takes augmentations alone.
    dtype: of the pixels as they are now, one of a recipe's; "" as the dataset gives them, in levels from 0 to 255.

    Readers say what a transform does by the methods from `resize_to` on, each of which raises TranslationError where
    the recipe would not do the same.
    """

    def __init__(
        self, known: Known, alternatives: Mapping[str, str] | None = None, within: str = "", dtype: str = ""
    ) -> None:
        self.known, self.alternatives = known, alternatives or {}
        self.within, self.dtype = within, dtype
        self.kind = ""
        """ "Image" for a tv_tensor, "Tensor" for a plain one, as far as it is known."""
        self.crop: Crop | None = None
        self.flip: RandomHorizontalFlip | None = None
        self.augmentations: list[Augmenting] = []
        self.normalize: Normalize | None = None
        self.erasing: RandomErasing | None = None
        self._resize: Resized | None = None
        self._padding: tuple[str, int, tuple[Any, str]] | None = None
        self._below: Padded | None = None
        self._chosen: tuple[str, dict[str, Any]] | None = None
        self._said = "the transform"

    def read(self, transform: Any) -> None:
        """Add what the transform does. Raises TranslationError."""
        kind = type(transform)
        check_own(transform)
        reader = self._reader(transform)
        try:
            alike = None if reader is not None else augmentation_like(transform) or padding_like(transform)
            if reader is None and alike is None:
                inner = handed_on(transform)
                if self._reader(inner) is None and handed_on(inner) is None:
                    dotted, reason = f"{kind.__module__}.{kind.__qualname__}", "a recipe has nothing like it"
                    raise TranslationError(dotted, reason, self.alternatives.get(kind.__name__, AS_IT_IS))
                self.read(inner)
                return
            said, self._said = self._said, kind.__name__
            if reader is not None:
                values = self._parameters(transform, reader)
                reader(self, **values)
                check_made(transform, values)
            elif isinstance(alike, Padded):
                self.pad_below(alike)
            elif alike is not None:
                self.augment(alike)
        except TranslationError:
            raise
        except ConfigError as error:
            raise self.refuse(str(error)) from error
        self._said = said

    def read_all(self, transforms: Iterable[Any]) -> None:
        """Add what each does, one after the other."""
        for transform in transforms:
            self.read(transform)

    def inside(self, transforms: Iterable[Any]) -> list[Augmenting]:
        """The augmentations that these are, which stand in the one that is being read."""
        reading = Reading(self.known, self.alternatives, self._said, self.dtype)
        reading.read_all(transforms)
        return reading.augmentations

    def refuse(self, reason: str, alternative: str = AS_IT_IS, **settings: Any) -> TranslationError:
        """The error for the transform that is being read, with those of its settings that are to blame."""
        shown = ", ".join(f"{name}={value!r}" for name, value in settings.items())
        return TranslationError(f"{self._said}({shown})" if shown else self._said, reason, alternative)

    def recipe(self, mixing: Mixing | None = None) -> Recipe:
        """What was read, and the mixing of its batches."""
        self._end_of_resize()
        if self.crop is None:
            alternative = "put Resize((height, width)) first, which changes nothing where all have that size"
            raise self.refuse("nothing in it makes images of one size", alternative)
        rest = (self.flip, *self.augmentations, self.normalize, self.erasing, mixing)
        operations = (self.crop, *(operation for operation in rest if operation is not None))
        try:
            return Recipe(operations, dtype=self.dtype or "uint8")
        except ConfigError as error:
            raise self.refuse(str(error)) from error

    def _reader(self, transform: Any) -> Reader | None:
        return next((self.known[name] for name in _names(type(transform)) if name in self.known), None)

    def _parameters(self, transform: Any, reader: Reader) -> dict[str, Any]:
        """What the transform was made with, which torchvision's and timm's keep under the names of the parameters."""
        values: dict[str, Any] = {}
        known = inspect.signature(reader).parameters
        for name, parameter in inspect.signature(type(transform)).parameters.items():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                continue
            if name not in known:
                raise self.refuse(f"its parameter {name!r} is unknown to gpupipe")
            values[name] = getattr(transform, KEPT_AS.get((type(transform).__name__, name), name))
        if "transforms" in known and not values:
            values["transforms"] = tuple(transform)
        return values

    # What a transform does.

    def resize_to(self, size: int | tuple[int, int] | None, interpolation: str, **more: Any) -> None:
        """The shorter side becomes `size` pixels, or the whole image (height, width). more: see `Resized`."""
        if self._chosen is None or not isinstance(size, tuple) or more.get("drawn"):
            self._begin_crop(interpolation)
            self._resize = Resized(self._said, size, interpolation, **more)
            return
        settings = self._chosen[1]
        if "trials" not in settings:
            raise self.refuse("it follows RandomZoomOut alone", "put RandomIoUCrop between them", size=size)
        self._chosen = None
        self.crop = RandomIoUCrop(size, interpolation=interpolation, **settings)  # type: ignore[arg-type]

    def center_crop(self, size: tuple[int, int]) -> None:
        """The centre of what was resized."""
        if self._resize is None or self._resize.drawn or self._resize.scale or self._padding or self._below:
            raise self.refuse("it does not follow a Resize", "put Resize before it", size=size)
        if self.flip or self.erasing:
            raise self.refuse("the centre is not in the middle of a pixel", "put it before flip and erasing", size=size)
        resized, self._resize = self._resize, None
        tall, wide = resized.size if isinstance(resized.size, tuple) else (resized.size or 0, resized.size or 0)
        padded = resized.max_size is not None or tall < size[0] or wide < size[1]
        if padded and self.normalize:
            raise self.refuse("it may pad, after Normalize", "put it before Normalize", size=size)
        fill = 0 if padded else None
        self.crop = ResizeCenterCrop(size, resized.size, resized.interpolation, resized.max_size, fill)  # type: ignore[arg-type]

    def pad(self, padding: int, filling: tuple[Any, str]) -> None:
        """So many pixels on each side, before a random crop. filling: the color and the padding's mode."""
        if self._resize is None or self._padding:
            self._begin_crop()
        self._padding = self._said, padding, filling

    def pad_below(self, padded: Padded) -> None:
        """Right and below, where the image is smaller: before a random crop, or with a crop of its own."""
        resized = self._resize
        if not padded.crops:
            if resized is None or self._padding or self._below:
                self._begin_crop()
            self._below = padded
            return
        if resized is None or resized.scale is None or resized.size != padded.size or self.flip:
            alternative = "put ScaleJitter of the same size before it, and RandomHorizontalFlip behind it"
            raise self.refuse("it does not follow a ScaleJitter alone", alternative, size=padded.size)
        self._resize = None
        self.crop = ScaleJitter(padded.size, resized.scale, padded.color, resized.interpolation)  # type: ignore[arg-type]

    def random_crop(
        self, size: tuple[int, int], padding: int, filling: tuple[Any, str] | None, pad_if_needed: bool
    ) -> None:
        """A random part of what was resized and padded. filling: None where it does not pad itself, nor may do so.
        pad_if_needed: whether it takes images that are smaller."""
        resized, padded, below = self._resize, self._padding, self._below
        if resized is None and padded is None and below is None:
            self._begin_crop()
        if self.normalize or self.erasing:
            raise self.refuse("it comes after other operations", "put it first", size=size)
        if resized is not None and (resized.max_size or (isinstance(resized.size, tuple) and not resized.drawn)):
            raise self.refuse("it follows a Resize of both sides", "give Resize the shorter side alone", size=size)
        if padded is not None:
            if filling is not None and (filling != padded[2] or filling[1] in ("reflect", "symmetric")):
                raise self.refuse(f"it is padded twice, also with {padded[2]!r}", "pad once", padding=padding)
            padding, filling = padding + padded[1], padded[2]
        if below is not None and (below.size != size or padded is not None):
            raise self.refuse("PadIfSmaller is of another size", "give both the same", size=size)
        self._resize = self._padding = self._below = None
        how = "bilinear" if resized is None else resized.interpolation
        fill, mode = (filling or (0, "constant")) if below is None else (below.color, "constant")
        place = "random" if below is None else "top_left"
        shorter = 0 if resized is None else min(pair) if isinstance(pair := resized.size, tuple) else pair or 0
        pads = pad_if_needed or below is not None or shorter + 2 * padding >= max(size)  # what always fits needs none
        self.crop = RandomCrop(
            size,
            resize=resized and resized.size,  # type: ignore[arg-type]
            padding=padding,
            place=place,  # type: ignore[arg-type]
            fill=fill,  # type: ignore[arg-type]
            interpolation=how,  # type: ignore[arg-type]
            padding_mode=mode,  # type: ignore[arg-type]
            pad_if_needed=pads,
        )

    def choose_by_boxes(self, **settings: Any) -> None:
        """A canvas around the image, or a part of it that its boxes choose: settings of `RandomIoUCrop`."""
        if self._chosen is None or not settings.keys().isdisjoint(self._chosen[1]) or "zoom_out" in settings:
            self._begin_crop()
        self._chosen = self._said, (self._chosen[1] if self._chosen else {}) | settings

    def crop_to(self, crop: Crop) -> None:
        """A crop that resizes what it cuts out."""
        self._begin_crop(crop.interpolation)
        if self.flip and isinstance(crop, RandomResizedCrop):
            reason = "of an image that is too long for it, it takes the centre, which is not in the middle of a pixel"
            raise self.refuse(reason, "put it before the flip, which also spares work", size=crop.size)
        self.crop = crop

    def flip_with(self, p: float) -> None:
        """Mirrored left to right with probability `p`."""
        self._outermost()
        if self.flip:
            raise self.refuse("it is the second one", "leave one of both out", p=p)
        moving = [type(operation).__name__ for operation in walk(self.augmentations) if hasattr(operation, "fill")]
        if moving or self.erasing:
            before = moving[0] if moving else "RandomErasing"
            raise self.refuse(f"it comes after {before}", f"put it before {before}", p=p)
        if isinstance(self.crop, RandomCrop) and self.crop.place == "top_left":
            raise self.refuse("what PadIfSmaller has padded would be mirrored", "put it before PadIfSmaller", p=p)
        self.flip = RandomHorizontalFlip(p)

    def augment(self, operation: Augmenting) -> None:
        """An augmentation of what was cropped."""
        self._end_of_resize()
        self._no_half()
        if self.crop is None and not self.within:
            raise self.refuse("it comes before the crop", "put it after the crop, which also spares work")
        if self.normalize or self.erasing:
            raise self.refuse("it comes after Normalize or RandomErasing", "put it before them")
        if self.dtype == "float32" and hasattr(operation, "fill"):
            raise self.refuse("on floats it differs", "put it before the conversion to floats")
        self.augmentations.append(operation)

    def convert(self, dtype: str, scale: bool = True) -> None:
        """Pixels of another dtype. scale: whether levels from 0 to 255 become floats from 0 to 1."""
        if dtype == self.dtype:
            return
        self._outermost()
        if dtype not in DTYPES:
            raise self.refuse("batches have another dtype", f"take one of {', '.join(DTYPES)}", dtype=dtype)
        if dtype == "uint8" and self.dtype:
            raise self.refuse(f"the image is {self.dtype} already", "leave it out", dtype=dtype)
        if self.dtype in HALF:
            raise self.refuse(f"the image was rounded to {self.dtype}", "put that conversion last", dtype=dtype)
        if not scale and self.dtype in ("", "uint8"):
            alternative = "take scale=True, with Normalize's mean and std divided by 255"
            raise self.refuse("a recipe's floats lie between 0 and 1", alternative, scale=scale)
        self.dtype = dtype

    def normalize_with(self, mean: tuple[float, float, float], std: tuple[float, float, float]) -> None:
        """`(x - mean) / std`."""
        self._floats()
        normalize = Normalize(mean, std)
        if self.normalize:
            pairs = zip(self.normalize.mean, self.normalize.std, *(normalize.mean, normalize.std), strict=True)
            both = [(m + s * mean, s * std) for m, s, mean, std in pairs]
            alternative = "one does both: Normalize(mean={}, std={})".format(*zip(*both, strict=True))
            raise self.refuse("it is the second one", alternative, mean=mean, std=std)
        if self.erasing:  # before it: its numbers are normalized too
            if self.erasing.constant is None:
                raise self.refuse("it changes RandomErasing's random numbers", "put RandomErasing after it")
            values = zip(self.erasing.constant, normalize.mean, normalize.std, strict=True)
            red, green, blue = ((v - m) / s for v, m, s in values)
            self.erasing = replace(self.erasing, value=(red, green, blue))
        self.normalize = normalize

    def erase(self, erasing: RandomErasing) -> None:
        """A box of the image erased."""
        self._floats()
        self._end_of_resize()
        if self.erasing:
            raise self.refuse("it is the second one", "leave one of both out")
        self.erasing = erasing

    # What does not go together.

    def _begin_crop(self, interpolation: str = "bilinear") -> None:
        self._outermost()
        self._no_half()
        if self._resize or self._padding or self._below or self._chosen or self.crop:
            raise self.refuse("the image was resized or cropped before", "take one crop alone")
        if self.augmentations or self.normalize or self.erasing:
            raise self.refuse("it comes after other operations", "put it first")
        if self.dtype and self.dtype != "uint8" and interpolation != "bilinear":
            alternative = "put it before the conversion to floats"
            raise self.refuse("it goes beyond 0 and 1 on floats", alternative, interpolation=interpolation)

    def _end_of_resize(self) -> None:
        """No crop of what was resized follows any more."""
        reason = "it leaves images of different sizes"
        if self._padding or self._below:
            raise TranslationError(self._padding[0] if self._padding else "PadIfSmaller", reason, "put RandomCrop next")
        if self._chosen:
            raise TranslationError(self._chosen[0], reason, "put Resize((height, width)) next")
        if self._resize is None:
            return
        one, self._resize = self._resize, None
        if one.drawn or one.scale:
            raise TranslationError(one.said, reason, f"put {'FixedSizeCrop' if one.scale else 'RandomCrop'} next")
        if isinstance(one.size, tuple):
            self.crop = ResizeCenterCrop(one.size, one.size, one.interpolation)  # type: ignore[arg-type]
        elif one.max_size is not None:
            self.crop = Resize(one.size, one.max_size, one.interpolation)  # type: ignore[arg-type]
        else:
            alternative = "put CenterCrop next, give (height, width), or max_size where batches are padded or listed"
            raise TranslationError(f"{one.said}(size={one.size})", reason, alternative)

    def _outermost(self) -> None:
        if self.within:
            raise self.refuse(f"it stands in {self.within}, which takes augmentations alone", "take it out of that")

    def _no_half(self) -> None:
        if self.dtype in HALF:
            raise self.refuse(f"it works in {self.dtype}", "put the conversion to that last")

    def _floats(self) -> None:
        self._outermost()
        self._no_half()
        if self.dtype != "float32":
            raise self.refuse(
                "it comes before the conversion to floats", "put ToDtype(torch.float32, scale=True) before it"
            )


def _names(kind: type) -> list[str]:
    """Dotted names by which a class may be known: with its module, and with each package that this is in."""
    parts = kind.__module__.split(".")
    return [".".join([*parts[:end], kind.__qualname__]) for end in range(len(parts), 0, -1)]
