"""The kernels of `augment`'s passes, see `schedule`: one program for PIXELS pixels of a task."""

from __future__ import annotations

import triton
import triton.language as tl

from gpupipe.kernels.gpu import leads
from gpupipe.kernels.gpu.pixels import load_pixels, scatter_levels, store_pixels
from gpupipe.kernels.gpu.pointwise import step
from gpupipe.kernels.gpu.schedule import FIELDS
from gpupipe.kernels.operations import Op

__all__ = ["apply", "filter_rows"]

AFFINE_NEAREST = tl.constexpr(int(Op.AFFINE_NEAREST))
AFFINE_BILINEAR = tl.constexpr(int(Op.AFFINE_BILINEAR))
AFFINE_BICUBIC = tl.constexpr(int(Op.AFFINE_BICUBIC))
PERSPECTIVE_NEAREST = tl.constexpr(int(Op.PERSPECTIVE_NEAREST))
PERSPECTIVE_BILINEAR = tl.constexpr(int(Op.PERSPECTIVE_BILINEAR))
ELASTIC_NEAREST = tl.constexpr(int(Op.ELASTIC_NEAREST))
ELASTIC_BILINEAR = tl.constexpr(int(Op.ELASTIC_BILINEAR))
SHARPNESS = tl.constexpr(int(Op.SHARPNESS))
GAUSSIAN_BLUR = tl.constexpr(int(Op.GAUSSIAN_BLUR))
NOISE, HSV, HOLES = tl.constexpr(int(Op.NOISE)), tl.constexpr(int(Op.HSV)), tl.constexpr(int(Op.HOLES))
IDENTITY = tl.constexpr(int(Op.IDENTITY))
VALUES_AT = tl.constexpr(FIELDS)


# What differs from batch to batch, or may be 1, must not make Triton compile another kernel.
@triton.jit(do_not_specialize=["stride", "first", "height", "width"])
def filter_rows(
    source, filtered, tasks, stride, first, height, width,
    PIXELS: tl.constexpr, FAR: tl.constexpr, ELASTIC: tl.constexpr,
):  # fmt: skip
    """The first halves of a pass's blurs: uint8 (N, height, width, 3) to float32 (blurs, height, width, 3).

    first: the number of the first task that blurs. ELASTIC: whether what is blurred may be noise.
    """
    count = height * width
    blocks = tl.cdiv(count, PIXELS)
    slot = tl.program_id(0) // blocks
    pixels = (tl.program_id(0) % blocks) * PIXELS + tl.arange(0, PIXELS)
    record = tasks + (first + slot) * stride
    image = source + tl.load(record).to(tl.int64) * count * 3
    values, lead, reach = record + VALUES_AT, tl.load(record + 2), tl.load(record + 5)
    if ELASTIC:
        if lead == GAUSSIAN_BLUR:
            red, green, blue = leads.blur_rows(image, values, reach, pixels, height, width, FAR)
        else:
            red, green, blue = leads.displacement_rows(values, reach, pixels, width, FAR)
    else:
        red, green, blue = leads.blur_rows(image, values, reach, pixels, height, width, FAR)
    scatter_levels(filtered + slot.to(tl.int64) * count * 3, pixels, red, green, blue, pixels < count)


