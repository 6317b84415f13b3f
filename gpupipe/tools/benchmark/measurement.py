"""What one round gives, what a contender's rounds come to, and the statistics over them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["Opened", "Result", "Round", "Spread", "ratio", "spread"]


@dataclass(frozen=True)
class Round:
    """Measured mid-stream: images, seconds of wall clock, and seconds of CPU (user + system) of all processes."""

    images: int
    seconds: float
    cpu_seconds: float

    @property
    def rate(self) -> float:
        """Images a second."""
        return self.images / self.seconds

    @property
    def cpu_ms(self) -> float:
        """CPU milliseconds an image."""
        return 1000 * self.cpu_seconds / self.images


@dataclass(frozen=True)
class Opened:
    """How a stream started and what its first pass over the data looked like.

    first_batch:  seconds from opening the data to the first batch, imports not counted.
    device:       "cpu" or "cuda": where the batches lie.
    shape, dtype: of a batch of images; contiguous: whether it is laid out plainly in this shape.
    low, high:    the range of all values.
    labels:       how often each label came in the first pass; None where the data are too many to count.
    exact_passes: whether every image comes once before any comes twice.
    """

    first_batch: float
    device: str
    shape: tuple[int, ...]
    dtype: str
    contiguous: bool
    low: float
    high: float
    labels: dict[int, int] | None
    exact_passes: bool = True


@dataclass
class Result:
    """A contender's row: measured, or the reason why not. `memory_mb` is the highest of those after each round."""

    name: str
    reason: str | None = None
    opened: Opened | None = None
    noise_std: float | None = None
    memory_mb: float | None = None
    rounds: list[Round] = field(default_factory=list)


@dataclass(frozen=True)
class Spread:
    """Median, smallest and largest of some values."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread | None:
    """Median, smallest and largest; None without values."""
    return Spread(statistics.median(values), min(values), max(values)) if values else None


def ratio(result: Result, baseline: Result | None) -> float | None:
    """The median of `result` over that of `baseline`, both of the same run; None where either was not measured."""
    own = spread([one.rate for one in result.rounds])
    other = spread([one.rate for one in baseline.rounds]) if baseline else None
    return own.median / other.median if own and other else None
