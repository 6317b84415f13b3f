"""Which rank this process is and of how many, and what the ranks say together."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed

from gpupipe.errors import ConfigError
from gpupipe.host.checks import whole

__all__ = ["check_world_size", "default_store", "gathered", "rank_and_world_size"]


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


def check_world_size(world_size: int) -> None:
    """Raise ConfigError where torch.distributed was initialized with another size since `rank_and_world_size`."""
    if _is_initialized() and torch.distributed.get_world_size() != world_size:
        raise ConfigError(
            f"the Loader was built for world_size={world_size}, but torch.distributed now has "
            f"{torch.distributed.get_world_size()} ranks, which would read the same samples; build it after "
            "init_process_group, or pass rank and world_size"
        )


def default_store(world_size: int) -> tuple[Any, int] | None:
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