@triton.jit(do_not_specialize=["stride", "first_blur", "height", "width"])
def apply(
    source, middle, out, tables, filtered, kept, total, tasks, steps, stride, first_blur, height, width,
    fill0, fill1, fill2,
    PIXELS: tl.constexpr, WORDS: tl.constexpr, FILL: tl.constexpr, FAR: tl.constexpr,
    BICUBIC: tl.constexpr, OWN: tl.constexpr, ELASTIC: tl.constexpr,
):  # fmt: skip
    """A pass: uint8 (N, height, width, 3) from `source` to `out` for samples whose last pass this is, else `middle`."""
    count = height * width
    if WORDS:
        count = (count // 4) * 4
    blocks = tl.cdiv(count, PIXELS)
    task = tl.program_id(0) // blocks
    start = (tl.program_id(0) % blocks) * PIXELS
    record = tasks + task * stride
    values = record + VALUES_AT
    lead, reach = tl.load(record + 2), tl.load(record + 5)
    offset = tl.load(record).to(tl.int64) * count * 3
    image = source + offset
    pixels = start + tl.arange(0, PIXELS)
    own = filtered + (task - first_blur).to(tl.int64) * count * 3
    if (lead == AFFINE_NEAREST) | (lead == PERSPECTIVE_NEAREST):
        y, x = leads.mapped(values, pixels, width, lead == PERSPECTIVE_NEAREST)
        red, green, blue = leads.moved_nearest(image, y, x, pixels, height, width, fill0, fill1, fill2)
    elif (lead == AFFINE_BILINEAR) | (lead == PERSPECTIVE_BILINEAR):
        y, x = leads.mapped(values, pixels, width, lead == PERSPECTIVE_BILINEAR)
        red, green, blue = leads.moved_bilinear(image, y, x, reach, pixels, height, width, fill0, fill1, fill2, FILL)
    elif lead == AFFINE_BICUBIC:
        red, green, blue = pixels, pixels, pixels
        if BICUBIC:  # else no image is moved so, and threads need 80 registers, not 126
            y, x = leads.mapped(values, pixels, width, False)
            red, green, blue = leads.moved_bicubic(image, y, x, reach, pixels, height, width, fill0, fill1, fill2)
    elif (lead == ELASTIC_NEAREST) | (lead == ELASTIC_BILINEAR):
        red, green, blue = pixels, pixels, pixels
        if ELASTIC:
            y, x = leads.displaced(own, values, reach, pixels, height, width, FAR)
            if lead == ELASTIC_NEAREST:
                red, green, blue = leads.moved_nearest(image, y, x, pixels, height, width, fill0, fill1, fill2)
            else:
                one = tl.minimum(reach + 1, 1)  # which the compiler does not know
                red, green, blue = leads.moved_bilinear(
                    image, y, x, one, pixels, height, width, fill0, fill1, fill2, FILL
                )
    elif lead == SHARPNESS:
        red, green, blue = leads.sharpened(image, values, reach, pixels, height, width)
    elif lead == GAUSSIAN_BLUR:
        red, green, blue = leads.blur_columns(own, values, reach, pixels, height, width, FAR)
    else:
        red, green, blue = load_pixels(image, start, count, PIXELS, WORDS)
        if (lead >= NOISE) & (lead <= HOLES):
            if OWN:
                if lead == NOISE:
                    red, green, blue = leads.made_noisy(values, pixels, red, green, blue)
                elif lead == HSV:
                    red, green, blue = leads.turned(values, red, green, blue)
                elif lead == HOLES:
                    room = stride - VALUES_AT
                    red, green, blue = leads.with_holes(
                        values, room, pixels, width, red, green, blue, fill0, fill1, fill2
                    )
                else:
                    share, mask = tl.load(values).to(tl.float32, bitcast=True), pixels < height * width
                    red, green, blue = leads.mixed(
                        lead, share, kept + offset, total + offset, pixels, mask, red, green, blue
                    )
        elif lead != IDENTITY:
            red, green, blue = leads.looked_up(tables + task * 768, red, green, blue)
    first = tl.load(record + 3)
    for number in range(first, first + tl.load(record + 4)):
        value = tl.load(steps + 2 * number + 1).to(tl.float32, bitcast=True)
        red, green, blue = step(tl.load(steps + 2 * number), value, red, green, blue)
    if tl.load(record + 1) != 0:
        store_pixels(out + offset, start, count, red, green, blue, PIXELS, WORDS)
    else:
        store_pixels(middle + offset, start, count, red, green, blue, PIXELS, WORDS)
