"""What docs/guide/sources.md takes for granted, and what it promises."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from images import encode, picture


def setup(folder: Path, names: dict[str, Any]) -> None:
    with sqlite3.connect(folder / "photos.db") as database:
        database.execute("CREATE TABLE photos (id INTEGER, jpeg BLOB, class INTEGER, height INTEGER, width INTEGER)")
        rows = [(number, encode(picture(30 + number, 40)), number % 3, 30 + number, 40) for number in range(6)]
        database.executemany("INSERT INTO photos VALUES (?, ?, ?, ?, ?)", rows)


def check(folder: Path, names: dict[str, Any]) -> None:
    with names["loader"] as loader:
        assert [labels.tolist() for _, labels in loader] == [[0, 1, 2], [0, 1, 2]]
