"""Shards for docs/migration/webdataset.md, by WebDataset's own writer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import webdataset
from images import encode, picture


def setup(folder: Path, names: dict[str, Any]) -> None:
    for shard in range(3):
        with webdataset.TarWriter(str(folder / f"train-{shard}.tar")) as writer:
            for number in range(5):
                image = encode(picture(80, 90, seed=shard * 5 + number))
                writer.write({"__key__": f"{shard}/{number:03}", "jpg": image, "cls": (shard + number) % 4})


def check(folder: Path, names: dict[str, Any]) -> None:
    assert len(names["theirs"]) == 15
