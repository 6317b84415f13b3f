"""Which sample stands at which position of an epoch, as a pure function of (seed, epoch, position).

Step k of rank r reads the positions k*G + r*B ... k*G + (r+1)*B - 1, for B samples a rank and G = B * world_size.
No order holds random state, so any rank can resume at any position without replaying what came before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpupipe.errors import ConfigError
from gpupipe.philox import philox4x32, split64, uniform

if TYPE_CHECKING:
    import torch.utils.data

__all__ = ["Order", "RankBatches", "SamplerOrder", "Sequential", "Shuffled", "Subset", "Weighted"]

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


def _digest(*parts: bytes) -> str:
    return hashlib.blake2b(b"|".join(parts), digest_size=8).hexdigest()


@dataclass(frozen=True)
class Sequential:
    """0, 1, 2, ... in every epoch."""

    size: int

    def __len__(self) -> int:
        return self.size

    def indices(self, seed: int, epoch: int, positions: Indices) -> Indices:
        """The positions themselves."""
        return positions

    @property
    def fingerprint(self) -> str:
        """Names the size."""
        return f"sequential-{self.size}"


ROUNDS = 12
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SHIFT = (np.uint64(30), np.uint64(27), np.uint64(31))


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """splitmix64's finalizer (Steele, Lea, Flood 2014): 64 bits that look random, for each 64 bits in."""
    x = (x ^ (x >> _SHIFT[0])) * _MIX[0]
    x = (x ^ (x >> _SHIFT[1])) * _MIX[1]
    mixed: NDArray[np.uint64] = x ^ (x >> _SHIFT[2])
    return mixed


@lru_cache(maxsize=64)
def _round_keys(seed: int, epoch: int) -> tuple[np.uint64, ...]:
    words = philox4x32((np.arange(ROUNDS), 0, epoch, PERMUTATION), split64(seed))
    return tuple(words[0] << np.uint64(32) | words[1])


