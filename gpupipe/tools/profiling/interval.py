"""What is known of a value that was measured several times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["CONFIDENCE", "Interval", "interval"]

CONFIDENCE = 0.95


class Interval(NamedTuple):
    """The value lies within `low` and `high` with this confidence, 0 to 1."""

    low: float
    high: float
    confidence: float

    @property
    def width(self) -> float:
        """Relative: 0.1 where the upper end is a tenth above the lower one."""
        return self.high / self.low - 1


def interval(values: Sequence[float]) -> Interval:
    """Of the median of what gives such values, whatever its distribution, with 95% confidence; of one value or more.

    Between the k-th smallest and the k-th largest it lies unless fewer than k values fall on one side of it, each with
    probability 1/2. Of fewer than six values it is their range, with the confidence that this has.

    >>> interval([5.0, 1.0, 2.0])
    Interval(low=1.0, high=5.0, confidence=0.75)
    >>> interval(range(1, 11))
    Interval(low=2, high=9, confidence=0.978515625)
    """
    ordered, n = sorted(values), len(values)
    outside, k = 2 / 2**n, 1  # the probability that the median lies outside of the k-th ones
    while 2 * (k + 1) <= n and (wider := outside + 2 * math.comb(n, k) / 2**n) <= 1 - CONFIDENCE:
        outside, k = wider, k + 1
    return Interval(ordered[k - 1], ordered[-k], 1 - outside)
