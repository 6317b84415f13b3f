"""Numbers from Beta(alpha, alpha), as a pure function of random words."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gpupipe.kernels.philox import uniform
from gpupipe.plan.elementary import cos_turn, exp, log

__all__ = ["symmetric_beta"]

Words = Callable[[range, NDArray[np.int64]], NDArray[np.uint64]]
BLOCKS = 16  # of two tries each: all fail once in 10**21 times


def symmetric_beta(alpha: float, rows: NDArray[np.int64], words: Words) -> NDArray[np.float64]:
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


def _rejected(alpha: float, rows: NDArray[np.int64], words: Words) -> NDArray[np.float64]:
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
