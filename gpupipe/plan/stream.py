"""Random words, keyed by what they are for: (seed, epoch, position, operation, view, block)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpupipe.kernels.philox import philox4x32, split64

__all__ = ["Stream", "below"]

# The fourth counter word: which operation draws (bits 16 to 23), for which view (8 to 15), and its how-manieth block of
# four words (0 to 7). Words from 2**24 on are the orders'. Augmentations take the operations from 16 on.
CROP, FLIP, ERASE, MIX, DECODER, DATASET, WORKERS = 0, 1 << 16, 2 << 16, 3 << 16, 4 << 16, 5 << 16, 6 << 16


class Stream:
    """Random words for some positions of an epoch, of one view."""

    def __init__(self, seed: int, epoch: int, positions: NDArray[np.int64], view: int = 0) -> None:
        assert 0 <= view < 256, view
        self.key = split64(seed)
        self.epoch = epoch
        self.view = np.uint64(view << 8)
        unsigned = positions.astype(np.uint64)
        self.low, self.high = unsigned & np.uint64(0xFFFFFFFF), unsigned >> np.uint64(32)

    def words(
        self, operation: int | NDArray[np.uint64], rows: NDArray[np.int64] | slice = slice(None)
    ) -> NDArray[np.uint64]:
        """uint64 (4, rows) below 2**32, or (4, operations, rows) for a column of operations."""
        word = np.asarray(operation, np.uint64) | self.view
        return philox4x32((self.low[rows], self.high[rows], self.epoch, word), self.key)


def below(word: NDArray[np.uint64], bound: NDArray[np.int64] | int) -> NDArray[np.int64]:
    """An integer in [0, bound), by multiply and shift; bound is at most 2**31."""
    product = word * np.asarray(bound).astype(np.uint64)
    index: NDArray[np.int64] = (product >> np.uint64(32)).astype(np.int64)
    return index
