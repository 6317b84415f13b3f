"""Whether all ranks list the same sequence: each reads a part of it, so that else samples are missing and double."""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
from typing import Any

import numpy as np

from gpupipe.errors import ConfigError
from gpupipe.loader.distributed import default_store
from gpupipe.order import Order, SamplerOrder
from gpupipe.order.protocol import Indices

__all__ = ["compare_between_ranks", "torch_sampler"]

log = logging.getLogger("gpupipe")

# Loaders are built in the same order on each rank; those without a sampler don't count, and may be one rank's alone.
_NUMBERS = itertools.count()


def compare_between_ranks(order: Order, world_size: int) -> None:
    """From now on, what a torch sampler in `order` lists is compared with what the other ranks list."""
    inner = torch_sampler(order)
    if inner is not None and world_size > 1:
        inner.watchers.append(_Comparison(next(_NUMBERS), world_size))


def torch_sampler(order: Order) -> SamplerOrder | None:
    """What lists a torch sampler for the order, if one does."""
    inner: Any = order
    while inner is not None and not isinstance(inner, SamplerOrder):
        inner = getattr(inner, "order", None)
    return inner


class _Comparison:
    """The first rank to come writes down what it lists, and each later one compares.

    In the store by which torch.distributed's ranks found each other; a collective would wait for ranks that list later,
    or never, or meet one of the training loop's, as a list may be made in a thread.
    """

    def __init__(self, number: int, world_size: int) -> None:
        self._number = number
        self._world_size = world_size

    def __call__(self, order: SamplerOrder, seed: int, epoch: int, listed: Indices) -> None:
        """Raise ConfigError where another rank has listed something else."""
        found = default_store(self._world_size)
        if found is None:
            return
        store, rank = found
        prefixes = _prefixes(listed)
        written = json.dumps([rank, prefixes])
        try:
            key = f"gpupipe/{self._number}/{order.name}/{seed}/{epoch}"
            first = json.loads(store.compare_set(key, "", written))
        except Exception as error:  # a kind of store that has no compare_set, or one that has gone
            log.debug("gpupipe: what ranks list is not compared: %s", error)
            return
        if first[1] != prefixes:
            raise ConfigError(_difference(order, epoch, rank, first[0], _common(prefixes, first[1])))


def _prefixes(listed: Indices) -> list[str]:
    """Hashes of the first 1, 2, 4, ... samples, and of all."""
    hasher = hashlib.blake2b(digest_size=8)
    found, done = [], 0
    for end in [*(2**power for power in range((len(listed) - 1).bit_length() if len(listed) else 0)), len(listed)]:
        hasher.update(np.ascontiguousarray(listed[done:end]).data)
        found.append(hasher.hexdigest())
        done = end
    return found


def _common(some: list[str], others: list[str]) -> int:
    """How many samples at the beginning are surely the same."""
    same = sum(one == other for one, other in zip(some, others, strict=False))
    return 2 ** (same - 1) if same else 0


def _difference(order: SamplerOrder, epoch: int, rank: int, other: int, same: int) -> str:
    who = f"on rank {rank} than on rank {other}" if rank != other else f"than before, on rank {rank}"
    where = f"from a position between {same} and {2 * same} on" if same else "from the first position on"
    return (
        f"order {order.name}: {type(order.sampler).__name__} lists other samples in epoch {epoch} {who}, {where}. "
        "Each rank reads a part of one list, so that samples would be missing and others come twice. It must be built "
        "of the same data everywhere, and draw from the global generators of torch, numpy or random or from one that "
        "it has as an attribute, which are seeded for it, not from a new one without a seed; or pass a gpupipe order"
    )
