"""Photographs in two folders, and what docs/howto/lightning.md promises of a Trainer on them."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import torch
from images import write_folder

NEEDS = ("lightning",)


def setup(folder: Path, names: dict[str, Any]) -> None:
    write_folder(folder / "photos/train", 3, 14, ((40, 50), (64, 70)))
    write_folder(folder / "photos/val", 3, 3, ((40, 50),))


def check(folder: Path, names: dict[str, Any]) -> None:
    import multiprocessing

    assert "7 10\n" in names["printed"]
    assert "a function that builds a Loader" in names["printed"]
    assert multiprocessing.active_children() == []
    saved = torch.load("runs/last.ckpt", weights_only=False)
    assert saved["global_step"] == 9
    (state,) = saved["loops"]["fit_loop"]["state_dict"]["combined_loader"]
    assert (state["epoch"], state["position"]) == (1, 4 * 8)
    with Path("logs/lightning_logs/version_1/metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    logged = {int(row["step"]): float(row["loader/images"]) for row in rows if row["loader/images"]}
    assert logged == {8: 2 * 8, 10: 4 * 8}  # of the resumed run, which begins with step 7
    right = 9 * names["resumed"].callback_metrics["right"].item()  # of nine images, each once
    assert right == pytest.approx(round(right), abs=1e-4)
