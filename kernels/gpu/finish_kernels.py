"""The kernels behind `finish`: bytes to normalized numbers, erased and mixed on the way, in one pass over memory.

Whether they erase and mix is decided when they are compiled: without, nothing of it is left. A sample's boxes and the
like lie in its record of RECORD 32-bit words: the box to erase (4), the key of its noise (2), the partner's row, the
weight, the partner's box (4).
"""

from __future__ import annotations

import triton
import triton.language as tl

from gpupipe.kernels.gpu.noise import normal_levels, normal_pixels
from gpupipe.kernels.gpu.pixels import load_pixels

__all__ = ["CONSTANT", "NOISE", "RECORD", "finish_flat", "finish_planes"]

RECORD = 12
CONSTANT, NOISE = 1, 2  # what ERASE may be, besides 0
RECORD_WORDS, WITH_NOISE = tl.constexpr(RECORD), tl.constexpr(NOISE)


@triton.jit
def _inside(pixels, width, box):
    """Whether pixels lie in the box (top, left, height, width) at `box`."""
    down = pixels // width - tl.load(box)
    right = pixels % width - tl.load(box + 1)
    return (down >= 0) & (down < tl.load(box + 2)) & (right >= 0) & (right < tl.load(box + 3))


@triton.jit
def _touches(start, stop, width, box):
    """Whether the rows with the pixels start to stop (not included) have any of the box."""
    top = tl.load(box)
    height = tl.where(tl.load(box + 3) > 0, tl.load(box + 2), 0)
    return (start // width < top + height) & ((stop - 1) // width >= top)


@triton.jit
def _share(own, partner, weight):
    return weight * own + (1.0 - weight) * partner


@triton.jit
def _planes(
    images, records, row, start, count, width,
    offset0, offset1, offset2, scale0, scale1, scale2, value0, value1, value2,
    PIXELS: tl.constexpr, WORDS: tl.constexpr, ERASE: tl.constexpr,
):  # fmt: skip
    """Normalized and erased pixels of one image, as three float32 arrays."""
    image = images + row.to(tl.int64) * count * 3
    red, green, blue = load_pixels(image, start, count, PIXELS, WORDS)
    red = (red.to(tl.float32) - offset0) * scale0
    green = (green.to(tl.float32) - offset1) * scale1
    blue = (blue.to(tl.float32) - offset2) * scale2
    if ERASE:
        box = records + row * RECORD_WORDS
        if _touches(start, tl.minimum(start + PIXELS, count), width, box):
            pixels = start + tl.arange(0, PIXELS)
            inside = _inside(pixels, width, box)
            if ERASE == WITH_NOISE:
                noise0, noise1, noise2 = normal_pixels(pixels, tl.load(box + 4), tl.load(box + 5))
                red = tl.where(inside, noise0, red)
                green = tl.where(inside, noise1, green)
                blue = tl.where(inside, noise2, blue)
            else:
                red = tl.where(inside, value0, red)
                green = tl.where(inside, value1, green)
                blue = tl.where(inside, value2, blue)
    return red, green, blue


@triton.jit
def finish_planes(
    images, out, records, count, width,
    offset0, offset1, offset2, scale0, scale1, scale2, value0, value1, value2,
    PIXELS: tl.constexpr, WORDS: tl.constexpr, FLOAT: tl.constexpr, ERASE: tl.constexpr, MIX: tl.constexpr,
):  # fmt: skip
    """uint8 (N, height, width, 3) to contiguous (N, 3, height, width); one program for PIXELS pixels of an image.

    count: height * width. offset, scale: for channels 0 to 2. FLOAT: False for uint8, which is only rearranged.
    """
    blocks = tl.cdiv(count, PIXELS)
    row = tl.program_id(0) // blocks
    start = (tl.program_id(0) % blocks) * PIXELS
    if WORDS:
        count = (count // 4) * 4  # it is a multiple already; this tells the compiler, which then stores vectors
    if FLOAT:
        red, green, blue = _planes(
            images, records, row, start, count, width, offset0, offset1, offset2, scale0, scale1, scale2,
            value0, value1, value2, PIXELS, WORDS, ERASE,
        )  # fmt: skip
        if MIX:
            record = records + row * RECORD_WORDS
            other_red, other_green, other_blue = _planes(
                images, records, tl.load(record + 6), start, count, width,
                offset0, offset1, offset2, scale0, scale1, scale2, value0, value1, value2, PIXELS, WORDS, ERASE,
            )  # fmt: skip
            weight = tl.load(record + 7).to(tl.float32, bitcast=True)
            red = _share(red, other_red, weight)
            green = _share(green, other_green, weight)
            blue = _share(blue, other_blue, weight)
            if _touches(start, tl.minimum(start + PIXELS, count), width, record + 8):
                inside = _inside(start + tl.arange(0, PIXELS), width, record + 8)
                red = tl.where(inside, other_red, red)
                green = tl.where(inside, other_green, green)
                blue = tl.where(inside, other_blue, blue)
    else:
        red, green, blue = load_pixels(images + row.to(tl.int64) * count * 3, start, count, PIXELS, WORDS)
    pixels = start + tl.arange(0, PIXELS)
    mask = pixels < count
    plane = out + row.to(tl.int64) * 3 * count + pixels
    tl.store(plane, red.to(out.dtype.element_ty), mask=mask)
    tl.store(plane + count, green.to(out.dtype.element_ty), mask=mask)
    tl.store(plane + 2 * count, blue.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _of_channel(channel, first, second, third):
    return tl.where(channel == 0, first, tl.where(channel == 1, second, third))


@triton.jit
def _flat(
    images, records, row, start, count, width,
    offset0, offset1, offset2, scale0, scale1, scale2, value0, value1, value2,
    BYTES: tl.constexpr, ERASE: tl.constexpr,
):  # fmt: skip
    """Normalized and erased levels of one image, in the order of its bytes: float32."""
    at = start + tl.arange(0, BYTES)
    channel = at % 3
    levels = tl.load(images + row.to(tl.int64) * count * 3 + at, mask=at < count * 3, other=0).to(tl.float32)
    x = levels - _of_channel(channel, offset0, offset1, offset2)
    x *= _of_channel(channel, scale0, scale1, scale2)
    if ERASE:
        box = records + row * RECORD_WORDS
        if _touches(start // 3, tl.minimum((start + BYTES + 2) // 3, count), width, box):
            inside = _inside(at // 3, width, box)
            if ERASE == WITH_NOISE:
                x = tl.where(inside, normal_levels(at, tl.load(box + 4), tl.load(box + 5)), x)
            else:
                x = tl.where(inside, _of_channel(channel, value0, value1, value2), x)
    return x


@triton.jit
def finish_flat(
    images, out, records, count, width,
    offset0, offset1, offset2, scale0, scale1, scale2, value0, value1, value2,
    BYTES: tl.constexpr, ERASE: tl.constexpr, MIX: tl.constexpr,
):  # fmt: skip
    """uint8 (N, height, width, 3) to floats in the same order, as channels_last has it; BYTES levels a program."""
    blocks = tl.cdiv(count * 3, BYTES)
    row = tl.program_id(0) // blocks
    start = (tl.program_id(0) % blocks) * BYTES
    x = _flat(
        images, records, row, start, count, width, offset0, offset1, offset2, scale0, scale1, scale2,
        value0, value1, value2, BYTES, ERASE,
    )  # fmt: skip
    at = start + tl.arange(0, BYTES)
    if MIX:
        record = records + row * RECORD_WORDS
        other = _flat(
            images, records, tl.load(record + 6), start, count, width,
            offset0, offset1, offset2, scale0, scale1, scale2, value0, value1, value2, BYTES, ERASE,
        )  # fmt: skip
        x = _share(x, other, tl.load(record + 7).to(tl.float32, bitcast=True))
        if _touches(start // 3, tl.minimum((start + BYTES + 2) // 3, count), width, record + 8):
            x = tl.where(_inside(at // 3, width, record + 8), other, x)
    tl.store(out + row.to(tl.int64) * 3 * count + at, x.to(out.dtype.element_ty), mask=at < count * 3)
