"""The cases, in rows of the same question."""

from __future__ import annotations

from reliability.case import Row
from reliability.rows import engines, order, processes, resume

__all__ = ["ROWS"]

ROWS: dict[int, Row] = {
    row.number: row
    for row in sorted((*order.ROWS, *resume.ROWS, *engines.ROWS, *processes.ROWS), key=lambda row: row.number)
}
