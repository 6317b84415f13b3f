"""e**x, logarithms, cosines, normal and Beta numbers, of additions, multiplications, divisions and square roots alone.

Those are the same to the bit on every processor; NumPy's functions are not, and no sample, box, operation or share of
a mix may depend on it. (The values of affine operations and blurs, rounded to float32, are made with NumPy's.)
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gpupipe.kernels.philox import uniform

__all__ = ["coarse", "cos_turn", "exp", "log", "normal", "symmetric_beta"]

Floats = NDArray[np.float64]

# log(2) as a number of 32 bits, so that it can be multiplied with a whole number exactly, and the rest.
LOG2, LOG2_REST = 0.6931471803691238, 1.9082149292705877e-10


def coarse(value: float) -> float:
    """`value` to 40 binary places: the logarithms of two mathematical libraries may differ in the last ones."""
    return round(value * 2**40) / 2**40


def exp(x: Floats) -> Floats:
    """e**x, for x up to 700, with a relative error below 1e-13; 0 where that is too small for a float.

    Up to |x| = 4 by the series alone, which random crops have always been drawn with, beyond by a power of 2 besides.
    """
    if np.abs(x).max(initial=0.0) <= 4:
        return _exp_series(x)
    x = np.maximum(x, -760.0)
    power = np.where(np.abs(x) > 4, np.rint(x / LOG2), 0.0)
    rest = (x - power * LOG2) - power * LOG2_REST
    return np.ldexp(_exp_series(rest), power.astype(np.int32))


def _exp_series(x: Floats) -> Floats:
    """Taylor series of e**(x/8), squared three times."""
    x = x / 8
    total = np.ones_like(x)
    for n in range(16, 0, -1):
        total = total * x / n + 1
    for _ in range(3):
        total = total * total
    return total


def log(x: Floats) -> Floats:
    """The natural logarithm, for x above 0, to a few units in the last place.

    x = m * 2**k with m between 0.7 and 1.4, whose logarithm is 2 * artanh((m - 1) / (m + 1)), as a series.
    """
    part, power = np.frexp(x)
    small = part < math.sqrt(0.5)
    part, power = np.where(small, 2 * part, part), np.where(small, power - 1, power).astype(np.float64)
    ratio = (part - 1) / (part + 1)
    square = ratio * ratio
    total = np.zeros_like(ratio)
    for n in range(25, 1, -2):
        total = (total + 1 / n) * square
    out: Floats = power * LOG2 + (power * LOG2_REST + 2 * ratio * (1 + total))
    return out


def cos_turn(turn: Floats) -> Floats:
    """cos(2 * pi * turn), for turns of at most some thousands, with an error below 1e-15.

    By the series of sine or cosine, in the eighth of the circle to either side of the nearest quarter turn.
    """
    quarter = np.rint(4 * turn)
    angle = (2 * math.pi) * (turn - quarter / 4)
    square = angle * angle
    cosine, sine = np.ones_like(angle), np.ones_like(angle)
    for n in range(9, 0, -1):
        cosine = 1 - cosine * square / ((2 * n - 1) * (2 * n))
        sine = 1 - sine * square / ((2 * n) * (2 * n + 1))
    sine = sine * angle
    which = quarter.astype(np.int64) % 4
    return np.select([which == 0, which == 1, which == 2], [cosine, -sine, -cosine], sine)


def normal(first: Floats, second: Floats) -> Floats:
    """Standard normal numbers from two uniform ones, by Box and Muller's transform (1958)."""
    return np.sqrt(-2 * log(first)) * cos_turn(second)


# Numbers from Beta(alpha, alpha), as a pure function of random words.

Words = Callable[[range, NDArray[np.int64]], NDArray[np.uint64]]
BLOCKS = 16  # of two tries each: all fail once in 10**21 times


def symmetric_beta(alpha: float, rows: NDArray[np.int64], words: Words) -> Floats:
    """float64 (rows,) in [0, 1]: one number for each of `rows`.

    words(blocks, rows) gives random words, (4, blocks, rows).

    From alpha = 1/2 on by the formula of Ulrich (1984, "Computer generation of distributions on the m-sphere", Applied
    Statistics 33), which takes two uniform numbers and rejects none; below by Jöhnk's rejection (1964).
    """
    if alpha < 0.5:
        return _rejected(alpha, rows, words)
    first, second = uniform(words(range(1), rows)[:2, 0])
    # U**(2 / (2 alpha - 1)), whose limit for 1/2 is 0.
    power = exp(log(first) * (2 / (2 * alpha - 1))) if alpha > 0.5 else np.zeros_like(first)
    return 0.5 * (1 + np.sqrt(1 - power) * cos_turn(second))


def _rejected(alpha: float, rows: NDArray[np.int64], words: Words) -> Floats:
    """X / (X + Y) for X = U**(1 / alpha), Y = V**(1 / alpha), of the first U and V with X + Y up to 1."""
    out = np.full(len(rows), 0.5)
    left = np.arange(len(rows))
    for blocks in (range(1), range(1, BLOCKS)):
        drawn = log(uniform(words(blocks, rows[left]))) / alpha  # the logarithms of X, Y, X, Y, since X may be 0
        x, y = (np.concatenate([drawn[at], drawn[at + 2]]) for at in (0, 1))  # (tries, rows)
        fits = exp(x) + exp(y) <= 1
        first, found = fits.argmax(axis=0), fits.any(axis=0)
        at = first[found], found.nonzero()[0]
        out[left[found]] = 1 / (1 + exp(np.minimum(y[at] - x[at], 700.0)))
        left = left[~found]
    return out
