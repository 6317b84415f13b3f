"""All samples in turn, or shuffled in constant memory by a keyed permutation, or some of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gpupipe.errors import ConfigError
from gpupipe.order.feistel import ROUNDS, permute, round_keys, square_of, unpermute
from gpupipe.order.protocol import PERMUTATION, Indices, OnceEach, as_array, digest, made_of

__all__ = ["Sequential", "Shuffled", "Subset", "check_whole"]


@dataclass(frozen=True)
class Sequential(OnceEach):
    """0, 1, 2, ... in every epoch."""

    size: int

    def __len__(self) -> int:
        return self.size

    def indices(self, seed: int, epoch: int, positions: Indices) -> Indices:
        """The positions themselves."""
        return positions

    def _inverse(self, seed: int, epoch: int, indices: Indices) -> Indices:
        return indices

    @property
    def fingerprint(self) -> str:
        """Names the size."""
        return f"sequential-{self.size}"


@dataclass(frozen=True)
class Shuffled(OnceEach):
    """A new permutation of 0 ... size-1 in every epoch, in constant memory: a keyed bijection (`feistel.py`).

    Up to 2**62 samples.
    """

    size: int

    def __post_init__(self) -> None:
        if not 0 <= self.size < 2**62:
            raise ConfigError(f"Shuffled: size={self.size!r} must lie in [0, 2**62)")

    def __len__(self) -> int:
        return self.size

    def indices(self, seed: int, epoch: int, positions: Indices) -> Indices:
        """Where the permutation of (seed, epoch) sends the positions."""
        if self.size < 2:
            return positions
        return permute(positions, square_of(self.size), round_keys(seed, epoch, PERMUTATION))

    def _inverse(self, seed: int, epoch: int, indices: Indices) -> Indices:
        if self.size < 2:
            return indices
        return unpermute(indices, square_of(self.size), round_keys(seed, epoch, PERMUTATION))

    @property
    def fingerprint(self) -> str:
        """Names the algorithm and the size."""
        return f"shuffled-feistel{ROUNDS}-{self.size}"


@dataclass(frozen=True, eq=False)
class Subset:
    """Some of the samples: `subset` lists their indices, in the order in which they come unless `shuffle` is set.

    A list, tuple, range, array or tensor, or a `torch.utils.data.Subset`, such as random_split gives: its indices. Of
    one of another such one, they are those of the dataset that both are parts of.
    """

    subset: ArrayLike
    shuffle: bool = False
    _array: Indices = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_array", _indices(self.subset))

    def __len__(self) -> int:
        return len(self._array)

    @property
    def samples(self) -> int:
        """How many samples the dataset has to have."""
        return int(self._array.max(initial=-1)) + 1

    def indices(self, seed: int, epoch: int, positions: Indices) -> Indices:
        """The listed indices, shuffled by (seed, epoch) where that is asked for."""
        chosen: Indices = self._array[self._inner.indices(seed, epoch, positions)]
        return chosen

    def positions(self, seed: int, epoch: int, indices: Indices) -> Indices:
        """Where each sample stands, (times, N) with as many rows as it is listed times at most; -1: not that often.

        By a table that is made once, of 8 bytes for each listed index and each sample of the dataset.
        """
        order, begins = self._table
        at = np.minimum(indices, len(begins) - 2)
        counts = np.where(indices > at, 0, begins[at + 1] - begins[at])
        rows = np.arange(counts.max(initial=0))[:, None]
        listed = order[np.minimum(begins[at] + rows, len(order) - 1)]
        found = self._inner.positions(seed, epoch, listed.ravel()).reshape(listed.shape)
        return np.where(rows < counts, found, -1)

    @property
    def _parts(self) -> list[Any]:
        """The torch Subset that was given, and those that it is a part of: these indices are of none of them."""
        found: list[Any] = []
        part: Any = self.subset
        while _is_part(part) or (not found and _has_indices(part)):
            found.append(part)
            part = part.dataset
        return found

    @property
    def _inner(self) -> Sequential | Shuffled:
        return Shuffled(len(self)) if self.shuffle else Sequential(len(self))

    @cached_property
    def _table(self) -> tuple[Indices, Indices]:
        """Places in the list, sample by sample, and where each sample's begin and the last one's end."""
        begins = np.zeros(self.samples + 1, np.int64)
        np.cumsum(np.bincount(self._array, minlength=self.samples), out=begins[1:])
        return np.argsort(self._array, kind="stable").astype(np.int64), begins

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the indices."""
        return f"subset-{digest(self._array.tobytes(), bytes([self.shuffle]))}"


def _indices(subset: Any) -> Indices:
    """What a subset lists. Raises ConfigError."""
    if _has_indices(subset):  # to iterate over torch's would load its samples
        own, whole = _indices(subset.indices), subset.dataset
        return _indices(whole)[own] if _is_part(whole) else own
    array = as_array("Subset: subset", subset)
    if array.dtype == np.bool_:
        raise ConfigError("Subset: subset must list indices, got a mask of bool; pass numpy.flatnonzero(mask)")
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        raise ConfigError(
            f"Subset: subset must be one list of indices of 0 or more, got {array.dtype} of shape {array.shape}"
        )
    found = np.ascontiguousarray(array, dtype=np.int64)  # no copy of what is one already
    if (wrong := found < 0).any():
        raise ConfigError(f"Subset: subset must list indices from 0 to 2**63 - 1, got {array[wrong][0]}")
    return found


def _has_indices(subset: Any) -> bool:
    return hasattr(subset, "dataset") and hasattr(subset, "indices")


def _is_part(dataset: Any) -> bool:
    """Whether it is one of torch's: what any other dataset calls its `indices` may be something else."""
    import torch.utils.data

    return isinstance(dataset, torch.utils.data.Subset)


def check_whole(where: str, order: Any, data: Any) -> None:
    """Raise ConfigError, whose message begins with `where`, if an order has the indices of another dataset: it was made
    of a torch Subset, and `data` is that, or one between it and the dataset that its indices are of; or has it."""
    wrapped = data if _is_part(data) else getattr(data, "dataset", data)  # as a source of a dataset has it
    for one in made_of(order):
        parts = one._parts if isinstance(one, Subset) else []
        if any(part is wrapped for part in parts):
            whole = type(parts[-1].dataset).__name__
            raise ConfigError(
                f"{where}: the order Subset lists samples of the {whole} that its torch Subset is a part of, but the "
                f"data are a Subset of that; pass the {whole} as data, or the indices themselves, as in "
                "gpupipe.Subset(part.indices)"
            )
