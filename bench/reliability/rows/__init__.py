"""The cases, in rows of the same question."""

from __future__ import annotations

from dataclasses import replace

from reliability.case import Row
from reliability.rows import caching, engines, network, order, processes, resume

__all__ = ["ROWS"]


def _merged(rows: tuple[Row, ...]) -> dict[int, Row]:
    """By number; those of one number that stand in several modules are one row."""
    found: dict[int, Row] = {}
    for row in sorted(rows, key=lambda row: row.number):
        first = found.get(row.number)
        found[row.number] = replace(first, cases=(*first.cases, *row.cases)) if first else row
    return found


ROWS = _merged((*order.ROWS, *resume.ROWS, *engines.ROWS, *processes.ROWS, *caching.ROWS, *network.ROWS))
