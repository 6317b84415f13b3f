"""Videos that the tests make: folders of frames that tell their video and their number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from images import encode

import gpupipe
from gpupipe import Frames, Key, Scalar
from gpupipe.sources import open_source

__all__ = ["EVAL", "EVEN", "FIELDS", "batches", "numbered", "told", "write_videos"]

FIELDS = {"video": Frames(clip=(4, 3)), "label": Scalar(), "key": Key()}
EVEN = Frames(clip=(4, 3), sampling="even")
EVAL = gpupipe.imagenet_eval(32, resize=40, dtype="uint8")


def write_videos(root: Path, frames: int = 14, classes: int = 2, videos: int = 3) -> Path:
    """Folders of frames, whose numbers of frames differ; each frame tells its own video and number by its level."""
    for label in range(classes):
        for video in range(videos):
            folder = root / f"class{label}" / f"video{video}"
            folder.mkdir(parents=True)
            for number in range(frames + video):
                (folder / f"img_{number + 1}.jpg").write_bytes(numbered(videos * label + video, number))
    return root


def numbered(video: int, number: int) -> bytes:
    return encode(np.full((48, 64, 3), (40 * video, 12 * number, 100), np.uint8), quality=95)


def told(clip: torch.Tensor) -> list[tuple[int, int]]:
    """Of a clip (frames, 3, height, width) of uint8 the video and the number of each frame."""
    means = clip.float().mean(dim=(2, 3))
    return [(round(float(red) / 40), round(float(green) / 12)) for red, green, _ in means]


def batches(data: Any, recipe: Any = EVAL, fields: Any = FIELDS, **options: Any) -> list[Any]:
    settings: dict[str, Any] = {"batch_size": 2, "num_workers": 0, "engine": "torch", "seed": 7} | options
    return list(gpupipe.Loader(open_source(data, fields=fields), recipe, **settings))
