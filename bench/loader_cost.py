"""The loader's own Python cost per batch, in the consumer's process, without decoding anything.

    python bench/loader_cost.py [--batch-size 256] [--samples 2048] [--repeat 200]

Measures, on a made image folder and on shards of it: the job alone (order and rank arithmetic: all that the torch
engine does in the consumer's process), the plan (draws and geometry), what `Loader.stats` counts, and what DALI is fed
for a batch (job, plan and inputs). Then, on a dataset that claims two billion samples: saving the state, loading one
that stands at the billionth, and the time from there to the first batch (in the consumer's process, images of 8 x 8).
Prints median, minimum and maximum in microseconds.
"""

from __future__ import annotations

import argparse
import io
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import gpupipe
from gpupipe.batch import Batch, Images, Job
from gpupipe.decode.dali.engine import DaliEngine
from gpupipe.decode.rendering import crops_of
from gpupipe.device.finishing import Finished
from gpupipe.host.tracing import Stage
from gpupipe.loader.stats import Meter
from gpupipe.sources import Source
from gpupipe.tools.pack import PackSettings, pack


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
    one = dict(num_threads=1, prefetch_depth=2, decoders=gpupipe.Decoders())
    engine = DaliEngine(source, (recipe,), torch.device("cpu"), batch_size, **one)
    steps = len(loader)
    turn = iter(range(10**9))

    def job() -> Job:
        return loader._job(next(turn) % steps)

    fixed = job()
    known = {"image": Images([None] * batch_size, source.shapes(fixed.indices))}
    rows = {
        "job": microseconds(job, repeat),
        "plan": microseconds(lambda: crops_of(source.fields, (recipe,), fixed, known), repeat),
        "counting": _counting(repeat),
        "DALI's inputs": microseconds(lambda: engine._feeder(job()), repeat),
        "DALI fed, started": _scheduling(engine, job, repeat),
    }
    engine.close()
    loader.close()
    return rows


def _counting(repeat: int) -> tuple[float, float, float]:
    """The cost of counting a batch for `Loader.stats`, at which nothing is recorded."""
    meter = Meter()
    batch = Batch(Job(0, 0, np.arange(1), np.arange(1)), {})
    batches = itertools.repeat(batch)
    meter.begin()

    def one() -> None:
        with Stage("finish") as finish:
            meter.waited(batches)
        meter.delivered(Finished(None, batch, finish))

    return microseconds(one, repeat)


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


class Billions:
    """Two billion times the same small image."""

    def __init__(self) -> None:
        from PIL import Image

        encoded = io.BytesIO()
        Image.new("RGB", (8, 8)).save(encoded, "JPEG")
        self.image = encoded.getvalue()

    def __len__(self) -> int:
        return 2 * 10**9

    def __getitem__(self, index: int) -> tuple[bytes, int]:
        return self.image, index


def resuming(batch_size: int, repeat: int) -> dict[str, tuple[float, float, float]]:
    """Name of a part -> its cost, on two billion samples."""
    options = dict(shuffle=True, drop_last=True, engine="torch", device="cpu", num_workers=0)
    with gpupipe.Loader(Billions(), gpupipe.imagenet_train(8), batch_size, **options) as loader:
        middle = loader.state_dict() | {"position": 10**9 // batch_size * batch_size}

        def resume() -> None:
            loader.load_state_dict(middle)
            next(iter(loader))

        return {
            "state_dict()": microseconds(loader.state_dict, repeat),
            "load_state_dict()": microseconds(lambda: loader.load_state_dict(middle), repeat),
            "and a first batch": microseconds(resume, repeat),
        }


def show(source: str, part: str, figures: tuple[float, float, float]) -> None:
    """One row of the table."""
    print(f"{source:8} {part:18} {figures[0]:8.0f} {figures[1]:8.0f} {figures[2]:8.0f}")


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
                show(name, part, figures)
    for part, figures in resuming(args.batch_size, args.repeat).items():
        show("2*10^9", part, figures)


if __name__ == "__main__":
    main()
