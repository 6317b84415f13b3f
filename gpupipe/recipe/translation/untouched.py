"""Whether an object of a library is as its class makes it, and the class as the library has it: else what it does can't
be told from its settings."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gpupipe.errors import TranslationError
from gpupipe.host.generators import global_generators, kept

__all__ = ["AS_IT_IS", "check_made", "check_own", "of_package"]

AS_IT_IS = "gpupipe.PerImage takes it into a recipe as it is, gpupipe.from_dataloader runs the dataset as it is written"


def check_own(transform: Any) -> None:
    """Raise TranslationError where something of the object's own replaces or surrounds what its class does."""
    kind, own = type(transform), getattr(transform, "__dict__", {})
    replaced = [name for name in own if callable(getattr(kind, name, None))]
    hooks = [name for name, value in own.items() if name.endswith("_hooks") and value]
    for name in (*replaced, *hooks):
        raise TranslationError(f"{kind.__name__}.{name}", "this one was given its own, which can't be read", AS_IT_IS)


def check_made(transform: Any, values: Mapping[str, Any]) -> None:
    """Raise TranslationError unless its class makes one in the same state of these values, by parameter. What was
    changed afterwards it may follow in part: torchvision's keep a `_fill` beside `fill`, a `_log_ratio` beside `ratio`.
    """
    kind = type(transform)
    _check_spaces(kind)
    known = inspect.signature(kind).parameters.keys() & values.keys()
    try:
        with kept(global_generators()), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what is deprecated was said when the first was made
            made = kind(**{name: _given(kind, name, values[name]) for name in known})
    except Exception as error:  # code of the library's, which does not take what it holds
        reason = f"it has settings that its class does not take ({type(error).__name__}: {error})"
        raise TranslationError(kind.__name__, reason, AS_IT_IS) from error
    name = _differing(transform, made)
    if name:
        reason = "it was changed after the transform was made, which follows it in part"
        raise TranslationError(f"{kind.__name__}.{name}", reason, "make a new one with that setting")


MOVES = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")
COLORS = ("Brightness", "Color", "Contrast", "Sharpness")
OTHERS = ("Posterize", "Solarize", "AutoContrast", "Equalize")
SPACES: dict[tuple[str, str], set[str]] = {
    ("AutoAugment", "_AUGMENTATION_SPACE"): {*MOVES, *COLORS, *OTHERS, "Invert"},
    ("RandAugment", "_AUGMENTATION_SPACE"): {*MOVES, *COLORS, *OTHERS, "Identity"},
    ("TrivialAugmentWide", "_AUGMENTATION_SPACE"): {*MOVES, *COLORS, *OTHERS, "Identity"},
    ("AugMix", "_AUGMENTATION_SPACE"): {*MOVES, *COLORS, *OTHERS},
    ("AugMix", "_PARTIAL_AUGMENTATION_SPACE"): {*MOVES, *OTHERS},
}
"""By class of torchvision.transforms.v2 and attribute the operations of which one is drawn."""


def _check_spaces(kind: type) -> None:
    """Raise TranslationError where a class of torchvision.transforms.v2 was given operations of the program's own."""
    for (known, name), operations in SPACES.items():
        space = vars(kind).get(name)
        if kind.__name__ == known and isinstance(space, Mapping):
            foreign = [key for key, (strengths, _) in space.items() if not of_package(strengths, "torchvision")]
            if foreign or space.keys() != operations:
                raise TranslationError(f"{known}.{name}", "its class was given others, which can't be read", AS_IT_IS)


def of_package(function: Any, package: str) -> bool:
    """Whether a function, and what it wraps, was written in a package's modules."""
    name = getattr(function, "__globals__", {}).get("__name__", "")
    inner = getattr(function, "__wrapped__", None)
    return name.partition(".")[0] == package and (inner is None or of_package(inner, package))


# How a class is given what it keeps in another form, by class and parameter.

_FILTERS = "RandomResizedCropAndInterpolation"
GIVEN: dict[tuple[str, str], Callable[[Any], Any]] = {
    **{("ColorJitter", name): lambda value: value or 0 for name in ("brightness", "contrast", "saturation", "hue")},
    ("RandomErasing", "value"): lambda value: "random" if value is None else value,
    **{("ImageClassification", name): lambda value: value[0] for name in ("crop_size", "resize_size")},
    (_FILTERS, "interpolation"): lambda value: "random" if isinstance(value, Sequence) else value.name.lower(),
}


def _given(kind: type, name: str, value: Any) -> Any:
    given = GIVEN.get((kind.__name__, name), lambda value: value)(value)
    return dict(given) if isinstance(given, dict) else given  # torchvision's write into a dict of fills


def _differing(transform: Any, made: Any) -> str:
    """The first attribute in which they differ, or that is the class's own with the other; "" if there is none."""
    import torch

    aside: dict[str, Any] = vars(torch.nn.Module())
    own, other = ({name: each for name, each in vars(one).items() if name not in aside} for one in (transform, made))
    hiding = (name for name in own.keys() - other.keys() if hasattr(type(made), name))
    return next(hiding, next((name for name in other if not _alike(own.get(name), other[name])), ""))


def _alike(one: Any, other: Any) -> bool:
    """Whether they are the same up to the rounding of floats, lists and tuples being alike."""
    import torch

    if one is other:
        return True
    if isinstance(one, torch.Tensor | np.ndarray) and isinstance(other, torch.Tensor | np.ndarray):
        first, second = (torch.as_tensor(each).detach().cpu().double().numpy() for each in (one, other))
        return first.shape == second.shape and bool(np.allclose(first, second, 1e-6, 0, equal_nan=True))
    if isinstance(one, int | float) and isinstance(other, int | float):
        return bool(np.isclose(one, other, 1e-9, 0, equal_nan=True))
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_alike, one, other))
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_alike(one[key], other[key]) for key in one)
    return bool(one == other) or (bool(getattr(one, "__dict__", None)) and _alike(vars(one), vars(other)))
