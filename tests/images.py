"""Images that the tests make themselves: smooth colour fields with noise, encoded in every kind that datasets hold."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

Pixels = np.ndarray


def picture(height: int, width: int, seed: int = 0) -> Pixels:
    """An RGB uint8 (height, width, 3) picture with smooth colour, edges and a little noise."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    phase = rng.uniform(0, 6.28, 3)
    waves = [np.sin(x / (7 + 9 * c) + y / (11 + 5 * c) + phase[c]) for c in range(3)]
    pixels = 128 + 90 * np.stack(waves, axis=-1) + rng.normal(0, 6, (height, width, 3))
    pixels[(x // 40 + y // 30) % 5 == 0] *= 0.5
    return np.clip(pixels, 0, 255).astype(np.uint8)


def encode(pixels: Pixels, kind: str = "JPEG", mode: str = "RGB", **options: object) -> bytes:
    """`pixels` converted to `mode` and encoded by Pillow as `kind`."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(buffer, kind, **options)
    return buffer.getvalue()


def png_file(values: np.ndarray, passes: Sequence[np.ndarray] = ()) -> bytes:
    """A PNG of values (height, width, channels), uint8 or uint16: of 16 bits and interlaced, which Pillow can't write.

    passes: the parts of the values in the order of an interlaced file.
    """
    height, width, channels = values.shape
    bits = 8 * values.itemsize
    rows = b"".join(
        b"\0" + row.astype(f">u{values.itemsize}").tobytes() for part in (passes or [values]) for row in part
    )
    colour = {1: 0, 2: 4, 3: 2, 4: 6}[channels]
    header = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, bool(passes))
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    parts = [
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body)) for name, body in chunks
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def png16(values: np.ndarray) -> bytes:
    """A 16-bit PNG of values (height, width, channels)."""
    return png_file(values.astype(np.uint16))


class Numbered:
    """A dataset whose labels are its samples' indices, so that a batch tells which samples it holds.

    `files` come in turn: encoded images, one or more.
    """

    def __init__(self, size: int, files: Sequence[bytes]) -> None:
        self.size = size
        self.files = files

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[bytes, int]:
        return self.files[index % len(self.files)], index


def write_folder(root: Path, classes: int = 3, per_class: int = 4, sizes: tuple[tuple[int, int], ...] = ()) -> Path:
    """An image folder in torchvision's layout: `class_0/img_0.jpg` and so on, of varying sizes."""
    sizes = sizes or ((120, 160), (200, 150), (97, 131), (256, 256), (64, 300))
    for c in range(classes):
        folder = root / f"class_{c}"
        folder.mkdir(parents=True, exist_ok=True)
        for i in range(per_class):
            height, width = sizes[(c * per_class + i) % len(sizes)]
            data = encode(picture(height, width, seed=100 * c + i), quality=90)
            (folder / f"img_{i}.jpg").write_bytes(data)
    return root
