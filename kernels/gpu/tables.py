"""Lookup tables of the operations that need an image's statistics; `augment_reference` in Triton."""

from __future__ import annotations

import triton
import triton.language as tl

from gpupipe.kernels.gpu.pixels import gather_pixels
from gpupipe.kernels.gpu.pointwise import gray_of, levels_of
from gpupipe.kernels.gpu.schedule import FIELDS
from gpupipe.kernels.operations import Op

__all__ = ["make_tables"]

AUTOCONTRAST, EQUALIZE = tl.constexpr(int(Op.AUTOCONTRAST)), tl.constexpr(int(Op.EQUALIZE))
VALUES_AT = tl.constexpr(FIELDS)


@triton.jit
def _contrast(image, count, factor, PIXELS: tl.constexpr):
    """Away from the mean gray level."""
    sums = tl.zeros((PIXELS,), tl.int32)
    for start in range(0, count, PIXELS):
        pixels = start + tl.arange(0, PIXELS)
        red, green, blue = gather_pixels(image, pixels, pixels < count)  # black past the end, which adds nothing
        sums += gray_of(red, green, blue).to(tl.int32)
    mean = tl.div_rn(tl.sum(sums.to(tl.int64), 0).to(tl.float32), count.to(tl.float32))
    return levels_of(tl.arange(0, 256).to(tl.float32) * factor + mean * (1.0 - factor))


@triton.jit
def _autocontrast(channel, count, PIXELS: tl.constexpr):
    """From the lowest and the highest level to 0 and 255."""
    lowest, highest = tl.full((PIXELS,), 255, tl.int32), tl.zeros((PIXELS,), tl.int32)
    for start in range(0, count, PIXELS):
        pixels = start + tl.arange(0, PIXELS)
        levels = tl.load(channel + 3 * pixels, mask=pixels < count, other=0).to(tl.int32)
        highest = tl.maximum(highest, levels)
        lowest = tl.minimum(lowest, tl.where(pixels < count, levels, 255))
    low, high = tl.min(lowest, 0).to(tl.float32), tl.max(highest, 0).to(tl.float32)
    flat = low == high
    step = tl.where(flat, 1.0, (high - low) * (1 / 255))
    low = tl.where(flat, 0.0, low)
    return levels_of(tl.div_rn(tl.arange(0, 256).to(tl.float32) - low, step + tl.zeros((256,), tl.float32)))


@triton.jit
def _equalize(channel, count, PIXELS: tl.constexpr):
    """Pillow's way, see the reference."""
    levels = tl.arange(0, 256)
    # Past the end are zeros, which are taken off: `tl.histogram` has a mask only since Triton 3.3.
    histogram = tl.where(levels == 0, count - tl.cdiv(count, PIXELS) * PIXELS, 0)
    for start in range(0, count, PIXELS):
        pixels = start + tl.arange(0, PIXELS)
        read = tl.load(channel + 3 * pixels, mask=pixels < count, other=0).to(tl.int32)
        histogram += tl.histogram(read, 256)
    highest = tl.max(tl.where(histogram > 0, levels, 0), 0)
    step = (count - tl.sum(tl.where(levels == highest, histogram, 0), 0)) // 255
    below = tl.cumsum(histogram, 0) - histogram
    equal = tl.minimum((below + step // 2) // tl.maximum(step, 1), 255)
    return tl.where(step == 0, levels, equal)


@triton.jit(do_not_specialize=["stride", "count"])
def make_tables(source, tables, tasks, stride, count, PIXELS: tl.constexpr):
    """Write uint8 tables (tasks, 3, 256): one program for each task and channel.

    source: uint8 (N, count, 3). tasks: those of a pass, `stride` words each, of which the first have a table. A program
    goes through the whole image by itself: no atomics, the same bits whatever runs first.
    """
    task, channel = tl.program_id(0) // 3, tl.program_id(0) % 3
    record = tasks + task * stride
    image = source + tl.load(record).to(tl.int64) * count * 3
    lead = tl.load(record + 2)
    if lead == EQUALIZE:
        table = _equalize(image + channel, count, PIXELS)
    elif lead == AUTOCONTRAST:
        table = _autocontrast(image + channel, count, PIXELS)
    else:
        table = _contrast(image, count, tl.load(record + VALUES_AT).to(tl.float32, bitcast=True), PIXELS)
    tl.store(tables + tl.program_id(0) * 256 + tl.arange(0, 256), table.to(tl.uint8))
