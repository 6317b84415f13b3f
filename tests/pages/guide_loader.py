"""What docs/guide/loader.md takes for granted, and what it promises."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from images import write_folder
from tars import write_samples


def setup(folder: Path, names: dict[str, Any]) -> None:
    write_folder(folder / "imagenet" / "train", classes=4, per_class=32, sizes=((30, 40),))
    (folder / "shards").mkdir()
    for number in range(2):
        write_samples(folder / "shards" / f"val-{number:06d}.tar", first=4 * number)
    names["model"] = lambda images: torch.eye(10)[torch.arange(len(images)) % 2]  # says class 0, class 1, class 0 ...


def check(folder: Path, names: dict[str, Any]) -> None:
    assert names["after"]["Resume"]["epoch"] == 2
    assert names["everywhere"].tolist() == [1, 1, 0, 0, 0, 0, 0, 0]
