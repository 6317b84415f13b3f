"""Training and validation sets by a hash of each sample's key."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.errors import ConfigError, DataError
from gpupipe.host.checks import whole
from gpupipe.order.protocol import Indices, classes_of

__all__ = ["split"]


def split(source: Any, fractions: Iterable[float], seed: int = 0, stratify: bool = False) -> list[Indices]:
    """Cut a source into parts: one int64 array of sample indices, ascending, for each of the `fractions`.

        train, val = gpupipe.split(source, (0.9, 0.1))
        loader = gpupipe.Loader(source, recipe, order=gpupipe.Subset(train, shuffle=True))

    A sample's part depends on the seed and its key alone (its path below the folder, its key in a shard): adding,
    removing or moving other samples changes it for none. The parts' sizes are those of a random draw: about the
    fractions. The samples of your own dataset have their index as key, so add new ones at its end; `gpupipe pack`
    writes new keys, so split before packing.

    source:    what `open_source` gives, or a dataset of your own (or a range of its indices).
    fractions: each 0 or more, in all at most 1; the rest is left out.
    stratify:  cut each class by itself, exactly: a part has its fraction of every class, rounded, so that its
               boundaries lie within half a sample of the fractions' sums. Samples stand in the order of their keys'
               hashes before the cut, so a sample that is added or removed moves at most one other, of its own class,
               over each cut.

    Raises ConfigError for bad settings, DataError where two samples have the same key or (stratify) the labels are not
    known without reading.
    """
    cuts = _cuts(list(fractions))
    whole("split: seed", seed, 0, 2**64)
    hashes = _hashes(_key(source), len(source), seed)
    parts = _in_each_class(hashes, _targets(source), cuts) if stratify else _by_hash(hashes, cuts)
    return [np.flatnonzero(parts == number).astype(np.int64) for number in range(len(cuts))]


def _key(data: Any) -> Callable[[int], str]:
    """A sample's key in a source, or its index in a dataset. Raises ConfigError for others, such as paths."""
    if callable(getattr(data, "key", None)):
        key: Callable[[int], str] = data.key
        return key
    parts = data if isinstance(data, list | tuple) else [data]
    named = any(isinstance(part, str | os.PathLike) for part in parts)
    if named or not hasattr(data, "__len__") or not hasattr(data, "__getitem__"):
        raise ConfigError(f"split: {type(data).__name__} is no source; pass gpupipe.open_source(data)")
    return str


def _targets(data: Any) -> NDArray[np.int64]:
    if not callable(getattr(data, "key", None)):
        raise DataError(
            f"split: the labels of {type(data).__name__} are known only by reading every sample; stratify needs those "
            "of a source: gpupipe.open_source(data)"
        )
    targets: NDArray[np.int64] = data.targets
    return targets


def _cuts(fractions: Sequence[float]) -> NDArray[np.float64]:
    """Where each part ends, of 1."""
    total = math.fsum(fractions)
    if not len(fractions) or not all(0 <= fraction <= 1 for fraction in fractions) or total > 1 + 1e-9:
        raise ConfigError(f"split: fractions={tuple(fractions)} must be numbers of 0 or more with a sum of at most 1")
    cuts = np.array([math.fsum(fractions[: number + 1]) for number in range(len(fractions))])
    return np.where(cuts > 1 - 1e-9, 1.0, cuts)  # 0.7 + 0.2 + 0.1 falls short of 1


def _hashes(key: Callable[[int], str], size: int, seed: int) -> NDArray[np.uint64]:
    """64 bits for each sample's key. Raises DataError where a key comes twice."""
    salted = hashlib.blake2b(digest_size=8, salt=int(seed).to_bytes(8, "little"))

    def hashed(index: int) -> bytes:
        hasher = salted.copy()  # faster than a new one: 2.0 s against 3.7 s for 1.28 million
        hasher.update(key(index).encode("utf-8", "surrogateescape"))
        return hasher.digest()

    hashes = np.frombuffer(b"".join(map(hashed, range(size))), "<u8").astype(np.uint64)
    order = np.argsort(hashes, kind="stable")
    for place in np.flatnonzero(np.diff(hashes[order]) == 0):
        one, other = int(order[place]), int(order[place + 1])
        if key(one) == key(other):  # else two keys with one hash, which does no harm
            raise DataError(
                f"split: samples {one} and {other} both have the key {key(one)!r}, so keys can't tell samples "
                "apart; where each shard counts its keys from 0, pack the shards anew with keys of their own"
            )
    return hashes


def _by_hash(hashes: NDArray[np.uint64], cuts: NDArray[np.float64]) -> Indices:
    """Each sample's part; len(cuts) means none."""
    points = (hashes >> np.uint64(11)) * 2.0**-53  # in [0, 1), exact
    parts: Indices = np.searchsorted(cuts, points, side="right").astype(np.int64)
    return parts


def _in_each_class(hashes: NDArray[np.uint64], labels: NDArray[np.int64], cuts: NDArray[np.float64]) -> Indices:
    """Each sample's part; len(cuts) means none."""
    _, of_sample, counts = classes_of("split", labels)
    order = np.lexsort((hashes, of_sample))
    sizes = counts[of_sample[order]]
    places = np.arange(len(order)) - (np.cumsum(counts) - counts)[of_sample[order]]
    parts = np.empty(len(order), np.int64)
    parts[order] = sum(places >= np.floor(cut * sizes + 0.5) for cut in cuts)
    return parts
