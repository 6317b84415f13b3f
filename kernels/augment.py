"""A program of operations for each image of a batch: what RandAugment, ColorJitter and their like come down to."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.host.system import usable_cpus
from gpupipe.kernels import gpu, native
from gpupipe.kernels.augment_reference import augment_reference
from gpupipe.kernels.operations import LIMITS, PERSPECTIVE, VALUES, Op

__all__ = ["augment"]

LONGEST_SIDE = 1 << 14  # kLongestSide of cpu/augment.h
NUMBERS = range(max(Op) + 1)
KNOWN = np.isin(NUMBERS, list(Op))
LOWEST, HIGHEST = np.array([LIMITS.get(op, (-np.inf, np.inf)) for op in NUMBERS], np.float32).T  # type: ignore[call-overload]


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
    fill:   R, G, B, 0 to 255, of what is drawn from outside the image where it is moved; None for black.
    out:    uint8, as `images`, written in place; it may be `images` itself. Default: new memory.

    Returns `out`. Levels are those of torchvision v2's functions on uint8, within 1 (see `augment_reference`), and the
    same to the bit on the CPU and on a GPU. On the CPU the C++ kernels work, on `threads` at most (default the CPUs
    that the process may use) and with `variant` as in `finish`; on a GPU Triton's, on the current stream, without
    waiting for them. Without these plain torch, slowly.

    Raises ValueError for arrays of wrong shapes or dtypes, for numbers that are no operation, and for values that an
    operation does not take; MemoryError where the kernels get no memory.
    """
    _check(images, ops, values, out)
    _check_values(ops, values)
    if values.shape[2] < PERSPECTIVE and (ops >= Op.PERSPECTIVE_NEAREST).any():  # and elastic ones
        values = np.pad(values, ((0, 0), (0, 0), (0, PERSPECTIVE - values.shape[2])))
    color = None if fill is None else _color(fill)
    out = torch.empty_like(images) if out is None else out
    if images.device.type == "cpu" and native.library() is not None:
        _augment_native(images, ops, values, color, out, threads, variant)
    elif gpu.usable(images.device, "augment"):
        from gpupipe.kernels.gpu.augment import augment as augment_on_gpu  # not before it is used: it imports Triton

        augment_on_gpu(images, ops, values, color, out)
    else:
        out.copy_(augment_reference(images, ops, values, color))
    return out


def _augment_native(
    images: torch.Tensor,
    ops: NDArray[np.int32],
    values: NDArray[np.float32],
    fill: tuple[float, ...] | None,
    out: torch.Tensor,
    threads: int | None,
    variant: str | None,
) -> None:
    ops, values = np.ascontiguousarray(ops), np.ascontiguousarray(values)
    color = None if fill is None else np.array(fill, np.float32)
    count, height, width = images.shape[:3]
    batch = native.Augment(
        count=count if images.numel() else 0,
        height=height,
        width=width,
        steps=ops.shape[1],
        values=values.shape[2],
        threads=usable_cpus() if threads is None else threads,
        variant=native.variant_name(variant),
        ops=ops.ctypes.data,
        numbers=values.ctypes.data,
        fill=None if color is None else color.ctypes.data,
        input=images.data_ptr(),
        out=out.data_ptr(),
    )
    opened = native.library()
    assert opened is not None
    if opened.gp_augment_batch(ctypes.byref(batch)) != 0:
        raise MemoryError(f"no memory to augment images of {height} x {width}")


def _check(images: torch.Tensor, ops: NDArray[np.int32], values: NDArray[np.float32], out: torch.Tensor | None) -> None:
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[3] != 3 or not images.is_contiguous():
        raise ValueError(
            f"images are {images.dtype} {tuple(images.shape)}; give contiguous uint8 (N, height, width, 3)"
        )
    if max(images.shape[1:3]) > LONGEST_SIDE:
        raise ValueError(f"images are {tuple(images.shape)}; no side may be longer than {LONGEST_SIDE} pixels")
    if out is not None and (out.shape != images.shape or out.dtype != torch.uint8 or not out.is_contiguous()):
        raise ValueError(f"out is {out.dtype} {tuple(out.shape)}, but contiguous uint8 {tuple(images.shape)} is needed")
    if out is not None and 0 < abs(out.data_ptr() - images.data_ptr()) < images.numel():
        raise ValueError("out and images share a part of their memory; give images itself, or memory apart from it")
    if out is not None and out.device != images.device:
        raise ValueError(f"out is on {out.device}, images are on {images.device}; both must be on one device")
    if ops.ndim != 2 or len(ops) != len(images) or ops.dtype != np.int32:
        raise ValueError(f"ops are {ops.dtype} {ops.shape}, but int32 ({len(images)}, K) is needed")
    if values.shape[:2] != ops.shape or values.ndim != 3 or values.shape[2] < VALUES or values.dtype != np.float32:
        raise ValueError(f"values are {values.dtype} {values.shape}, but float32 {(*ops.shape, VALUES)} is needed")


def _check_values(ops: NDArray[np.int32], values: NDArray[np.float32]) -> None:
    unknown = ops[(ops < 0) | (ops > max(Op)) | ~KNOWN[ops.clip(0, max(Op))]]
    if unknown.size:
        raise ValueError(f"ops hold {unknown[0]}, which is the number of no operation; see Op")
    first = values[..., 0]
    wrong = (first < LOWEST[ops]) | (first > HIGHEST[ops]) | ~np.isfinite(values).all(axis=-1)
    if not wrong.any():
        return
    row, step = (int(at) for at in np.argwhere(wrong)[0])
    op, own = Op(ops[row, step]), values[row, step]
    if np.isfinite(own).all():
        raise ValueError(f"values[{row}, {step}]: {op.name} takes {LOWEST[op]:g} to {HIGHEST[op]:g}, not {own[0]:g}")
    raise ValueError(f"values[{row}, {step}] of {op.name} are {own.tolist()}; all must be finite numbers")


def _color(fill: Sequence[float]) -> tuple[float, ...]:
    color = tuple(float(level) for level in fill)
    if len(color) != 3 or not all(0 <= level <= 255 for level in color):
        raise ValueError(f"fill={fill!r} must be three levels, R, G and B, of 0 to 255")
    return color
