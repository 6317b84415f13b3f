"""The operations that read other pixels of an image, and lookup tables; `augment_reference` in Triton.

Each gives the pixels of a block, int32 levels, of an image of height * width pixels. `values`: a pointer to the bits of
the values that the operation takes. `reach`: how many pixels away it reads; the compiler does not know it and so
leaves the loops loops, which need few registers.
"""

from __future__ import annotations

import triton
import triton.language as tl

from gpupipe.kernels.gpu.noise import normal_pixels, uniform_pixels
from gpupipe.kernels.gpu.pixels import gather_levels, gather_pixels, scatter_levels
from gpupipe.kernels.gpu.pointwise import by_sixth, levels_of
from gpupipe.kernels.operations import ELASTIC, Op

__all__ = [
    "blur_columns",
    "blur_rows",
    "displaced",
    "displacement_rows",
    "looked_up",
    "made_noisy",
    "mapped",
    "mixed",
    "moved_bicubic",
    "moved_bilinear",
    "moved_nearest",
    "sharpened",
    "turned",
    "with_holes",
]

# Adding and taking off 1.5 * 2**23 rounds a float32 below 2**22 to a whole number, halves to the even one.
ROUNDER = tl.constexpr(12582912.0)
ELASTIC_AT = tl.constexpr(ELASTIC)
MIX_BEGIN, MIX_ADD = tl.constexpr(int(Op.MIX_BEGIN)), tl.constexpr(int(Op.MIX_ADD))


@triton.jit
def _rounded(exact):
    return (exact + ROUNDER) - ROUNDER


@triton.jit
def _level(exact):
    """Rounded, and cut to 0 to 255; cut first, as large numbers can't be rounded so."""
    return _rounded(tl.minimum(tl.maximum(exact, 0.0), 255.0)).to(tl.int32)


@triton.jit
def _float(values, at):
    return tl.load(values + at).to(tl.float32, bitcast=True)


