"""Pixels of rows that have sizes of their own.

In a plane each row has the same memory, (N, most pixels, ...), and begins with its image, so that kernels see ordinary
contiguous images. In the end they are stacked, padded or listed, as their field's `collate` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

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


def padded(rows: Sequence[torch.Tensor], out: torch.Tensor) -> torch.Tensor:
    """Rows (height, width, ...) top left in `out`, (N, height, width, ...); the rest of that stays as it is."""
    whole, parts = (_fast(tensors) for tensors in ([out], rows))
    for one, row in zip(whole[0], parts, strict=True):
        one[: row.shape[0], : row.shape[1]] = row
    return out


def outside(images: torch.Tensor, sizes: Sizes, value: float) -> torch.Tensor:
    """Set what lies outside of images of these sizes in a tensor (N, ..., height, width)."""
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[
        images.itemsize
    ]  # NumPy's, of any dtype
    level = int(torch.tensor([value], dtype=images.dtype, device="cpu").view(integers))
    for image, (height, width) in zip(_fast([images.view(integers)])[0], sizes.tolist(), strict=True):
        image[..., height:, :] = level
        image[..., :height, width:] = level
    return images


def _fast(tensors: Sequence[torch.Tensor]) -> Sequence[Any]:
    """On the CPU as NumPy has them, whose copies take one thread: eight images that are padded to 1,088 x 1,088 take 11
    ms, where torch's threads take 150 beside workers that hold the CPUs (2 cores of an AMD EPYC)."""
    return [tensor.numpy() for tensor in tensors] if tensors[0].device.type == "cpu" else tensors


def inside(sizes: Sizes, size: tuple[int, int], device: torch.device) -> torch.Tensor:
    """Where the padded images of these sizes are, bool (N, *size)."""
    there = np.zeros((len(sizes), *size), np.bool_)
    for one, (height, width) in zip(there, sizes.tolist(), strict=True):
        one[:height, :width] = True
    return to_device(torch.from_numpy(there), device)
