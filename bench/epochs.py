"""What short epochs cost: rates over whole epochs of a few batches, as part of the rate within one long epoch.

    python bench/epochs.py [DATA] --out results
    python bench/epochs.py imagenet/train --out results --batches 3,10 --seconds 3

gpupipe.Loader with the torch engine and with DALI on the CPU, and torch's DataLoader with and without persistent
workers, all as they are by default otherwise: uint8 batches, random resized crop and flip. A loader's lengths of epochs
are measured in turn, each in a process of its own, as `gpupipe bench` does and README.md tells, but that whole epochs
are counted. DATA is an image folder, by default the made sample set; epochs longer than it go on in its next
permutation. Writes results.md, epochs.csv and epochs.json.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from epoch_peers import ENDLESS, DataLoaderPersistent, DataLoaderPlain, GpupipeDali, GpupipeTorch, Way
from in_turn import cell, options, parsed, play, rate_of, settings_of, words, write

from gpupipe.tools.benchmark.measurement import Result, ratio
from gpupipe.tools.benchmark.report import describe, environment

__all__ = ["main"]

WAYS: dict[str, type[Way]] = {
    "torch": GpupipeTorch,
    "dali": GpupipeDali,
    "persistent": DataLoaderPersistent,
    "plain": DataLoaderPlain,
}


@dataclass(frozen=True)
class Row:
    """A loader with one length of epochs, in batches: images a second over the rounds, to those of an endless epoch."""

    loader: str
    batches: int
    img_per_s: float | None
    img_per_s_min: float | None
    img_per_s_max: float | None
    to_steady: float | None
    reason: str


def rows(loader: str, results: dict[int, Result]) -> list[Row]:
    """A row for each length."""
    steady = results[ENDLESS]
    return [
        Row(loader, batches, *rate_of(result), ratio(result, steady), result.reason or "")
        for batches, result in results.items()
    ]


def markdown(measured: Sequence[Row], lengths: Sequence[int], facts: dict[str, Any]) -> str:
    """A line for each loader, a column for each length; then the reasons."""
    headings = [*(f"epochs of {batches}" for batches in lengths), "one long epoch"]
    lines = [describe(facts), "", f"| loader | {' | '.join(headings)} |", "|---" * (len(headings) + 1) + "|"]
    for loader in dict.fromkeys(row.loader for row in measured):
        cells = " | ".join(figures(row) for row in measured if row.loader == loader)
        lines.append(f"| {loader} | {cells} |")
    lines += ["", "Images a second, median of the rounds (smallest - largest), and the part of the long epoch's.", ""]
    reasons = (f"- {row.loader}, epochs of {row.batches}: {row.reason}" for row in measured if row.reason)
    return "\n".join([*lines, *reasons]).rstrip()


def figures(row: Row) -> str:
    """Images a second, and the part of the long epoch's."""
    part = "" if row.batches == ENDLESS or row.to_steady is None else f": {row.to_steady:.1%}"
    return cell(row.img_per_s, row.img_per_s_min, row.img_per_s_max) + part


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and write after each loader. Exit code 1 if one of gpupipe's could not be measured."""
    parser = options(__doc__, WAYS)
    parser.add_argument("--batches", type=words, default=["3", "10", "100"], metavar="N,M", help="default: 3,10,100")
    parser.add_argument("--size", type=int, default=224, metavar="PX", help="side of the output (default: 224)")
    args = parsed(parser, argv, WAYS)
    if args is None:
        return 1
    settings = settings_of(args, threads=args.workers, size=args.size, dtype="uint8")
    lengths = [int(text) for text in args.batches]
    facts, found, measured = environment(settings), {}, []
    for way in (WAYS[name] for name in args.only):
        print(f"{way.name}:", file=sys.stderr)
        references = {f"{way.name}, {n}": f"epoch_peers:{way.__name__}?batches={n}" for n in (*lengths, ENDLESS)}
        results = play(references, settings, args.out / "logs")
        found[way.name] = [asdict(result) for result in results]
        measured += rows(way.name, dict(zip((*lengths, ENDLESS), results, strict=True)))
        content = {"environment": facts, "results": found}
        write(args.out, "epochs", markdown(measured, lengths, facts), measured, content)
    print((args.out / "results.md").read_text())
    return int(any(row.loader.startswith("gpupipe") and row.img_per_s is None for row in measured))


if __name__ == "__main__":
    sys.exit(main())
