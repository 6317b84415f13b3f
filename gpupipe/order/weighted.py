"""Samples drawn by weight."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpupipe.errors import ConfigError
from gpupipe.host.checks import whole
from gpupipe.kernels.philox import uniform
from gpupipe.order.protocol import (
    WEIGHTED,
    WITHOUT_REPLACEMENT,
    EpochCache,
    Indices,
    as_array,
    classes_of,
    digest,
    words,
)

__all__ = ["Weighted"]


@dataclass(frozen=True, eq=False)
class Weighted:
    """Samples drawn by weight, as `torch.utils.data.WeightedRandomSampler` means it.

    weights:     one for each sample, 0 or more, not all 0; they need not sum to 1.
    num_samples: positions in an epoch; by default as many as there are weights.
    replacement: False draws each sample at most once in an epoch (by Efraimidis and Spirakis, "Weighted random
                 sampling with a reservoir", 2006: the largest u**(1/w)); that sorts all samples once an epoch.
    """

    weights: ArrayLike
    num_samples: int | None = None
    replacement: bool = True
    _cumulative: NDArray[np.float64] = field(init=False, repr=False)
    _hashed: NDArray[np.float64] = field(init=False, repr=False)
    """What the draws go by. Without replacement, also of weights that vanish in the sums of those before."""
    _permutation: EpochCache[Indices] = field(init=False, repr=False)

    @classmethod
    def balanced(cls, labels: ArrayLike, num_samples: int | None = None) -> Weighted:
        """Every class equally likely at every position, and every sample of a class.

        labels: one integer for each sample, such as `source.targets`. num_samples: as in `Weighted`.
        """
        _, of_sample, counts = classes_of("Weighted.balanced", labels)
        return cls(1 / counts[of_sample], num_samples)

    def __post_init__(self) -> None:
        weights = as_array("Weighted: weights", self.weights, of="numbers")
        if weights.dtype.kind not in "biuf":
            raise ConfigError(f"Weighted: weights must be one list of numbers, got {weights.dtype}")
        weights = weights.astype(np.float64)
        if weights.ndim != 1 or not len(weights) or not np.isfinite(weights).all() or (weights < 0).any():
            raise ConfigError("Weighted: weights must be one list of finite numbers of 0 or more")
        with np.errstate(over="ignore"):
            cumulative = np.cumsum(weights)
        if cumulative[-1] <= 0:
            raise ConfigError("Weighted: all weights are 0, so nothing can be drawn")
        if not np.isfinite(cumulative[-1]):
            raise ConfigError("Weighted: the weights' sum is not finite; scale them, as only their proportions count")
        if self.num_samples is not None:
            whole("Weighted: num_samples", self.num_samples, 0, 2**62)
        object.__setattr__(self, "_cumulative", cumulative)
        object.__setattr__(self, "_hashed", cumulative if self.replacement else weights)
        object.__setattr__(self, "_permutation", EpochCache(partial(_permutation, weights, len(self))))
        if not self.replacement and len(self) > np.count_nonzero(weights):
            raise ConfigError(
                f"Weighted: num_samples={len(self)} without replacement, but only {np.count_nonzero(weights)} "
                "weights are above 0; lower num_samples or set replacement=True"
            )

    def __len__(self) -> int:
        return len(self._cumulative) if self.num_samples is None else self.num_samples

    @property
    def samples(self) -> int:
        """How many samples the dataset has to have."""
        return len(self._cumulative)

    def indices(self, seed: int, epoch: int, positions: Indices) -> Indices:
        """An independent draw at each position, or the positions of one weighted permutation."""
        if not self.replacement:
            permuted: Indices = self._permutation(seed, epoch)[positions]
            return permuted
        drawn = words(seed, epoch, WEIGHTED, positions)
        # 53 bits, so that a billion weights are still told apart.
        point = ((drawn[0] >> np.uint64(5)) * np.uint64(1 << 26) + (drawn[1] >> np.uint64(6))) * 2.0**-53
        found = np.searchsorted(self._cumulative, point * self._cumulative[-1], side="right")
        # Rounding may carry a point to the very end, past the last sample with a weight.
        last = np.searchsorted(self._cumulative, self._cumulative[-1], side="left")
        drawn_samples: Indices = np.minimum(found, last).astype(np.int64)
        return drawn_samples

    @cached_property
    def fingerprint(self) -> str:
        """A hash of weights and settings."""
        return f"weighted-{digest(self._hashed.tobytes(), f'{len(self)}{self.replacement}'.encode())}"


def _permutation(weights: NDArray[np.float64], size: int, seed: int, epoch: int) -> Indices:
    """The first `size` samples of a weighted permutation."""
    u = uniform(words(seed, epoch, WITHOUT_REPLACEMENT, np.arange(len(weights)))[0])
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        keys = np.log(u) / weights
    drawn = np.flatnonzero(weights)  # alone, as keys of tiny weights are -inf, too
    return drawn[np.argsort(-keys[drawn], kind="stable")][:size].astype(np.int64)
