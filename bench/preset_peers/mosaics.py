"""A mosaic as a map-style dataset makes it: Ultralytics' arithmetic, on Pillow images and NumPy arrays."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import torch
from PIL import Image

from preset_peers.code import Original

__all__ = ["yolo_train"]

GRAY = (114, 114, 114)
GAINS = (0.015, 0.7, 0.4)  # of hue, saturation and value

Sample = tuple[Image.Image, dict[str, Any]]


def yolo_train(size: int) -> Original:
    """Four images on a canvas of twice the size, scaled, shifted and cut; then colours and a flip."""

    def transform(picture: Image.Image, beside: dict[str, Any], *others: Sample) -> dict[str, Any]:
        canvas, corners, classes = mosaic(size, [(picture, beside), *others])
        scale = random.uniform(0.5, 1.5)
        right, down = (random.uniform(0.4, 0.6) * size for _ in range(2))
        affine = (1 / scale, 0, size - right / scale, 0, 1 / scale, size - down / scale)
        whole = Image.fromarray(canvas).transform(
            (size, size), Image.Transform.AFFINE, affine, Image.Resampling.BILINEAR, fillcolor=GRAY
        )
        before = corners.clip(0, 2 * size)
        boxes = ((before.reshape(-1, 2, 2) - size) * scale + (right, down)).clip(0, size).reshape(-1, 4)
        image = np.asarray(colored(whole))
        if random.random() < 0.5:
            image = image[:, ::-1]
            boxes = np.stack([size - boxes[:, 2], boxes[:, 1], size - boxes[:, 0], boxes[:, 3]], axis=1)
        kept = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1) >= 1  # as gpupipe's; Ultralytics drops more of the small ones
        made = torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1))).float() / 255
        return {"image": made, "boxes": torch.from_numpy(boxes[kept]).float(), "classes": classes[kept]}

    return Original(transform, others=3)


def mosaic(size: int, samples: list[Sample]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The canvas, and the corners and classes of the boxes on it."""
    down, across = (int(random.uniform(size / 2, 1.5 * size)) for _ in range(2))
    canvas = np.full((2 * size, 2 * size, 3), GRAY, np.uint8)
    boxes, classes = [], []
    for quadrant, (picture, beside) in enumerate(samples):
        ratio = size / max(picture.size)
        sides = [min(math.ceil(side * ratio), size) for side in picture.size]
        tile = np.asarray(picture.resize(sides, Image.Resampling.BILINEAR))
        left = across - sides[0] if quadrant % 2 == 0 else across
        top = down - sides[1] if quadrant < 2 else down
        y, x = max(top, 0), max(left, 0)
        canvas[y : top + sides[1], x : left + sides[0]] = tile[y - top : 2 * size - top, x - left : 2 * size - left]
        scales = [new / old for new, old in zip(sides, picture.size, strict=True)]
        boxes.append(beside["boxes"] * (scales * 2) + [left, top, left, top])
        classes.append(np.array(beside["classes"]))
    return canvas, np.concatenate(boxes).reshape(-1, 4), np.concatenate(classes)


def colored(image: Image.Image) -> Image.Image:
    """Hue turned, saturation and value multiplied, by tables."""
    gains = [1 + random.uniform(-1, 1) * gain for gain in GAINS]
    levels = np.arange(256)
    tables = [levels * gains[0] % 256, *(np.clip(levels * gain, 0, 255) for gain in gains[1:])]
    table = np.concatenate(tables).astype(np.uint8).tolist()
    return image.convert("HSV").point(table).convert("RGB")
