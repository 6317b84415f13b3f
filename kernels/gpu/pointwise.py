"""The operations that take a pixel for itself, on int32 levels in registers; `augment_reference` in Triton."""

from __future__ import annotations

import triton
import triton.language as tl

from gpupipe.kernels.gpu.noise import logarithm
from gpupipe.kernels.operations import Op

__all__ = ["by_sixth", "gray_of", "levels_of", "step"]

BRIGHTNESS = tl.constexpr(int(Op.BRIGHTNESS))
SATURATION = tl.constexpr(int(Op.SATURATION))
HUE = tl.constexpr(int(Op.HUE))
POSTERIZE = tl.constexpr(int(Op.POSTERIZE))
SOLARIZE = tl.constexpr(int(Op.SOLARIZE))
INVERT = tl.constexpr(int(Op.INVERT))
GRAYSCALE = tl.constexpr(int(Op.GRAYSCALE))
SOLARIZE_ADD = tl.constexpr(int(Op.SOLARIZE_ADD))
CHANNELS = tl.constexpr(int(Op.CHANNELS))
GAMMA = tl.constexpr(int(Op.GAMMA))


@triton.jit
def levels_of(exact):
    """float32 cut to 0 to 255, then truncated."""
    return tl.minimum(tl.maximum(exact, 0.0), 255.0).to(tl.int32)


@triton.jit
def gray_of(red, green, blue):
    """float32, whole."""
    weighted = (red.to(tl.float32) * 0.2989 + green.to(tl.float32) * 0.587) + blue.to(tl.float32) * 0.114
    return tl.floor(weighted)


@triton.jit
def _blend(level, other, factor):
    return levels_of(level.to(tl.float32) * factor + other * (1.0 - factor))


@triton.jit
def _solarized(level, threshold):
    return tl.where(level.to(tl.float32) >= threshold, 255 - level, level)


@triton.jit
def _added(level, addition):
    return tl.where(level < 128, levels_of(level.to(tl.float32) + addition), level)


@triton.jit
def _hue(red, green, blue, turn):
    """To hue, saturation, value and back."""
    r = tl.div_rn(red.to(tl.float32), 255.0)
    g = tl.div_rn(green.to(tl.float32), 255.0)
    b = tl.div_rn(blue.to(tl.float32), 255.0)
    high = tl.maximum(tl.maximum(r, g), b)
    spread = high - tl.minimum(tl.minimum(r, g), b)
    gray = spread == 0.0
    divisor = tl.where(gray, 1.0, spread)
    from_red, from_green = tl.div_rn(high - r, divisor), tl.div_rn(high - g, divisor)
    from_blue = tl.div_rn(high - b, divisor)
    other = tl.where(high == g, (from_red + 2.0) - from_blue, (from_green + 4.0) - from_red)
    hue = tl.where(high == r, from_blue - from_green, other) * (1 / 6) + 1.0
    hue = (hue - tl.floor(hue)) + turn
    hue = hue - tl.floor(hue)
    saturation = tl.div_rn(spread, tl.where(gray, 1.0, high))

    sixth = hue * 6.0
    whole = tl.floor(sixth)
    part = saturation * (sixth - whole)
    rest = 1.0 - saturation
    falling = tl.minimum(tl.maximum((1.0 - part) * high, 0.0), 1.0)
    rising = tl.minimum(tl.maximum((part + rest) * high, 0.0), 1.0)
    least = tl.minimum(tl.maximum(rest * high, 0.0), 1.0)
    r, g, b = by_sixth(whole, high, least, falling, rising)
    return (r * 255.999).to(tl.int32), (g * 255.999).to(tl.int32), (b * 255.999).to(tl.int32)


@triton.jit
def _chosen(sector, zero, one, two, three, four, five):
    low = tl.where(sector == 0, zero, tl.where(sector == 1, one, two))
    return tl.where(sector < 3, low, tl.where(sector == 3, three, tl.where(sector == 4, four, five)))


@triton.jit
def by_sixth(whole, high, least, falling, rising):
    """Red, green and blue in a sixth of the circle; 6 is 0."""
    sector = whole.to(tl.int32) % 6
    red = _chosen(sector, high, falling, least, least, rising, high)
    green = _chosen(sector, rising, high, high, falling, least, least)
    return red, green, _chosen(sector, least, least, rising, high, high, falling)


@triton.jit
def _raised(level, power):
    """By e**x as a series, times a power of 2."""
    x = power * logarithm(tl.div_rn(tl.maximum(level, 1).to(tl.float32), 255.0))
    whole = tl.floor(x * 1.44269504 + 0.5)
    rest = x - whole * 0.693147181
    raised = (((((1 / 720 * rest + 1 / 120) * rest + 1 / 24) * rest + 1 / 6) * rest + 0.5) * rest + 1.0) * rest + 1.0
    scale = ((tl.maximum(whole, -127.0).to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)
    return tl.where(level == 0, 0, (tl.minimum(raised * scale, 1.0) * 255.999).to(tl.int32))


@triton.jit
def _ordered(order, red, green, blue):
    first = _chosen(order, red, red, green, green, blue, blue)
    second = _chosen(order, green, blue, red, blue, red, green)
    return first, second, _chosen(order, blue, green, blue, red, green, red)


@triton.jit
def step(op, value, red, green, blue):
    """One operation; its number and value are scalars."""
    if op == BRIGHTNESS:
        red = levels_of(red.to(tl.float32) * value)
        green = levels_of(green.to(tl.float32) * value)
        blue = levels_of(blue.to(tl.float32) * value)
    elif op == SATURATION:
        gray = gray_of(red, green, blue)
        red, green, blue = _blend(red, gray, value), _blend(green, gray, value), _blend(blue, gray, value)
    elif op == HUE:
        red, green, blue = _hue(red, green, blue, value)
    elif op == POSTERIZE:
        kept = (0xFF00 >> value.to(tl.int32)) & 0xFF
        red, green, blue = red & kept, green & kept, blue & kept
    elif op == SOLARIZE:
        red, green, blue = _solarized(red, value), _solarized(green, value), _solarized(blue, value)
    elif op == INVERT:
        red, green, blue = 255 - red, 255 - green, 255 - blue
    elif op == GRAYSCALE:
        gray = levels_of(gray_of(red, green, blue))
        red, green, blue = gray, gray, gray
    elif op == CHANNELS:
        red, green, blue = _ordered(value.to(tl.int32), red, green, blue)
    elif op == GAMMA:
        red, green, blue = _raised(red, value), _raised(green, value), _raised(blue, value)
    elif op == SOLARIZE_ADD:
        red, green, blue = _added(red, value), _added(green, value), _added(blue, value)
    return red, green, blue
