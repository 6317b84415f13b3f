"""Photos for docs/concepts/orders.md; and its drawings show the numbers that an order has."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
from images import write_folder

import gpupipe

DRAWINGS = Path(__file__).parents[2] / "docs/concepts"


def setup(folder: Path, names: dict[str, Any]) -> None:
    write_folder(folder / "photos", classes=4, per_class=10)


def check(folder: Path, names: dict[str, Any]) -> None:
    assert names["state"]["position"] == 16
    order = gpupipe.Shuffled(12)
    drawn = re.findall(r'<text x="\d+">(\d+)</text>', (DRAWINGS / "ranks.svg").read_text())
    assert [int(number) for number in drawn] == 3 * order.indices(0, 0, np.arange(12)).tolist()
    position, sample = (
        int(re.search(rf">{what} (\d+)<", (DRAWINGS / "order.svg").read_text())[1])  # type: ignore[index]
        for what in ("position", "sample")
    )
    assert order.indices(0, 1, np.array([position])).tolist() == [sample]
