"""Rows 19 to 26: workers and the training process are killed, stopped, interrupted and started in other ways."""

from __future__ import annotations

from reliability.case import Row

__all__ = ["ROWS"]

ROWS: tuple[Row, ...] = ()
