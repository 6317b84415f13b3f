"""Photos for docs/migration/dali.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from images import write_folder


def setup(folder: Path, names: dict[str, Any]) -> None:
    write_folder(folder / "photos", classes=2, per_class=4)


def check(folder: Path, names: dict[str, Any]) -> None:
    assert names["apart"].shape == (8, 3, 64, 64)
    assert names["apart"].mean() < 0.5  # "the same images come out"
