"""What README.md takes for granted, and what it promises."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from images import write_folder
from tars import write_samples

import gpupipe


def setup(folder: Path, names: dict[str, Any]) -> None:
    write_folder(folder / "imagenet" / "train", classes=4, per_class=32, sizes=((30, 40),))
    (folder / "shards").mkdir()
    for number in range(2):
        write_samples(folder / "shards" / f"val-{number:06d}.tar", first=4 * number)


def check(folder: Path, names: dict[str, Any]) -> None:
    assert isinstance(names["train"], gpupipe.Loader)
    assert (names["images"].shape, names["labels"].shape) == ((64, 3, 224, 224), (64,))
    assert names["saved"] == names["train"].state_dict()
    assert [labels.tolist() for _, labels in names["val"]] == [[*range(8)]]
