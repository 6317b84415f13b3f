"""Pixels of rows that have sizes of their own.

In a plane each row has the same memory, (N, most pixels, ...), and begins with its image, so that kernels see ordinary
contiguous images. In the end they are stacked, padded or listed, as their field's `collate` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.kernels.transfer import to_device

__all__ = ["Sizes", "dense_rows", "inside", "outside", "padded", "padded_size", "together"]

Sizes: TypeAlias = NDArray[np.int32]
"""(N, 2), the height and width of each row."""


def dense_rows(plane: torch.Tensor, sizes: Sizes) -> list[torch.Tensor]:
    """Each row's pixels, (height, width, ...), in the memory of the plane (N, most pixels, ...)."""
    rest = plane.shape[2:]
    return [row[: h * w].view(h, w, *rest) for row, (h, w) in zip(plane, sizes.tolist(), strict=True)]


def together(rows: Sequence[torch.Tensor]) -> torch.Tensor:
    """Rows of one size as a tensor (N, height, width, ...); of a single one its own memory."""
    return rows[0][None] if len(rows) == 1 else torch.stack(list(rows))


def padded_size(sizes: Sizes, multiple: int) -> tuple[int, int]:
    """The largest height and width, made multiples of that."""
    height, width = (-(-sizes.max(axis=0).astype(int) // multiple) * multiple).tolist()
    return height, width


def padded(rows: Sequence[torch.Tensor], size: tuple[int, int], value: int = 0) -> torch.Tensor:
    """Rows (height, width, ...) top left in one tensor (N, *size, ...); the rest is `value`."""
    whole = rows[0].new_empty((len(rows), *size, *rows[0].shape[2:]))
    for out, row in zip(whole, rows, strict=True):
        height, width = row.shape[:2]
        out[:height, :width] = row
        out[height:] = value
        out[:height, width:] = value
    return whole


def outside(images: torch.Tensor, sizes: Sizes, value: float) -> None:
    """Set what lies outside of images of these sizes in a tensor (N, channels, height, width)."""
    for image, (height, width) in zip(images, sizes.tolist(), strict=True):
        image[:, height:] = value
        image[:, :height, width:] = value


def inside(sizes: Sizes, size: tuple[int, int], device: torch.device) -> torch.Tensor:
    """Where the padded images of these sizes are, bool (N, *size)."""
    down, across = (torch.arange(side) < torch.from_numpy(sizes[:, axis : axis + 1]) for axis, side in enumerate(size))
    return to_device(down[:, :, None] & across[:, None, :], device)
