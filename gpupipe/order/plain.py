"""Orders that list their samples: all of them in turn, or some."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from gpupipe.errors import ConfigError
from gpupipe.order.base import Indices, digest
from gpupipe.order.shuffled import Shuffled

__all__ = ["Sequential", "Subset"]


@dataclass(frozen=True)
class Sequential:
    """0, 1, 2, ... in every epoch."""

    size: int

    def __len__(self) -> int:
        return self.size

    @property
    def samples(self) -> int:
        """How many samples the dataset has to have."""
        return self.size

    def indices(self, seed: int, epoch: int, positions: Indices) -> Indices:
        """The positions themselves."""
        return positions

    @property
    def fingerprint(self) -> str:
        """Names the size."""
        return f"sequential-{self.size}"


@dataclass(frozen=True, eq=False)
class Subset:
    """Some of the samples: `subset` lists their indices, in the order in which they come unless `shuffle` is set."""

    subset: ArrayLike
    shuffle: bool = False
    _array: Indices = field(init=False, repr=False)

    def __post_init__(self) -> None:
        array = np.ascontiguousarray(self.subset, dtype=np.int64)
        if array.ndim != 1 or (array < 0).any():
            raise ConfigError(f"Subset: subset must be one list of indices of 0 or more, got shape {array.shape}")
        object.__setattr__(self, "_array", array)

    def __len__(self) -> int:
        return len(self._array)

    @property
    def samples(self) -> int:
        """How many samples the dataset has to have."""
        return int(self._array.max(initial=-1)) + 1

    def indices(self, seed: int, epoch: int, positions: Indices) -> Indices:
        """The listed indices, shuffled by (seed, epoch) where that is asked for."""
        inner = Shuffled(len(self)) if self.shuffle else Sequential(len(self))
        chosen: Indices = self._array[inner.indices(seed, epoch, positions)]
        return chosen

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the indices."""
        return f"subset-{digest(self._array.tobytes(), bytes([self.shuffle]))}"
