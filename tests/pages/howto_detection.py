"""Images of squares and bars, with their boxes, some without any."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

COLOURS = {1: (220, 80, 60), 2: (60, 200, 90)}
SIDES = {1: (24, 24), 2: (14, 40)}  # heights and widths


def setup(folder: Path, names: dict[str, Any]) -> None:
    (folder / "images").mkdir()
    rng = np.random.default_rng(0)
    lines = [json.dumps(sample(folder, number, rng)) + "\n" for number in range(11)]
    (folder / "train.jsonl").write_text("".join(lines[:8]))
    (folder / "val.jsonl").write_text("".join(lines[8:]))


def sample(folder: Path, number: int, rng: np.random.Generator) -> dict[str, Any]:
    height, width = rng.integers(80, 120, 2)
    pixels = rng.normal((40, 60, 90), 15, (height, width, 3))
    classes = rng.integers(1, 3, number % 3).tolist()
    boxes = []
    for kind in classes:
        tall, wide = SIDES[kind]
        top, left = (int(rng.integers(0, whole - side)) for whole, side in ((height, tall), (width, wide)))
        pixels[top : top + tall, left : left + wide] = COLOURS[kind]
        boxes.append([left, top, left + wide, top + tall])
    path = f"images/{number:04}.jpg"
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / path, quality=95)
    return {"path": path, "boxes": boxes, "classes": classes}


def check(folder: Path, names: dict[str, Any]) -> None:
    assert len(names["losses"]) == 2
    assert all(np.isfinite(names["losses"]))
    state = torch.load(folder / "checkpoint.pt")["loader"]
    assert (state["epoch"], state["global_batch"]) == (2, 4)
    train, val = names["make_loaders"](1)
    with train, val:
        batch = next(iter(train))
        assert len({image.shape for image in batch["image"]}) > 1
        for image, target in zip(batch["image"], names["targets_of"](batch), strict=True):
            assert min(image.shape[1:]) in (64, 72, 80)
            assert max(image.shape) <= 112
            assert len(target["boxes"]) == len(target["labels"])
            for box, label in zip(target["boxes"].round().int().tolist(), target["labels"].tolist(), strict=True):
                middle = image[:, (box[1] + box[3]) // 2, (box[0] + box[2]) // 2]
                assert middle.argmax() == (0, 1)[label - 1]  # red squares, green bars, unless one covers the other
        truth = [names["targets_of"](one) for one in val]
        assert names["share_found"](Oracle(truth), val) == 1
        assert names["share_found"](Oracle(truth, moved=50), val) < 1


class Oracle(torch.nn.Module):
    """Says the boxes that it was given, batch by batch, at a place so many pixels off."""

    def __init__(self, truth: list[Any], moved: int = 0) -> None:
        super().__init__()
        self.truth, self.moved = iter(truth), moved

    def forward(self, images: list[torch.Tensor]) -> list[dict[str, torch.Tensor]]:
        return [one | {"boxes": one["boxes"] + self.moved} for one in next(self.truth)]
