"""What is asked for: one batch."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

__all__ = ["Job"]


@dataclass(frozen=True)
class Job:
    """One batch to make: the samples, and the counters from which each one's draws follow.

    indices, positions: int64 (N,). step: of the epoch. A job is small and picklable, so that it can be sent to a
    worker process, and it travels with its batch. ahead: the samples that its reader is asked for next, where a source
    wants to know.
    """

    seed: int
    epoch: int
    positions: NDArray[np.int64]
    indices: NDArray[np.int64]
    step: int = 0
    ahead: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.indices)

    def take(self, rows: NDArray[np.int64] | slice) -> Job:
        """The job of some of the rows."""
        return replace(self, positions=self.positions[rows], indices=self.indices[rows], ahead=None)
