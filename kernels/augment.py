"""A program of operations for each image of a batch: what RandAugment, ColorJitter and their like come down to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.kernels.augment_reference import augment_reference
from gpupipe.kernels.operations import VALUES, Op

__all__ = ["augment"]


def augment(
    images: torch.Tensor,
    ops: NDArray[np.int32],
    values: NDArray[np.float32],
    *,
    fill: Sequence[float] | None = None,
    out: torch.Tensor | None = None,
    threads: int | None = None,
    variant: str | None = None,
) -> torch.Tensor:
    """Do to each image the operations that its row names, one after the other.

    images: uint8 (N, height, width, 3), contiguous, on the CPU or a GPU.
    ops:    int32 (N, K), numbers of `Op`; values: float32 (N, K, 6 or more), what each operation takes, see `Op`.
    fill:   R, G, B, 0 to 255, of what an affine operation draws from outside the image; None for black.
    out:    uint8, as `images`, written in place; it may be `images` itself. Default: new memory.

    Returns `out`. Levels are those of torchvision v2's functions on uint8, within 1 (see `augment_reference`), and the
    same to the bit on the CPU and on a GPU. On the CPU the C++ kernels work, on `threads` at most (default the CPUs
    that the process may use) and with `variant` as in `finish`; on a GPU Triton's, on the current stream, without
    waiting for them. Without these plain torch, slowly.

    Raises ValueError for arrays of wrong shapes or dtypes, and for numbers that are no operation.
    """
    _check(images, ops, values, out)
    made = augment_reference(images, ops, values, fill)
    return made if out is None else out.copy_(made)


def _check(images: torch.Tensor, ops: NDArray[np.int32], values: NDArray[np.float32], out: torch.Tensor | None) -> None:
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[3] != 3 or not images.is_contiguous():
        raise ValueError(
            f"images are {images.dtype} {tuple(images.shape)}; give contiguous uint8 (N, height, width, 3)"
        )
    if out is not None and (out.shape != images.shape or out.dtype != torch.uint8 or not out.is_contiguous()):
        raise ValueError(f"out is {out.dtype} {tuple(out.shape)}, but contiguous uint8 {tuple(images.shape)} is needed")
    if ops.ndim != 2 or len(ops) != len(images) or ops.dtype != np.int32:
        raise ValueError(f"ops are {ops.dtype} {ops.shape}, but int32 ({len(images)}, K) is needed")
    if values.shape[:2] != ops.shape or values.ndim != 3 or values.shape[2] < VALUES or values.dtype != np.float32:
        raise ValueError(f"values are {values.dtype} {values.shape}, but float32 {(*ops.shape, VALUES)} is needed")
    if ops.size and not 0 <= ops.min() <= ops.max() <= max(Op):
        raise ValueError(f"ops hold {ops.min()} to {ops.max()}; operations are numbered 0 to {max(Op)}")
