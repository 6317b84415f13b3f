"""The C++ decode kernel by itself: instruction sets, threads, the floor, and fast decoding of large photographs.

    python bench/decode.py [DATA] [--images 256] [--rounds 5] [--photos 12] [--megapixels 12] [--out FOLDER]

First, on random resized crops to 224 of the images in DATA (default: the made sample set), held in memory: images a
second of each instruction set that this CPU has, on one thread and on all usable CPUs, beside the floor, which is
libjpeg-turbo's decoding of the same windows alone. Then, on made photographs of 12 megapixels: decode="fast" beside
"exact", and how far their pixels lie apart in levels. All are run in turn; median, smallest and largest of the rounds.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from peers.floor import decode_windows

import gpupipe
from gpupipe.host.system import usable_cpus
from gpupipe.kernels import Crops, decode_crops, native
from gpupipe.plan import cropping
from gpupipe.sources.source import Encoded
from gpupipe.tools.benchmark.measurement import BenchSettings
from gpupipe.tools.benchmark.report import environment
from gpupipe.tools.benchmark.sample_set import ImageSpec, Look, NoiseBank, fit_jpeg, sample_set

__all__ = ["main"]

SIZE = 224


@dataclass(frozen=True)
class Row:
    """Images a second over the rounds."""

    what: str
    threads: int
    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Work:
    """Encoded images and what is cut out of each."""

    encoded: list[Encoded]
    crops: Crops

    def decode(self, threads: int, variant: str | None = None, how: str = "exact") -> np.ndarray:
        """The kernel's batch."""
        made = decode_crops(self.encoded, [self.crops], threads=threads, variant=variant, decode=how)  # type: ignore[arg-type]
        bad = [row for row, failure in made.failures.items() if failure.code != "unsupported"]
        assert not bad, f"images {bad} can't be decoded"
        return made.images[0]


def crops(data: str, count: int) -> Work:
    """The first images of `data` with the crops of epoch 0."""
    source = gpupipe.open_source(data)
    images = source.fetch(np.arange(min(count, len(source))))["image"]
    recipe = gpupipe.imagenet_train(SIZE)
    return Work(images.data, cropping(recipe, 0, 0, np.arange(len(images)), *images.sizes.T[:2]))


def photographs(count: int, megapixels: float, recipe: gpupipe.Recipe) -> Work:
    """Made pictures of 4 : 3 with 3.5 bits a pixel, 4:2:0: what cameras write."""
    height, width = round((megapixels * 1e6 * 3 / 4) ** 0.5), round((megapixels * 1e6 * 4 / 3) ** 0.5)
    bank = NoiseBank(Look(), seed=1)
    spec = ImageSpec(width, height, subsampling=2, quality=92, target_bytes=round(height * width * 3.5 / 8))
    encoded = [np.frombuffer(fit_jpeg(bank, spec, (7, i)), np.uint8) for i in range(count)]
    sides = (np.full(count, height, np.int32), np.full(count, width, np.int32))
    return Work(encoded, cropping(recipe, 0, 0, np.arange(count), *sides))


def in_turn(contenders: dict[tuple[str, int], Callable[[], object]], images: int, rounds: int) -> list[Row]:
    """Images a second of each, round by round."""
    times: dict[tuple[str, int], list[float]] = {name: [] for name in contenders}
    for call in contenders.values():
        call()
    for _ in range(rounds):
        for name, call in contenders.items():
            start = time.perf_counter()
            call()
            times[name].append(images / (time.perf_counter() - start))
    return [Row(*name, statistics.median(t), min(t), max(t)) for name, t in times.items()]


def thread_counts() -> list[int]:
    """1, and all CPUs."""
    return sorted({1, usable_cpus()})


def measure_crops(work: Work, rounds: int) -> list[Row]:
    """Each instruction set and the floor; the same pixels first."""
    truth = work.decode(1, "portable")
    contenders: dict[tuple[str, int], Callable[[], object]] = {}
    for threads in thread_counts():
        contenders["floor: decoding alone", threads] = partial(
            decode_windows, work.encoded, work.crops.windows, threads
        )
        for variant in native.variants():
            assert np.array_equal(work.decode(threads, variant), truth), f"{variant} makes other pixels"
            contenders[f"kernel, {variant}", threads] = partial(work.decode, threads, variant)
    return in_turn(contenders, len(work.encoded), rounds)


def measure_photographs(count: int, megapixels: float, rounds: int) -> tuple[list[Row], list[str]]:
    """Exact beside fast for training and for evaluation; and how far apart their pixels lie."""
    rows, remarks = [], []
    for name, recipe in (("train", gpupipe.imagenet_train(SIZE)), ("eval", gpupipe.imagenet_eval(SIZE))):
        work = photographs(count, megapixels, recipe)
        contenders = {
            (f"{megapixels:g} MP {name}, {how}", threads): partial(work.decode, threads, how=how)
            for threads in thread_counts()
            for how in ("exact", "fast")
        }
        rows += in_turn(contenders, count, rounds)
        apart = np.abs(work.decode(1).astype(int) - work.decode(1, how="fast"))
        remarks.append(
            f"{megapixels:g} MP {name}: fast and exact pixels lie {apart.mean():.2f} levels apart in the mean, "
            f"{np.percentile(apart, 99):.0f} at the 99th percentile, {apart.max()} at most"
        )
    return rows, remarks


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?", help="image folder or shards (default: the made sample set)")
    parser.add_argument("--images", type=int, default=256, metavar="N", help="of DATA")
    parser.add_argument("--rounds", type=int, default=5, metavar="N")
    parser.add_argument("--photos", type=int, default=12, metavar="N", help="made photographs")
    parser.add_argument("--megapixels", type=float, default=12, metavar="MP", help="of each")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for decode.csv and decode.json")
    args = parser.parse_args(argv)
    data = args.data or str(sample_set())
    rows = measure_crops(crops(data, args.images), args.rounds)
    more, remarks = measure_photographs(args.photos, args.megapixels, args.rounds)
    rows += more
    print(f"{'what':32} {'threads':>7} {'median':>8} {'min':>8} {'max':>8}  img/s")
    for row in rows:
        print(f"{row.what:32} {row.threads:7} {row.median:8.1f} {row.low:8.1f} {row.high:8.1f}")
    print(*remarks, sep="\n")
    if args.out:
        write(args.out, rows, remarks, environment(BenchSettings(data=data, rounds=args.rounds)))


def write(folder: Path, rows: list[Row], remarks: list[str], facts: dict[str, object]) -> None:
    """The figures, and where they were measured."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "decode.csv", "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(asdict(rows[0]))
        table.writerows(asdict(row).values() for row in rows)
    (folder / "decode.json").write_text(json.dumps({"environment": facts, "remarks": remarks}, indent=1) + "\n")


if __name__ == "__main__":
    main()
