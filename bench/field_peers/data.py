"""What the samples of each case hold, and the dataset that gives them, encoded, to both ways.

To the images of a folder masks, boxes, captions, a second camera's images and decoded pixels are made once.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from peers.common import convert, converted, images
from PIL import Image, ImageDraw, ImageOps
from PIL.JpegImagePlugin import JpegImageFile, get_sampling

import gpupipe
from gpupipe.batch import Field
from gpupipe.errors import ConfigError
from gpupipe.host.system import usable_cpus

__all__ = ["CASES", "Case", "Samples", "prepare"]

KIND = "fields-1"  # another number when other things are made
MOST = 4096  # images, as all are stored decoded: 2.3 GB of ImageNet's
CLASSES = 20


@dataclass(frozen=True)
class Case:
    """fields: of a sample besides "image" and "label", as gpupipe has them."""

    title: str
    fields: dict[str, Field]


BOXES = {"boxes": gpupipe.Boxes(labels="classes"), "classes": gpupipe.Array(), "caption": gpupipe.Text()}
CASES = {
    "label": Case("image + label", {}),
    "mask": Case("image + mask", {"mask": gpupipe.Mask()}),
    "boxes": Case("image + boxes + caption", BOXES),
    "cameras": Case("two cameras", {"second": gpupipe.Image(geometry="image")}),
    "arrays": Case("raw uint8 arrays", {}),
}


class Samples:
    """A map-style dataset of dicts. Images and masks are the bytes of their files, but arrays in the case "arrays"."""

    def __init__(self, folder: str, case: str) -> None:
        self.case = case
        self.root = converted(folder, KIND)
        self.paths, self.labels = images(folder)
        self.facts = json.loads((self.root / "samples.json").read_text())
        if case == "arrays":
            self.pixels = np.memmap(self.root / "pixels.bin", np.uint8, "r")

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> dict[str, Any]:
        sample = {"label": self.labels[index]}
        match self.case:
            case "arrays":
                return sample | {"image": self._array(index)}
            case "mask":
                sample["mask"] = np.fromfile(self.root / f"{index}.png", np.uint8)
            case "cameras":
                sample["second"] = np.fromfile(self.root / f"{index}.jpg", np.uint8)
            case "boxes":
                facts = self.facts[index]
                sample["boxes"] = np.array(facts["boxes"], np.float32)
                sample["classes"] = np.array(facts["classes"], np.int64)
                sample["caption"] = facts["caption"]
        return sample | {"image": np.fromfile(self.paths[index], np.uint8)}

    def _array(self, index: int) -> np.ndarray:
        facts = self.facts[index]
        height, width, offset = facts["height"], facts["width"], facts["offset"]
        return self.pixels[offset : offset + 3 * height * width].reshape(height, width, 3)


def prepare(folder: str) -> bool:
    """Make what belongs to the images of a folder, if it is not there; whether it was not."""
    paths, _ = images(folder)
    if len(paths) > MOST:
        raise ConfigError(f"{folder} has {len(paths)} images, but at most {MOST} are stored decoded; pass fewer")
    return convert(folder, KIND, partial(_write, paths))


def _write(paths: list[str], root: Path) -> None:
    with ThreadPoolExecutor(usable_cpus()) as pool, open(root / "pixels.bin", "wb") as pixels:
        facts = []
        for index, image in enumerate(pool.map(partial(_read, root), range(len(paths)), paths)):
            facts.append(_facts(index, image) | {"offset": pixels.tell()})
            pixels.write(np.asarray(image).tobytes())
    (root / "samples.json").write_text(json.dumps(facts))


def _read(root: Path, index: int, path: str) -> Image.Image:
    """The image; its mask and the other camera's image, which is the same mirrored and coded alike, are written."""
    with Image.open(path) as opened:
        image = opened.convert("RGB")
        coded = {}
        if isinstance(opened, JpegImageFile):
            coded = {"qtables": opened.quantization, "subsampling": max(0, get_sampling(opened))}
    ImageOps.mirror(image).save(root / f"{index}.jpg", **coded)
    mask = Image.new("L", image.size)
    draw, rng = ImageDraw.Draw(mask), np.random.default_rng(index)
    for box in _boxes(rng, 6, *image.size):
        draw.ellipse([tuple(box[:2]), tuple(box[2:])], int(rng.integers(1, CLASSES)), outline=255)
    mask.save(root / f"{index}.png")
    return image


def _facts(index: int, image: Image.Image) -> dict[str, Any]:
    rng = np.random.default_rng([index, 1])
    count = int(rng.integers(1, 12))
    return {
        "width": image.width,
        "height": image.height,
        "boxes": _boxes(rng, count, *image.size).tolist(),
        "classes": rng.integers(0, CLASSES, count).tolist(),
        "caption": f"{count} things in picture {index}",
    }


def _boxes(rng: np.random.Generator, count: int, width: int, height: int) -> np.ndarray:
    """float (count, 4), left, top, right, bottom."""
    corners = np.sort(rng.uniform(0, 1, (count, 2, 2)), axis=1) * (width, height)
    return corners.reshape(count, 4).round(1)
