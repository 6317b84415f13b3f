"""Transforms of other libraries, read one after the other into a recipe, or refused by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from gpupipe.errors import ConfigError, TranslationError
from gpupipe.recipe.augmentations import Augmenting
from gpupipe.recipe.operations import (
    Crop,
    Filter,
    Normalize,
    RandomErasing,
    RandomHorizontalFlip,
    ResizeCenterCrop,
)
from gpupipe.recipe.recipe import Recipe

__all__ = ["AS_IT_IS", "Known", "Reader", "Reading", "refuse"]

AS_IT_IS = "gpupipe.from_dataloader runs the dataset with it as it is written"
FLOATS = ("float16", "bfloat16", "float32")


def refuse(operation: str, reason: str, alternative: str = AS_IT_IS) -> TranslationError:
    """The error, which says what to do where nothing comes near."""
    return TranslationError(operation, reason, alternative)


class Reading:
    """What the transforms read so far do, in the order of a recipe.

    known: of each class the function that is called with the reading and the class's parameters, by their names.
    within: the transform in which they stand, where that takes augmentations alone.
    """

    def __init__(self, known: Known, within: str = "", dtype: str = "") -> None:
        self.known = known
        self.within = within
        self.dtype = dtype
        """Of the pixels: "uint8" or a float one, "" as the dataset gives them, which are levels from 0 to 255."""
        self.resize: tuple[int, Filter] | None = None
        self.crop: Crop | None = None
        self.flip: RandomHorizontalFlip | None = None
        self.augmentations: list[Augmenting] = []
        self.normalize: Normalize | None = None
        self.erasing: RandomErasing | None = None

    # What is read.

    def read(self, transform: Any) -> None:
        """Add what the transform does. Raises TranslationError."""
        kind = type(transform)
        name = f"{kind.__module__}.{kind.__qualname__}"
        reader = next((self.known[prefix] for prefix in _names(kind) if prefix in self.known), None)
        if reader is None:
            raise refuse(name, "gpupipe does not know what it does")
        _check_own(transform)
        parameters = _parameters(transform)
        unknown = set(parameters) - set(inspect.signature(reader).parameters)
        if unknown:
            raise refuse(f"{name}({unknown.pop()}=...)", "gpupipe does not know that parameter")
        try:
            reader(self, **parameters)
        except TranslationError:
            raise
        except ConfigError as error:
            raise refuse(f"{kind.__name__}(...)", str(error)) from error

    def read_all(self, transforms: Iterable[Any]) -> None:
        """Add what each does."""
        for transform in transforms:
            self.read(transform)

    def recipe(self, **settings: Any) -> Recipe:
        """What was read."""
        self.end_of_crop("the transform")
        if self.crop is None:
            raise refuse("the transform", "it has no crop, so that images of a batch can differ in size", AS_IT_IS)
        rest = (self.flip, *self.augmentations, self.normalize, self.erasing)
        operations = (self.crop, *(operation for operation in rest if operation is not None))
        return Recipe(operations, dtype=self.dtype or "uint8", **settings)

    # What readers call.

    def set_crop(self, said: str, crop: Crop | None) -> None:
        if self.resize or self.crop:
            raise refuse(said, "it resizes or crops what was resized or cropped before")
        if self.augmentations or self.normalize or self.erasing:
            raise refuse(said, "it comes after operations on colors", "put it first, before them")
        self.crop = crop

    def set_resize(self, said: str, size: int, interpolation: Filter) -> None:
        self.set_crop(said, None)
        self.resize = size, interpolation

    def center_crop(self, said: str, size: tuple[int, int]) -> None:
        if self.resize is None:
            raise refuse(said, "it does not follow a Resize", "put Resize before it")
        (resize, interpolation), self.resize = self.resize, None
        self.set_crop(said, ResizeCenterCrop(size, resize, interpolation))

    def end_of_crop(self, said: str) -> None:
        """No CenterCrop can come any more."""
        if self.resize is not None:
            raise refuse(said, "Resize alone leaves images of different sizes", "put CenterCrop after it")

    def set_flip(self, said: str, p: float) -> None:
        if self.flip:
            raise refuse(said, "a recipe has one flip", "leave one of both out")
        self.flip = RandomHorizontalFlip(p)

    def augment(self, said: str, operation: Augmenting) -> None:
        self.end_of_crop(said)
        if self.crop is None and not self.within:
            raise refuse(said, "it comes before the crop", "put it after the crop")
        if self.normalize or self.erasing:
            raise refuse(said, "it comes after Normalize or RandomErasing", "put it before them")
        self.augmentations.append(operation)


Reader: TypeAlias = Callable[..., None]
Known: TypeAlias = Mapping[str, Reader]


def _names(kind: type) -> list[str]:
    """Dotted names by which a class may be known: with its module, and with each package that this is in."""
    parts = kind.__module__.split(".")
    return [".".join([*parts[:end], kind.__qualname__]) for end in range(len(parts), 0, -1)]


def _check_own(transform: Any) -> None:
    """Nothing of the object replaces or surrounds what its class does."""
    kind = type(transform)
    replaced = [name for name in vars(transform) if callable(getattr(kind, name, None))]
    hooks = [name for name, value in vars(transform).items() if name.endswith("_hooks") and value]
    for name in (*replaced, *hooks):
        raise refuse(f"{kind.__name__} with {name} of its own", "gpupipe does not know what that does")


def _parameters(transform: Any) -> dict[str, Any]:
    """What the transform was made with: torchvision's keep each parameter under its name."""
    names = inspect.signature(type(transform)).parameters
    return {name: getattr(transform, name) for name in names if name not in ("args", "kwargs")}
