"""Keyed permutations in constant memory.

A generalized Feistel network on a pair of digits (x // b, x % b), below a and b near the square root of the size, and
cycle walking past the few values of a*b that lie beyond it (Black and Rogaway, "Ciphers with arbitrary finite
domains", 2002).
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpupipe.kernels.feistel import Words, feistel, mix
from gpupipe.order.protocol import Indices, words

__all__ = ["Domain", "Words", "permute", "round_keys", "snug", "square", "square_of", "subkeys", "unpermute"]

ROUNDS = 12


@lru_cache(maxsize=64)
def round_keys(seed: int, epoch: int, operation: int) -> Words:
    """The 64-bit keys of one permutation, uint64 (ROUNDS, 1)."""
    drawn = words(seed, epoch, operation, np.arange(ROUNDS))
    keys: Words = (drawn[0] << np.uint64(32) | drawn[1])[:, None]
    keys.flags.writeable = False
    return keys


def subkeys(keys: Words, numbers: Indices) -> Words:
    """The keys of one permutation for each of the `numbers` (such as a batch's), uint64 (ROUNDS, N)."""
    return mix(keys ^ numbers.astype(np.uint64))


class Domain(NamedTuple):
    """What is permuted: [0, size), and how many values the two digits of its elements have. One for all positions,
    uint64 (1,), or one for each, (N,)."""

    size: Words
    a: Words
    b: Words

    def at(self, rows: NDArray[np.integer]) -> Domain:
        """The domain of each of the rows."""
        return Domain(*(_at(part, rows) for part in self))


@lru_cache(maxsize=64)
def square_of(size: int) -> Domain:
    """As `square`, of one size, found once."""
    return square(size)


def square(sizes: ArrayLike) -> Domain:
    """The domain, or domains, of so many elements, each from 1 below 2**62; a is the rounded up square root."""
    size = np.atleast_1d(np.asarray(sizes, dtype=np.uint64))
    a = np.ceil(np.sqrt(size)).astype(np.uint64)
    return Domain(size, a, _other(size, a))


def snug(sizes: ArrayLike) -> Domain:
    """As `square`, with an a up to a quarter larger where a*b is nearer to the size, so that few walks are needed.

    To be kept: finding it takes longer than it saves once.
    """
    size, root, _ = square(sizes)
    a = root
    for more in range(1, 32):
        wider = np.minimum(root + np.uint64(more), root + root // np.uint64(4))
        a = np.where(wider * _other(size, wider) < a * _other(size, a), wider, a)
    return Domain(size, a, _other(size, a))


def permute(positions: Indices, domain: Domain, keys: Words) -> Indices:
    """Where each position is sent by the permutation of its domain and keys, int64 (N,).

    positions: int64 (N,), each in [0, domain.size). keys: (ROUNDS, 1), or (ROUNDS, N) where each position belongs to a
    permutation of its own.
    """
    return _walked(positions, domain, keys, back=False)


def unpermute(sent: Indices, domain: Domain, keys: Words) -> Indices:
    """The positions that `permute` sends there: its inverse."""
    return _walked(sent, domain, keys, back=True)


def _walked(x: Indices, domain: Domain, keys: Words, back: bool) -> Indices:
    """Through the network, and again as long as that leads beyond the size."""
    size, a, b = domain
    found = feistel(x.astype(np.uint64), a, b, keys, back)
    outside = np.flatnonzero(found >= size)
    while len(outside):
        found[outside] = feistel(found[outside], _at(a, outside), _at(b, outside), _at(keys, outside), back)
        outside = outside[found[outside] >= _at(size, outside)]
    return found.astype(np.int64)


def _other(size: Words, a: Words) -> Words:
    """The least b with a * b >= size."""
    b: Words = (size + a - np.uint64(1)) // a
    return b


def _at(part: Words, rows: NDArray[np.integer]) -> Words:
    """The columns of what differs from position to position; what is one for all stays."""
    return part[..., rows] if part.shape[-1] > 1 else part
