"""What docs/guide/operations.md takes for granted, and what it promises."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gpupipe


def check(folder: Path, names: dict[str, Any]) -> None:
    assert names["recipe"].output_spec(4).shape == (4, 3, 176, 176)
    assert names["evaluation"].crop == gpupipe.ResizeCenterCrop(224, 256, "bicubic")
    assert [one.name for one in names["salted"].own] == ["salt", "roll"]
