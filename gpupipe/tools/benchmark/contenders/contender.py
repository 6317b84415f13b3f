"""What a contender is, and what several of them share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from gpupipe.tools.benchmark.measurement import BenchSettings

__all__ = ["Batch", "BatchStream", "Contender", "needs_cuda", "needs_folder"]

Batch = tuple[Any, Any]  # torch tensors, or NumPy arrays from those that do without torch


class BatchStream(Protocol):
    """Batches without end: whole passes over the data, each in its own random order, joined without a gap.

    Joined, because a sample set has few batches a pass: a training epoch of 5,000 has no such gap every third batch.
    """

    def __iter__(self) -> Iterator[Batch]:
        """Images and int64 labels (batch_size,).

        float32: (batch_size, 3, size, size), contiguous, normalized. uint8: the same shape, or channels last.
        """
        ...

    def close(self) -> None:
        """End threads and processes."""
        ...


class Contender(Protocol):
    """A way to load training batches: random resized crop (scale 0.08 to 1, ratio 3/4 to 4/3), flip, normalize.

    It may also have `prepare(settings) -> bool`, which brings `settings.data` into a format of its own before anything
    is measured and says whether there was something to do, and `exact_passes = False` where workers run through
    their own parts of the data, so that passes overlap.
    """

    name: str

    def available(self, settings: BenchSettings) -> str | None:
        """None, or why this machine or this data can't be used."""
        ...

    def cycle(self, settings: BenchSettings) -> int:
        """Batches after which production repeats: workers in turn finish about together, so whole turns are counted."""
        ...

    def queued(self, settings: BenchSettings) -> int:
        """The most batches that may lie ready: they are taken before a measurement starts."""
        ...

    def open(self, settings: BenchSettings) -> BatchStream:
        """Start the stream."""
        ...


def needs_folder(settings: BenchSettings) -> str | None:
    """Why the data can't be used by what reads image folders only."""
    return None if Path(settings.data).is_dir() else "reads image folders only"


def needs_cuda() -> str | None:
    """Why no GPU can be used; None where there is one."""
    import torch

    return None if torch.cuda.is_available() else "no CUDA device"
