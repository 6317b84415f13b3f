"""How long `next` keeps the consumer's thread when a batch lies ready: what loading costs a training loop's host.

    python3 -m gpu.host DATA --out FOLDER

Three consumers, each slower than the loader: one that waits for matrix products on the GPU between two batches; one
that trains ResNet-50; one that trains beside a Python thread that computes for half of the time, and so often holds the
interpreter's lock. Times are the host's, of `next` alone. For a CPU no thread makes batches ahead: `next` makes them,
and no more than this program is tried.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch

from gpu.arguments import loader_settings, parser, say
from gpu.feeding import device, feed
from gpu.rows import Row, write_part
from gpupipe.tools.benchmark.contenders import Batch
from gpupipe.tools.benchmark.measurement import BenchSettings
from gpupipe.tools.profiling.training import TrainingStep, build_model

__all__ = ["WAITING", "main"]

PART = "host"
WAITING, TRAINING, BESIDE = "consumer waits", "consumer trains", "consumer trains beside a busy thread"
PACE = 20  # batches after which the loader's own pace is known
SLOWER = 2.0  # times the loader's pace, so that batches lie ready
CLASSES = 1000

Consume = Callable[[Batch], None]


class Waits:
    """Matrix products until so many seconds have passed since the batch before."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        on_gpu = device().type == "cuda"
        self.matrix = torch.randn((4096 if on_gpu else 128,) * 2, device=device())
        self.synchronize = torch.cuda.synchronize if on_gpu else lambda: None

    def __call__(self, batch: Batch) -> None:
        end = time.perf_counter() + self.seconds
        while time.perf_counter() < end:
            self.matrix @ self.matrix
            self.synchronize()


class Trains:
    """A training step, and more of them with the same batch until the loader's pace is surely slower than this."""

    def __init__(self, model: str, seconds: float) -> None:
        on_gpu = device().type == "cuda"
        layout = torch.channels_last if on_gpu else torch.contiguous_format
        made = build_model(model, CLASSES).to(device(), memory_format=layout)
        self.step = TrainingStep(made, device(), amp=on_gpu, layout=layout)
        self.seconds = seconds
        self.steps = 0

    def __call__(self, batch: Batch) -> None:
        if not self.steps:
            self.steps = self.needed(batch)
        for _ in range(self.steps):
            loss = self.step(*batch)
        loss.item()  # as loops do that print their loss; else the host runs ahead until a queue of CUDA's is full

    def needed(self, batch: Batch) -> int:
        """Steps a batch."""
        for _ in range(3):
            self.step(*batch).item()
        start = time.perf_counter()
        self.step(*batch).item()
        return max(1, round(self.seconds / (time.perf_counter() - start)))


@contextmanager
def busy_thread() -> Iterator[None]:
    """A thread that computes in Python a millisecond, then rests for one, as loggers, hooks and the like do."""
    stop = threading.Event()

    def compute() -> None:
        while not stop.wait(0.001):
            end = time.perf_counter() + 0.001
            while time.perf_counter() < end:
                sum(range(1000))

    thread = threading.Thread(target=compute, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def pace(batches: Iterator[Batch]) -> float:
    """Seconds a batch when the consumer does nothing."""
    start = time.perf_counter()
    for _ in itertools.islice(batches, PACE):
        pass
    if device().type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / PACE


def times(batches: Iterator[Batch], consume: Consume, count: int, limit: float) -> list[float]:
    """Milliseconds of each `next`, but the first two; fewer than `count` after so many seconds."""
    found: list[float] = []
    end = time.monotonic() + limit
    while len(found) < count + 2 and (time.monotonic() < end or len(found) < 5):
        start = time.perf_counter()
        batch = next(batches)
        found.append(1e3 * (time.perf_counter() - start))
        consume(batch)
    return found[2:]


def measured(name: str, found: Sequence[float]) -> list[Row]:
    """Median and 99th percentile, between the shortest and the longest."""
    low, high = min(found), max(found)
    values = {"median ms": float(np.median(found)), "p99 ms": float(np.quantile(found, 0.99))}
    return [Row(PART, name, quantity, value, low, high) for quantity, value in values.items()]


def modes(settings: BenchSettings, args: argparse.Namespace) -> list[Row]:
    """The rows of all consumers, on one loader."""
    rows = []
    with feed(settings) as batches:
        seconds = SLOWER * pace(batches)
        say(f"the loader alone: {seconds / SLOWER * 1e3:.1f} ms a batch")
        trains = Trains(args.model, seconds)
        consumers: dict[str, tuple[Consume, Callable[[], Any]]] = {
            WAITING: (Waits(seconds), nullcontext),
            TRAINING: (trains, nullcontext),
            BESIDE: (trains, busy_thread),
        }
        for name, (consume, beside) in consumers.items():
            with beside():
                rows += measured(name, times(batches, consume, args.batches, args.limit))
            say("  ".join(f"{row.name}: {row.quantity} {row.median:.3f}" for row in rows[-2:]))
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, write."""
    made = parser(__doc__)
    made.add_argument("--batches", type=int, default=150, metavar="N", help="batches of each consumer")
    made.add_argument("--limit", type=float, default=15, metavar="S", help="of each consumer, where batches take long")
    made.add_argument("--model", default="resnet50", help="what is trained: a torchvision model, or 'tiny'")
    args = made.parse_args(argv)
    settings = loader_settings(args, "float32")
    rows = modes(settings, args)
    write_part(args.out, PART, rows, settings)
    return 0


if __name__ == "__main__":
    sys.exit(main())
