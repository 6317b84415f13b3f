"""Whether an object of a library is as its class makes it, and the class as the library has it: else what it does can't
be told from its settings."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any

import numpy as np

from gpupipe.errors import TranslationError
from gpupipe.host.generators import global_generators, kept

__all__ = ["AS_IT_IS", "check_made", "check_own", "is_foreign", "replaced_in"]

AS_IT_IS = "gpupipe.PerImage takes it into a recipe as it is, gpupipe.from_dataloader runs the dataset as it is written"

LIBRARIES = ("torch", "torchvision", "timm")
KNOWN = {*LIBRARIES, "typing_extensions", *sys.stdlib_module_names} - {"unittest"}  # of which a mock would be
CALLED = ("__call__", "__getattr__", "_call_impl", "_wrapped_call_impl", "forward")
"""Of torch.nn.Module. Other libraries replace its other methods, which a transform's call does not come to."""
MAKING = ("__delattr__", "__init__", "__new__", "__repr__", "__setattr__", "extra_repr", "find_classes", "make_dataset")
"""What is over once an object is made; Lightning replaces `__setattr__` while it asks for loaders."""


def check_own(transform: Any) -> None:
    """Raise TranslationError where something of the object's own replaces or surrounds what its class does, or of the
    program's what a library's class does."""
    kind, own = type(transform), getattr(transform, "__dict__", {})
    replaced = [name for name in own if callable(getattr(kind, name, None))]
    hooks = [name for name, value in own.items() if name.endswith("_hooks") and value]
    for name in (*replaced, *hooks):
        raise TranslationError(f"{kind.__name__}.{name}", "this one was given its own, which can't be read", AS_IT_IS)
    method = replaced_in(kind)
    if method:
        raise TranslationError(method, "the class was given another, which can't be read", AS_IT_IS)


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
        space = vars(kind).get(name) if kind.__name__ == known else None
        if space is not None and space.keys() != operations:
            raise TranslationError(f"{known}.{name}", "the class was given another, which can't be read", AS_IT_IS)


def replaced_in(kind: type) -> str:
    """The first of what torch's, torchvision's and timm's classes do, of those that it is derived from, that was
    replaced by a function from elsewhere; "" if there is none."""
    import torch

    for base in kind.__mro__:
        if _package(base.__module__) not in LIBRARIES:
            continue
        names = CALLED if base is torch.nn.Module else vars(base).keys() - MAKING
        found = [name for name in sorted(names) if is_foreign(vars(base).get(name))]
        if found:
            return f"{base.__name__}.{found[0]}"
    return ""


def is_foreign(value: Any) -> bool:
    """Whether it is, has in it or wraps a function from elsewhere than torch, torchvision, timm and Python."""
    if isinstance(value, Mapping | list | tuple):
        return any(map(is_foreign, value.values() if isinstance(value, Mapping) else value))
    if isinstance(value, property):
        return is_foreign((value.fget, value.fset))
    inner = next((getattr(value, name) for name in ("__func__", "func", "__wrapped__") if hasattr(value, name)), None)
    if not callable(value) or isinstance(value, type):
        return is_foreign(inner) if isinstance(value, staticmethod | classmethod) else False
    module = value.__globals__.get("__name__", "") if isinstance(value, FunctionType) else type(value).__module__
    return _package(module) not in KNOWN or is_foreign(inner)


def _package(module: str) -> str:
    return module.partition(".")[0]


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
        first, second = (torch.as_tensor(each, device="cpu").detach().double().numpy() for each in (one, other))
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
