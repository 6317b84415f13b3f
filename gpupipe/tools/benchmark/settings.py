"""What is measured, the same for every contender."""

from __future__ import annotations

from dataclasses import dataclass

from gpupipe.errors import ConfigError

__all__ = ["DTYPES", "BenchSettings"]

DTYPES = ("float32", "uint8")


@dataclass(frozen=True)
class BenchSettings:
    """One measurement: the data, the shape of a batch, and what the machine gives for it.

    data:       image folder or tar shards.
    batch_size: images a batch.
    size:       side of the square output in pixels.
    workers:    processes of a torch DataLoader.
    threads:    threads of DALI.
    seconds:    measured time in each round.
    rounds:     how often each contender is measured, in turn with the others.
    dtype:      of the images: "float32", normalized, or "uint8", as decoded.
    timeout:    seconds without an answer after which a contender counts as hanging.
    """

    data: str
    batch_size: int = 128
    size: int = 224
    workers: int = 2
    threads: int = 2
    seconds: float = 5.0
    rounds: int = 5
    dtype: str = "float32"
    timeout: float = 300.0

    def __post_init__(self) -> None:
        for name in ("batch_size", "size", "workers", "threads", "rounds"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} must be at least 1")
        if self.dtype not in DTYPES:
            raise ConfigError(f"dtype={self.dtype!r} must be one of {', '.join(DTYPES)}")
        for name in ("seconds", "timeout"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name}={getattr(self, name)} must be above 0")
