"""What docs/guide/recipes.md takes for granted, and what it promises."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from images import encode, picture, write_folder
from PIL import Image
from tars import jpeg, write_tar

import gpupipe

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "recipes.md"


def setup(folder: Path, names: dict[str, Any]) -> None:
    table = pa.table({"image": [encode(picture(70, 80, 1))] * 8, "captions": [["one", "another"]] * 8})
    pq.write_table(table, folder / "pairs.parquet")
    write_folder(folder / "photos")
    boxes, classes = [[[5, 6, 40, 50]]] * 4, [[1]] * 4
    images = [encode(picture(70 + 9 * number, 80, number)) for number in range(4)]
    pq.write_table(pa.table({"image": images, "boxes": boxes, "classes": classes}), folder / "boxes.parquet")
    for name in ("streets/images", "streets/masks"):
        (folder / name).mkdir(parents=True)
    for number, image in enumerate(images):
        (folder / f"streets/images/{number}.jpg").write_bytes(image)
        Image.new("L", (80, 70 + 9 * number), number).save(folder / f"streets/masks/{number}.png")
    coco = {"images": [{"id": 7 + number, "file_name": f"{number}.jpg"} for number in range(4)]}
    objects = [(7, [1, 2, 30, 40], 0), (7, [1, 2, 30, 40], 1), (8, [20, 10, 30, 40], 0), (9, [20, 10, 30, 40], 0)]
    of = [dict(zip(("image_id", "bbox", "iscrowd"), one, strict=True)) | {"category_id": 3} for one in objects]
    (folder / "instances.json").write_text(json.dumps(coco | {"annotations": of}))
    mask = np.zeros((70, 80), np.uint8)
    mask[10:30, 20:50] = 1
    beside = (("png", encode(mask, "PNG", "L")), ("json", b'{"boxes": [[20, 10, 50, 30]], "classes": [3]}'))
    members = [(f"{row}.{kind}", data) for row in range(8) for kind, data in (("jpg", jpeg(row, 70, 80)), *beside)]
    write_tar(folder / "objects.tar", members)
    names["model"] = lambda images: images.mean(dim=(2, 3))
    names["detector"] = lambda images, targets: [*zip(images, targets, strict=True)]  # test_sizes.py has a real one
    names["detr"] = lambda images, mask: images.masked_fill(mask[:, None], 1)


def check(folder: Path, names: dict[str, Any]) -> None:
    presets = [name for name in gpupipe.__all__ if re.search("_(train|eval|finetune)$", name)]
    told = PAGE.read_text().partition("## Presets")[2].partition("\n\nAgreement with the originals")
    assert [name for name in presets if f"`{name}" not in told[0]] == []
    assert {row.count("|") for row in told[0].splitlines() if row} == {5}  # of one table
    assert all(told)
    assert [len(row["boxes"]) for row in names["rows"].values()] == [1, 1, 1, 0]
    assert names["image"].shape == (3, 300, 300)
    assert names["logits"].shape[1] == 3
    assert names["batch"]["caption"].shape == (4, 32)
    assert [list(target) for _, target in names["losses"]] == [["boxes", "labels"]] * 2
    assert names["predicted"].shape[2:] == (640, 640)
    assert names["objects"]["mask"].shape == (4, 64, 64)
