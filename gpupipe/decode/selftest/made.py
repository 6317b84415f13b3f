"""The made set: small images of every kind that datasets hold, encoded in memory."""

from __future__ import annotations

import functools
import io
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Pixels", "image_size", "made_images", "made_pixels"]

Pixels = npt.NDArray[np.uint8]

# Start of a baseline frame (ITU-T T.81, table B.1), whose payload holds precision, height, width, number of components
# and for each component its id, its sampling factors (horizontal in the high nibble) and its table.
SOF0 = b"\xff\xc0"


def made_images() -> dict[str, bytes]:
    """Name -> encoded bytes: each sampling of JPEG, odd, tiny and large sizes, what hardware refuses, PNG and WebP."""
    jpeg = functools.partial(_encode, kind="JPEG", quality=92)
    return {
        "jpeg 4:4:4": jpeg(made_pixels(96, 128, 1), subsampling=0),
        "jpeg 4:2:2": jpeg(made_pixels(96, 128, 2), subsampling=1),
        "jpeg 4:2:0": jpeg(made_pixels(96, 128, 3), subsampling=2),
        "jpeg 4:4:0": _jpeg_440(made_pixels(96, 128, 4)),
        "jpeg 4:4:4 of odd size": jpeg(made_pixels(101, 67, 5), subsampling=0),
        "jpeg 4:2:2 of odd size": jpeg(made_pixels(97, 131, 6), subsampling=1),
        "jpeg 4:2:0 of odd size": jpeg(made_pixels(61, 83, 7), subsampling=2),
        "jpeg gray": jpeg(made_pixels(72, 80, 8), mode="L"),
        "jpeg progressive": jpeg(made_pixels(80, 72, 9), subsampling=2, progressive=True),
        "jpeg cmyk": jpeg(made_pixels(64, 64, 10), mode="CMYK"),
        "jpeg with restart markers": jpeg(made_pixels(88, 120, 11), subsampling=2, restart_marker_blocks=3),
        "jpeg of photo size": jpeg(made_pixels(375, 500, 12), subsampling=2),
        "jpeg 3000x4000": jpeg(_enlarged(made_pixels(375, 500, 13), 8), subsampling=2),
        "jpeg 1x1": jpeg(made_pixels(1, 1, 14)),
        "jpeg 3x200": jpeg(made_pixels(3, 200, 15), subsampling=0),
        "png": _encode(made_pixels(50, 70, 16), kind="PNG"),
        "webp": _encode(made_pixels(70, 50, 17), kind="WEBP", lossless=True),
    }


def made_pixels(height: int, width: int, seed: int) -> Pixels:
    """RGB uint8 (height, width, 3): waves whose colours and directions differ by `seed`.

    They are long, so that decoders that interpolate chroma in different ways differ little.
    """
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    waves = [np.sin(x / (45 + 10 * c + seed) + y / (80 - 12 * c) + seed * (c + 1)) for c in range(3)]
    return np.asarray(128 + 100 * np.stack(waves, axis=-1), dtype=np.uint8)


def image_size(encoded: bytes) -> tuple[int, int]:
    """(height, width) as the file's header says."""
    from PIL import Image

    with Image.open(io.BytesIO(encoded)) as image:
        return image.height, image.width


def _encode(pixels: Pixels, kind: str, mode: str = "RGB", **options: Any) -> bytes:
    from PIL import Image

    return _saved(Image.fromarray(pixels).convert(mode), kind, **options)


def _saved(image: Any, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def _enlarged(pixels: Pixels, times: int) -> Pixels:
    from PIL import Image

    height, width = pixels.shape[:2]
    return np.asarray(Image.fromarray(pixels).resize((width * times, height * times), Image.Resampling.BICUBIC))


def _jpeg_440(pixels: Pixels) -> bytes:
    """A JPEG whose chroma is halved from top to bottom; height in multiples of 16, width of 8.

    Pillow can't write that. But 4:2:2 has the same blocks in the same order: two of luma, one of each chroma, side by
    side in 4:2:2 and one above the other in 4:4:0. So luma is cut into blocks and laid out for 4:2:2, each chroma row
    is the mean of two, and the header says 4:4:0.
    """
    from PIL import Image

    height, width = pixels.shape[:2]
    luma, *chroma = np.moveaxis(np.asarray(Image.fromarray(pixels).convert("YCbCr")), -1, 0)
    blocks = luma.reshape(height // 16, 2, 8, width // 8, 8)
    planes = [blocks.transpose(0, 2, 3, 1, 4).reshape(height // 2, 2 * width)]
    for plane in chroma:
        halved = plane.reshape(height // 2, 2, width).mean(axis=1).round().astype(np.uint8)
        planes.append(np.repeat(halved, 2, axis=1))  # 4:2:2 takes the mean of two columns
    wide = Image.merge("YCbCr", [Image.fromarray(plane) for plane in planes])
    encoded = bytearray(_saved(wide, "JPEG", quality=92, subsampling=1))
    frame = encoded.index(SOF0) + 5  # past marker, length and precision
    encoded[frame : frame + 4] = height.to_bytes(2, "big") + width.to_bytes(2, "big")
    encoded[frame + 6] = 0x12  # luma's factors: 2 x 1 becomes 1 x 2
    return bytes(encoded)
