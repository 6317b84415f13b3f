"""What an order is, and what orders share."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpupipe.errors import ConfigError
from gpupipe.kernels.philox import philox4x32, split64

__all__ = [
    *(
        "AHEAD",
        "LATEST",
        "EpochCache",
        "Indices",
        "OnceEach",
        "Order",
        "as_array",
        "check_order",
        "classes_of",
        "digest",
    ),
    *("is_invertible", "made_of", "makes_batches", "name_of", "positions_of", "samples_of", "with_parts", "words"),
]

Indices = NDArray[np.int64]

# The fourth counter word of an order's draws. `gpupipe.plan` has the words below 2**24 for itself.
PERMUTATION, WEIGHTED, WITHOUT_REPLACEMENT = 1 << 24, 2 << 24, 3 << 24
BLOCKS, WINDOWS = 4 << 24, 5 << 24
STRATA, CLASSES, BATCHES = 6 << 24, 7 << 24, 8 << 24
MIXTURE = 9 << 24
DEALS, SHARES = 10 << 24, 11 << 24
BUCKETS, TURNS = 12 << 24, 13 << 24
STREAM = 16 << 24


@runtime_checkable
class Order(Protocol):
    """A sequence of sample indices for every (seed, epoch). Implement these three to write your own.

    An order may have an inverse, too, by which a cache knows what is needed again, and when:

        positions(seed, epoch, indices) -> int64 (N,), or (times, N) where samples may come several times an epoch

    These are the positions at which `indices` has each of N samples, which need not differ; -1: it does not come, or
    not so many times. An order that is made of another gives None where that has no inverse.

    And it may make its global batches itself, of several sizes (see `Buckets`):

        largest: int, samples of the largest
        starts(seed, epoch) -> int64 (batches + 1,), where each begins, and where the last one ends: at len(self); of an
            order with an inverse as many in every epoch
        alike(seed, epoch, position, count) -> int64 (count,) or fewer: samples any of which may stand in for a bad one
            there, such as those of the same size. Without it those of the same batch do.
    """

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


class OnceEach:
    """An order in which every sample comes once an epoch, and that has an inverse."""

    def __len__(self) -> int:
        raise NotImplementedError

    @property
    def samples(self) -> int:
        """How many samples the dataset has to have."""
        return len(self)

    def positions(self, seed: int, epoch: int, indices: Indices) -> Indices:
        """Where each sample stands in an epoch, (N,); -1 for those beyond the order's."""
        inside = indices < self.samples
        if inside.all():
            return self._inverse(seed, epoch, indices)
        found = np.full(len(indices), -1, np.int64)
        found[inside] = self._inverse(seed, epoch, indices[inside])
        return found

    def _inverse(self, seed: int, epoch: int, indices: Indices) -> Indices:
        """The positions at which `indices` has these samples, each below `samples`."""
        raise NotImplementedError


def positions_of(order: Order, seed: int, epoch: int, indices: Indices) -> Indices | None:
    """All places in an epoch at which each of the samples stands, (times, N); -1: nowhere, or not so many times. None
    for an order without an inverse."""
    inverse = getattr(order, "positions", None)
    found = None if inverse is None else inverse(seed, epoch, indices)
    return None if found is None else np.atleast_2d(found)


def is_invertible(order: Order) -> bool:
    """Whether it says where a sample comes."""
    return positions_of(order, 0, 0, np.empty(0, np.int64)) is not None


def makes_batches(order: Any) -> bool:
    """Whether it makes its global batches itself, of several sizes."""
    return getattr(order, "starts", None) is not None


def name_of(order: Order) -> str:
    """What a message calls an order: its fingerprint, or less where making that would be dear or fail."""
    return str(getattr(order, "name", None) or order.fingerprint)


def made_of(order: Any) -> list[Any]:
    """The order, and those that it is made of, each once."""
    return with_parts(order, _inner_orders)


def _inner_orders(order: Any) -> list[Any]:
    several = getattr(order, "orders", None)
    inner = [getattr(order, "order", None), *(several if isinstance(several, list | tuple) else ())]
    return [each for each in inner if each is not None]


