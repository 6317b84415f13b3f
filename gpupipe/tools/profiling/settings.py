"""What `gpupipe profile` measures."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from gpupipe.errors import ConfigError

__all__ = ["ProfileSettings"]


@dataclass(frozen=True)
class ProfileSettings:
    """One part of a round: the size of a step, and how often it is made.

    batch_size: images a step.
    size:       side of the square images in pixels.
    workers:    processes of the torch engine, threads of DALI.
    engine:     as in `Loader`.
    steps:      measured ones, a multiple of `workers` at best: workers that began together end together.
    """

    batch_size: int
    workers: int
    steps: int
    size: int = 224
    engine: Literal["auto", "dali", "torch"] = "auto"

    def __post_init__(self) -> None:
        for name, least in (("batch_size", 1), ("workers", 0), ("steps", 1), ("size", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name}={getattr(self, name)} must be at least {least}")

    @property
    def settling(self) -> int:
        """Steps before those that are measured, so that each worker has made a batch and started on the next."""
        return self.workers + 1

    def as_dict(self) -> dict[str, Any]:
        """Plain values for a report."""
        return asdict(self)
