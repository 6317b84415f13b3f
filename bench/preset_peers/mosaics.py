"""Ultralytics' dataset of detection, which makes its mosaics of a buffer of images that it has decoded."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import torch
from field_peers.data import KIND
from peers.common import cache, convert, converted, images
from torch.utils.data import Dataset
from torchvision.ops import box_convert

from preset_peers.code import Original, code

__all__ = ["yolo_train"]


def yolo_train(size: int) -> Original:
    """With the settings of its default.yaml; Albumentations' part is not there where that is not installed."""
    os.environ |= {"YOLO_OFFLINE": "true", "YOLO_CONFIG_DIR": str(cache())}  # it asks servers, and writes to ~/.config
    code(".", "ultralytics")
    return Original(dataset=partial(Yolo, size))


class Yolo(Dataset[Any]):
    """(images and boxes, label) of an image folder, by its YOLODataset."""

    def __init__(self, size: int, folder: str) -> None:
        from ultralytics.cfg import DEFAULT_CFG
        from ultralytics.data.dataset import YOLODataset

        self.paths, self.labels = images(folder)
        convert(folder, "yolo-1", partial(write, folder, self.paths))
        names = {"names": {number: str(number) for number in range(1000)}, "channels": 3}
        root = str(converted(folder, "yolo-1") / "images")
        self.samples = YOLODataset(img_path=root, imgsz=size, augment=True, hyp=DEFAULT_CFG, data=names)
        self.size = size

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[dict[str, Any], int]:
        made = self.samples[index]
        boxes = box_convert(made["bboxes"], "cxcywh", "xyxy") * self.size
        # Its trainer makes levels of 0 to 1 of the batch.
        return {"image": made["img"].float() / 255, "boxes": boxes}, self.labels[index]


def write(folder: str, paths: list[str], root: Path) -> None:
    """Links to the images and a text file for each, as it has them."""
    facts = json.loads((converted(folder, KIND) / "samples.json").read_text())
    for name in ("images", "labels"):
        (root / name).mkdir()
    for number, (path, one) in enumerate(zip(paths, facts, strict=True)):
        os.symlink(path, root / "images" / f"{number:06d}.jpg")
        sides = torch.tensor([one["width"], one["height"]] * 2)
        boxes = box_convert(torch.tensor(one["boxes"]), "xyxy", "cxcywh") / sides
        lines = [" ".join(map(str, [kind, *box])) for kind, box in zip(one["classes"], boxes.tolist(), strict=True)]
        (root / "labels" / f"{number:06d}.txt").write_text("\n".join(lines))
