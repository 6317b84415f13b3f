"""What docs/start/tutorial.md promises."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image


def check(folder: Path, names: dict[str, Any]) -> None:
    with names["train"] as train, names["val"]:
        assert len(train) == 6
    assert names["images"].shape == (40, 3, 64, 64)
    assert (names["images"].dtype, names["labels"].dtype) == (torch.float32, torch.int64)
    assert Image.open(folder / "sheet.png").width > 64
    undisturbed = names["undisturbed"]
    assert len(undisturbed) == 24
    assert len(set(undisturbed)) == 24
    assert names["resumed"] == undisturbed
    assert names["moved"] == pytest.approx(undisturbed, rel=1e-3)
    assert learnt(names) > 0.6  # of three classes


def learnt(names: dict[str, Any]) -> float:
    """The share of validation images that the undisturbed run's model gets right."""
    train, val = names["make_loaders"]()
    model = names["make_model"](3).to(val.device)
    model.load_state_dict(torch.load("undisturbed.pt")["model"])
    with train, val:
        return float(names["accuracy"](model, val))
