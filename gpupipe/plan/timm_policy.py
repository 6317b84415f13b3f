"""timm's RandAugment: the operations of timm/data/auto_augment.py, and what their level functions give."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpupipe.kernels import Op
from gpupipe.kernels.operations import VALUES
from gpupipe.kernels.philox import uniform
from gpupipe.plan.elementary import normal
from gpupipe.plan.steps import Floats, Kind, Size, Steps, Words, affine_op, moved
from gpupipe.plan.stream import below
from gpupipe.recipe import TimmRandAugment

__all__ = ["KINDS", "OPERATIONS", "argument", "filters", "picked"]

# _RAND_TRANSFORMS in timm's order. The increasing set has the same ones, some with another level function.
OPERATIONS = {
    "AutoContrast": Op.AUTOCONTRAST,
    "Equalize": Op.EQUALIZE,
    "Invert": Op.INVERT,
    "Rotate": Op.AFFINE_BILINEAR,
    "Posterize": Op.POSTERIZE,
    "Solarize": Op.SOLARIZE,
    "SolarizeAdd": Op.SOLARIZE_ADD,
    "Color": Op.SATURATION,
    "Contrast": Op.CONTRAST,
    "Brightness": Op.BRIGHTNESS,
    "Sharpness": Op.SHARPNESS,
    "ShearX": Op.AFFINE_BILINEAR,
    "ShearY": Op.AFFINE_BILINEAR,
    "TranslateXRel": Op.AFFINE_BILINEAR,
    "TranslateYRel": Op.AFFINE_BILINEAR,
}
COLORS = ("Color", "Contrast", "Brightness", "Sharpness")


def argument(name: str, level: Floats, sign: Floats, increasing: bool, translate: float = 0.45) -> Floats:
    """What timm's level function gives an operation, for levels from 0 to 10 and signs of 1 or -1; 0 where it has none.
    translate: its `translate_pct`.

    Degrees, tangents, shares of the image's side, factors, bits to keep and levels from 0 to 256.
    """
    share = level / 10
    if name in COLORS:
        return np.maximum(0.1, 1 + sign * (share * 0.9)) if increasing else share * 1.8 + 0.1
    if name == "Posterize":
        bits = np.trunc(share * 4)
        return 4 - bits if increasing else bits
    if name == "Solarize":
        threshold = np.minimum(256, np.trunc(share * 256))
        return 256 - threshold if increasing else threshold
    if name == "SolarizeAdd":
        return np.minimum(128, np.trunc(share * 110))
    if name.startswith("Translate"):
        return share * translate * sign
    return share * {"Rotate": 30.0, "ShearX": 0.3, "ShearY": 0.3}.get(name, 0.0) * sign


def _values(name: str, argument: Floats, size: Size) -> NDArray[np.float32]:
    """The values (N, 6) with which our operation does what timm's does with this argument, on a Pillow image."""
    if OPERATIONS[name] is Op.AFFINE_BILINEAR:
        # Pillow's transform says where pixels come from, so the image moves the other way.
        sides = {"TranslateXRel": -size[1], "TranslateYRel": -size[0]}
        return moved(name, argument * sides.get(name, 1), size)
    values = np.zeros((len(argument), VALUES), np.float32)
    values[:, 0] = argument
    return values


def timm_rand_augment(policy: TimmRandAugment, words: Words, size: Size) -> Steps:
    """`num_ops` steps, each of two blocks: which, whether, to which side, by which filter; and the strength."""
    choice, strength = words[:, 0::2], words[:, 1::2]  # (4, num_ops, N)
    which, done = below(choice[0], len(OPERATIONS)), uniform(choice[1]) < policy.p
    sign = np.where(choice[2] >> np.uint64(31), -1.0, 1.0)
    level = np.full(which.shape, policy.magnitude)
    if policy.magnitude_std:
        level = level + policy.magnitude_std * normal(uniform(strength[0]), uniform(strength[1]))
    level = np.clip(level, 0.0, 10.0)
    affine = filters(policy.interpolation, choice[3])
    return picked(tuple(OPERATIONS), np.where(done, which, -1), level, sign, affine, policy.increasing, size)


def filters(interpolation: str, words: Words) -> NDArray[np.int64]:
    """For each word the operation by which images are moved."""
    if interpolation != "random":
        return np.full(words.shape, affine_op(interpolation))
    return np.where(words >> np.uint64(31), Op.AFFINE_BICUBIC, Op.AFFINE_BILINEAR)


def picked(
    names: Sequence[str],
    which: NDArray[np.int64],
    level: Floats,
    sign: Floats,
    affine: NDArray[np.int64],
    increasing: bool,
    size: Size,
    translate: float = 0.45,
) -> Steps:
    """For each place in `names`, (steps, N), -1 for none, with its level, its sign and the operation that moves, what
    it does."""
    ops = np.zeros(which.shape, np.int32)
    values = np.zeros((*which.shape, VALUES), np.float32)
    for number, name in enumerate(names):
        rows = which == number
        ops[rows] = affine[rows] if OPERATIONS[name] is Op.AFFINE_BILINEAR else OPERATIONS[name]
        values[rows] = _values(name, argument(name, level[rows], sign[rows], increasing, translate), size)
    return ops.T, values.transpose(1, 0, 2)


KINDS: dict[type, Kind] = {TimmRandAugment: Kind(3, lambda policy: 2 * policy.num_ops, timm_rand_augment)}
