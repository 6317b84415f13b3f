"""One page of plots of all that was measured.

PYTHONPATH=.:bench python3 -m gpu.plots out-1/*.json      # beside each file, for a run that had no matplotlib
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gpu import table
from gpu.decoders import DALI
from gpu.memory import GROWTH
from gpu.rows import Row

__all__ = ["main", "page"]

OURS, OTHERS = "#76b900", "#9aa0a6"
COLUMNS = 2
WIDTH = 48  # letters of a label


def page(rows: Sequence[Row], caption: str, path: Path) -> None:
    """A PNG with a plot of each part that has figures; an empty page without any."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    measured = [row for row in rows if row.median is not None]
    drawn = [(title, draw, chosen) for title, draw, choose in PLOTS if (chosen := [r for r in measured if choose(r)])]
    lines = max(1, -(-len(drawn) // COLUMNS))
    figure = Figure(figsize=(9 * COLUMNS, 5.5 * lines), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(caption, fontsize=9)
    for number, (title, draw, chosen) in enumerate(drawn, 1):
        axes = figure.add_subplot(lines, COLUMNS, number)
        axes.set_title(title)
        draw(axes, chosen)
    figure.savefig(path, dpi=90)


def bars(axes: Any, rows: Sequence[Row]) -> None:
    """The largest on top, with lines from the smallest to the largest value."""
    ordered = sorted(rows, key=lambda row: row.median or 0)
    values = [row.median or 0 for row in ordered]
    errors = [
        [value - (row.low if row.low is not None else value) for row, value in zip(ordered, values, strict=True)],
        [(row.high if row.high is not None else value) - value for row, value in zip(ordered, values, strict=True)],
    ]
    colors = [OURS if row.name.startswith("gpupipe") else OTHERS for row in ordered]
    drawn = axes.barh([row.name[:WIDTH] for row in ordered], values, xerr=errors, color=colors)
    axes.bar_label(drawn, [f"{value:,.3g}" if value < 100 else f"{value:,.0f}" for value in values], padding=4)
    axes.set_xlabel(ordered[0].quantity)
    axes.margins(x=0.15)
    axes.tick_params(axis="y", labelsize=7)


def by_load(axes: Any, rows: Sequence[Row]) -> None:
    """Rates over hw_decoder_load, a line for each way and number of threads; what has no load lies across."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if row.name.startswith(f"{DALI} "):
            way, load, threads = row.name.removeprefix(f"{DALI} ").split(", ")
            lines.setdefault(f"{way}, {threads}", []).append((float(load.removeprefix("hw ")), row.median or 0))
        else:
            axes.axhline(row.median, linestyle="--", linewidth=1, color=OURS if "tuned" in row.name else OTHERS)
            axes.annotate(row.name, (0, row.median), fontsize=7, va="bottom")
    for label, points in lines.items():
        points.sort()
        axes.plot(*zip(*points, strict=True), marker="o", label=label)
    axes.set(xlabel="hw_decoder_load", ylabel="img/s", ylim=(0, None))
    if lines:
        axes.legend(fontsize=7)


def over_batches(axes: Any, rows: Sequence[Row]) -> None:
    """Megabytes over the batches that have passed."""
    for quantity in dict.fromkeys(row.quantity for row in rows):
        points = [(int(row.name.split()[1]), row.median) for row in rows if row.quantity == quantity]
        axes.plot(*zip(*points, strict=True), marker="o", label=quantity.removesuffix(" MB"))
    axes.set(xlabel="batches", ylabel="MB", ylim=(0, 1.1 * max(row.median or 0 for row in rows) + 1))
    axes.legend(fontsize=7)


def rate_of(part: str) -> Callable[[Row], bool]:
    """Chooses a part's rates."""
    return lambda row: row.part == part and row.quantity == "img/s"


PLOTS: tuple[tuple[str, Callable[[Any, Sequence[Row]], None], Callable[[Row], bool]], ...] = (
    ("Loaders, uint8", bars, rate_of("loaders")),
    ("Each decoder alone", by_load, rate_of("decoders")),
    ("Training", bars, rate_of("training")),
    ("Loaders, float32", bars, rate_of("loaders-float32")),
    ("Packed at 400 px", bars, rate_of("loaders-400")),
    ("Host time of next(), median", bars, lambda row: row.part == "host" and row.quantity == "median ms"),
    ("Host time of next(), 99th percentile", bars, lambda row: row.part == "host" and row.quantity == "p99 ms"),
    ("Memory", over_batches, lambda row: row.part == "memory" and row.quantity != GROWTH),
)


def main(paths: Sequence[str]) -> int:
    """Plot what the files hold."""
    for path in map(Path, paths):
        rows = [Row(**row) for row in json.loads(path.read_text())["rows"]]
        page(rows, table.caption(path), path.with_suffix(".png"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
