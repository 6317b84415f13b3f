"""What one operation of a recipe becomes: steps of a program for `kernels.augment`, one row for each sample."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gpupipe.kernels import Op, affine_matrix
from gpupipe.kernels.operations import VALUES

__all__ = ["Floats", "Kind", "Size", "Steps", "Words", "affine_op", "beside", "chosen", "moved", "single"]

Floats: TypeAlias = NDArray[np.float64]
Size: TypeAlias = tuple[int, int]
"""(height, width) of the image, in pixels."""
Words: TypeAlias = NDArray[np.uint64]
"""Random words of an operation, (4, blocks, N)."""
Steps: TypeAlias = tuple[NDArray[np.int32], NDArray[np.float32]]
"""Numbers of operations, (N, k), and their values, (N, k, 6 or more)."""


class Kind(NamedTuple):
    """How a kind of operation is drawn: its number, how many blocks of words it takes, and what it makes of them.

    Numbers are part of every saved run: they never change, and new kinds get new ones, up to 4,095.
    """

    number: int
    blocks: Callable[[Any], int]
    draw: Callable[[Any, Words, Size], Steps] | None = None


def affine_op(interpolation: str) -> Op:
    """The affine operation of a policy's `interpolation`."""
    return Op[f"AFFINE_{interpolation.upper()}"]


def moved(name: str, amount: Floats, size: Size) -> NDArray[np.float32]:
    """The values of the affine operation that a policy calls Shear... (tangents), Translate... (pixels) or Rotate
    (degrees)."""
    if name == "Rotate":
        return affine_matrix(size, angle=-amount)
    if name.startswith("Translate"):
        return affine_matrix(size, translate=(amount, 0.0) if "X" in name else (0.0, amount))
    angle = np.degrees(np.arctan(amount))
    return affine_matrix(size, shear=(angle, 0.0) if name == "ShearX" else (0.0, angle), center=(0, 0))


def single(op: Op, done: NDArray[np.bool_], value: NDArray[np.number] | float = 0.0) -> Steps:
    """`op` with one value, in the rows where it is done."""
    ops = np.where(done, np.int32(op), np.int32(Op.IDENTITY))[:, None]
    values = np.zeros((len(done), 1, VALUES), np.float32)
    values[:, 0, 0] = np.where(done, value, 0.0)
    return ops, values


def beside(steps: Sequence[Steps], count: int) -> Steps:
    """The steps of several operations, one after the other, for `count` rows."""
    room = max((values.shape[2] for _, values in steps), default=VALUES)
    ops = [np.zeros((count, 0), np.int32), *(ops for ops, _ in steps)]
    rows = [np.zeros((count, 0, room), np.float32), *(_widened(values, room) for _, values in steps)]
    return np.concatenate(ops, axis=1), np.concatenate(rows, axis=1)


def _widened(values: NDArray[np.float32], room: int) -> NDArray[np.float32]:
    return np.pad(values, ((0, 0), (0, 0), (0, room - values.shape[2]))) if values.shape[2] < room else values


def chosen(options: Sequence[Steps], which: NDArray[np.int64]) -> Steps:
    """In each row the steps of one option, as many as the longest has."""
    count, columns = len(which), max(ops.shape[1] for ops, _ in options)
    room = max(values.shape[2] for _, values in options)
    all_ops, all_values = np.zeros((count, columns), np.int32), np.zeros((count, columns, room), np.float32)
    for number, (ops, values) in enumerate(options):
        rows = np.flatnonzero(which == number)
        all_ops[rows, : ops.shape[1]] = ops[rows]
        all_values[rows, : ops.shape[1], : values.shape[2]] = values[rows]
    return all_ops, all_values
