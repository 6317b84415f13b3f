"""What docs/guide/orders.md takes for granted, and what it promises."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from images import write_folder


def setup(folder: Path, names: dict[str, Any]) -> None:
    write_folder(folder / "photos")


def check(folder: Path, names: dict[str, Any]) -> None:
    for name in ("train", "padded", "packed"):
        with names[name] as loader:
            batches = [batch if isinstance(batch, dict) else {"label": batch[1]} for batch in loader]
            assert sum(len(batch["label"]) for batch in batches) == len(names["source"])
