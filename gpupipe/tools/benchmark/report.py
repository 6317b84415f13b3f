"""The results as a table, a plot, CSV and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from gpupipe.host.machine import machine
from gpupipe.sources.remote.objects import name
from gpupipe.tools.benchmark.checks import antialiased
from gpupipe.tools.benchmark.contenders import BASELINE
from gpupipe.tools.benchmark.measurement import BenchSettings, Result, columns, ratio, spread
from gpupipe.tools.figures import figures, write_csv, write_json

__all__ = ["by_rate", "cells", "describe", "environment", "number", "remarks", "rows", "table", "write_all"]

Row = dict[str, Any]


def environment(settings: BenchSettings) -> dict[str, Any]:
    """What the figures are measured on: what `machine` says, and the settings."""
    # Results are shown to others.
    return machine() | {"settings": asdict(settings) | {"data": name(str(settings.data))}}


def describe(facts: dict[str, Any]) -> str:
    """One line for a table's or a plot's caption."""
    gpus = ", ".join(facts["gpus"]) or "no GPU"
    settings = facts["settings"]
    return (
        f"{facts['cpu']}, {facts['usable_cpus']} usable CPUs, {gpus}; batch {settings['batch_size']}, "
        f"{settings['size']} px, {settings['workers']} workers, {settings['threads']} threads; {facts['date'][:10]}"
    )


def rows(results: Sequence[Result]) -> list[Row]:
    """One plain row for each contender; None where there is no value."""
    baseline = next((result for result in results if result.name == BASELINE), None)
    return [row(result, baseline) for result in results]


def row(result: Result, baseline: Result | None) -> Row:
    """A contender's row; `ratio` is its median over the baseline's."""
    cpu = spread([one.cpu_ms for one in result.rounds])
    return {
        "contender": result.name,
        **columns("img_per_s", [one.rate for one in result.rounds]),
        "ratio": ratio(result, baseline),
        "first_batch_s": result.opened and result.opened.first_batch,
        "cpu_ms_per_img": cpu and cpu.median,
        "memory_mb": result.memory_mb,
        "antialiased": None if result.noise_std is None else "yes" if antialiased(result.noise_std) else "no",
        "batches_on": result.opened and result.opened.device,
        "not_measured": result.reason,
    }


def table(measured: Sequence[Row], facts: dict[str, Any]) -> Table:
    """The rows for a terminal, the fastest first; `remarks` has those without figures."""
    headings = ("img/s", "min - max", "ratio", "first\nbatch s", "CPU ms\n/image", "memory\nMB", "on")
    made = figures("contender", *headings, caption=describe(facts))
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
    content = {"environment": facts, "rows": measured, "results": [asdict(result) for result in results]}
    paths = [write_csv(output / "results.csv", measured), write_json(output / "results.json", content)]
    plot(measured, facts, output / "results.png")
    return [*paths, output / "results.png"]


def plot(measured: Sequence[Row], facts: dict[str, Any], path: Path) -> None:
    """Bars of the medians, the fastest on top, with lines from the smallest to the largest round."""
    from matplotlib.figure import Figure

    ordered = by_rate(measured)[::-1]
    figure = Figure(figsize=(9, 1.6 + 0.45 * max(len(ordered), 1)), layout="constrained")
    axes = figure.add_subplot()
    rates = [one["img_per_s"] for one in ordered]
    low, high = ([one[f"img_per_s_{end}"] for one in ordered] for end in ("min", "max"))
    errors = [np.subtract(rates, low), np.subtract(high, rates)]
    colors = ["#76b900" if one["contender"].startswith("gpupipe") else "#9aa0a6" for one in ordered]
    bars = axes.barh([one["contender"] for one in ordered], rates, xerr=errors if ordered else None, color=colors)
    labels = [f"{one['img_per_s']:,.0f}" + (f"  ({one['ratio']:.2f}x)" if one["ratio"] else "") for one in ordered]
    axes.bar_label(bars, labels, padding=6)
    axes.set(xlabel="images a second (median of the rounds; the line spans smallest to largest)")
    axes.margins(x=0.18)
    axes.set_title(describe(facts), fontsize=8)
    figure.savefig(path, dpi=120)
