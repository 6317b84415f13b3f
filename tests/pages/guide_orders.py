"""What docs/guide/orders.md takes for granted, and what it promises."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from images import write_folder

from gpupipe.order import Order


def setup(folder: Path, names: dict[str, Any]) -> None:
    write_folder(folder / "photos")


def check(folder: Path, names: dict[str, Any]) -> None:
    order = names["EverySecond"]()
    assert isinstance(order, Order)
    assert order.indices(0, 1, np.arange(3)).tolist() == [1, 3, 5]
    assert order.positions(0, 1, np.array([1, 2, 5])).tolist() == [0, -1, 2]
    for name in ("train", "padded", "packed"):
        with names[name] as loader:
            batches = [batch if isinstance(batch, dict) else {"label": batch[1]} for batch in loader]
            assert sum(len(batch["label"]) for batch in batches) == len(names["source"])
