"""Reading and writing of interleaved pixels, for the kernels of this package.

Three bytes a pixel fit no vector. Where the pixels of an image are a multiple of 4, a thread takes four neighbours, 12
bytes, as three 32-bit words (WORDS); otherwise single bytes.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["gather_levels", "gather_pixels", "load_pixels", "scatter_levels", "store_pixels"]


@triton.jit
def _four(a, b, c, d, PIXELS: tl.constexpr):
    """a[0], b[0], c[0], d[0], a[1], b[1], ..."""
    return tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), (PIXELS,))


@triton.jit
def _first_and_others(x, PIXELS: tl.constexpr):
    """The inverse of `_four`."""
    even, odd = tl.split(tl.reshape(x, (PIXELS // 4, 2, 2)))
    a, c = tl.split(even)
    b, d = tl.split(odd)
    return a, b, c, d


@triton.jit
def gather_levels(image, pixels, mask):
    """Red, green and blue of any pixels, in the type that `image` points to; 0 where not `mask`."""
    red = tl.load(image + 3 * pixels, mask=mask, other=0)
    green = tl.load(image + 3 * pixels + 1, mask=mask, other=0)
    blue = tl.load(image + 3 * pixels + 2, mask=mask, other=0)
    return red, green, blue


@triton.jit
def gather_pixels(image, pixels, mask):
    """The same as int32."""
    red, green, blue = gather_levels(image, pixels, mask)
    return red.to(tl.int32), green.to(tl.int32), blue.to(tl.int32)


@triton.jit
def scatter_levels(image, pixels, red, green, blue, mask):
    """The opposite of `gather_levels`."""
    tl.store(image + 3 * pixels, red, mask=mask)
    tl.store(image + 3 * pixels + 1, green, mask=mask)
    tl.store(image + 3 * pixels + 2, blue, mask=mask)


@triton.jit
def load_pixels(image, start, count, PIXELS: tl.constexpr, WORDS: tl.constexpr):
    """Red, green and blue of the pixels start to start + PIXELS of an image of `count` pixels, int32 0 to 255.

    image: pointer to uint8. Past the end 0.
    """
    if WORDS:
        quads = start // 4 + tl.arange(0, PIXELS // 4)
        words = image.to(tl.pointer_type(tl.int32)) + 3 * quads
        mask = quads < count // 4
        first = tl.load(words, mask=mask, other=0)
        second = tl.load(words + 1, mask=mask, other=0)
        third = tl.load(words + 2, mask=mask, other=0)
        red = _four(first, first >> 24, second >> 16, third >> 8, PIXELS)
        green = _four(first >> 8, second, second >> 24, third >> 16, PIXELS)
        blue = _four(first >> 16, second >> 8, third, third >> 24, PIXELS)
    else:
        pixels = start + tl.arange(0, PIXELS)
        mask = pixels < count
        red, green, blue = gather_levels(image, pixels, mask)
    # Of a word's shifted bits the lowest 8 are the level.
    return red.to(tl.int32) & 255, green.to(tl.int32) & 255, blue.to(tl.int32) & 255


@triton.jit
def store_pixels(image, start, count, red, green, blue, PIXELS: tl.constexpr, WORDS: tl.constexpr):
    """The opposite of `load_pixels`."""
    if WORDS:
        quads = start // 4 + tl.arange(0, PIXELS // 4)
        words = image.to(tl.pointer_type(tl.int32)) + 3 * quads
        mask = quads < count // 4
        r0, r1, r2, r3 = _first_and_others(red, PIXELS)
        g0, g1, g2, g3 = _first_and_others(green, PIXELS)
        b0, b1, b2, b3 = _first_and_others(blue, PIXELS)
        tl.store(words, r0 | (g0 << 8) | (b0 << 16) | (r1 << 24), mask=mask)
        tl.store(words + 1, g1 | (b1 << 8) | (r2 << 16) | (g2 << 24), mask=mask)
        tl.store(words + 2, b2 | (r3 << 8) | (g3 << 16) | (b3 << 24), mask=mask)
    else:
        pixels = start + tl.arange(0, PIXELS)
        mask = pixels < count
        scatter_levels(image, pixels, red.to(tl.uint8), green.to(tl.uint8), blue.to(tl.uint8), mask)
