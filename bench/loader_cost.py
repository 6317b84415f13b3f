"""The loader's own Python cost per batch, in the consumer's process, without decoding anything.

    python bench/loader_cost.py [--batch-size 256] [--samples 2048] [--repeat 200]

Measures, on a made image folder and on shards of it: the job alone (order and rank arithmetic: all that the torch
engine does in the consumer's process), the plan (draws and geometry), and what DALI is fed for a batch (job, plan and
inputs). Prints median, minimum and maximum in microseconds.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import gpupipe
from gpupipe.engines.base import Job, job_plan
from gpupipe.engines.dali import DaliEngine
from gpupipe.pack import PackSettings, pack
from gpupipe.sources import Source


def made_folder(root: Path, samples: int) -> Path:
    """`samples` links to one small made JPEG, in ten classes."""
    from PIL import Image

    rng = np.random.default_rng(0)
    original = root / "image.jpg"
    Image.fromarray(rng.integers(0, 256, (48, 64, 3), dtype=np.uint8)).save(original)
    for number in range(samples):
        folder = root / "data" / f"class_{number % 10}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number:06d}.jpg").hardlink_to(original)
    return root / "data"


def microseconds(step: Callable[[], object], repeat: int) -> tuple[float, float, float]:
    """Median, minimum and maximum of one call."""
    step()
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        step()
        times.append(1e6 * (time.perf_counter() - start))
    return statistics.median(times), min(times), max(times)


def measure(source: Source, batch_size: int, repeat: int) -> dict[str, tuple[float, float, float]]:
    """Name of a part -> its cost per batch."""
    recipe = gpupipe.imagenet_train(32)  # small, so that DALI's threads leave the cores alone
    loader = gpupipe.Loader(source, recipe, batch_size, shuffle=True, drop_last=True, engine="torch", num_workers=0)
    engine = DaliEngine(source, recipe, torch.device("cpu"), batch_size, num_threads=1, prefetch_depth=2)
    steps = len(loader)
    turn = iter(range(10**9))

    def job() -> Job:
        return loader._job(next(turn) % steps)

    fixed = job()
    meta = source.meta(fixed.indices)
    rows = {
        "job": microseconds(job, repeat),
        "plan": microseconds(lambda: job_plan(recipe, fixed, meta), repeat),
        "DALI's inputs": microseconds(lambda: engine._feeder(job()), repeat),
        "DALI fed, started": _scheduling(engine, job, repeat),
    }
    engine.close()
    loader.close()
    return rows


def _scheduling(engine: DaliEngine, job: Callable[[], Job], repeat: int) -> tuple[float, float, float]:
    """The cost of `schedule_run`, DALI's own Python included; DALI has finished its work before each call."""
    batches = engine.stream(job() for _ in iter(int, 1))
    next(batches)
    times = []
    for _ in range(repeat):
        engine._outputs()
        engine._in_flight.popleft()
        start = time.perf_counter()
        engine._schedule()
        times.append(1e6 * (time.perf_counter() - start))
    return statistics.median(times), min(times), max(times)


def main(argv: list[str] | None = None) -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--samples", type=int, default=2048)
    parser.add_argument("--repeat", type=int, default=200)
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        folder = made_folder(root, args.samples)
        pack(gpupipe.open_source(folder), root / "shards", PackSettings())
        print(f"{'source':8} {'part':18} {'median':>8} {'min':>8} {'max':>8}  us per batch of {args.batch_size}")
        for name, data in (("folder", folder), ("shards", root / "shards" / "*.tar")):
            for part, figures in measure(gpupipe.open_source(data), args.batch_size, args.repeat).items():
                print(f"{name:8} {part:18} {figures[0]:8.0f} {figures[1]:8.0f} {figures[2]:8.0f}")


if __name__ == "__main__":
    main()
