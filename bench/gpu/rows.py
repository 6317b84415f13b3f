"""What a part has measured: rows of one form for all parts, in one JSON file a part."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from gpupipe.tools import figures
from gpupipe.tools.benchmark.measurement import BenchSettings, Result, spread

__all__ = ["Row", "from_results", "rates", "write_csv", "write_part"]


@dataclass(frozen=True)
class Row:
    """One figure of one thing, or why there is none.

    part:     the part of run.sh that measured it.
    name:     what was measured: a contender, a mode.
    quantity: which figure of it, with its unit: "img/s", "median ms", "device MB".
    median, low, high: over the rounds; equal where there is one value, None where nothing was measured.
    note:     the reason where nothing was measured.
    """

    part: str
    name: str
    quantity: str
    median: float | None
    low: float | None = None
    high: float | None = None
    note: str = ""


def from_results(part: str, labels: Sequence[str], results: Sequence[Result]) -> list[Row]:
    """The rates of the runner's results, each under its label, then CPU time and memory of those that have them."""
    rows, costs = [], []
    for label, result in zip(labels, results, strict=True):
        found = spread([one.rate for one in result.rounds])
        note = result.reason or ""
        values = (found.median, found.low, found.high) if found else (None, None, None)
        rows.append(Row(part, label, "img/s", *values, note=note))
        cpu = spread([one.cpu_ms for one in result.rounds])
        if cpu and result.memory_mb is not None:
            costs.append(Row(part, label, "CPU ms/img", cpu.median, cpu.low, cpu.high))
            costs.append(Row(part, label, "host MB", result.memory_mb, result.memory_mb, result.memory_mb))
    return rows + costs


def rates(rows: Iterable[Row]) -> str:
    """The rates as text, the fastest first."""
    found = sorted((row for row in rows if row.quantity == "img/s"), key=lambda row: -(row.median or 0))
    return "\n".join(f"{row.name:40} {span(row):>24} img/s  {row.note}".rstrip() for row in found)


def span(row: Row) -> str:
    """Median, smallest and largest."""
    if row.median is None:
        return "-"
    return f"{row.median:,.0f} ({row.low:,.0f} - {row.high:,.0f})"


def write_part(folder: Path, part: str, rows: Iterable[Row], settings: BenchSettings) -> None:
    """PART.json in the folder: the rows, and what was asked for."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        "rows": [asdict(row) for row in rows],
        "settings": asdict(settings) | {"data": Path(settings.data).name},  # results are shown to others
    }
    (folder / f"{part}.json").write_text(json.dumps(content, indent=1) + "\n")


def write_csv(path: Path, rows: Iterable[Row]) -> None:
    """One line a row."""
    figures.write_csv(path, map(asdict, rows))
