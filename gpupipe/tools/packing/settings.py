"""How to pack."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpupipe.errors import ConfigError
from gpupipe.host.checks import at_least
from gpupipe.sources.packed import FILE_NAMES

__all__ = ["PackSettings"]


@dataclass(frozen=True)
class PackSettings:
    """How to pack; all of it but nothing else decides the bytes of the files.

    A file ends before `shard_size` bytes, where samples' sizes are known without reading them, else at so many samples
    as a few of them let expect; or after `samples_per_shard` where that is given. Images whose shorter side exceeds
    `max_size` pixels are shrunk to it and written as RGB JPEGs of `quality` (1 to 95); all others are copied as they
    are. `seed` shuffles. `skip_bad` leaves damaged samples out instead of raising, but none that can't be read now, as
    where a storage is away. `to`: WebDataset "shards", "parquet" files, or the same in the folders and by the names of
    "huggingface".
    """

    shard_size: int = 256_000_000
    samples_per_shard: int | None = None
    max_size: int | None = None
    quality: int = 90
    seed: int = 0
    skip_bad: bool = False
    to: Literal["shards", "parquet", "huggingface"] = "shards"

    def __post_init__(self) -> None:
        at_least(self, "shard_size samples_per_shard max_size", 1)
        at_least(self, "seed", 0)
        if not 1 <= self.quality <= 95:
            raise ConfigError(f"quality={self.quality} must lie in 1 to 95: above, JPEGs only grow")
        if self.to not in FILE_NAMES:
            raise ConfigError(f"to={self.to!r} must be one of {', '.join(FILE_NAMES)}")
