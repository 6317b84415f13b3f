"""What docs/guide/kernels.md takes for granted, and what it promises."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from images import encode, picture


def setup(folder: Path, names: dict[str, Any]) -> None:
    (folder / "photos").mkdir()
    for number in range(4):
        (folder / "photos" / f"{number}.jpg").write_bytes(encode(picture(70, 90, number)))


def check(folder: Path, names: dict[str, Any]) -> None:
    assert names["made"].failures == {}
    batch, targets = names["batch"], names["targets"]
    assert (batch.shape, batch.dtype) == ((4, 3, 224, 224), torch.bfloat16)
    assert batch.is_contiguous(memory_format=torch.channels_last)
    assert targets[0].nonzero().flatten().tolist() == [1, 3]
    torch.testing.assert_close(targets.sum(dim=1), torch.ones(4))
