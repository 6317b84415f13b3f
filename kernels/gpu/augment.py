"""`augment` on a GPU: a few launches on the current stream, without waiting for them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.kernels.gpu import OPTIONS
from gpupipe.kernels.gpu.augment_kernels import apply, filter_rows
from gpupipe.kernels.gpu.schedule import Pass, schedule
from gpupipe.kernels.gpu.tables import make_tables
from gpupipe.kernels.operations import Op
from gpupipe.kernels.transfer import to_device

__all__ = ["augment"]

PIXELS, WARPS = 512, 4
# A program reads a whole image, so that many loads must be under way at once.
TABLE_PIXELS, TABLE_WARPS = 4096, 16


def augment(
    images: torch.Tensor,
    ops: NDArray[np.int32],
    values: NDArray[np.float32],
    fill: Sequence[float] | None,
    out: torch.Tensor,
) -> None:
    """As `gpupipe.kernels.augment`, into `out`, which may be `images`; both contiguous, height * width * 3 below 2**31.

    What lies between two passes takes as much memory as the images, up to twice, and blurs four times as much. It
    comes from torch's allocator for this stream and goes back at once: the driver is asked only for the first batches.
    """
    if images.numel() == 0:
        return
    passes = schedule(ops, values, in_place=out.data_ptr() == images.data_ptr())
    if not passes:
        return
    with torch.cuda.device_of(images):  # Triton launches on the current device
        parameters = _sent(passes, images.device)
        kept, total = _memory(images, ops)
        between = [torch.empty_like(images) for _ in range(min(len(passes) - 1, 2))]
        for number, (step, (tasks, steps)) in enumerate(zip(passes, parameters, strict=True)):
            source = between[(number - 1) % 2] if number else images
            middle = between[number % 2] if number + 1 < len(passes) else out
            _launch(step, tasks, steps, source, middle, out, kept, total, fill)


def _memory(images: torch.Tensor, ops: NDArray[np.int32]) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Where mixes keep their images and their sums; none where there are none."""
    if not np.isin(ops, (Op.MIX_BEGIN, Op.MIX_ADD, Op.MIX_END)).any():
        return None, None
    return torch.zeros_like(images), torch.zeros_like(images, dtype=torch.float32)


def _sent(passes: list[Pass], device: torch.device) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The tasks and steps of all passes on the device, by one copy."""
    parts = [part for step in passes for part in (step.tasks.ravel(), step.steps.ravel())]
    # At multiples of 16 bytes, so that Triton compiles one kernel for all.
    ends = np.cumsum([-(-part.size // 4) * 4 for part in parts]).tolist()
    starts = [0, *ends[:-1]]
    words = np.zeros(ends[-1] + 4, np.int32)
    for part, start in zip(parts, starts, strict=True):
        words[start : start + part.size] = part
    sent = to_device(torch.from_numpy(words), device)
    return [(sent[tasks:], sent[steps:]) for tasks, steps in zip(starts[::2], starts[1::2], strict=True)]


def _launch(
    step: Pass,
    tasks: torch.Tensor,
    steps: torch.Tensor,
    source: torch.Tensor,
    middle: torch.Tensor,
    out: torch.Tensor,
    kept: torch.Tensor | None,
    total: torch.Tensor | None,
    fill: Sequence[float] | None,
) -> None:
    """One pass, after the tables and the first halves of blurs that it needs."""
    height, width = source.shape[1:3]
    count, stride = height * width, step.tasks.shape[1]
    blocks = -(-count // PIXELS)
    far = step.reach >= min(height, width)
    tables, filtered = source, tasks.view(torch.float32)  # never read, but of the right types: one kernel is compiled
    if step.tables:
        tables = source.new_empty((step.tables, 3, 256))
        make_tables[(3 * step.tables,)](
            source, tables, tasks, stride, count, PIXELS=TABLE_PIXELS, num_warps=TABLE_WARPS, **OPTIONS
        )
    if step.blurs:
        # Room for a blur of every image, so that the next batch, which may have more of them, finds it too.
        filtered = source.new_empty(source.shape, dtype=torch.float32)
        filter_rows[(step.blurs * blocks,)](
            source, filtered, tasks, stride, step.tables, height, width,
            PIXELS=PIXELS, FAR=far, ELASTIC=step.elastic, num_warps=WARPS, **OPTIONS,
        )  # fmt: skip
    words = count % 4 == 0 and all(images.data_ptr() % 4 == 0 for images in (source, middle, out))
    apply[(len(step.tasks) * blocks,)](
        source, middle, out, tables, filtered,
        source if kept is None else kept, tasks.view(torch.float32) if total is None else total,
        tasks, steps, stride, step.tables, height, width,
        *(float(number) for number in fill or (0, 0, 0)),
        PIXELS=PIXELS, WORDS=words, FILL=fill is not None, FAR=far, BICUBIC=step.bicubic, OWN=step.own,
        ELASTIC=step.elastic, num_warps=WARPS, **OPTIONS,
    )  # fmt: skip
