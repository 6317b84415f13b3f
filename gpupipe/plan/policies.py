"""torchvision's RandAugment, TrivialAugmentWide and AutoAugment: all that may come, as tables, and what of it does."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from gpupipe.kernels import Op
from gpupipe.kernels.operations import VALUES
from gpupipe.kernels.philox import uniform
from gpupipe.plan.searched import SEARCHED
from gpupipe.plan.steps import Floats, Kind, Size, Steps, Words, affine_op, moved
from gpupipe.plan.stream import below
from gpupipe.recipe import AutoAugment, RandAugment, TrivialAugmentWide

__all__ = ["KINDS", "NARROW", "Space", "magnitudes", "sign_of", "table"]

COLORS = ("Brightness", "Color", "Contrast", "Sharpness")
MOVES = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")
SIGNED = (*MOVES, *COLORS)


@dataclass(frozen=True)
class Space:
    """The operations of a policy, by torchvision's names and in its order, and their greatest magnitudes.

    shear: tangent. rotate: degrees. color: what is added to or taken from a factor of 1. posterize: bits that go.
    translate: pixels, or None for `share` of the image's side. bits: what Posterize keeps at the least strength.
    """

    names: tuple[str, ...]
    shear: float
    rotate: float
    color: float
    posterize: int
    translate: float | None
    share: float = 150 / 331
    bits: int = 8


NARROW = Space(("Identity", *SIGNED, "Posterize", "Solarize", "AutoContrast", "Equalize"), 0.3, 30.0, 0.9, 4, None)
WIDE = Space(NARROW.names, 0.99, 135.0, 0.99, 6, 32.0)
SEARCH = Space((*NARROW.names[1:], "Invert"), 0.3, 30.0, 0.9, 4, None)
SEARCH_BINS = 10

PLAIN = {
    "Identity": Op.IDENTITY,
    "AutoContrast": Op.AUTOCONTRAST,
    "Equalize": Op.EQUALIZE,
    "Invert": Op.INVERT,
    "Brightness": Op.BRIGHTNESS,
    "Color": Op.SATURATION,
    "Contrast": Op.CONTRAST,
    "Sharpness": Op.SHARPNESS,
    "Posterize": Op.POSTERIZE,
    "Solarize": Op.SOLARIZE,
}


def magnitudes(space: Space, name: str, bins: int, size: Size) -> Floats:
    """torchvision's magnitudes of an operation, (bins,), before a sign is drawn; zeros where it has none."""
    if name == "Posterize":
        return np.rint(space.bits - np.arange(bins) / ((bins - 1) / space.posterize))
    if name == "Solarize":
        return _linspace(1.0, 0.0, bins)
    if name in ("TranslateX", "TranslateY"):
        side = size[1] if name == "TranslateX" else size[0]
        return _linspace(0.0, space.share * side if space.translate is None else space.translate, bins)
    tops = {"ShearX": space.shear, "ShearY": space.shear, "Rotate": space.rotate, **dict.fromkeys(COLORS, space.color)}
    return _linspace(0.0, tops.get(name, 0.0), bins)


def _linspace(start: float, end: float, count: int) -> Floats:
    """torch.linspace, to the bit as where it fuses multiplications with additions (AVX2, AVX-512): from both ends, by a
    step in float32. Whole pixels depend on that: TrivialAugmentWide's middle translation is 15.999999 and so 15.
    """
    first, last = np.float64(np.float32(start)), np.float64(np.float32(end))
    step = np.float64(np.float32(last - first) / np.float32(count - 1))
    at = np.arange(count)
    exact = np.where(at < count // 2, first + step * at, last - step * at[::-1])
    out: Floats = exact.astype(np.float32).astype(np.float64)
    return out


def _step(name: str, magnitude: Floats, size: Size, affine: Op) -> tuple[Op, NDArray[np.float32]]:
    """The step that does what torchvision does for this name and these magnitudes, of shape S: values (*S, 6).

    As `_apply_image_or_video_transform` in torchvision/transforms/v2/_auto_augment.py.
    """
    if name in MOVES:
        return affine, moved(name, np.trunc(magnitude) if name.startswith("Translate") else magnitude, size)
    values = np.zeros((*magnitude.shape, VALUES), np.float32)
    if name in COLORS:
        values[..., 0] = 1 + magnitude
    elif name in ("Posterize", "Solarize"):
        values[..., 0] = magnitude * (255 if name == "Solarize" else 1)
    return PLAIN[name], values


@lru_cache(maxsize=32)
def table(space: Space, bins: int, size: Size, affine: Op) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """The operation of each name, (names,), and its values for each magnitude and sign, (names, bins, 2, 6)."""
    ops, values = [], []
    for name in space.names:
        signs = np.array([1, -1 if name in SIGNED else 1])
        op, value = _step(name, magnitudes(space, name, bins, size)[:, None] * signs, size, affine)
        ops.append(op)
        values.append(value)
    return np.array(ops, np.int32), np.stack(values)


def sign_of(word: NDArray[np.uint64]) -> NDArray[np.int64]:
    sign: NDArray[np.int64] = (word >> np.uint64(31)).astype(np.int64)
    return sign


def rand_augment(policy: RandAugment, words: Words, size: Size) -> Steps:
    """`num_ops` steps, each of one block."""
    ops, values = table(NARROW, policy.num_magnitude_bins, size, affine_op(policy.interpolation))
    which = below(words[0].T, len(ops))
    return ops[which], values[which, policy.magnitude, sign_of(words[1].T)]


def trivial_augment(policy: TrivialAugmentWide, words: Words, size: Size) -> Steps:
    """One step, of one block."""
    ops, values = table(WIDE, policy.num_magnitude_bins, size, affine_op(policy.interpolation))
    which = below(words[0].T, len(ops))
    return ops[which], values[which, below(words[1].T, policy.num_magnitude_bins), sign_of(words[2].T)]


@lru_cache(maxsize=3)
def _pairs(policy: str) -> tuple[NDArray[np.int64], Floats, NDArray[np.int64]]:
    """Of the 25 pairs: places in SEARCH.names, probabilities and magnitudes, each (25, 2)."""
    names, shares, levels = zip(*((pair[0::3], pair[1::3], pair[2::3]) for pair in SEARCHED[policy]), strict=True)
    places = [[SEARCH.names.index(str(name)) for name in pair] for pair in names]
    return np.array(places), np.array(shares, np.float64), np.array(levels, np.int64)


def auto_augment(policy: AutoAugment, words: Words, size: Size) -> Steps:
    """Two steps, of two blocks together: which pair; then whether and to which side, for each."""
    ops, values = table(SEARCH, SEARCH_BINS, size, affine_op(policy.interpolation))
    places, shares, levels = (array[below(words[0, 0], 25)] for array in _pairs(policy.policy))  # (N, 2)
    done = uniform(words[0::2, 1].T) < shares
    drawn = values[places, levels, sign_of(words[1::2, 1].T)]
    return np.where(done, ops[places], np.int32(Op.IDENTITY)), np.where(done[..., None], drawn, np.float32(0))


KINDS: dict[type, Kind] = {
    RandAugment: Kind(0, lambda policy: policy.num_ops, rand_augment),
    TrivialAugmentWide: Kind(1, lambda _: 1, trivial_augment),
    AutoAugment: Kind(2, lambda _: 2, auto_augment),
}
