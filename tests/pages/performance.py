"""Photos for docs/performance.md; and what it says of shared memory is what a loader reckons with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from images import write_folder

from gpupipe.host.system import shm_bytes_needed


def setup(folder: Path, names: dict[str, Any]) -> None:
    write_folder(folder / "photos", classes=2, per_class=12)


def check(folder: Path, names: dict[str, Any]) -> None:
    assert names["stats"]["images"] == 24
    assert 0 <= names["stats"]["wait_share"] <= 1
    assert "259 MiB needed" in names["printed"]
    formula = 256 * 224 * 224 * 3 * (8 * 2 + 2) * 1.1 + 16 * 2**20
    assert abs(shm_bytes_needed(256, 224 * 224, 8, 2) - formula) < 2
