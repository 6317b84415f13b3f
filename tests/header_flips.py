"""Flips single bits in the headers of images and compares the engines on them, in a process that may crash over it.

`python header_flips.py FOLDER SEED FLIPS` flips FLIPS bits in JPEGs' markers and lengths, as many anywhere in their
headers and an eighth as many at the beginnings of other formats, each in a file of its own. Prints a JSON object: for
each way to feed these how many samples there were and how many were bad, on which the engines differ, and how far off
DALI's pixels are from the torch engine's, the mean of each image.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from hostile import segments
from images import encode, picture
from PIL import Image

import gpupipe

RECIPE = gpupipe.imagenet_train(32, dtype="uint8")
UPRIGHT = gpupipe.Recipe(RECIPE.operations, dtype="uint8", exif_orientation=True)


def jpegs() -> list[bytes]:
    image, small = picture(120, 160, 1), picture(70, 50, 2)
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "a description"
    return [
        encode(image, subsampling=0, quality=90),
        encode(image, subsampling=2),
        encode(image, subsampling=1),
        encode(image, mode="L"),
        encode(image, progressive=True),
        encode(small, mode="L", progressive=True),
        encode(image, restart_marker_blocks=3),
        encode(image, exif=exif.tobytes()),
        encode(image, icc_profile=bytes(300), comment=b"a comment"),
        encode(image, keep_rgb=True),
        encode(image, mode="CMYK"),
        encode(small, optimize=True, quality=95),
    ]


def others() -> list[bytes]:
    image = picture(60, 80, 3)
    kinds = [encode(image, kind) for kind in ("PNG", "WEBP", "BMP", "PPM", "TIFF")]
    exif = Image.Exif()
    exif[0x0112] = 6
    return [*kinds, encode(image, "PNG", "P"), encode(image, "PNG", exif=exif), encode(image, "WEBP", lossless=True)]


def flipped(data: bytes, at: int, bit: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


def scan_flips(seed: int, count: int) -> list[bytes]:
    """JPEGs with one bit flipped in what is coded, of every second one in a 0xFF or the byte behind it."""
    rng = random.Random(seed)
    files = []
    for number in range(count):
        data = rng.choice(jpegs())
        coded: Sequence[int] = range(segments(data)[-1][2], len(data) - 1)
        if number % 2:
            coded = [at for at in coded if 0xFF in (data[at], data[at - 1])]
        files.append(flipped(data, rng.choice(coded), rng.randrange(8)))
    return files


def flips(seed: int, count: int) -> tuple[list[bytes], list[bytes]]:
    """Files and, in the same order, each with one bit flipped."""
    rng = random.Random(seed)
    files = []
    for number in range(2 * count):
        data = rng.choice(jpegs())
        parts = segments(data)
        markers = [begin - back for _, begin, _ in parts for back in (4, 3, 2, 1)]
        files.append((data, rng.choice(markers) if number < count else rng.randrange(parts[-1][2])))
    for _ in range(count // 8):
        data = rng.choice(others())
        files.append((data, rng.randrange(100)))
    rng.shuffle(files)
    return [data for data, _ in files], [flipped(data, at, rng.randrange(8)) for data, at in files]


def as_dataset(damaged: Sequence[bytes]) -> list[tuple[bytes, int]]:
    return [(data, number) for number, data in enumerate(damaged)]


def as_folder(root: Path, good: list[bytes], damaged: list[bytes]) -> Path:
    """A folder whose files were damaged after it was indexed, in place, so that the index counts as fresh."""
    folder = root / "images" / "all"
    folder.mkdir(parents=True)
    paths = [folder / f"{number:05}.jpg" for number in range(len(good))]
    for path, data in zip(paths, good, strict=True):
        path.write_bytes(data)
    with gpupipe.Loader(folder.parent, RECIPE, 1, engine="torch", num_workers=0):
        pass
    for path, data in zip(paths, damaged, strict=True):
        path.write_bytes(data)
    return folder.parent


def epoch(data: object, engine: str, recipe: gpupipe.Recipe, batch_size: int) -> tuple[torch.Tensor, set[int]]:
    """All images of an epoch, and the bad samples."""
    workers = 2 if engine == "dali" else 0
    with gpupipe.Loader(
        data, recipe, batch_size, engine=engine, num_workers=workers, on_error="skip", max_bad=1.0
    ) as loader:
        images = torch.cat([images.clone() for images, _ in loader])
        return images, {bad.index for bad in loader.bad_samples}


def compare(data: object, recipe: gpupipe.Recipe, batch_size: int) -> dict[str, object]:
    truth, bad = epoch(data, "torch", recipe, batch_size)
    images, refused = epoch(data, "dali", recipe, batch_size)
    off = (truth.float() - images.float()).abs().mean(dim=(1, 2, 3))
    return {
        "samples": len(truth),
        "bad": len(bad),
        "differ": sorted(bad ^ refused),
        "mean": off.mean().item(),
        "worst": off.max().item(),
    }


def main(root: Path, seed: int, count: int) -> None:
    good, damaged = flips(seed, count)
    results = {
        "single": compare(as_dataset(damaged[::16]), RECIPE, 1),
        "batches of 32": compare(as_dataset(damaged), UPRIGHT, 32),
        "batches of 256": compare(as_dataset(damaged), RECIPE, 256),
        "damaged after indexing": compare(as_folder(root, good, damaged), UPRIGHT, 64),
    }
    print(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
