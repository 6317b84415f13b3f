"""Recipes on the CPU, through real loaders: gpupipe's beside torchvision's transforms and timm's options.

    python bench/recipes.py [DATA] --out results
    python bench/recipes.py imagenet/train --out results --only plain,rand_augment --seconds 3

For each recipe: gpupipe.Loader with it; torchvision's v2 transforms in a DataLoader that decodes with gpupipe's
kernel, the same boxes of the same images; torchvision as its references train; timm's create_loader with the options
that correspond. All with the same number of workers, each in a process of its own, in turn, as `gpupipe bench` does and
README.md tells. DATA is an image folder, by default the made sample set. Writes results.md, recipes.csv, recipes.json.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from recipe_loaders import BEHIND, WAYS
from recipe_loaders.table import RECIPES

from gpupipe.host.progress import steps
from gpupipe.host.system import usable_cpus
from gpupipe.tools.benchmark.measurement import Result, ratio, spread
from gpupipe.tools.benchmark.report import describe, environment
from gpupipe.tools.benchmark.runner import measure
from gpupipe.tools.benchmark.sample_set import sample_set
from gpupipe.tools.benchmark.settings import BenchSettings

__all__ = ["main"]

OURS = "gpupipe"


@dataclass(frozen=True)
class Row:
    """A recipe's contender: images a second over the rounds, to torchvision's behind the same decode; or the reason."""

    recipe: str
    size: int
    contender: str
    img_per_s: float | None
    img_per_s_min: float | None
    img_per_s_max: float | None
    to_behind: float | None
    cpu_ms_per_img: float | None
    reason: str


def play(recipe: str, settings: BenchSettings, logs: Path) -> list[Result]:
    """All contenders in turn, under their names."""
    references = [f"{module}:{recipe}" for module in WAYS.values()]
    with steps(len(references) * (1 + settings.rounds)) as step:
        results = measure(references, settings, logs, step, require_antialias=False)
    for name, result in zip(WAYS, results, strict=True):
        result.name = name
    return results


def rows(recipe: str, size: int, results: Sequence[Result]) -> list[Row]:
    """A row for each."""
    behind = next(result for result in results if result.name == BEHIND)
    made = []
    for result in results:
        rate = spread([one.rate for one in result.rounds])
        made.append(
            Row(
                RECIPES[recipe].title,
                size,
                result.name,
                rate and rate.median,
                rate and rate.low,
                rate and rate.high,
                ratio(result, behind),
                statistics.median(one.cpu_ms for one in result.rounds) if rate else None,
                result.reason or "",
            )
        )
    return made


def markdown(measured: Sequence[Row], facts: dict[str, Any]) -> str:
    """A line for each recipe, a column for each contender; then the reasons."""
    lines = [
        describe(facts),
        "",
        f"| recipe | {' | '.join(WAYS)} | gpupipe to {BEHIND} |",
        "|---" * (len(WAYS) + 2) + "|",
    ]
    for title, size in dict.fromkeys((row.recipe, row.size) for row in measured):
        cells = {row.contender: row for row in measured if (row.recipe, row.size) == (title, size)}
        own = cells[OURS].to_behind
        figures = " | ".join(cell(cells[name]) for name in WAYS)
        lines.append(f"| {title}, {size} px | {figures} | {'-' if own is None else f'{own:.2f}'} |")
    reasons = [f"- {row.recipe}, {row.contender}: {row.reason}" for row in measured if row.reason]
    return "\n".join([*lines, "", "Images a second, median of the rounds (smallest - largest).", "", *reasons]).rstrip()


def cell(row: Row) -> str:
    """Images a second."""
    if row.img_per_s is None:
        return "-"
    return f"{row.img_per_s:,.0f} ({row.img_per_s_min:,.0f} - {row.img_per_s_max:,.0f})"


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?", help="image folder (default: the made sample set)")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the results")
    parser.add_argument(
        "--only",
        type=lambda text: text.split(","),
        default=list(RECIPES),
        metavar="A,B",
        help=f"of {', '.join(RECIPES)}",
    )
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="of each contender (default: 5)")
    parser.add_argument("--seconds", type=float, default=3.0, metavar="S", help="time of a round (default: 3)")
    parser.add_argument("--workers", type=int, default=usable_cpus(), metavar="N", help="default: the usable CPUs")
    parser.add_argument("--batch-size", type=int, default=128, metavar="N", help="images a batch (default: 128)")
    parser.add_argument("--size", type=int, metavar="PX", help="side of the output (default: the recipe's)")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and write after each recipe. Exit code 1 if gpupipe could not be measured with one."""
    args = parse(argv)
    unknown = sorted(set(args.only) - set(RECIPES))
    if unknown:
        print(f"--only has no {', '.join(unknown)}; there are {', '.join(RECIPES)}", file=sys.stderr)
        return 1
    data, found, measured = args.data or str(sample_set()), {}, []
    for recipe in args.only:
        size = args.size or RECIPES[recipe].size
        settings = BenchSettings(
            data=data,
            batch_size=args.batch_size,
            size=size,
            workers=args.workers,
            threads=1,
            seconds=args.seconds,
            rounds=args.rounds,
        )
        print(f"{recipe}:", file=sys.stderr)
        found[recipe] = play(recipe, settings, args.out / "logs" / recipe)
        measured += rows(recipe, size, found[recipe])
        write(args.out, measured, found, environment(settings))
    print((args.out / "results.md").read_text())
    return int(any(row.contender == OURS and row.img_per_s is None for row in measured))


def write(folder: Path, measured: Sequence[Row], found: dict[str, list[Result]], facts: dict[str, Any]) -> None:
    """The table, the rows, and every round."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.md").write_text(markdown(measured, facts) + "\n")
    with open(folder / "recipes.csv", "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(asdict(measured[0]))
        table.writerows(asdict(row).values() for row in measured)
    results = {recipe: [asdict(result) for result in some] for recipe, some in found.items()}
    content = {"environment": facts, "rows": [asdict(row) for row in measured], "results": results}
    (folder / "recipes.json").write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
