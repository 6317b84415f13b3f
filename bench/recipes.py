"""Recipes on the CPU, through real loaders: gpupipe's beside torchvision's transforms and timm's options.

    python bench/recipes.py [DATA] --out results
    python bench/recipes.py imagenet/train --out results --only plain,rand_augment --seconds 3

For each recipe: gpupipe.Loader with it; torchvision's v2 transforms in a DataLoader that decodes with gpupipe's
kernel, the same boxes of the same images; torchvision as its references train; timm's create_loader with the options
that correspond. All with the same number of workers, each in a process of its own, in turn, as `gpupipe bench` does
and README.md tells. DATA is an image folder, by default the made sample set. Writes results.md, recipes.csv and
recipes.json. Presets beside the code of those who published them: presets.py.
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
from recipe_loaders import BEHIND, WAYS
from recipe_loaders.table import RECIPES

from gpupipe.tools.benchmark.measurement import Result, ratio
from gpupipe.tools.benchmark.report import describe, environment

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


def rows(recipe: str, size: int, results: Sequence[Result]) -> list[Row]:
    """A row for each."""
    behind = next(result for result in results if result.name == BEHIND)
    made = []
    for result in results:
        made.append(
            Row(
                RECIPES[recipe].title,
                size,
                result.name,
                *rate_of(result),
                ratio(result, behind),
                statistics.median(one.cpu_ms for one in result.rounds) if result.rounds else None,
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
        rates = (cells[name] for name in WAYS)
        figures = [cell(one.img_per_s, one.img_per_s_min, one.img_per_s_max) for one in rates]
        own = cells[OURS].to_behind
        figures.append("-" if own is None else f"{own:.2f}")
        lines.append(f"| {title}, {size} px | {' | '.join(figures)} |")
    reasons = [f"- {row.recipe}, {row.contender}: {row.reason}" for row in measured if row.reason]
    return "\n".join([*lines, "", "Images a second, median of the rounds (smallest - largest).", "", *reasons]).rstrip()


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and write after each recipe. Exit code 1 if gpupipe could not be measured with one."""
    parser = options(__doc__, RECIPES)
    parser.add_argument("--size", type=int, metavar="PX", help="side of the output (default: the recipe's)")
    args = parsed(parser, argv, RECIPES)
    if args is None:
        return 1
    found, measured = {}, []
    for recipe in args.only:
        settings = settings_of(args, threads=1, size=args.size or RECIPES[recipe].size)
        print(f"{recipe}:", file=sys.stderr)
        references = {name: f"{module}:{recipe}" for name, module in WAYS.items()}
        found[recipe] = play(references, settings, args.out / "logs" / recipe, require_antialias=False)
        measured += rows(recipe, settings.size, found[recipe])
        facts = environment(settings)
        results = {recipe: [asdict(result) for result in some] for recipe, some in found.items()}
        content = {"environment": facts, "results": results}
        write(args.out, "recipes", markdown(measured, facts), measured, content)
    print((args.out / "results.md").read_text())
    return int(any(row.contender == OURS and row.img_per_s is None for row in measured))


if __name__ == "__main__":
    sys.exit(main())