def with_parts(whole: Any, parts: Callable[[Any], Iterable[Any]]) -> list[Any]:
    """It, its parts and theirs, each object once and before those that it is made of itself."""
    found: list[Any] = []
    waiting = [whole]
    for one in waiting:  # which grows
        if all(one is not other for other in found):
            found.append(one)
            waiting += parts(one)
    return found


def samples_of(order: Any) -> int:
    """How many samples the dataset has to have for an order or a torch sampler; 0 where it does not say."""
    return int(getattr(order, "samples", 0))


def check_order(where: str, order: Any) -> None:
    """Raise ConfigError unless `order` is one that another can be made of and has a position to give."""
    if not isinstance(order, Order):
        raise ConfigError(
            f"{where}: {type(order).__name__} is no order: it needs len(), indices(seed, epoch, positions) and a "
            "fingerprint; wrap a torch Sampler in gpupipe.order.SamplerOrder"
        )
    if makes_batches(order):
        raise ConfigError(
            f"{where}: the order {name_of(order)} makes its batches itself, which another order would cut apart; pass "
            "it to the Loader as it is, or make it of that order: BudgetBatches takes any"
        )
    if not len(order):
        raise ConfigError(f"{where}: the order {name_of(order)} is empty, so it has no sample to give")


def as_array(where: str, values: Any, of: str = "integers") -> NDArray[Any]:
    """A list, tuple, range, array, tensor, or anything else to iterate over as an array; an empty one is of int64.

    Raises ConfigError, whose message begins with `where`, for what is none of these.
    """
    if isinstance(values, range):
        return np.arange(values.start, values.stop, values.step)
    try:
        plain = isinstance(values, list | tuple) or hasattr(values, "__array__")
        array = np.asarray(values if plain else list(values))
    except (TypeError, ValueError) as error:  # nothing to iterate over, rows of several lengths, a tensor on a GPU
        raise ConfigError(f"{where} must be one list of {of}, not {type(values).__name__}: {error}") from error
    return array if array.size else array.astype(np.int64)


def classes_of(where: str, labels: ArrayLike) -> tuple[NDArray[np.integer], Indices, Indices]:
    """The C different labels in ascending order, each sample's place among them (N,), and each one's samples (C,).

    Raises ConfigError, whose message begins with `where`, unless `labels` is one list of one integer or more.
    """
    array = as_array(f"{where}: labels", labels)
    if array.ndim != 1 or not len(array) or not np.issubdtype(array.dtype, np.integer):
        raise ConfigError(
            f"{where}: labels must be one list of integers, such as source.targets; got {array.dtype} of shape "
            f"{array.shape}"
        )
    found, of_sample, counts = np.unique(array, return_inverse=True, return_counts=True)
    return found, of_sample.astype(np.int64), counts.astype(np.int64)


Made = TypeVar("Made")


LATEST = 2  # epochs that are kept of what the order itself needs, as one may still be read when the next has begun
AHEAD = 64
"""Epochs that are kept of what an inverse needs of each, where it is small: a cache asks for all of these in turn."""


class EpochCache(Generic[Made]):
    """What `make(seed, epoch)` gives, kept of the latest epochs: batches of the same epoch come one after the other."""

    def __init__(self, make: Callable[[int, int], Made], keeps: int = 1) -> None:
        self._make = make
        self._keeps = keeps
        self._made: dict[tuple[int, int], Made] = {}

    def __call__(self, seed: int, epoch: int) -> Made:
        made = self._made.get((seed, epoch))
        if made is None:
            made = self._make(seed, epoch)
            latest = [*self._made.items(), ((seed, epoch), made)][-self._keeps :]
            self._made = dict(latest)  # at once, as another thread may ask
        return made


def digest(*parts: bytes) -> str:
    """16 hex digits of a hash over the parts."""
    return hashlib.blake2b(b"|".join(parts), digest_size=8).hexdigest()


def words(seed: int, epoch: int, operation: int, numbers: Indices) -> NDArray[np.uint64]:
    """Four random 32-bit words for each of the `numbers` (positions or sample indices), uint64 (4, N)."""
    unsigned = numbers.astype(np.uint64)
    low, high = unsigned & np.uint64(0xFFFFFFFF), unsigned >> np.uint64(32)
    return philox4x32((low, high, epoch, operation), split64(seed))
