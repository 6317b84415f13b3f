"""Operations of the user's own: a function of his on each image, or on the batch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from gpupipe.errors import ConfigError
from gpupipe.recipe.mixing import Mixing
from gpupipe.recipe.operations import Crop, Normalize, RandomErasing
from gpupipe.recipe.several import GEOMETRY

__all__ = ["OnBatch", "Own", "PerImage", "check_places"]


@dataclass(frozen=True)
class Own:
    """What `PerImage` and `OnBatch` have in common; for more see there.

    fn:        a function of two, what it changes and a random generator, from which alone it may draw: that is keyed by
               seed, epoch, position and the operation's place among those of its kind, so it gives the same numbers on
               every run. Or a transform, which is told by its class, `torch.nn.Module` or one of torchvision's: that is
               called with what it changes alone, and draws from the global generators of torch, numpy and random,
               which are seeded for it in the same way and put back.
    name, version: stand in saved states for what `fn` does. name: None takes a function's own, or what a transform
               prints; a lambda, a partial or another object needs one. version: an int or a text; change it when what
               `fn` does changes, and states that were saved before are refused.
    geometric: whether it may move pixels. Masks, boxes and points can't follow that, so beside them it is refused
               unless you say False.
    """

    fn: Callable[..., Any] = field(repr=False)
    _: KW_ONLY
    name: str | None = None
    version: int | str = 1
    geometric: bool = field(default=True, repr=False)

    def __post_init__(self) -> None:
        kind = type(self).__name__
        if not callable(self.fn):
            raise ConfigError(f"{kind}: fn={self.fn!r} must be a function or a transform")
        if not isinstance(self.version, int | str):
            raise ConfigError(f"{kind}: version={self.version!r} must be an int or a text")
        if not isinstance(self.geometric, bool):
            raise ConfigError(f"{kind}: geometric={self.geometric!r} must be True or False")
        name = _name_of(self.fn, self.is_transform) if self.name is None else self.name
        if not isinstance(name, str) or not name or "<lambda>" in name or " at 0x" in name:
            raise ConfigError(
                f"{kind}: name={self.name!r}, and {self.fn!r} has none by which a saved state could know it again; "
                f"pass {kind}(fn, name=..., version=...)"
            )
        object.__setattr__(self, "name", name)

    @property
    def is_transform(self) -> bool:
        """Whether `fn` takes no generator."""
        torch = sys.modules.get("torch")
        is_module = torch is not None and isinstance(self.fn, torch.nn.Module)
        return is_module or type(self.fn).__module__.startswith("torchvision.transforms")

    def __str__(self) -> str:
        return f"{type(self).__name__} {self.name!r}"


@dataclass(frozen=True)
class PerImage(Own):
    """A function of your own on each image, `fn(image, generator)`, in the workers of the torch engine.

    image:     uint8 RGB (height, width, 3), which it may change in place. It returns such an array. A transform gets
               and returns a uint8 tensor (3, height, width), a `tv_tensors.Image` where torchvision is at hand.
    generator: a `numpy.random.Generator`.

    Before the crop it gets the whole image, upright where the recipe turns images, and may return one of any size, for
    which the crop is then drawn. So all of an image is decoded, where else no more than the crop is: 2.1 ms instead of
    0.66 for a JPEG of 470 x 400 (one core of an Intel Xeon). Behind crop and flip, among the augmentations, the size
    must stay. Behind an `OnBatch` it can't stand, nor where pixels are floats. Of several views, and of several image
    fields, each has draws of its own. Its images are the same for any number of workers and ranks, and after a resume.

    What `fn` raises is a SampleError, also of the type that it raised, and with on_error="skip" the sample is replaced.
    DALI can't call it: engine="auto" takes the torch engine, "dali" is a ConfigError. Raises ConfigError.
    """


@dataclass(frozen=True)
class OnBatch(Own):
    """A function of your own on the batch of images, `fn(images, generator)`, on its device; on every engine.

    images:    (N, 3, height, width), of each view and image field by itself: uint8 in channels_last strides where
               `Normalize` or an augmentation follows, else in the recipe's dtype and layout. It returns a tensor like
               that, which at the end of the recipe may have another shape and dtype, but N rows.
    generator: a `torch.Generator` on the images' device. It is keyed by the position of the batch's first sample: the
               same batch has the same numbers on every engine and after a resume. On another number of ranks a global
               batch is cut into others, which have other numbers.
    whole:     fn gets the whole batch as the loader would give it, (images, labels) or a dict by field, and returns
               what the loader gives instead; for mixing of your own. Only at the end of a Recipe.

    It may stand anywhere behind crop and flip, also behind erasing and mixing, which then run by themselves where
    else they share a pass with `Normalize`. It runs under `torch.no_grad()`: on the CPU in the consumer's thread, and
    for a GPU ahead in a thread of the loader's, on its stream. No worker calls it, so it need not be picklable. A
    recipe with transforms, whose generators the training loop has as well, has all of that done in the consumer's
    thread. What `fn` raises is a DataError in the batch's place, also of the type that it raised. Raises ConfigError.
    """

    _: KW_ONLY
    whole: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.whole, bool):
            raise ConfigError(f"OnBatch: whole={self.whole!r} must be True or False")


def _name_of(fn: Callable[..., Any], is_transform: bool) -> Any:
    return " ".join(repr(fn).split()) if is_transform else getattr(fn, "__qualname__", None)


def check_places(operations: Sequence[Any]) -> None:
    """ConfigError where an operation of the user's own stands at a place of the recipe at which it can't be done."""
    crop = next(at for at, one in enumerate(operations) if isinstance(one, Crop))
    cut = max(at for at, one in enumerate(operations) if isinstance(one, GEOMETRY))
    for at, one in enumerate(operations):
        if isinstance(one, Own):
            problem = _misplaced(one, operations[:at], operations[at + 1 :], crop < at < cut)
            if problem:
                raise ConfigError(f"Recipe: {one} is operation {at + 1} of {len(operations)}, {problem}")


def _misplaced(one: Own, before: Sequence[Any], after: Sequence[Any], in_cut: bool) -> str | None:
    if in_cut:
        return "between crop and flip, which are done at once; put it behind the flip" + (
            ", or before the crop" if isinstance(one, PerImage) else ""
        )
    if isinstance(one, OnBatch):
        if not any(isinstance(other, Crop) for other in before):
            return "before the crop, where each image has its own size; take PerImage, or put it behind crop and flip"
        if one.whole and after:
            return f"before {_names(after)}, but with whole=True it must be the last"
        return None
    floats = [other for other in before if isinstance(other, Normalize | RandomErasing | Mixing)]
    if floats:
        return f"behind {_names(floats)}, where images are floats on their device; take OnBatch, or put it before that"
    batches = [other for other in before if isinstance(other, OnBatch)]
    if batches:
        return f"behind {_names(batches)}, for which the workers have handed the images over; put it before that"
    return None


def _names(operations: Sequence[Any]) -> str:
    return ", ".join(str(one) if isinstance(one, Own) else type(one).__name__ for one in operations)
