"""Clips of videos, on the CPU: gpupipe beside a dataset of plain torch with torchvision's v2 transforms.

    python bench/video.py --out results
    python bench/video.py VIDEOS --out results --only frames --seconds 3

PyTorchVideo's training on Kinetics (8 frames, each eighth; shorter side of 256 to 320, a crop of 224, flip, float32) of
frames that are JPEGs in folders, and of H.264 in MP4. First the clips of an evaluation are compared, which may differ
by one gray level. Then all are measured in turn, with the same number of workers: what a loader has made ahead is taken
first, then frames are counted for the time of a round.

VIDEOS is a folder with `frames` (class/video/1.jpg) and `files` (class/video.mp4); by default 32 videos of 340 x 256
pixels and 3 seconds are made once, in the cache folder. Writes results.md, video.csv and video.json.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from in_turn import cell, options, parsed, write
from video_peers import FILES, FRAMES, OURS, READERS
from video_peers.agreement import apart
from video_peers.data import CLIP, FIELDS, made
from video_peers.plain import stream

import gpupipe
from gpupipe.host.usage import cpu_seconds
from gpupipe.tools.benchmark.contenders.gpupipe_loader import many_passes
from gpupipe.tools.benchmark.measurement import BenchSettings, Round
from gpupipe.tools.benchmark.report import describe, environment

__all__ = ["main"]

TITLES = {FRAMES: "JPEG frames in folders", FILES: "H.264 in MP4"}
AHEAD = 3  # batches a worker, and more than any loader here has made


@dataclass(frozen=True)
class Row:
    """A loader: frames a second over the rounds, gpupipe's to its; CPU time of a frame, its to gpupipe's; by how many
    levels an evaluation differs."""

    case: str
    loader: str
    frames_per_s: float
    frames_per_s_min: float
    frames_per_s_max: float
    gpupipe_to_it: float
    cpu_ms_per_frame: float
    cpu_to_gpupipe: float
    apart: float


def ours(root: Path, size: int, clips: int, workers: int) -> gpupipe.Loader:
    """One epoch that is longer than any measurement."""
    source = gpupipe.open_source(root, fields=FIELDS)
    how: dict[str, Any] = {"engine": "torch", "device": "cpu", "num_workers": workers, "rank": 0, "world_size": 1}
    return gpupipe.Loader(
        source, gpupipe.kinetics_train(size), clips, order=many_passes(len(source)), drop_last=True, **how
    )


def played(batches: Iterator[Any], workers: int, seconds: float) -> Round:
    """A round: the frames of what is not made yet, and the CPU time of all processes, of which the others' are idle."""
    for _ in range(AHEAD * max(workers, 1)):
        next(batches)
    frames, cpu, start = 0, cpu_seconds(), time.perf_counter()
    while (passed := time.perf_counter() - start) < seconds or not frames:
        batch = next(batches)
        clips = batch["video"] if isinstance(batch, dict) else batch[0]
        frames += len(clips) * clips.shape[1]
    return Round(frames, passed, cpu_seconds() - cpu)


def measured(root: Path, args: argparse.Namespace, readers: dict[str, str]) -> dict[str, list[Round]]:
    """Of each loader the rounds."""
    clips = max(1, args.batch_size // CLIP[0])
    how = args.size, clips, args.workers
    with ours(root, *how) as loader:
        streams = {OURS: iter(loader)} | {name: stream(root, reader, *how) for reader, name in readers.items()}
        rounds: dict[str, list[Round]] = {name: [] for name in streams}
        for number in range(args.rounds):
            for name, batches in streams.items():
                print(f"  round {number + 1} of {args.rounds}: {name}", file=sys.stderr)
                rounds[name].append(played(batches, args.workers, args.seconds))
        del streams, batches
    return rounds


def rows(case: str, rounds: dict[str, list[Round]], levels: dict[str, float]) -> list[Row]:
    """A row for each."""
    own, own_cpu = (statistics.median(getattr(one, what) for one in rounds[OURS]) for what in ("rate", "cpu_ms"))
    made = []
    for name, some in rounds.items():
        rates, cpu = [one.rate for one in some], statistics.median(one.cpu_ms for one in some)
        median = statistics.median(rates)
        figures = median, min(rates), max(rates), own / median, cpu, cpu / own_cpu
        made.append(Row(TITLES[case], name, *figures, levels.get(name, 0.0)))
    return made


def markdown(measured: Sequence[Row], facts: dict[str, Any]) -> str:
    """A line for each loader."""
    titles = ("clips of", "loader", "frames/s", "gpupipe to it", "CPU ms a frame", "its to gpupipe's", "levels apart")
    lines = [describe(facts), "", f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for row in measured:
        figures = cell(row.frames_per_s, row.frames_per_s_min, row.frames_per_s_max)
        cpu = f"{row.cpu_ms_per_frame:.2f} | {row.cpu_to_gpupipe:.2f}"
        lines.append(f"| {row.case} | {row.loader} | {figures} | {row.gpupipe_to_it:.2f} | {cpu} | {row.apart:.0f} |")
    return "\n".join([*lines, "", "Median of the rounds (smallest - largest). Levels: of an evaluation, at most."])


def main(argv: Sequence[str] | None = None) -> int:
    """Compare, measure, and write after each case."""
    parser = options(__doc__, TITLES)
    parser.add_argument("--size", type=int, default=224, metavar="PX", help="side of the output (default: 224)")
    args = parsed(parser, argv, TITLES)
    if args is None:
        return 1
    root = Path(args.data or made())
    workers = max(1, args.workers)  # 0: in this process
    settings = BenchSettings(str(root), args.batch_size, args.size, workers, 1, args.seconds, args.rounds)
    facts, found, table = environment(settings), {}, []
    for case in args.only:
        print(f"{TITLES[case]}:", file=sys.stderr)
        levels = {name: apart(root / case, reader, args.size) for reader, name in READERS[case].items()}
        rounds = measured(root / case, args, READERS[case])
        found[case] = {
            "apart": levels,
            "rounds": {name: [asdict(one) for one in some] for name, some in rounds.items()},
        }
        table += rows(case, rounds, levels)
        write(args.out, "video", markdown(table, facts), table, {"environment": facts, "cases": found})
    print((args.out / "results.md").read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
