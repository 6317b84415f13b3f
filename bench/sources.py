"""The same images in every kind of data, on the CPU: gpupipe's rate as a part of the image folder's, and beside what
users of that kind have today.

    python bench/sources.py [DATA] --out results
    python bench/sources.py imagenet/train --out results --only tar,csv --copies 8

uint8 batches, random resized crop, antialiased, and flip, shuffled. The images of DATA (an image folder, by default the
made sample set) are copied `--copies` times, and written as each kind of data once, into the cache folder. Before
anything is timed, gpupipe's batches of a kind have to be those of the folder to the bit, and the other's samples the
same but for the rounding of its decoder. Then the folder, the kind and the other are measured in turn, each in a
process of its own, with the same number of workers, as `gpupipe bench` does and README.md tells. Writes results.md,
sources.csv and sources.json.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from in_turn import cell, options, parsed, play, rate_of, settings_of, write
from source_peers.agreement import check
from source_peers.kinds import KINDS, copied
from source_peers.ours import FOLDER

from gpupipe.tools.benchmark.measurement import Result, ratio
from gpupipe.tools.benchmark.report import describe, environment
from gpupipe.tools.benchmark.sample_set import sample_set

__all__ = ["main"]

OURS = "source_peers.ours:Ours?kind="


@dataclass(frozen=True)
class Row:
    """A contender on a kind of data: images a second over the rounds, to gpupipe's on the folder; or the reason."""

    kind: str
    contender: str
    img_per_s: float | None
    img_per_s_min: float | None
    img_per_s_max: float | None
    to_folder: float | None
    cpu_ms_per_img: float | None
    reason: str


def rows(kind: str, results: Sequence[Result]) -> list[Row]:
    """A row for each; the first is the folder."""
    made = []
    for one in results:
        cpu = statistics.median(part.cpu_ms for part in one.rounds) if one.rounds else None
        made.append(Row(KINDS[kind].title, one.name, *rate_of(one), ratio(one, results[0]), cpu, one.reason or ""))
    return made


def markdown(measured: Sequence[Row], facts: dict[str, Any]) -> str:
    """A line for each kind; then the reasons."""
    head = ["data", "gpupipe", "part of the folder's rate", "other", "times the other", "CPU ms an image"]
    lines = [describe(facts), "", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for place in range(0, len(measured), 3):
        folder, own, other = measured[place : place + 3]
        cpu = " / ".join(
            "-" if row.cpu_ms_per_img is None else f"{row.cpu_ms_per_img:.2f}" for row in (folder, own, other)
        )
        part = "-" if own.to_folder is None else f"{own.to_folder:.1%}"
        times = "-" if not (own.img_per_s and other.img_per_s) else f"{own.img_per_s / other.img_per_s:.2f}"
        lines.append(
            f"| {own.kind} | {figures(own)} | {part} | {other.contender}: {figures(other)} | {times} | {cpu} |"
        )
    lines += [
        "",
        "Images a second, median of the rounds (smallest - largest); CPU time of folder / gpupipe / other.",
        "",
    ]
    reasons = (f"- {row.kind}, {row.contender}: {row.reason}" for row in measured if row.reason)
    return "\n".join([*lines, *reasons]).rstrip()


def figures(row: Row) -> str:
    """Images a second."""
    return cell(row.img_per_s, row.img_per_s_min, row.img_per_s_max)


def main(argv: Sequence[str] | None = None) -> int:
    """Check, measure, and write after each kind. Exit code 1 if gpupipe could not be measured on one."""
    parser = options(__doc__, KINDS)
    parser.add_argument("--size", type=int, default=224, metavar="PX", help="side of the output (default: 224)")
    parser.add_argument("--copies", type=int, default=8, metavar="N", help="of each image (default: 8)")
    args = parsed(parser, argv, KINDS)
    if args is None:
        return 1
    args.data = copied(args.data or str(sample_set()), args.copies)
    settings = settings_of(args, threads=1, size=args.size, dtype="uint8")
    facts, found, measured = environment(settings), {}, []
    for kind in args.only:
        print(f"{KINDS[kind].title}:", file=sys.stderr)
        check(kind, settings)
        name, rival = KINDS[kind].rival
        contenders = {"gpupipe, folder": OURS + FOLDER, "gpupipe": OURS + kind, name: rival}
        results = play(contenders, settings, args.out / "logs" / kind)
        found[kind] = [asdict(result) for result in results]
        measured += rows(kind, results)
        write(args.out, "sources", markdown(measured, facts), measured, {"environment": facts, "results": found})
    print((args.out / "results.md").read_text())
    return int(any(row.contender.startswith("gpupipe") and row.img_per_s is None for row in measured))


if __name__ == "__main__":
    sys.exit(main())
