"""Shards of squares, discs and bars in several colours, with two captions each."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

COLOURS = ("red", "green", "blue", "white")
SHAPES = ("square", "disc", "bar")


def setup(folder: Path, names: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    for name, count in (("pairs-000.tar", 16), ("pairs-001.tar", 16), ("val.tar", 7)):
        with tarfile.open(folder / name, "w") as tar:
            for number in range(count):
                colour, shape = COLOURS[rng.integers(4)], SHAPES[rng.integers(3)]
                captions = f"a {colour} {shape}\na {shape} that is {colour}"
                add(tar, f"{number:04}.jpg", drawn(colour, shape, rng))
                add(tar, f"{number:04}.txt", captions.encode())


def drawn(colour: str, shape: str, rng: np.random.Generator) -> bytes:
    image = Image.new("RGB", tuple(rng.integers(40, 60, 2).tolist()))
    left, top = rng.integers(5, 15, 2).tolist()
    draw = ImageDraw.Draw(image)
    (draw.ellipse if shape == "disc" else draw.rectangle)(
        (left, top, left + 20, top + (8 if shape == "bar" else 20)), colour
    )
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=95)
    return buffer.getvalue()


def add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


def check(folder: Path, names: dict[str, Any]) -> None:
    assert len(names["losses"]) == 4
    state = torch.load(folder / "checkpoint.pt")["loader"]
    assert (state["epoch"], state["global_batch"]) == (2, 8)
    shared_out = vector(torch.load(folder / "checkpoint.pt")["model"])
    names["run"](epochs=2, checkpoint="alone.pt")
    alone = vector(torch.load("alone.pt")["model"])
    torch.manual_seed(0)
    begun = vector(names["Towers"]().state_dict())
    assert (shared_out - alone).norm() < 0.05 * (alone - begun).norm()
    train, val = names["make_loaders"](1)
    with train, val:
        batch = next(iter(train))
        for tokens, mask in zip(batch["caption"], batch["caption_mask"], strict=True):
            text = bytes(tokens[mask].tolist()).decode()
            assert text.startswith("a ")
            assert "\n" not in text
            assert not tokens[~mask].any()
        assert names["recall"](Oracle(), val) == 1
    scores = torch.eye(8)
    assert names["contrast"](scores, scores, torch.tensor(100.0)).item() == pytest.approx(0, abs=1e-6)
    alike = names["contrast"](scores, torch.ones(8, 8), torch.tensor(1.0)).item()
    assert alike == pytest.approx(np.log(8))


def vector(state: dict[str, torch.Tensor]) -> torch.Tensor:
    """All weights: the model has no other state."""
    return torch.cat([value.flatten() for value in state.values()])


class Oracle(torch.nn.Module):
    """Has for each sample of the epoch features of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def forward(self, images: torch.Tensor, *_: torch.Tensor) -> tuple[torch.Tensor, ...]:
        features = torch.eye(16)[self.count : self.count + len(images)]
        self.count += len(images)
        return features, features, torch.tensor(1.0)
