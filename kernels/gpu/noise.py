"""The noise of `erase_mix.noise`: standard normal numbers, by Box and Muller's transform of Philox's words.

The arithmetic is that of cpu/noise.h, in operations that IEEE 754 defines to the bit, and gives its bits. The functions
of CUDA's library would keep a table in local memory and take twice the registers.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["logarithm", "normal_levels", "normal_pixels", "philox", "uniform_pixels"]

ROOT = tl.constexpr(0x3F3504F3)  # the bits of sqrt(1/2)


@triton.jit
def philox(counter, key0, key1):
    """The four words, uint32, of Philox4x32-10 with the counter (counter, 0, 0, 0) and the key (key0, key1).

    counter: int32. key0, key1: int32, the bits of the two words.
    """
    key = key0.to(tl.uint32, bitcast=True).to(tl.uint64) | (key1.to(tl.uint32, bitcast=True).to(tl.uint64) << 32)
    return tl.philox(key, counter, counter * 0, counter * 0, counter * 0)


@triton.jit
def _uniform(words):
    return ((words >> 9).to(tl.float32) + 0.5) * 1.1920928955078125e-07  # 2**-23


@triton.jit
def logarithm(u):
    """ln(u). With u = 2**e * m and m near 1, ln(m) is a series in (m - 1) / (m + 1)."""
    bits = u.to(tl.int32, bitcast=True) + (0x3F800000 - ROOT)
    exponent = ((bits >> 23) - 127).to(tl.float32)
    m = ((bits & 0x007FFFFF) + ROOT).to(tl.float32, bitcast=True)
    s = tl.div_rn(m - 1.0, m + 1.0)
    z = s * s
    series = (((1 / 9 * z + 1 / 7) * z + 1 / 5) * z + 1 / 3) * z + 1.0
    return 2.0 * s * series + exponent * 0.693147181


@triton.jit
def _radius(words):
    return tl.sqrt_rn(-2.0 * logarithm(_uniform(words)))


@triton.jit
def _direction(words):
    """Cosine and sine of a part of a turn: series for the nearest quarter of a turn, at most pi / 4 away."""
    turns = _uniform(words)
    quarter = (4.0 * turns + 0.5).to(tl.int32)
    x = (turns - 0.25 * quarter.to(tl.float32)) * 6.28318531
    z = x * x
    sine = ((((1 / 362880 * z - 1 / 5040) * z + 1 / 120) * z - 1 / 6) * z + 1.0) * x
    cosine = (((1 / 40320 * z - 1 / 720) * z + 1 / 24) * z - 0.5) * z + 1.0
    odd = (quarter & 1) == 1
    cos, sin = tl.where(odd, sine, cosine), tl.where(odd, cosine, sine)
    return tl.where(((quarter + 1) & 2) == 2, -cos, cos), tl.where((quarter & 2) == 2, -sin, sin)


@triton.jit
def uniform_pixels(pixels, key0, key1):
    """Two float32 numbers from -1 to 1 for each of `pixels`."""
    first, second, _third, _fourth = philox(pixels, key0, key1)
    return _uniform(first) * 2.0 - 1.0, _uniform(second) * 2.0 - 1.0


@triton.jit
def normal_pixels(pixels, key0, key1):
    """Three float32 numbers for each of `pixels`, int32 y * width + x."""
    first, second, third, fourth = philox(pixels, key0, key1)
    cos, sin = _direction(second)
    blue, _ = _direction(fourth)
    radius = _radius(first)
    return radius * cos, radius * sin, _radius(third) * blue


@triton.jit
def normal_levels(at, key0, key1):
    """One float32 number for each of `at`, int32 3 * pixel + channel: those of `normal_pixels`."""
    first, second, third, fourth = philox(at // 3, key0, key1)
    blue = at % 3 == 2
    cos, sin = _direction(tl.where(blue, fourth, second))
    return _radius(tl.where(blue, third, first)) * tl.where(at % 3 == 1, sin, cos)
