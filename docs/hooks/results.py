"""Stored measurements as parts of pages, without copies.

A line `<!-- results: cpu-2-cores/peers/results.md -->` becomes what that file of bench/results says. Tables of .csv
files are made into Markdown's; headings become bold lines, so that a page keeps its own outline. An indented line keeps
its indent, as within a block that is folded.
"""

from __future__ import annotations

import csv
import re
import textwrap
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[2] / "bench" / "results"
MARK = re.compile(r"^( *)<!-- results: (\S+) -->$", re.MULTILINE)


def on_page_markdown(markdown: str, **of_mkdocs: Any) -> str:
    """The page with what is stored. Raises FileNotFoundError, which ends the build, for what is not."""
    return MARK.sub(lambda match: textwrap.indent(stored(RESULTS / match[2]), match[1]), markdown)


def stored(path: Path) -> str:
    """A file's tables and remarks, without headings."""
    if path.suffix == ".csv":
        with path.open(newline="") as file:
            return table(list(csv.reader(file)))
    return re.sub(r"^#+ (.*)$", r"**\1**", path.read_text(), flags=re.MULTILINE).strip()


def table(rows: list[list[str]]) -> str:
    """Rows, of which the first is the head, as Markdown; numbers with as many digits as can be meant."""
    head, *rest = rows
    lines = [head, ["---"] * len(head), *([_rounded(cell) for cell in row] for row in rest)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _rounded(cell: str) -> str:
    try:
        number = float(cell)
    except ValueError:
        return cell
    return f"{number:,.0f}" if abs(number) >= 100 or number.is_integer() else f"{number:.3g}"
