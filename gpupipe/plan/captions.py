"""Which of a sample's texts is its own in an epoch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpupipe.plan.stream import CAPTION, Stream, below

__all__ = ["captions"]


def captions(
    seed: int, epoch: int, positions: NDArray[np.int64], counts: NDArray[np.int64], field: int = 0
) -> NDArray[np.int64]:
    """Of the samples at these positions of an epoch, which of `counts` texts each has: int64 (N,).

    field: which of a sample's fields of several texts, the first one 0; each draws by itself, up to 256 of them.
    """
    return below(Stream(seed, epoch, positions, field=field % 256).words(CAPTION)[0], counts)
