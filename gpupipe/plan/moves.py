"""Of an image's program the steps that move pixels, which its masks, boxes and points follow."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpupipe.kernels import Op
from gpupipe.plan.augmentation import augmentation
from gpupipe.recipe import Recipe, walk

__all__ = ["Moves", "moving"]

NEAREST = np.zeros(max(Op) + 1, np.int32)
"""The operation that moves the pixels of a mask as an operation moves an image's; IDENTITY for those that do not."""
NEAREST[[Op.AFFINE_NEAREST, Op.AFFINE_BILINEAR, Op.AFFINE_BICUBIC]] = Op.AFFINE_NEAREST
NEAREST[[Op.PERSPECTIVE_NEAREST, Op.PERSPECTIVE_BILINEAR]] = Op.PERSPECTIVE_NEAREST
NEAREST[[Op.ELASTIC_NEAREST, Op.ELASTIC_BILINEAR]] = Op.ELASTIC_NEAREST


@dataclass(frozen=True)
class Moves:
    """How the pixels of N images move after their crops, in K steps.

    ops: int32 (N, K), what `kernels.augment` does to masks, IDENTITY where nothing moves. values: float32 (N, K, P).
    """

    ops: NDArray[np.int32]
    values: NDArray[np.float32]

    def of(self, row: int) -> list[NDArray[np.floating]]:
        """Of each step that moves one image a matrix, float64 (3, 3): what it takes (x, y, 1) to, times its last
        number, in pixels with the upper left corner at (0, 0). Of an elastic one its values, float32 (P,)."""
        moving = np.flatnonzero(self.ops[row])
        back = np.tile(np.eye(3), (len(moving), 1, 1))  # from pixels of the output, whose centres are whole numbers
        elastic = self.ops[row, moving] == Op.ELASTIC_NEAREST
        straight = self.values[row, moving[~elastic]].astype(np.float64)
        back[~elastic, :2] = straight[:, :6].reshape(-1, 2, 3)
        back[~elastic, 2, :2] = np.pad(straight, ((0, 0), (0, 2)))[:, 6:8]  # 0 but for perspectives
        matrices = np.linalg.inv(TO_CORNERS @ back @ TO_CENTRES)
        return [
            self.values[row, step] if bends else matrix
            for step, bends, matrix in zip(moving, elastic, matrices, strict=True)
        ]


TO_CENTRES = np.array([[1, 0, -0.5], [0, 1, -0.5], [0, 0, 1]])
TO_CORNERS = np.array([[1, 0, 0.5], [0, 1, 0.5], [0, 0, 1]])


def moving(
    recipe: Recipe,
    seed: int,
    epoch: int,
    positions: NDArray[np.int64],
    view: int = 0,
    field: int = 0,
    sizes: NDArray[np.int32] | None = None,
) -> Moves | None:
    """How the images at these positions of an epoch move, with arguments as for `augmentation`; None where none can."""
    if not any(operation.moves for operation in walk(recipe.augmentations)):
        return None
    drawn = augmentation(recipe, seed, epoch, positions, view, field, sizes=sizes)
    if drawn is None:
        return None
    ops = NEAREST[drawn.ops]
    steps = ops.any(axis=0)
    return Moves(np.ascontiguousarray(ops[:, steps]), np.ascontiguousarray(drawn.values[:, steps]))
