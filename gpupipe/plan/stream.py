"""Random words, keyed by what they are for: (seed, epoch, position, field, operation, view, block)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpupipe.errors import ConfigError
from gpupipe.kernels.philox import philox4x32, split64

__all__ = ["Stream", "below"]

# An operation draws by two counter words. The fourth: its number (bits 16 to 23), the view (8 to 15), and the
# how-manieth block of four words it is (0 to 7). The second is the upper half of the position, below 2**16; above it
# the page of further operations (16 to 23) and the image field (24 to 31). Here an operation is both in one number,
# its page from bit 24 on. Fourth words from 2**24 on are the orders'. Augmentations take the operations from 16 on,
# of every page.
CROP, FLIP, ERASE, MIX, DECODER, DATASET, WORKERS = 0, 1 << 16, 2 << 16, 3 << 16, 4 << 16, 5 << 16, 6 << 16
PER_IMAGE, ON_BATCH, CAPTION = 7 << 16, 8 << 16, 9 << 16
IOU, ZOOM = 10 << 16, 11 << 16
MOSAIC, PARTNER, BLEND, PASTE = 12 << 16, 13 << 16, 14 << 16, 15 << 16
CLIP = 1 << 24
POSITIONS = 1 << 48
PAGE, FIELD, OPERATION = np.uint64(16), np.uint64(24), np.uint64(24)
FOURTH, LOW = np.uint64((1 << 24) - 1), np.uint64(0xFFFFFFFF)


class Stream:
    """Random words for some positions of an epoch, of one view of one image field.

    positions: int64 (N,), from 0 to below 2**48, else ConfigError. view, field: 0 to 255; view also one each, (N,).
    """

    def __init__(
        self, seed: int, epoch: int, positions: NDArray[np.int64], view: int | NDArray[np.int64] = 0, field: int = 0
    ) -> None:
        assert np.min(view, initial=0) >= 0, view
        assert np.max(view, initial=0) < 256, view
        assert 0 <= field < 256, field
        unsigned = positions.astype(np.uint64)
        if len(unsigned) and unsigned.max() >= POSITIONS:
            raise ConfigError(
                f"position {positions[int(unsigned.argmax())]} can't be drawn for: an epoch's positions must lie in "
                f"[0, 2**48); give an order with fewer samples an epoch"
            )
        self.key = split64(seed)
        self.epoch = epoch
        self.view = np.asarray(view, np.uint64) << np.uint64(8)
        self.low, self.high = unsigned & LOW, (unsigned >> np.uint64(32)) | (np.uint64(field) << FIELD)

    def words(
        self, operation: int | NDArray[np.uint64], rows: NDArray[np.int64] | slice = slice(None)
    ) -> NDArray[np.uint64]:
        """uint64 (4, rows) below 2**32, or (4, operations, rows) for a column of operations."""
        operations = np.asarray(operation, np.uint64)
        high = self.high[rows] | (operations >> OPERATION << PAGE)
        view = self.view[rows] if self.view.ndim else self.view
        return philox4x32((self.low[rows], high, self.epoch, operations & FOURTH | view), self.key)


def below(word: NDArray[np.uint64], bound: NDArray[np.int64] | int) -> NDArray[np.int64]:
    """An integer in [0, bound), by multiply and shift; bound is at most 2**31."""
    product = word * np.asarray(bound).astype(np.uint64)
    index: NDArray[np.int64] = (product >> np.uint64(32)).astype(np.int64)
    return index
