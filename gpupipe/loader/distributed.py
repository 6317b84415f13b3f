"""Which rank this process is and of how many, what the ranks say together, and whether all list the same sequence: each
reads a part of it, so that else samples are missing and double."""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import os
from typing import Any

import numpy as np
import torch
import torch.distributed

from gpupipe.errors import ConfigError
from gpupipe.host.checks import whole
from gpupipe.host.system import local_world_size
from gpupipe.order import Order, SamplerOrder
from gpupipe.order.protocol import Indices, made_of

__all__ = [
    "check_world_size",
    "compare_between_ranks",
    "gathered",
    "rank_and_world_size",
    "ranks_of_node",
    "torch_samplers",
]

log = logging.getLogger("gpupipe")

# Loaders are built in the same order on each rank; those without a sampler don't count, and may be one rank's alone.
_NUMBERS = itertools.count()


def rank_and_world_size(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """The given pair, else torch.distributed's, else RANK and WORLD_SIZE (as torchrun sets them), else (0, 1)."""
    if (rank is None) != (world_size is None):
        raise ConfigError(f"rank={rank}, world_size={world_size}: pass both or neither")
    if rank is not None and world_size is not None:
        return whole("rank", rank, 0), whole("world_size", world_size, 1)
    if _is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    own_rank, size = _from_environment("RANK"), _from_environment("WORLD_SIZE")
    if size is not None and size > 1 and own_rank is None:
        raise ConfigError(
            f"WORLD_SIZE={size} is set, but not RANK, so every process would take itself for rank 0 and read the same "
            "samples; build the Loader after torch.distributed.init_process_group (in Lightning: in "
            "train_dataloader()), or pass rank and world_size"
        )
    if own_rank and size is None:
        raise ConfigError(f"RANK={own_rank} is set, but not WORLD_SIZE; set both, as torchrun does, or unset RANK")
    return own_rank or 0, size or 1


def ranks_of_node(rank: int, world_size: int) -> range:
    """The ranks that share this machine: LOCAL_WORLD_SIZE of them (as torchrun sets it), numbered in a row; by
    LOCAL_RANK, or as if every machine had as many. Without it, this one alone."""
    count = local_world_size()
    local = _from_environment("LOCAL_RANK")
    first = rank - (rank % count if local is None else local)
    if count == 1 and _is_initialized() and world_size > 1 and "LOCAL_WORLD_SIZE" not in os.environ:
        log.warning(
            "gpupipe: LOCAL_WORLD_SIZE is not set, so this rank takes itself for the only one of its machine and plans "
            "the disk cache alone; if others share that, set LOCAL_WORLD_SIZE and LOCAL_RANK, as torchrun does"
        )
    return range(max(0, min(first, rank)), max(rank + 1, min(first + count, world_size)))


def check_world_size(world_size: int) -> None:
    """Raise ConfigError where torch.distributed was initialized with another size since `rank_and_world_size`."""
    if _is_initialized() and torch.distributed.get_world_size() != world_size:
        raise ConfigError(
            f"the Loader was built for world_size={world_size}, but torch.distributed now has "
            f"{torch.distributed.get_world_size()} ranks, which would read the same samples; build it after "
            "init_process_group, or pass rank and world_size"
        )


def _default_store(world_size: int) -> tuple[Any, int] | None:
    """Where torch.distributed's ranks leave notes for each other, and this rank's number.

    None where there are not `world_size` of them, or no such place.
    """
    if not _is_initialized() or torch.distributed.get_world_size() != world_size:
        return None
    try:
        from torch.distributed.distributed_c10d import _get_default_store

        return _get_default_store(), torch.distributed.get_rank()
    except (ImportError, ValueError, RuntimeError):  # an inner part of torch's
        return None


def gathered(values: torch.Tensor, world_size: int) -> torch.Tensor:
    """The rows of every rank's `values`, which have one shape on all ranks, in the order of the ranks."""
    if world_size == 1:
        return values
    ranks = torch.distributed.get_world_size() if _is_initialized() else "not been initialized"
    if ranks != world_size:
        raise ConfigError(
            f"gather: the loader has world_size={world_size}, so torch.distributed has to have as many ranks, but it "
            f"has {ranks}; call init_process_group before the Loader is built, in every process"
        )
    parts = [torch.empty_like(values, memory_format=torch.contiguous_format) for _ in range(world_size)]
    torch.distributed.all_gather(parts, values.contiguous())
    return torch.cat(parts)


def _is_initialized() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _from_environment(name: str) -> int | None:
    text = os.environ.get(name, "")
    try:
        return int(text) if text else None
    except ValueError:
        raise ConfigError(f"the environment variable {name}={text!r} is not a number; unset it or set it") from None


def compare_between_ranks(order: Order, world_size: int) -> None:
    """From now on, what torch samplers in `order` list is compared with what the other ranks list."""
    for inner in torch_samplers(order) if world_size > 1 else ():
        inner.watchers.append(_Comparison(next(_NUMBERS), world_size))


def torch_samplers(order: Order) -> tuple[SamplerOrder, ...]:
    """What lists torch samplers for the order, each once: itself, or the orders that it is made of."""
    return tuple(one for one in made_of(order) if isinstance(one, SamplerOrder))


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
        found = _default_store(self._world_size)
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
