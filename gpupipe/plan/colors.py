"""Draws of the operations on colors and of blurs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Any

import numpy as np

from gpupipe.kernels import Op, gaussian_weights, noise_key
from gpupipe.kernels.operations import VALUES
from gpupipe.kernels.philox import uniform
from gpupipe.plan.steps import Kind, Size, Steps, Words, beside, single
from gpupipe.plan.stream import below
from gpupipe.recipe import (
    CoarseDropout,
    ColorJitter,
    GaussianBlur,
    GaussianNoise,
    RandomAdjustSharpness,
    RandomAutocontrast,
    RandomChannelPermutation,
    RandomEqualize,
    RandomGamma,
    RandomGrayscale,
    RandomHSV,
    RandomInvert,
    RandomPhotometricDistort,
    RandomPosterize,
    RandomSolarize,
)

__all__ = ["KINDS"]

FACTORS = (Op.BRIGHTNESS, Op.CONTRAST, Op.SATURATION, Op.HUE)
ORDERS = 6  # of three channels


def color_jitter(jitter: ColorJitter, words: Words, size: Size) -> Steps:
    """A step for each factor, in random order. Two blocks: the four factors; the order."""
    factors = (jitter.brightness, jitter.contrast, jitter.saturation, jitter.hue)
    ranges = {op: bounds for op, bounds in zip(FACTORS, factors, strict=True) if bounds is not None}
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


def photometric_distort(distort: RandomPhotometricDistort, words: Words, size: Size) -> Steps:
    """Six steps, of three blocks: whether each factor changes; the factors; where contrast stands, and the channels."""
    changes, values = uniform(words[:, 0]) < distort.p, uniform(words[:, 1])
    first = words[0, 2] >> np.uint64(31) == 0
    factors = (distort.brightness, distort.contrast, distort.saturation, distort.hue)
    steps = []
    for place, (op, bounds) in enumerate(zip(FACTORS, factors, strict=True)):
        low, high = bounds or (0.0, 0.0)  # type: ignore[misc]
        done = changes[place] & (bounds is not None)
        steps.append((op, done, low + values[place] * (high - low)))
    brightness, (contrast, done, factor), saturation, hue = steps
    program = (brightness, (contrast, done & first, factor), saturation, hue, (contrast, done & ~first, factor))
    permuted = single(Op.CHANNELS, uniform(words[1, 2]) < distort.p, below(words[2, 2], ORDERS))
    return beside([*(single(*step) for step in program), permuted], words.shape[2])


def channel_permutation(operation: RandomChannelPermutation, words: Words, size: Size) -> Steps:
    """One step, of one block."""
    return single(Op.CHANNELS, np.ones(words.shape[2], np.bool_), below(words[0, 0], ORDERS))


def gaussian_noise(noise: GaussianNoise, words: Words, size: Size) -> Steps:
    """One step, of one block, whose first two words are the key of the pixels' numbers."""
    values = np.zeros((words.shape[2], 1, VALUES), np.float32)
    values[..., :2] = 255 * noise.mean, 255 * noise.sigma
    values[:, 0, 2:] = noise_key(words[:2, 0].T)
    return np.full((words.shape[2], 1), Op.NOISE, np.int32), values


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


def random_hsv(operation: RandomHSV, words: Words, size: Size) -> Steps:
    """One step, of one block."""
    values = np.zeros((words.shape[2], 1, VALUES), np.float32)
    amounts = np.array([180 * operation.hue, operation.saturation, operation.value])
    values[:, 0, :3] = (2 * uniform(words[:3, 0].T) - 1) * amounts + (0, 1, 1)
    return np.full((words.shape[2], 1), Op.HSV, np.int32), values


def random_gamma(operation: RandomGamma, words: Words, size: Size) -> Steps:
    """One step, of one block."""
    low, high = operation.gamma
    return single(Op.GAMMA, uniform(words[0, 0]) < operation.p, low + uniform(words[1, 0]) * (high - low))


def coarse_dropout(operation: CoarseDropout, words: Words, size: Size) -> Steps:
    """One step: a block for whether and how many, then one for each hole: height, width, top, left."""
    least, most = operation.num_holes_range
    done, count = uniform(words[0, 0]) < operation.p, least + below(words[1, 0], most - least + 1)
    sides, places = [], []
    ranges = operation.hole_height_range, operation.hole_width_range
    for side, (low, high), share, place in zip(size, ranges, words[:2, 1:], words[2:, 1:], strict=True):
        length = (side * (low + uniform(share) * (high - low))).astype(np.int64)
        sides.append(length)
        places.append(below(place, side - length + 1))
    holes = np.stack([*places, *sides], axis=-1)  # (most, N, 4)
    values = np.zeros((len(done), 1, max(VALUES, 1 + 4 * most)), np.float32)
    values[:, 0, 0] = count
    values[:, 0, 1 : 1 + 4 * most] = holes.transpose(1, 0, 2).reshape(len(done), -1)
    return np.where(done, np.int32(Op.HOLES), np.int32(Op.IDENTITY))[:, None], values * done[:, None, None]


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
    RandomChannelPermutation: Kind(16, lambda _: 1, channel_permutation),
    RandomPhotometricDistort: Kind(17, lambda _: 3, photometric_distort),
    GaussianNoise: Kind(18, lambda _: 1, gaussian_noise),
    RandomHSV: Kind(28, lambda _: 1, random_hsv),
    CoarseDropout: Kind(29, lambda dropout: 1 + dropout.num_holes_range[1], coarse_dropout),
    RandomGamma: Kind(30, lambda _: 1, random_gamma),
}
