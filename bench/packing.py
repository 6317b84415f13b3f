"""`gpupipe pack` by threads of one process and by tasks of a Ray cluster on the same CPUs.

    python bench/packing.py [DATA] --out results
    python bench/packing.py imagenet/train --out results --copies 8 --workers 2

The images of DATA (an image folder, by default the made sample set), copied `--copies` times, are packed into shards as
they are and shrunk, and into Parquet as they are: by one thread, by `--workers` threads, and on a Ray cluster of as
many CPUs, which is started before, in turn. All have to write the same files. Rates are of whole runs, with the index
that comes last, the source being indexed already; the part of the time in which files are read back and compared is
that of one thread. Writes results.md, packing.csv and packing.json.
"""

from __future__ import annotations

import hashlib
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from in_turn import cell, options, parsed, settings_of, write
from source_peers.kinds import copied

from gpupipe.host.progress import steps
from gpupipe.sources import Source, open_source
from gpupipe.tools.benchmark.report import describe, environment
from gpupipe.tools.benchmark.sample_set import sample_set
from gpupipe.tools.pack import PackSettings, pack
from gpupipe.tools.packing import files

__all__ = ["main"]

FILES = 16
CASES: dict[str, dict[str, Any]] = {
    "shards": {},
    "shrunk": {"max_size": 224},
    "parquet": {"to": "parquet"},
}


@dataclass(frozen=True)
class Row:
    """Images a second of one way to pack; read_back: the part of the time in which the files were read back."""

    case: str
    by: str
    img_per_s: float
    img_per_s_min: float
    img_per_s_max: float
    read_back: float | None


class ReadBack:
    """Seconds that reading back takes, in the process that asks for it."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._verify = files.verify
        files.verify = self

    def __call__(self, *arguments: Any) -> None:
        start = time.perf_counter()
        self._verify(*arguments)
        self.seconds += time.perf_counter() - start


def content(folder: Path) -> dict[str, str]:
    """A hash of each file by its name, but of the index, which holds times of change."""
    paths = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".index"]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def ways(workers: int) -> dict[str, Callable[[Source, Path, PackSettings], Any]]:
    """By name."""
    return {
        "1 thread": lambda source, folder, settings: pack(source, folder, settings, 1),
        f"{workers} threads": lambda source, folder, settings: pack(source, folder, settings, workers),
        f"Ray, {workers} CPUs": lambda source, folder, settings: pack(source, folder, settings, on="ray"),
    }


def measure(case: str, source: Source, workers: int, rounds: int, step: Callable[[str], None]) -> list[Row]:
    """Each way in turn, after one round that is compared and not counted."""
    settings = PackSettings(samples_per_shard=-(-len(source) // FILES), **CASES[case])
    rates: dict[str, list[float]] = {name: [] for name in ways(workers)}
    contents, read_back = [], ReadBack()
    parts = []
    for round_ in range(1 + rounds):
        for name, way in ways(workers).items():
            step(f"{case}: {name}")
            with tempfile.TemporaryDirectory(prefix="gpupipe-") as folder:
                read_back.seconds, start = 0.0, time.perf_counter()
                way(source, Path(folder) / "out", settings)
                seconds = time.perf_counter() - start
                if not round_:
                    contents.append(content(Path(folder) / "out"))
                    continue
            rates[name].append(len(source) / seconds)
            if name == "1 thread":
                parts.append(read_back.seconds / seconds)
        assert all(one == contents[0] for one in contents), f"{case}: the files differ"
    files.verify = read_back._verify
    return [
        Row(case, name, statistics.median(some), min(some), max(some), statistics.median(parts) if not at else None)
        for at, (name, some) in enumerate(rates.items())
    ]


def markdown(rows: Sequence[Row], facts: dict[str, Any], images: int) -> str:
    """A line for each way."""
    lines = [describe(facts), "", "| what | by | images a second | read back |", "|---|---|---|---|"]
    for row in rows:
        part = "" if row.read_back is None else f"{row.read_back:.0%} of the time"
        lines.append(
            f"| {row.case} | {row.by} | {cell(row.img_per_s, row.img_per_s_min, row.img_per_s_max)} | {part} |"
        )
    return "\n".join([*lines, "", f"{images:,} images, {FILES} files; median of the rounds (smallest - largest)."])


def main(argv: Sequence[str] | None = None) -> int:
    """Compare, measure, write."""
    parser = options(__doc__, CASES)
    parser.add_argument("--copies", type=int, default=8, metavar="N", help="of each image (default: 8)")
    args = parsed(parser, argv, CASES)
    if args is None:
        return 1
    import ray

    args.data = copied(args.data or str(sample_set()), args.copies)
    source, rows = open_source(args.data), list[Row]()
    facts = environment(settings_of(args))
    temporary = tempfile.mkdtemp(dir="/tmp", prefix="ray")  # short, as sockets lie in it
    ray.init(num_cpus=args.workers, include_dashboard=False, log_to_driver=False, _temp_dir=temporary)
    try:
        with steps(len(args.only) * 3 * (1 + args.rounds)) as step:
            for case in args.only:
                rows += measure(case, source, args.workers, args.rounds, step)
                text = markdown(rows, facts, len(source))
                write(args.out, "packing", text, rows, {"environment": facts, "images": len(source)})
    finally:
        ray.shutdown()
        shutil.rmtree(temporary, ignore_errors=True)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
