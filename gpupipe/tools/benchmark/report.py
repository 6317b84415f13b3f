"""The results as a table, a plot, CSV and JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from gpupipe.tools.benchmark.checks import antialiased
from gpupipe.tools.benchmark.contenders import BASELINE
from gpupipe.tools.benchmark.csv_file import write_csv
from gpupipe.tools.benchmark.environment import describe
from gpupipe.tools.benchmark.measurement import Result, ratio, spread

__all__ = ["COLUMNS", "remarks", "rows", "table", "write_all"]

Row = dict[str, Any]

COLUMNS = (
    "contender",
    "img_per_s",
    "img_per_s_min",
    "img_per_s_max",
    "ratio",
    "first_batch_s",
    "cpu_ms_per_img",
    "memory_mb",
    "antialiased",
    "batches_on",
    "not_measured",
)


def rows(results: Sequence[Result]) -> list[Row]:
    """One plain row for each contender, with the keys of `COLUMNS`; None where there is no value."""
    baseline = next((result for result in results if result.name == BASELINE), None)
    return [row(result, baseline) for result in results]


def row(result: Result, baseline: Result | None) -> Row:
    """A contender's row; `ratio` is its median over the baseline's."""
    rate = spread([one.rate for one in result.rounds])
    cpu = spread([one.cpu_ms for one in result.rounds])
    values = (
        result.name,
        rate and rate.median,
        rate and rate.low,
        rate and rate.high,
        ratio(result, baseline),
        result.opened and result.opened.first_batch,
        cpu and cpu.median,
        result.memory_mb,
        None if result.noise_std is None else "yes" if antialiased(result.noise_std) else "no",
        result.opened and result.opened.device,
        result.reason,
    )
    return dict(zip(COLUMNS, values, strict=True))


def table(measured: Sequence[Row], facts: dict[str, Any]) -> Table:
    """The rows for a terminal, the fastest first; `remarks` has those without figures."""
    made = Table(box=box.SIMPLE_HEAD, caption=describe(facts), caption_justify="left", padding=(0, 1, 0, 0))
    made.add_column("contender", no_wrap=True)
    for heading in ("img/s", "min - max", "ratio", "first\nbatch s", "CPU ms\n/image", "memory\nMB", "on"):
        made.add_column(heading, justify="right", no_wrap=True)
    for one in by_rate(measured):
        made.add_row(*cells(one))
    return made


def remarks(measured: Sequence[Row]) -> list[str]:
    """A line for each contender that was not measured, or not to the end, with the reason."""
    return [f"not measured: {one['contender']}: {one['not_measured']}" for one in measured if one["not_measured"]]


def cells(one: Row) -> list[str]:
    """A measured row as text."""
    return [
        one["contender"],
        number(one["img_per_s"], 0),
        f"{number(one['img_per_s_min'], 0)} - {number(one['img_per_s_max'], 0)}",
        number(one["ratio"], 2),
        number(one["first_batch_s"], 1),
        number(one["cpu_ms_per_img"], 2),
        number(one["memory_mb"], 0),
        one["batches_on"] or "",
    ]


def number(value: float | None, digits: int) -> str:
    """A number with thousands separated; a dash for None."""
    return "-" if value is None else f"{value:,.{digits}f}"


def by_rate(measured: Sequence[Row]) -> list[Row]:
    """The rows that have a rate, highest first."""
    return sorted((one for one in measured if one["img_per_s"] is not None), key=lambda one: -one["img_per_s"])


def write_all(results: Sequence[Result], facts: dict[str, Any], output: Path) -> list[Path]:
    """Write results.csv, results.json and results.png into the folder `output`; returns their paths."""
    output.mkdir(parents=True, exist_ok=True)
    measured = rows(results)
    paths = [output / f"results.{kind}" for kind in ("csv", "json", "png")]
    write_csv(paths[0], COLUMNS, measured)
    content = {"environment": facts, "rows": measured, "results": [asdict(result) for result in results]}
    paths[1].write_text(json.dumps(content, indent=2) + "\n")
    plot(measured, facts, paths[2])
    return paths


def plot(measured: Sequence[Row], facts: dict[str, Any], path: Path) -> None:
    """Bars of the medians, the fastest on top, with lines from the smallest to the largest round."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    ordered = by_rate(measured)[::-1]
    figure = Figure(figsize=(9, 1.6 + 0.45 * max(len(ordered), 1)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    rates = [one["img_per_s"] for one in ordered]
    errors = [
        [one["img_per_s"] - one["img_per_s_min"] for one in ordered],
        [one["img_per_s_max"] - one["img_per_s"] for one in ordered],
    ]
    colors = ["#76b900" if one["contender"].startswith("gpupipe") else "#9aa0a6" for one in ordered]
    bars = axes.barh([one["contender"] for one in ordered], rates, xerr=errors if ordered else None, color=colors)
    labels = [f"{one['img_per_s']:,.0f}" + (f"  ({one['ratio']:.2f}x)" if one["ratio"] else "") for one in ordered]
    axes.bar_label(bars, labels, padding=6)
    axes.set(xlabel="images a second (median of the rounds; the line spans smallest to largest)")
    axes.margins(x=0.18)
    axes.set_title(describe(facts), fontsize=8)
    figure.savefig(path, dpi=120)
