"""Draws of the operations on colors and of blurs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Any

import numpy as np

from gpupipe.kernels import Op, gaussian_weights
from gpupipe.kernels.operations import VALUES
from gpupipe.kernels.philox import uniform
from gpupipe.plan.steps import Kind, Size, Steps, Words, single
from gpupipe.plan.stream import below
from gpupipe.recipe import (
    ColorJitter,
    GaussianBlur,
    RandomAdjustSharpness,
    RandomAutocontrast,
    RandomEqualize,
    RandomGrayscale,
    RandomInvert,
    RandomPosterize,
    RandomSolarize,
)

__all__ = ["KINDS"]


def color_jitter(jitter: ColorJitter, words: Words, size: Size) -> Steps:
    """A step for each factor, in random order. Two blocks: the four factors; the order."""
    factors = (jitter.brightness, jitter.contrast, jitter.saturation, jitter.hue)
    kinds = (Op.BRIGHTNESS, Op.CONTRAST, Op.SATURATION, Op.HUE)
    ranges = {op: bounds for op, bounds in zip(kinds, factors, strict=True) if bounds is not None}
    count, steps = words.shape[2], len(ranges)
    orders = np.array(list(permutations(range(steps))), np.int64)
    order = orders[below(words[0, 1], len(orders))]  # (N, steps)
    ops = np.array(list(ranges), np.int32)
    low, high = np.array(list(ranges.values()), np.float64).reshape(steps, 2).T
    places = ops - Op.BRIGHTNESS  # each factor has its own word, whichever are left out
    drawn = low + uniform(words[places, 0].T) * (high - low)  # (N, steps)
    values = np.zeros((count, steps, VALUES), np.float32)
    values[..., 0] = np.take_along_axis(drawn, order, axis=1)
    return ops[order], values


def sometimes(op: Op, value: str = "") -> Callable[[Any, Words, Size], Steps]:
    """The draw of an operation with a probability `p`: one step, of one block. value: the setting that `op` takes."""

    def draw(operation: Any, words: Words, size: Size) -> Steps:
        return single(op, uniform(words[0, 0]) < operation.p, getattr(operation, value) if value else 0.0)

    return draw


def gaussian_blur(blur: GaussianBlur, words: Words, size: Size) -> Steps:
    """One step, of one block."""
    assert isinstance(blur.sigma, tuple)
    low, high = blur.sigma
    weights = gaussian_weights(blur.kernel_size, low + uniform(words[0, 0]) * (high - low))
    return np.full((len(weights), 1), Op.GAUSSIAN_BLUR, np.int32), weights[:, None]


KINDS: dict[type, Kind] = {
    ColorJitter: Kind(4, lambda _: 2, color_jitter),
    RandomGrayscale: Kind(5, lambda _: 1, sometimes(Op.GRAYSCALE)),
    GaussianBlur: Kind(6, lambda _: 1, gaussian_blur),
    RandomSolarize: Kind(7, lambda _: 1, sometimes(Op.SOLARIZE, "threshold")),
    RandomInvert: Kind(11, lambda _: 1, sometimes(Op.INVERT)),
    RandomPosterize: Kind(12, lambda _: 1, sometimes(Op.POSTERIZE, "bits")),
    RandomAutocontrast: Kind(13, lambda _: 1, sometimes(Op.AUTOCONTRAST)),
    RandomEqualize: Kind(14, lambda _: 1, sometimes(Op.EQUALIZE)),
    RandomAdjustSharpness: Kind(15, lambda _: 1, sometimes(Op.SHARPNESS, "sharpness_factor")),
}
