"""What is tuned, and for how long."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpupipe.errors import ConfigError
from gpupipe.host.system import usable_cpus

__all__ = ["TuneSettings"]

SECONDS = (0.2, 5.0)  # the least and the most for a measured stretch


@dataclass(frozen=True)
class TuneSettings:
    """One tuning: the data, the shape of a batch, and what a training process will have.

    data:       an image folder or tar shards, as for `Loader`.
    cpus:       CPUs of one training process; candidates are measured on so many.
    batch_size: images a batch.
    size:       side of the square output in pixels.
    minutes:    for everything, about.
    timeout:    seconds without an answer after which a candidate counts as hanging.

    Raises ConfigError for values out of range.
    """

    data: str | list[str]
    cpus: int
    batch_size: int = 256
    size: int = 224
    minutes: float = 4.0
    timeout: float = 30.0

    def __post_init__(self) -> None:
        for name in ("cpus", "batch_size", "size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} must be at least 1")
        if self.cpus > usable_cpus():
            raise ConfigError(f"cpus={self.cpus}: this process may use {usable_cpus()}")
        for name in ("minutes", "timeout"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name}={getattr(self, name)} must be above 0")

    @property
    def seconds(self) -> float:
        """Measured time of a candidate: with starting it, some 60 find room in the minutes."""
        least, most = SECONDS
        return min(max(self.minutes * 60 / 120, least), most)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for a report, which is shown to others: of the data's paths only the names."""
        data = [self.data] if isinstance(self.data, str) else self.data
        return asdict(self) | {"data": [Path(one).name for one in data]}
