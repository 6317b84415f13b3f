"""A shuffle in constant memory: a keyed permutation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from gpupipe.errors import ConfigError
from gpupipe.order.base import PERMUTATION, Indices, words

__all__ = ["Shuffled"]

ROUNDS = 12
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SHIFT = (np.uint64(30), np.uint64(27), np.uint64(31))


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """splitmix64's finalizer (Steele, Lea, Flood 2014): 64 bits that look random, for each 64 bits in."""
    x = (x ^ (x >> _SHIFT[0])) * _MIX[0]
    x = (x ^ (x >> _SHIFT[1])) * _MIX[1]
    mixed: NDArray[np.uint64] = x ^ (x >> _SHIFT[2])
    return mixed


@lru_cache(maxsize=64)
def _round_keys(seed: int, epoch: int) -> tuple[np.uint64, ...]:
    drawn = words(seed, epoch, PERMUTATION, np.arange(ROUNDS))
    return tuple(drawn[0] << np.uint64(32) | drawn[1])


@dataclass(frozen=True)
class Shuffled:
    """A new permutation of 0 ... size-1 in every epoch, in constant memory.

    A keyed bijection: a generalized Feistel network on a pair of digits (x // b, x % b), with a, b about the square
    root of the size, and cycle walking past the few values of a*b that lie beyond it (Black and Rogaway, "Ciphers
    with arbitrary finite domains", 2002). Up to 2**62 samples.
    """

    size: int

    def __post_init__(self) -> None:
        if not 0 <= self.size < 2**62:
            raise ConfigError(f"Shuffled: size={self.size!r} must lie in [0, 2**62)")

    def __len__(self) -> int:
        return self.size

    @property
    def samples(self) -> int:
        """How many samples the dataset has to have."""
        return self.size

    def indices(self, seed: int, epoch: int, positions: Indices) -> Indices:
        """Where the permutation of (seed, epoch) sends the positions."""
        if self.size < 2:
            return positions
        keys = _round_keys(seed, epoch)
        a, b = self._radices
        found = _feistel(positions.astype(np.uint64), a, b, keys)
        size = np.uint64(self.size)
        outside = np.flatnonzero(found >= size)
        while len(outside):
            found[outside] = _feistel(found[outside], a, b, keys)
            outside = outside[found[outside] >= size]
        return found.astype(np.int64)

    @property
    def _radices(self) -> tuple[np.uint64, np.uint64]:
        a = int(np.ceil(np.sqrt(self.size)))
        return np.uint64(a), np.uint64(-(-self.size // a))

    @property
    def fingerprint(self) -> str:
        """Names the algorithm and the size."""
        return f"shuffled-feistel{ROUNDS}-{self.size}"


def _feistel(x: NDArray[np.uint64], a: np.uint64, b: np.uint64, keys: Sequence[np.uint64]) -> NDArray[np.uint64]:
    """A permutation of [0, a*b): each round adds a hash of one digit to the other, in turn."""
    left, right = x // b, x % b
    for number, key in enumerate(keys):
        if number % 2 == 0:
            left = (left + _mix(right ^ key) % a) % a
        else:
            right = (right + _mix(left ^ key) % b) % b
    return left * b + right
