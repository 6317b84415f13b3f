"""A contender in a process of its own: caches, thread pools and memory of the contenders don't mix.

The process may run in another environment, without torch.
"""

from __future__ import annotations

import collections
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from gpupipe.host.usage import cpu_seconds, memory_mb, process_tree
from gpupipe.recipe import IMAGENET_STD
from gpupipe.tools.benchmark.contenders import load
from gpupipe.tools.benchmark.measurement import BenchSettings, Opened, Round

if TYPE_CHECKING:
    from gpupipe.tools.benchmark.contenders import Batch, BatchStream, Contender

__all__ = ["NOISE_OUTPUT", "Host", "consume", "measured", "synchronize"]

NOISE_OUTPUT = 56  # side of the crops of white noise


class Host:
    """Holds one contender and its stream between commands."""

    def __init__(self, name: str, settings: BenchSettings) -> None:
        self.name = name
        self.settings = settings
        self._stream: BatchStream | None = None
        self._batches: Iterator[Batch] | None = None

    @cached_property
    def contender(self) -> Contender:
        """Imported at first use."""
        return load(self.name)

    def available(self) -> str | None:
        """None, or why the contender can't take part."""
        try:
            return self.contender.available(self.settings)
        except ImportError as error:
            return f"needs {error.name or error}: {error}"

    def prepare(self, folders: list[str]) -> bool:
        """Let the contender bring the folders into its own format; whether there was something to do."""
        prepare = getattr(self.contender, "prepare", None)
        done = [prepare(replace(self.settings, data=folder, fields=None)) for folder in folders] if prepare else []
        return any(done)

    def noise(self, folder: str) -> float:
        """The smallest standard deviation, in gray levels, among crops of the white noise in `folder`."""
        settings = replace(self.settings, data=folder, fields=None, size=NOISE_OUTPUT, batch_size=16, workers=1)
        images = first_batch(self.contender, settings)
        channel = images[..., 0] if images.shape[-1] == 3 else images[:, 0]
        scale = IMAGENET_STD[0] * 255 if settings.dtype == "float32" else 1
        return float(channel.std(axis=(1, 2), dtype=np.float64).min() * scale)

    def open(self, count: int) -> Opened:
        """Open the data with all imports done, and look at the batches that hold the first `count` images."""
        start = time.perf_counter()
        self._stream = self.contender.open(self.settings)
        self._batches = iter(self._stream)
        first = next(self._batches)
        synchronize()
        seconds = time.perf_counter() - start
        opened = look(first, self._batches, count, seconds)
        return replace(opened, exact_passes=getattr(self.contender, "exact_passes", True))

    def run(self, seconds: float) -> Round:
        """Take what lies ready, then count whole cycles of batches for at least `seconds`."""
        assert self._batches is not None, "open comes first"
        cycle = self.contender.cycle(self.settings)
        drain = -(-self.contender.queued(self.settings) // cycle) * cycle
        consume(islice(self._batches, drain))
        synchronize()
        return measured(self._batches, cycle, seconds)

    def memory(self) -> float:
        """Megabytes of memory of this process and its children."""
        return memory_mb(process.pid for process in process_tree())

    def close(self) -> None:
        """End the stream."""
        self._batches = None
        if self._stream is not None:
            self._stream.close()
        self._stream = None


def consume(batches: Iterator[Batch]) -> int:
    """Take the batches; how many images they held."""
    return sum(len(labels) for _, labels in batches)


def measured(batches: Iterator[Batch], turn: int, seconds: float) -> Round:
    """Whole turns of so many batches for at least `seconds`."""
    cpu, start, images = cpu_seconds(), time.perf_counter(), 0
    while time.perf_counter() - start < seconds or not images:
        images += consume(islice(batches, turn))
    synchronize()
    return Round(images, time.perf_counter() - start, cpu_seconds() - cpu)


def synchronize() -> None:
    """Wait for the GPU, where this process has used one."""
    torch: Any = sys.modules.get("torch")
    if torch and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def first_batch(contender: Contender, settings: BenchSettings) -> np.ndarray:
    """A copy of the first batch of images of a stream that is opened and closed for it."""
    stream = contender.open(settings)
    try:
        images, _ = next(iter(stream))
        return np.array(images.cpu().numpy() if hasattr(images, "cpu") else images)
    finally:
        stream.close()


def look(first: Batch, following: Iterator[Batch], count: int, seconds: float) -> Opened:
    """Take the batches that hold the first `count` images, at least one, and say what they are."""
    images, labels = first
    shape, dtype = tuple(images.shape), str(images.dtype)
    is_array = isinstance(images, np.ndarray)
    contiguous = images.flags.c_contiguous if is_array else images.is_contiguous()
    device = "cpu" if is_array else images.device.type
    low, high, seen = float(images.min()), float(images.max()), labels.tolist()
    while len(seen) < count:
        images, labels = next(following)
        low, high = min(low, float(images.min())), max(high, float(images.max()))
        seen += labels.tolist()
    counted = dict(collections.Counter(seen[:count])) if count else None
    return Opened(seconds, device, shape, dtype, contiguous, low, high, counted)
