"""Samples of several fields, on the CPU: gpupipe beside torchvision v2 on tv_tensors.

    python bench/fields.py [DATA] --out results
    python bench/fields.py imagenet/train --out results --only mask,boxes --seconds 3

uint8 batches of image + label; image + mask; image + boxes + caption; two cameras, which are two images that share
their draws; and images that a dataset has decoded already. Both ways read the same samples of the same map-style
dataset and make the same of them: random resized crop, antialiased, and flip. First 64 samples are compared, given the
same boxes and flips: masks and labels have to be equal, boxes within 1e-3 pixels, images within 0.1 gray levels in the
mean and 2 at most. Then both are measured in turn, each in a process of its own, with the same number of workers, as
`gpupipe bench` does and README.md tells.

DATA is an image folder, by default the made sample set. Masks, boxes, captions, the second camera's images and decoded
pixels are made for its images, once, in the cache folder. Writes results.md, fields.csv and fields.json.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from field_peers import OURS, THEIRS, WAYS
from field_peers.agreement import Agreement, compare
from field_peers.data import CASES
from in_turn import cell, options, parsed, play, rate_of, settings_of, write

from gpupipe.tools.benchmark.measurement import Result, ratio
from gpupipe.tools.benchmark.report import describe, environment

__all__ = ["main"]


@dataclass(frozen=True)
class Row:
    """A case's contender: samples a second over the rounds, to torchvision's; or the reason."""

    case: str
    contender: str
    samples_per_s: float | None
    samples_per_s_min: float | None
    samples_per_s_max: float | None
    to_torchvision: float | None
    cpu_ms_per_sample: float | None
    reason: str


def rows(case: str, results: Sequence[Result]) -> list[Row]:
    """A row for each."""
    theirs = next(result for result in results if result.name == THEIRS)
    made = []
    for result in results:
        made.append(
            Row(
                CASES[case].title,
                result.name,
                *rate_of(result),
                ratio(result, theirs),
                statistics.median(one.cpu_ms for one in result.rounds) if result.rounds else None,
                result.reason or "",
            )
        )
    return made


def markdown(measured: Sequence[Row], agreed: dict[str, Agreement], facts: dict[str, Any]) -> str:
    """A line for each case; then how far the outputs are apart, and the reasons."""
    lines = [describe(facts), "", f"| samples | {OURS} | {THEIRS} | ratio |", "|---|---|---|---|"]
    for case in agreed:
        own, other = (row for row in measured if row.case == CASES[case].title)
        times = "-" if own.to_torchvision is None else f"{own.to_torchvision:.2f}"
        rates = " | ".join(
            cell(one.samples_per_s, one.samples_per_s_min, one.samples_per_s_max) for one in (own, other)
        )
        lines.append(f"| {own.case} | {rates} | {times} |")
    lines += ["", "Samples a second, median of the rounds (smallest - largest). Given the same boxes and flips:", ""]
    lines += [f"- {CASES[case].title}: {apart(one)}" for case, one in agreed.items()]
    return "\n".join([*lines, *(f"- {row.case}, {row.contender}: {row.reason}" for row in measured if row.reason)])


def apart(one: Agreement) -> str:
    """In words."""
    boxes = "" if one.boxes is None else f"; boxes {one.boxes:.1e} pixels"
    return f"images differ by {one.mean:.2f} gray levels in the mean, {one.largest:.0f} at most{boxes}"


def main(argv: Sequence[str] | None = None) -> int:
    """Compare, measure, and write after each case. Exit code 1 if gpupipe could not be measured in one."""
    parser = options(__doc__, CASES)
    parser.add_argument("--size", type=int, default=224, metavar="PX", help="side of the output (default: 224)")
    args = parsed(parser, argv, CASES)
    if args is None:
        return 1
    settings = settings_of(args, threads=1, size=args.size, dtype="uint8")
    facts, found, agreed, measured = environment(settings), {}, {}, []
    for case in args.only:
        print(f"{CASES[case].title}:", file=sys.stderr)
        agreed[case] = compare(case, settings)
        results = play({name: way + case for name, way in WAYS.items()}, settings, args.out / "logs" / case)
        found[case] = {"agreement": asdict(agreed[case]), "results": [asdict(result) for result in results]}
        measured += rows(case, results)
        content = {"environment": facts, "cases": found}
        write(args.out, "fields", markdown(measured, agreed, facts), measured, content)
    print((args.out / "results.md").read_text())
    return int(any(row.contender == OURS and row.samples_per_s is None for row in measured))


if __name__ == "__main__":
    sys.exit(main())
