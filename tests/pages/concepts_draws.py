"""Photos for docs/concepts/draws.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from images import write_folder


def setup(folder: Path, names: dict[str, Any]) -> None:
    write_folder(folder / "photos", classes=4, per_class=6)


def check(folder: Path, names: dict[str, Any]) -> None:
    apart = abs(names["by_torch"] - names["by_dali"])
    assert apart.mean() < 1  # as the page says of the engines
    assert names["by_torch"].std() > 20  # and they are pictures
