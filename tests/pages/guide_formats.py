"""What docs/guide/formats.md takes for granted, and what it promises."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from images import encode

CLEAR = np.zeros((300, 300, 4), np.uint8)


def setup(folder: Path, names: dict[str, Any]) -> None:
    """A sticker of which all is transparent, and black below that."""
    (folder / "stickers" / "star").mkdir(parents=True)
    (folder / "stickers" / "star" / "1.png").write_bytes(encode(CLEAR, "PNG", "RGBA"))


def check(folder: Path, names: dict[str, Any]) -> None:
    (images, labels), *rest = names["train"]
    assert (images.shape, labels.tolist(), rest) == ((1, 3, 224, 224), [0], [])
    white = (1 - torch.tensor([0.485, 0.456, 0.406])) / torch.tensor([0.229, 0.224, 0.225])
    torch.testing.assert_close(images.cpu()[0, :, 112, 112], white, atol=1e-3, rtol=0)
