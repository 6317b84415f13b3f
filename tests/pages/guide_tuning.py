"""What docs/guide/tuning.md takes for granted, and what it promises."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from images import write_folder


def setup(folder: Path, names: dict[str, Any]) -> None:
    write_folder(folder / "photos")


def check(folder: Path, names: dict[str, Any]) -> None:
    with names["train"] as train:
        assert [labels.tolist() for _, labels in train] == [[0] * 4 + [1] * 4 + [2] * 4]
