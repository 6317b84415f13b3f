"""The cases, in rows of the same question."""

from __future__ import annotations

from reliability.case import Row
from reliability.rows import order, processes

__all__ = ["ROWS"]

ROWS: dict[int, Row] = {row.number: row for row in (*order.ROWS, *processes.ROWS)}