@dataclass(frozen=True)
class Shuffled:
    """A new permutation of 0 ... size-1 in every epoch, in constant memory.

    A keyed bijection: a generalized Feistel network on a pair of digits (x // b, x % b), with a, b about the square
    root of the size, and cycle walking past the few values of a*b that lie beyond it (Black and Rogaway, "Ciphers
    with arbitrary finite domains", 2002). Up to 2**62 samples.
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
        keys = _round_keys(seed, epoch)
        a, b = self._radices
        found = _feistel(positions.astype(np.uint64), a, b, keys)
        size = np.uint64(self.size)
        outside = np.flatnonzero(found >= size)
        while len(outside):
            found[outside] = _feistel(found[outside], a, b, keys)
            outside = outside[found[outside] >= size]
        return found.astype(np.int64)

    @property
    def _radices(self) -> tuple[np.uint64, np.uint64]:
        a = int(np.ceil(np.sqrt(self.size)))
        return np.uint64(a), np.uint64(-(-self.size // a))

    @property
    def fingerprint(self) -> str:
        """Names the algorithm and the size."""
        return f"shuffled-feistel{ROUNDS}-{self.size}"


def _feistel(x: NDArray[np.uint64], a: np.uint64, b: np.uint64, keys: Sequence[np.uint64]) -> NDArray[np.uint64]:
    """A permutation of [0, a*b): each round adds a hash of one digit to the other, in turn."""
    left, right = x // b, x % b
    for number, key in enumerate(keys):
        if number % 2 == 0:
            left = (left + _mix(right ^ key) % a) % a
        else:
            right = (right + _mix(left ^ key) % b) % b
    return left * b + right


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

    def indices(self, seed: int, epoch: int, positions: Indices) -> Indices:
        """The listed indices, shuffled by (seed, epoch) where that is asked for."""
        inner = Shuffled(len(self)) if self.shuffle else Sequential(len(self))
        chosen: Indices = self._array[inner.indices(seed, epoch, positions)]
        return chosen

    @property
    def fingerprint(self) -> str:
        """A hash of the indices."""
        return f"subset-{_digest(self._array.tobytes(), bytes([self.shuffle]))}"


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

    def __post_init__(self) -> None:
        weights = np.asarray(self.weights, dtype=np.float64)
        if weights.ndim != 1 or not len(weights) or not np.isfinite(weights).all() or (weights < 0).any():
            raise ConfigError("Weighted: weights must be one list of finite numbers of 0 or more")
        if weights.sum() <= 0:
            raise ConfigError("Weighted: all weights are 0, so nothing can be drawn")
        if self.num_samples is not None and self.num_samples < 0:
            raise ConfigError(f"Weighted: num_samples={self.num_samples} must be 0 or more")
        if not self.replacement and len(self) > np.count_nonzero(weights):
            raise ConfigError(
                f"Weighted: num_samples={len(self)} without replacement, but only {np.count_nonzero(weights)} "
                "weights are above 0; lower num_samples or set replacement=True"
            )
        object.__setattr__(self, "_cumulative", np.cumsum(weights))

    def __len__(self) -> int:
        return len(np.asarray(self.weights)) if self.num_samples is None else self.num_samples

    def indices(self, seed: int, epoch: int, positions: Indices) -> Indices:
        """An independent draw at each position, or the positions of one weighted permutation."""
        if not self.replacement:
            permuted: Indices = self._permutation(seed, epoch)[positions]
            return permuted
        unsigned = positions.astype(np.uint64)
        low, high = unsigned & np.uint64(0xFFFFFFFF), unsigned >> np.uint64(32)
        words = philox4x32((low, high, epoch, WEIGHTED), split64(seed))
        # 53 bits, so that a billion weights are still told apart.
        point = ((words[0] >> np.uint64(5)) * np.uint64(1 << 26) + (words[1] >> np.uint64(6))) * 2.0**-53
        found = np.searchsorted(self._cumulative, point * self._cumulative[-1], side="right")
        last: Indices = np.minimum(found, self._last_possible).astype(np.int64)
        return last

    @property
    def _last_possible(self) -> int:
        """The last sample with a weight: rounding may carry a point to the very end."""
        return int(np.searchsorted(self._cumulative, self._cumulative[-1], side="left"))

    def _permutation(self, seed: int, epoch: int) -> Indices:
        cached = self.__dict__.get("_epoch_cache")
        if cached is None or cached[0] != (seed, epoch):
            weights = np.diff(self._cumulative, prepend=0.0)
            numbers = np.arange(len(weights), dtype=np.uint64)
            low, high = numbers & np.uint64(0xFFFFFFFF), numbers >> np.uint64(32)
            u = uniform(philox4x32((low, high, epoch, WITHOUT_REPLACEMENT), split64(seed))[0])
            with np.errstate(divide="ignore"):
                keys = np.where(weights > 0, np.log(u) / weights, -np.inf)
            cached = ((seed, epoch), np.argsort(-keys, kind="stable")[: len(self)].astype(np.int64))
            object.__setattr__(self, "_epoch_cache", cached)
        permutation: Indices = cached[1]
        return permutation

    @property
    def fingerprint(self) -> str:
        """A hash of weights and settings."""
        return f"weighted-{_digest(self._cumulative.tobytes(), f'{len(self)}{self.replacement}'.encode())}"


@dataclass(frozen=True, eq=False)
class SamplerOrder:
    """Any sized torch `Sampler` as an order: its sequence is listed once an epoch.

    torch's global generator, and the sampler's own if it has one, are seeded from (seed, epoch) for the listing and
    put back after it, and `set_epoch` is called where there is one; so a sampler that draws from these gives the
    same sequence on every rank and after every resume. The listing has to hold whole indices for the whole world:
    pass a plain sampler, not a `DistributedSampler`, since the loader itself cuts the epoch into ranks.
    """

    sampler: torch.utils.data.Sampler[int]
    _cache: dict[tuple[int, int], Indices] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if not hasattr(self.sampler, "__len__"):
            raise ConfigError(f"SamplerOrder: {type(self.sampler).__name__} has no len(); give it a __len__")
        if getattr(self.sampler, "num_replicas", 1) > 1:
            raise ConfigError(
                f"SamplerOrder: {type(self.sampler).__name__} already cuts the epoch into num_replicas="
                f"{self.sampler.num_replicas} parts, and the loader would cut each of them again; "  # type: ignore[attr-defined]
                "pass shuffle=True or a sampler of the whole dataset"
            )

    def __len__(self) -> int:
        return len(self.sampler)  # type: ignore[arg-type]

    def indices(self, seed: int, epoch: int, positions: Indices) -> Indices:
        """The sampler's sequence at the positions."""
        if (seed, epoch) not in self._cache:
            listed = np.fromiter(self._listing(seed, epoch), dtype=np.int64)
            if len(listed) != len(self):
                raise ConfigError(
                    f"SamplerOrder: {type(self.sampler).__name__} yielded {len(listed)} indices, its len() says "
                    f"{len(self)}; make the two agree"
                )
            self._cache.clear()
            self._cache[seed, epoch] = listed
        return self._cache[seed, epoch][positions]

    def _listing(self, seed: int, epoch: int) -> list[int]:
        import torch

        low, high = (int(word) for word in philox4x32((0, 0, epoch, 0), split64(seed))[:2])
        keyed = (high << 31) ^ low
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)
        own = getattr(self.sampler, "generator", None)
        if isinstance(own, torch.Generator):
            own.manual_seed(keyed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(keyed)
            return list(self.sampler)

    @property
    def fingerprint(self) -> str:
        """Names the sampler's class and length."""
        return f"sampler-{type(self.sampler).__name__}-{len(self)}"


@dataclass(frozen=True)
class RankBatches:
    """How an epoch of `size` positions is cut into steps and ranks.

    Every rank has the same number of steps, and of rows in each step. Without `drop_last` the last step is short:
    each rank takes ceil(rest / world_size) rows of it, and fewer than world_size rows in all are padding: positions
    at or past `size`, which stand for the epoch's first positions again. A single rank never pads.
    """

    size: int
    batch_size: int
    rank: int = 0
    world_size: int = 1
    drop_last: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.batch_size, int) or self.batch_size < 1:
            raise ConfigError(f"batch_size={self.batch_size!r} must be an int of at least 1")
        if self.world_size < 1 or not 0 <= self.rank < self.world_size:
            raise ConfigError(f"rank={self.rank}, world_size={self.world_size}: rank must lie in [0, world_size)")

    @property
    def global_batch(self) -> int:
        """Samples a step over all ranks."""
        return self.batch_size * self.world_size

    def __len__(self) -> int:
        """Steps in an epoch."""
        whole, rest = divmod(self.size, self.global_batch)
        return whole + (rest > 0 and not self.drop_last)

    def positions(self, step: int) -> Indices:
        """int64 global positions that this rank reads at `step`; those at or past `size` are padding."""
        start = step * self.global_batch
        rows = min(self.batch_size, -(-(self.size - start) // self.world_size))
        first = start + self.rank * rows
        return np.arange(first, first + rows, dtype=np.int64)

    def padding(self, step: int) -> int:
        """How many of this rank's rows at `step` are padding; they are the last ones."""
        return int((self.positions(step) >= self.size).sum())

    def delivered(self, step: int) -> int:
        """Global positions done once `step` steps are."""
        return min(step * self.global_batch, self.size)