@triton.jit
def mapped(values, pixels, width, perspective):
    """Where the pixels come from: y and x. perspective: whether they are divided, by two values more."""
    down = (pixels // width).to(tl.float32)
    right = (pixels % width).to(tl.float32)
    x = _float(values, 0) * right + (_float(values, 1) * down + _float(values, 2))
    y = _float(values, 3) * right + (_float(values, 4) * down + _float(values, 5))
    if perspective:
        part = _float(values, 6) * right + (_float(values, 7) * down + 1.0)
        y, x = tl.div_rn(y, part), tl.div_rn(x, part)
    return y, x


@triton.jit
def _read(image, y, x, height, width, mask):
    """The pixels at whole float32 coordinates, and whether these lie inside: infinite ones and no numbers do not."""
    inside = (y >= 0.0) & (y < height.to(tl.float32)) & (x >= 0.0) & (x < width.to(tl.float32))
    row, column = tl.where(inside, y, 0.0).to(tl.int32), tl.where(inside, x, 0.0).to(tl.int32)
    red, green, blue = gather_pixels(image, row * width + column, mask & inside)
    return red, green, blue, inside


@triton.jit
def moved_nearest(image, y, x, pixels, height, width, fill0, fill1, fill2):
    red, green, blue, inside = _read(image, _rounded(y), _rounded(x), height, width, pixels < height * width)
    red = _rounded(tl.where(inside, red.to(tl.float32), fill0)).to(tl.int32)
    green = _rounded(tl.where(inside, green.to(tl.float32), fill1)).to(tl.int32)
    blue = _rounded(tl.where(inside, blue.to(tl.float32), fill2)).to(tl.int32)
    return red, green, blue


@triton.jit
def _filled(total, covered, fill, FILL: tl.constexpr):
    if FILL:
        total = (total - fill) * covered + fill
    return _level(total)


@triton.jit
def moved_bilinear(image, y, x, reach, pixels, height, width, fill0, fill1, fill2, FILL: tl.constexpr):
    top, left = tl.floor(y), tl.floor(x)
    lower, right = y - top, x - left
    mask = pixels < height * width
    nothing = tl.zeros_like(lower)
    total0, total1, total2, covered = nothing, nothing, nothing, nothing
    for below in range(reach + 1):
        vertical = tl.where(below == 0, 1.0 - lower, lower)
        for beside in range(reach + 1):
            horizontal = tl.where(beside == 0, 1.0 - right, right)
            red, green, blue, inside = _read(image, top + below, left + beside, height, width, mask)
            share = tl.where(inside, vertical * horizontal, 0.0)
            total0 += red.to(tl.float32) * share
            total1 += green.to(tl.float32) * share
            total2 += blue.to(tl.float32) * share
            covered += share
    return (
        _filled(total0, covered, fill0, FILL),
        _filled(total1, covered, fill1, FILL),
        _filled(total2, covered, fill2, FILL),
    )


@triton.jit
def _neighbour(number, first, part, size):
    """Where the pixel lies that is one before the first, one behind it or two, and its share; `number`: 0 to 2."""
    at = tl.minimum(tl.maximum(first + tl.where(number == 0, -1, number), 0), size - 1)
    cube, line = tl.where(number == 2, 1.0, -1.0), tl.where(number == 0, -1.0, tl.where(number == 1, 1.0, 0.0))
    return at, ((cube * part + tl.where(number == 0, 2.0, -cube)) * part + line) * part


@triton.jit
def _cubic_row(image, row, left, right, width, reach, mask):
    """Between the pixels of one row, float32."""
    start = row * width
    first0, first1, first2 = gather_pixels(image, start + tl.minimum(tl.maximum(left, 0), width - 1), mask)
    total0, total1, total2 = first0.to(tl.float32), first1.to(tl.float32), first2.to(tl.float32)
    for number in range(reach + 1):
        at, share = _neighbour(number, left, right, width)
        red, green, blue = gather_pixels(image, start + at, mask)
        total0 += (red - first0).to(tl.float32) * share
        total1 += (green - first1).to(tl.float32) * share
        total2 += (blue - first2).to(tl.float32) * share
    return total0, total1, total2


@triton.jit
def moved_bicubic(image, y, x, reach, pixels, height, width, fill0, fill1, fill2):
    inside = (y >= -0.5) & (y < height.to(tl.float32) - 0.5) & (x >= -0.5) & (x < width.to(tl.float32) - 0.5)
    y, x = tl.where(inside, y, 0.0), tl.where(inside, x, 0.0)
    top, left = tl.floor(y).to(tl.int32), tl.floor(x).to(tl.int32)
    lower, right = y - tl.floor(y), x - tl.floor(x)
    row = tl.minimum(tl.maximum(top, 0), height - 1)
    first0, first1, first2 = _cubic_row(image, row, left, right, width, reach, inside)
    total0, total1, total2 = first0, first1, first2
    for number in range(reach + 1):
        row, share = _neighbour(number, top, lower, height)
        red, green, blue = _cubic_row(image, row, left, right, width, reach, inside)
        total0 += (red - first0) * share
        total1 += (green - first1) * share
        total2 += (blue - first2) * share
    red = tl.where(inside, levels_of(total0), _level(fill0))
    green = tl.where(inside, levels_of(total1), _level(fill1))
    blue = tl.where(inside, levels_of(total2), _level(fill2))
    return red, green, blue


@triton.jit
def _sharper(middle, box, factor):
    smooth = (2 * (box + 4 * middle) + 13) // 26
    exact = middle.to(tl.float32)
    return levels_of(exact + (smooth.to(tl.float32) - exact) * (1.0 - factor))


@triton.jit
def sharpened(image, values, reach, pixels, height, width):
    y, x = pixels // width, pixels % width
    mask = pixels < height * width
    red, green, blue = gather_pixels(image, pixels, mask)
    inner = mask & (y > 0) & (y < height - 1) & (x > 0) & (x < width - 1)
    box0, box1, box2 = red * 0, red * 0, red * 0
    for down in range(-reach, reach + 1):
        for right in range(-reach, reach + 1):
            near0, near1, near2 = gather_pixels(image, pixels + down * width + right, inner)
            box0, box1, box2 = box0 + near0, box1 + near1, box2 + near2
    factor = _float(values, 0)
    red = tl.where(inner, _sharper(red, box0, factor), red)
    green = tl.where(inner, _sharper(green, box1, factor), green)
    blue = tl.where(inner, _sharper(blue, box2, factor), blue)
    return red, green, blue


@triton.jit
def _half(values, at):
    """A value as a whole number of 16 bits."""
    return tl.minimum(tl.maximum(_float(values, at), 0.0), 65535.0).to(tl.int32)


@triton.jit
def _key(values, at):
    """The bits of a word whose halves are two values."""
    return _half(values, at) | _half(values, at + 1) << 16


@triton.jit
def with_holes(values, room, pixels, width, red, green, blue, fill0, fill1, fill2):
    """room: for so many values there is any."""
    y, x = pixels // width, pixels % width
    for hole in range(tl.minimum(_half(values, 0), (room - 1) // 4)):
        top, left = _half(values, 1 + 4 * hole), _half(values, 2 + 4 * hole)
        below, beside = top + _half(values, 3 + 4 * hole), left + _half(values, 4 + 4 * hole)
        inside = (y >= top) & (y < below) & (x >= left) & (x < beside)
        red = _rounded(tl.where(inside, fill0, red.to(tl.float32))).to(tl.int32)
        green = _rounded(tl.where(inside, fill1, green.to(tl.float32))).to(tl.int32)
        blue = _rounded(tl.where(inside, fill2, blue.to(tl.float32))).to(tl.int32)
    return red, green, blue


@triton.jit
def _parts(whole: tl.constexpr, by):
    """whole * 4096 / by, rounded; 0 for none."""
    parts = tl.div_rn(tl.full(by.shape, whole * 4096.0, tl.float32), tl.maximum(by, 1).to(tl.float32))
    return tl.where(by > 0, _rounded(parts).to(tl.int32), 0)


@triton.jit
def _whole_unit(exact):
    return tl.floor(tl.minimum(tl.maximum(exact, 0.0), 255.0)) * (1 / 255)


@triton.jit
def turned(values, red, green, blue):
    """In OpenCV's bytes of hue, saturation and value."""
    top = tl.maximum(tl.maximum(red, green), blue)
    spread = top - tl.minimum(tl.minimum(red, green), blue)
    strength = (spread * _parts(255, top) + 2048) >> 12
    other = tl.where(top == green, blue - red + 2 * spread, red - green + 4 * spread)
    hue = (tl.where(top == red, green - blue, other) * _parts(30, spread) + 2048) >> 12
    angle = tl.where(hue < 0, hue + 180, hue).to(tl.float32) + _float(values, 0)
    sixth = tl.floor(angle - tl.floor(tl.div_rn(angle, tl.full(angle.shape, 180.0, tl.float32))) * 180.0) * (1 / 30)
    whole = tl.floor(sixth)
    part = tl.where(whole < 6.0, sixth - whole, 0.0)
    high = _whole_unit(top.to(tl.float32) * _float(values, 2))
    strong = _whole_unit(strength.to(tl.float32) * _float(values, 1))
    least, falling = high * (1.0 - strong), high * (1.0 - strong * part)
    rising = high * (1.0 - strong * (1.0 - part))
    red, green, blue = by_sixth(whole, high, least, falling, rising)
    return levels_of(red * 255.0), levels_of(green * 255.0), levels_of(blue * 255.0)


@triton.jit
def mixed(lead, share, kept, total, pixels, mask, red, green, blue):
    """A share of a mix; kept, total: pointers to uint8 and float32, of the image to go back to and of the sum."""
    total0, total1, total2 = red.to(tl.float32) * share, green.to(tl.float32) * share, blue.to(tl.float32) * share
    if lead == MIX_BEGIN:
        scatter_levels(kept, pixels, red.to(tl.uint8), green.to(tl.uint8), blue.to(tl.uint8), mask)
    else:
        sum0, sum1, sum2 = gather_levels(total, pixels, mask)
        total0, total1, total2 = sum0 + total0, sum1 + total1, sum2 + total2
        if lead == MIX_ADD:
            red, green, blue = gather_pixels(kept, pixels, mask)
        else:
            red, green, blue = levels_of(total0), levels_of(total1), levels_of(total2)
    scatter_levels(total, pixels, total0, total1, total2, mask)
    return red, green, blue


@triton.jit
def _noisy(level, normal, mean, spread):
    change = tl.minimum(tl.maximum(mean + normal * spread, -255.0), 255.0).to(tl.int32)
    return tl.minimum(tl.maximum(level + change, 0), 255)


@triton.jit
def made_noisy(values, pixels, red, green, blue):
    mean, spread = _float(values, 0), _float(values, 1)
    normal0, normal1, normal2 = normal_pixels(pixels, _key(values, 2), _key(values, 4))
    red, green = _noisy(red, normal0, mean, spread), _noisy(green, normal1, mean, spread)
    return red, green, _noisy(blue, normal2, mean, spread)


@triton.jit
def _reflected(at, size, FAR: tl.constexpr):
    """Mirrored about the outermost pixels; once, or as often as it takes (FAR)."""
    period = tl.maximum(2 * (size - 1), 1)
    at = tl.abs(at)
    if FAR:
        at = at % period
    return tl.minimum(at, period - at)


@triton.jit
def blur_rows(image, values, reach, pixels, height, width, FAR: tl.constexpr):
    """The first half of a blur: float32, filtered along the rows."""
    start, x = (pixels // width) * width, pixels % width
    mask = pixels < height * width
    middle = _float(values, 0)
    red, green, blue = gather_pixels(image, pixels, mask)
    total0, total1, total2 = red.to(tl.float32) * middle, green.to(tl.float32) * middle, blue.to(tl.float32) * middle
    for distance in range(1, reach + 1):
        weight = _float(values, distance)
        before0, before1, before2 = gather_pixels(image, start + _reflected(x - distance, width, FAR), mask)
        after0, after1, after2 = gather_pixels(image, start + _reflected(x + distance, width, FAR), mask)
        total0 += (before0 + after0).to(tl.float32) * weight
        total1 += (before1 + after1).to(tl.float32) * weight
        total2 += (before2 + after2).to(tl.float32) * weight
    return total0, total1, total2


@triton.jit
def _sum_columns(filtered, values, reach, pixels, height, width, FAR: tl.constexpr):
    y, x = pixels // width, pixels % width
    mask = pixels < height * width
    middle = _float(values, 0)
    total0, total1, total2 = gather_levels(filtered, pixels, mask)
    total0, total1, total2 = total0 * middle, total1 * middle, total2 * middle
    for distance in range(1, reach + 1):
        weight = _float(values, distance)
        before = _reflected(y - distance, height, FAR) * width + x
        after = _reflected(y + distance, height, FAR) * width + x
        before0, before1, before2 = gather_levels(filtered, before, mask)
        after0, after1, after2 = gather_levels(filtered, after, mask)
        total0 += (before0 + after0) * weight
        total1 += (before1 + after1) * weight
        total2 += (before2 + after2) * weight
    return total0, total1, total2


@triton.jit
def blur_columns(filtered, values, reach, pixels, height, width, FAR: tl.constexpr):
    """The second half, along the columns of the first: `filtered` is a pointer to float32."""
    total0, total1, total2 = _sum_columns(filtered, values, reach, pixels, height, width, FAR)
    return _level(total0), _level(total1), _level(total2)


@triton.jit
def displacement_rows(values, reach, pixels, width, FAR: tl.constexpr):
    """The first half of how far pixels are displaced, right and down: noise, made wherever it is read, filtered along
    the rows; and zeros."""
    start, x = (pixels // width) * width, pixels % width
    key0, key1 = _key(values, 2), _key(values, 4)
    right, down = uniform_pixels(pixels, key0, key1)
    middle = _float(values, ELASTIC_AT)
    right, down = right * middle, down * middle
    for distance in range(1, reach + 1):
        weight = _float(values, ELASTIC_AT + distance)
        before0, before1 = uniform_pixels(start + _reflected(x - distance, width, FAR), key0, key1)
        after0, after1 = uniform_pixels(start + _reflected(x + distance, width, FAR), key0, key1)
        right += (before0 + after0) * weight
        down += (before1 + after1) * weight
    return right, down, right * 0.0


@triton.jit
def displaced(filtered, values, reach, pixels, height, width, FAR: tl.constexpr):
    """Where the pixels come from, y and x, by the second half."""
    right, down, _ = _sum_columns(filtered, values + ELASTIC_AT, reach, pixels, height, width, FAR)
    y = (pixels // width).to(tl.float32) + down * _float(values, 1)
    return y, (pixels % width).to(tl.float32) + right * _float(values, 0)


@triton.jit
def looked_up(table, red, green, blue):
    """`table`: a pointer to uint8 (3, 256)."""
    red, green, blue = tl.load(table + red), tl.load(table + 256 + green), tl.load(table + 512 + blue)
    return red.to(tl.int32), green.to(tl.int32), blue.to(tl.int32)
