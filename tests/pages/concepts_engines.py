"""Photos for docs/concepts/engines.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from images import write_folder


def setup(folder: Path, names: dict[str, Any]) -> None:
    write_folder(folder / "photos", classes=2, per_class=5)


def check(folder: Path, names: dict[str, Any]) -> None:
    assert names["by_torch"].shape == names["by_dali"].shape == (10, 3, 64, 64)
    assert names["cropped"].std() > 20  # what was compared is a picture
