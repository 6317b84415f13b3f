"""e**x, logarithms and cosines from additions, multiplications, divisions and square roots alone.

Those are the same to the bit on every processor; NumPy's functions are not, and no sample, box, operation or share of
a mix may depend on it. (The values of affine operations and blurs, rounded to float32, are made with NumPy's.)
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

__all__ = ["coarse", "cos_turn", "exp", "log", "normal"]

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
