"""What docs/guide/fields.md takes for granted, and what it promises."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from images import encode
from tars import jpeg, write_tar


def setup(folder: Path, names: dict[str, Any]) -> None:
    """Six samples in two shards; the first has no mask, the last no embedding."""
    for shard in range(2):
        members = []
        for number in range(3 * shard, 3 * shard + 3):
            objects = {"boxes": [[10, 10, 20, 20]] * number, "classes": list(range(number))}
            embedding = io.BytesIO()
            np.save(embedding, np.full(4, number, np.float32))
            members += [(f"{number}.jpg", jpeg(number)), (f"{number}.json", json.dumps({"objects": objects}).encode())]
            members += [(f"{number}.txt", b"a caption")]
            if number > 0:
                members.append((f"{number}.seg.png", encode(np.full((40, 60), 3, np.uint8), "PNG", "L")))
            if number < 5:
                members.append((f"{number}.npy", embedding.getvalue()))
        write_tar(folder / f"train-{shard:03d}.tar", members)


def check(folder: Path, names: dict[str, Any]) -> None:
    with names["train"] as train:
        (batch,) = train
    assert set(batch) == set(names["fields"])
    numbers = [int(key) for key in batch["key"]]
    assert numbers[:5] == [0, 1, 2, 3, 4]
    assert numbers[5] < 5  # in the place of what has no embedding
    assert batch["mask"].shape == (6, 224, 224)
    assert batch["mask"][0].unique().tolist() == [255]
    assert [len(boxes) for boxes in batch["boxes"]] == [len(classes) for classes in batch["classes"]]
    torch.testing.assert_close(batch["embedding"], torch.tensor(numbers).float()[:, None].expand(6, 4))
