"""What docs/guide/video.md takes for granted, and what it promises."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from videos import write_videos


def setup(folder: Path, names: dict[str, Any]) -> None:
    write_videos(folder / "videos", frames=30, videos=2)
    names["model"] = lambda view: view.mean((2, 3, 4))


def check(folder: Path, names: dict[str, Any]) -> None:
    assert names["after"]["Video: clips of frames"]["batch"]["video"].shape == (4, 8, 3, 64, 64)
    assert names["test"].batch_size == 4
    assert names["logits"].shape == (4, 3)
