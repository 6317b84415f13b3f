"""A shuffle in constant memory: a keyed permutation."""

from __future__ import annotations

from dataclasses import dataclass

from gpupipe.errors import ConfigError
from gpupipe.order.feistel import ROUNDS, permute, round_keys, square
from gpupipe.order.protocol import PERMUTATION, Indices

__all__ = ["Shuffled"]


@dataclass(frozen=True)
class Shuffled:
    """A new permutation of 0 ... size-1 in every epoch, in constant memory: a keyed bijection (`feistel.py`).

    Up to 2**62 samples.
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
        return permute(positions, square(self.size), round_keys(seed, epoch, PERMUTATION))

    @property
    def fingerprint(self) -> str:
        """Names the algorithm and the size."""
        return f"shuffled-feistel{ROUNDS}-{self.size}"
