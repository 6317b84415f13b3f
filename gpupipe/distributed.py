"""Which rank this process is, and of how many."""

from __future__ import annotations

import os

from gpupipe.errors import ConfigError

__all__ = ["rank_and_world_size"]


def rank_and_world_size(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """The given pair, else torch.distributed's, else RANK and WORLD_SIZE (as torchrun sets them), else (0, 1)."""
    if (rank is None) != (world_size is None):
        raise ConfigError(f"rank={rank}, world_size={world_size}: pass both or neither")
    if rank is not None and world_size is not None:
        return rank, world_size
    import torch.distributed

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return _from_environment("RANK", 0), _from_environment("WORLD_SIZE", 1)


def _from_environment(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    try:
        return int(text) if text else default
    except ValueError:
        raise ConfigError(f"the environment variable {name}={text!r} is not a number; unset it or set it") from None
