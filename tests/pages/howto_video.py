"""Videos of a square that moves to the left or to the right, as folders of frames, and one as a file, given FFmpeg."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

NEEDS = ("torchcodec",)
KINDS = {"left": -3, "right": 3}


def setup(folder: Path, names: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    for part, count in (("train", 4), ("val", 3)):
        for kind in KINDS:
            for number in range(count):
                write(folder / "videos" / part / kind / f"{number:04}", kind, int(rng.integers(5, 14)), rng)
    if shutil.which("ffmpeg"):
        as_a_file(folder / "videos/train/right/0000")


def as_a_file(made: Path) -> None:
    """In the place of the folder of its frames."""
    command = ["ffmpeg", "-loglevel", "error", "-i", f"{made}/%05d.jpg", "-c:v", "mjpeg", "-q:v", "2", f"{made}.mp4"]
    subprocess.run(command, check=True)
    shutil.rmtree(made)


def write(folder: Path, kind: str, frames: int, rng: np.random.Generator) -> None:
    folder.mkdir(parents=True)
    place = 8 if KINDS[kind] > 0 else 44
    for number in range(frames):
        pixels = rng.normal((40, 60, 90), 8, (48, 64, 3))
        at = place + KINDS[kind] * number
        pixels[16:32, max(at, 0) : at + 12] = (230, 200, 60)
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{number + 1:05}.jpg", quality=95)


def check(folder: Path, names: dict[str, Any]) -> None:
    assert len(names["losses"]) == 2
    assert all(np.isfinite(names["losses"]))
    state = torch.load(folder / "checkpoint.pt")["loader"]
    assert (state["epoch"], state["global_batch"]) == (2, 4)
    train, test = names["make_loaders"](1)
    with train, test:
        assert train.source.classes == ["left", "right"]
        batch = next(iter(train))
        assert batch["video"].shape == (4, 3, 4, 32, 32)
        views = [one["video"] for one in test]
        assert {len(one) for one in views} == {6}
        labels = torch.cat([one["label"] for one in test])
        assert names["accuracy"](Oracle(labels), test) == 1
        assert names["accuracy"](Oracle(1 - labels), test) == 0


class Oracle(torch.nn.Module):
    """Says for each of six views the classes that it was given, in their turn."""

    def __init__(self, labels: torch.Tensor) -> None:
        super().__init__()
        self.labels, self.calls, self.done = labels, 0, 0

    def forward(self, view: torch.Tensor) -> torch.Tensor:
        assert view.shape[1:] == (3, 4, 32, 32)
        scores = torch.nn.functional.one_hot(self.labels[self.done : self.done + len(view)], 2).float()
        self.calls += 1
        if self.calls % 6 == 0:
            self.done += len(view)
        return scores
