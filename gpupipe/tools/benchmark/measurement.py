"""What is measured, the same for every contender; what a round gives; what a contender's rounds come to."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from gpupipe.batch import Field
from gpupipe.errors import ConfigError
from gpupipe.host.checks import at_least

__all__ = ["DTYPES", "BenchSettings", "Opened", "Result", "Round", "Spread", "columns", "ratio", "spread"]

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
    fields:     of the samples, as `open_source` takes them: image and label.
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
    fields: dict[str, Field] | None = None

    def __post_init__(self) -> None:
        at_least(self, "batch_size size workers threads rounds", 1)
        at_least(self, "seconds timeout", 0, above=True)
        if self.dtype not in DTYPES:
            raise ConfigError(f"dtype={self.dtype!r} must be one of {', '.join(DTYPES)}")


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
    """A contender's row: measured, or the reason why not. `memory_mb` is the highest of those after each round.

    failed: it could take part here, and did not come to its end.
    """

    name: str
    reason: str | None = None
    opened: Opened | None = None
    noise_std: float | None = None
    memory_mb: float | None = None
    rounds: list[Round] = field(default_factory=list)
    failed: bool = False


@dataclass(frozen=True)
class Spread:
    """Median, smallest and largest of some values."""

    median: float
    low: float
    high: float


def columns(name: str, values: Sequence[float]) -> dict[str, float | None]:
    """The same as columns of a table: `name`, and with _min and _max behind it; None without values."""
    found = spread(values)
    ends = (found.median, found.low, found.high) if found else (None, None, None)
    return dict(zip((name, f"{name}_min", f"{name}_max"), ends, strict=True))


def spread(values: Sequence[float]) -> Spread | None:
    """Median, smallest and largest; None without values."""
    return Spread(statistics.median(values), min(values), max(values)) if values else None


def ratio(result: Result, baseline: Result | None) -> float | None:
    """The median of `result` over that of `baseline`, both of the same run; None where either was not measured."""
    own = spread([one.rate for one in result.rounds])
    other = spread([one.rate for one in baseline.rounds]) if baseline else None
    return own.median / other.median if own and other else None
