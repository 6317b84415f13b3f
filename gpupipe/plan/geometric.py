"""Draws of the operations that move pixels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.kernels import Op, affine_matrix, elastic_values, perspective_matrix
from gpupipe.kernels.philox import uniform
from gpupipe.plan.steps import Floats, Kind, Size, Steps, Words, affine_op
from gpupipe.plan.stream import below
from gpupipe.recipe import ElasticTransform, RandomAffine, RandomPerspective, RandomRotation, RandomVerticalFlip

__all__ = ["KINDS"]


def vertical_flip(flip: RandomVerticalFlip, words: Words, size: Size) -> Steps:
    """One step, of one block. Exact, as whole pixels are read."""
    mirrored = np.tile(np.array([1, 0, 0, 0, -1, size[0] - 1], np.float32), (words.shape[2], 1))
    return _step(Op.AFFINE_NEAREST, mirrored, uniform(words[0, 0]) < flip.p)


def rotation(operation: RandomRotation, words: Words, size: Size) -> Steps:
    """One step, of one block."""
    angle = _between(operation.degrees, words[0, 0])
    return _step(affine_op(operation.interpolation), affine_matrix(size, angle=-angle))


def affine(operation: RandomAffine, words: Words, size: Size) -> Steps:
    """One step, of two blocks: angle, two translations and scale; shears."""
    height, width = size
    shares = operation.translate or (0.0, 0.0)
    right, down = (
        np.rint(_between((-share * side, share * side), word))
        for share, side, word in zip(shares, (width, height), words[1:3, 0], strict=True)
    )
    shear = (*(operation.shear or (0.0, 0.0)), 0.0, 0.0)  # type: ignore[misc]
    matrix = affine_matrix(
        size,
        angle=_between(operation.degrees, words[0, 0]),
        translate=(right, down),
        scale=_between(operation.scale or (1.0, 1.0), words[3, 0]),
        shear=(_between(shear[:2], words[0, 1]), _between(shear[2:4], words[1, 1])),
    )
    return _step(affine_op(operation.interpolation), matrix)


def perspective(operation: RandomPerspective, words: Words, size: Size) -> Steps:
    """One step, of three blocks: where the corners come to lie along x, along y; whether."""
    height, width = size
    inwards = [
        below(words[:, block], int(operation.distortion_scale * (side // 2)) + 1)
        for block, side in enumerate((width, height))
    ]  # each (4, N)
    far = np.array([[0, 1, 1, 0], [0, 0, 1, 1]])[..., None]  # right and lower corners
    x, y = (
        np.where(at, side - 1 - moved, moved) for at, side, moved in zip(far, (width, height), inwards, strict=True)
    )
    matrix = perspective_matrix(size, np.stack([x.T, y.T], axis=-1))
    # Corners on a line leave the image as it is.
    done = (uniform(words[0, 2]) < operation.p) & matrix.any(axis=1)
    return _step(Op[f"PERSPECTIVE_{operation.interpolation.upper()}"], matrix, done)


def elastic(operation: ElasticTransform, words: Words, size: Size) -> Steps:
    """One step, of one block, whose first two words are the key of the pixels' numbers."""
    assert isinstance(operation.alpha, tuple)
    return _step(
        Op[f"ELASTIC_{operation.interpolation.upper()}"],
        elastic_values(operation.alpha, operation.sigma, words[:2, 0].T),
    )


def _between(ends: Any, word: NDArray[np.uint64]) -> Floats:
    low, high = ends
    drawn: Floats = low + uniform(word) * (high - low)
    return drawn


def _step(op: Op, values: NDArray[np.float32], done: NDArray[np.bool_] | bool = True) -> Steps:
    """One operation with its values (N, P), in the rows where it is done."""
    rows = np.broadcast_to(done, len(values))
    ops = np.where(rows, np.int32(op), np.int32(Op.IDENTITY))[:, None]
    return ops, np.where(rows[:, None], values, np.float32(0))[:, None]


KINDS: dict[type, Kind] = {
    RandomVerticalFlip: Kind(21, lambda _: 1, vertical_flip),
    RandomRotation: Kind(22, lambda _: 1, rotation),
    RandomAffine: Kind(23, lambda _: 2, affine),
    RandomPerspective: Kind(24, lambda _: 3, perspective),
    ElasticTransform: Kind(25, lambda _: 1, elastic),
}
