"""The cases, in rows of the same question."""

from __future__ import annotations

from dataclasses import replace

from reliability.case import Row
from reliability.rows import archives, caching, engines, hostile, images, network, order, processes, resources, resume

__all__ = ["ROWS"]


def _merged(rows: tuple[Row, ...]) -> dict[int, Row]:
    """By number; those of one number that stand in several modules are one row."""
    found: dict[int, Row] = {}
    for row in sorted(rows, key=lambda row: row.number):
        first = found.get(row.number)
        found[row.number] = replace(first, cases=(*first.cases, *row.cases)) if first else row
    return found


MODULES = (archives, caching, engines, hostile, images, network, order, processes, resources, resume)

ROWS = _merged(tuple(row for module in MODULES for row in module.ROWS))
