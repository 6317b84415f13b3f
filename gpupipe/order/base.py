"""What an order is, and what orders share."""

from __future__ import annotations

import hashlib
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from gpupipe.philox import philox4x32, split64

__all__ = ["Indices", "Order", "digest", "words"]

Indices = NDArray[np.int64]

# The fourth counter word of an order's draws. `draws.py` has the words below 2**24 for itself.
PERMUTATION, WEIGHTED, WITHOUT_REPLACEMENT = 1 << 24, 2 << 24, 3 << 24


@runtime_checkable
class Order(Protocol):
    """A sequence of sample indices for every (seed, epoch). Implement these three to write your own."""

    def __len__(self) -> int:
        """Positions in an epoch."""
        ...

    def indices(self, seed: int, epoch: int, positions: Indices) -> Indices:
        """int64 sample indices at int64 `positions`, each in [0, len(self)); the same arguments, the same answer."""
        ...

    @property
    def fingerprint(self) -> str:
        """A short text that differs between orders that differ."""
        ...


def digest(*parts: bytes) -> str:
    """16 hex digits of a hash over the parts."""
    return hashlib.blake2b(b"|".join(parts), digest_size=8).hexdigest()


def words(seed: int, epoch: int, operation: int, numbers: Indices) -> NDArray[np.uint64]:
    """Four random 32-bit words for each of the `numbers` (positions or sample indices), uint64 (4, N)."""
    unsigned = numbers.astype(np.uint64)
    low, high = unsigned & np.uint64(0xFFFFFFFF), unsigned >> np.uint64(32)
    return philox4x32((low, high, epoch, operation), split64(seed))
