"""Encoded images as they go into a file: as they are, shrunk, or, of pixels, as PNG, without loss."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.sources.headers import FORMATS

__all__ = ["as_png", "extension", "png_of_pixels", "shrunk"]

MAGIC = {
    b"\xff\xd8": "jpg",
    b"\x89PNG": "png",
    b"BM": "bmp",
    b"GIF8": "gif",
    b"II*\0": "tif",
    b"MM\0*": "tif",
}


def extension(data: bytes) -> str:
    """By which files of this kind are known; "bin" where it is none of these."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    return next((name for magic, name in MAGIC.items() if data.startswith(magic)), "bin")


def as_png(data: bytes) -> bytes:
    """An encoded image of any kind as an RGB PNG."""
    from PIL import Image

    with Image.open(io.BytesIO(data), formats=FORMATS) as image:
        return _saved(image.convert("RGB"))


def png_of_pixels(pixels: NDArray[Any]) -> bytes:
    """A PNG of pixels (height, width, 3), or of a mask (height, width), of 8 or 16 bits.

    Raises ValueError for numbers that a PNG has no place for.
    """
    from PIL import Image

    least = np.uint16 if pixels.size and pixels.max() > 255 else np.uint8
    typed = pixels.astype(least)
    if not np.array_equal(typed, pixels):
        raise ValueError(f"it holds values from {pixels.min()} to {pixels.max()}, and a PNG has 0 to 65535")
    return _saved(Image.fromarray(np.ascontiguousarray(typed)))


def _saved(image: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def shrunk(data: bytes, shorter: int, quality: int, orientation: int) -> bytes:
    """An RGB JPEG whose shorter side is `shorter`, with the original's chroma subsampling and EXIF orientation."""
    from PIL import ExifTags, Image, JpegImagePlugin

    with Image.open(io.BytesIO(data), formats=FORMATS) as image:
        # -1 (gray, CMYK) and other formats: full chroma, as nothing says that it may go
        sampling = JpegImagePlugin.get_sampling(image) if image.format in ("JPEG", "MPO") else 0
        scale = shorter / min(image.size)
        size = (max(shorter, round(image.width * scale)), max(shorter, round(image.height * scale)))
        small = image.convert("RGB").resize(size, Image.Resampling.LANCZOS)
    exif = Image.Exif()
    if orientation != 1:
        exif[ExifTags.Base.Orientation] = orientation
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=quality, subsampling=max(0, sampling), exif=exif)
    return buffer.getvalue()
