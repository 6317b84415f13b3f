"""Epochs of another length."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpupipe.errors import ConfigError
from gpupipe.order.protocol import Indices, Order, check_count, check_order, digest, samples_of

__all__ = ["VirtualEpochs"]


@dataclass(frozen=True)
class VirtualEpochs:
    """Epochs of `num_samples` positions, cut from the endless stream of an order's own epochs.

    Position p of epoch e is position q = e * num_samples + p of that stream: position q % len(order) of the order's
    epoch q // len(order), which must stay below 2**32. So no sample is left out or favoured, however epochs are cut.
    """

    order: Order
    num_samples: int

    def __post_init__(self) -> None:
        check_order("VirtualEpochs", self.order)
        check_count("VirtualEpochs: num_samples", self.num_samples, low=1)

    def __len__(self) -> int:
        return self.num_samples

    @property
    def samples(self) -> int:
        """How many samples the dataset has to have."""
        return samples_of(self.order)

    def indices(self, seed: int, epoch: int, positions: Indices) -> Indices:
        """The order's samples at these positions of its stream. Raises ConfigError past its epoch 2**32 - 1."""
        whole, begin = divmod(epoch * int(self.num_samples), len(self.order))  # Python's integers: past 64 bits too
        later, at = np.divmod(positions + begin, len(self.order))
        found = np.empty(len(positions), np.int64)
        for epochs_later in np.unique(later).tolist():
            if whole + epochs_later >= 2**32:
                raise ConfigError(
                    f"VirtualEpochs: epoch {epoch} of {self.num_samples} samples lies in epoch {whole + epochs_later} "
                    f"of the order of {len(self.order)}, which must stay below 2**32; give fewer num_samples"
                )
            rows = later == epochs_later
            found[rows] = self.order.indices(seed, whole + epochs_later, at[rows])
        return found

    @property
    def fingerprint(self) -> str:
        """Names the length, with a hash of the order's fingerprint."""
        return f"virtual-{self.num_samples}-{digest(self.order.fingerprint.encode())}"
