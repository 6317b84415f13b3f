"""Puts what the parts have written into few files: NAME.json with all, NAME.csv with the rows, NAME.md, NAME.png.

    python3 -m gpu.report WORK OUT NAME

WORK has a JSON file of each part that has run, and parts.csv. NAME.md is the table of targets, NAME.png one page of
plots.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpu import plots, table
from gpu.feeding import device
from gpu.rows import Row, write_csv
from gpupipe.decode.selftest import DecodePlan
from gpupipe.decode.tuned import tuned

__all__ = ["main", "rows_of"]


def rows_of(part: str, content: dict[str, Any]) -> list[Row]:
    """The rows of a part's JSON file, whatever wrote it."""
    if part == "machine":
        return []
    if part == "selftest":
        return [trial_row(trial) for trial in content["trials"]]
    if part == "tune":
        rate = content["winner"]["img_per_s"]
        return [Row("tune", content["code"], "img/s", rate, rate, rate)]
    if part == "training":
        return [row for one in content["rows"] for row in training_rows(one)]
    if part == "kernels":
        return [kernel_row(one) for one in content["rows"]]
    if part == "video_on_graph":
        return [video_row(one) for one in content["files"]]
    return [Row(**row) for row in content["rows"]]


def trial_row(trial: dict[str, Any]) -> Row:
    """A decode plan, and its largest difference from Pillow."""
    plan = DecodePlan(**trial["plan"])
    worst = trial["largest"] if trial["outcome"] == "passed" else None
    note = f"{trial['outcome']}: {trial['detail']}"
    return Row("selftest", plan.name, "largest difference, levels", worst, worst, worst, note)


def training_rows(one: dict[str, Any]) -> list[Row]:
    """Of one loader: its rate, and of waiting and of the ceiling shares of 1."""
    quantities = {"img_per_s": "img/s", "waited": "share waited", "of_ceiling": "of ceiling"}
    return [
        Row("training", one["contender"], text, one[key], one[f"{key}_min"], one[f"{key}_max"], one["not_measured"])
        for key, text in quantities.items()
    ]


def kernel_row(one: dict[str, Any]) -> Row:
    """Time of a call."""
    name = f"{one['work']}: {one['contender']}"
    return Row("kernels", name, "us", one["median_us"], one["low_us"], one["high_us"], one["reason"])


def video_row(one: dict[str, Any]) -> Row:
    """How far DALI's frames of a file are from torchcodec's, and what became of changed ones."""
    apart = one.get("mean") if one.get("right") else None
    note = one.get("failed", "") or ", ".join(f"{key}: {count}" for key, count in one["outcomes"].items())
    return Row("video_on_graph", one["file"], "mean difference, levels", apart, apart, apart, note)


def read_parts(work: Path) -> list[dict[str, str]]:
    """The lines of parts.csv."""
    path = work / "parts.csv"
    if not path.exists():
        return []
    with path.open() as file:
        return list(csv.DictReader(file))


def main(argv: Sequence[str] | None = None) -> int:
    """Read, write, print the table."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("work", type=Path, metavar="WORK")
    made.add_argument("out", type=Path, metavar="OUT")
    made.add_argument("name", metavar="NAME")
    args = made.parse_args(argv)
    contents = {path.stem: json.loads(path.read_text()) for path in sorted(args.work.glob("*.json"))}
    rows = [row for part, content in contents.items() for row in rows_of(part, content)]
    found = tuned(device())
    everything = {
        "parts": read_parts(args.work),
        "rows": [asdict(row) for row in rows],
        "tuned": found and asdict(found),
        "contents": contents,
    }
    target = args.out / args.name
    target.with_suffix(".json").write_text(json.dumps(everything, indent=1, default=str) + "\n")
    write_csv(target.with_suffix(".csv"), rows)
    try:
        plots.main([str(target.with_suffix(".json"))])
    except ModuleNotFoundError as error:  # minutes of measuring must not end in an error
        print(f"no plots: {error}")
    return table.main([str(target.with_suffix(".json")), "--out", str(target.with_suffix(".md"))])


if __name__ == "__main__":
    sys.exit(main())
