"""Figures as a table for a terminal, as CSV and as JSON."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

__all__ = ["figures", "write_csv", "write_json"]


def figures(name: str, *headings: str, caption: str | None = None) -> Table:
    """An empty table: a column of names, and columns of figures."""
    made = Table(box=box.SIMPLE_HEAD, caption=caption, caption_justify="left", padding=(0, 1, 0, 0))
    made.add_column(name, no_wrap=True)
    for heading in headings:
        made.add_column(heading, justify="right", no_wrap=True)
    return made


def write_csv(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """A line for each row, figures with four digits after the point; empty where there is no value. Returns `path`."""
    rows = list(rows)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0] if rows else ())
        writer.writeheader()
        writer.writerows({key: round(v, 4) if isinstance(v, float) else v for key, v in row.items()} for row in rows)
    return path


def write_json(path: Path, content: Mapping[str, Any]) -> Path:
    """Plain values, readably. Returns `path`."""
    path.write_text(json.dumps(content, indent=2) + "\n")
    return path
