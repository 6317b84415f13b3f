"""Encoded images as they go into a file: as they are, shrunk, or, of pixels, as PNG, without loss."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.sources.headers import opened_image
from gpupipe.sources.rgb import Background, as_rgb

__all__ = ["EXTENSIONS", "extension", "png_of_pixels", "shrunk"]

# Where in a file of each kind what tells it stands, and what.
MAGIC = (
    (0, b"\xff\xd8\xff", "jpg"),
    (0, b"\x89PNG", "png"),
    (8, b"WEBP", "webp"),
    (0, b"BM", "bmp"),
    (0, b"GIF8", "gif"),
    (0, b"II*\0", "tif"),
    (0, b"MM\0*", "tif"),
    (0, b"II+\0", "tif"),
    (0, b"MM\0+", "tif"),
    (0, b"P6", "ppm"),
    (0, b"P3", "ppm"),
    (0, b"P5", "pgm"),
    (0, b"P2", "pgm"),
    (0, b"P4", "pbm"),
    (0, b"P1", "pbm"),
    (4, b"ftypavi", "avif"),
    (4, b"ftypmif1", "avif"),
    (4, b"jP  ", "jp2"),
    (0, b"\xff\x4f\xff\x51", "j2k"),
)
OTHER = "bin"
EXTENSIONS = (*dict.fromkeys(name for _, _, name in MAGIC), OTHER)


def extension(data: bytes) -> str:
    """By which files of this kind are known."""
    return next((name for at, magic, name in MAGIC if data.startswith(magic, at)), OTHER)


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


def shrunk(data: bytes, shorter: int, quality: int, orientation: int, background: Background) -> bytes:
    """An RGB JPEG whose shorter side is `shorter`, with the original's chroma subsampling and EXIF orientation; what is
    transparent lies on the background."""
    from PIL import ExifTags, Image, JpegImagePlugin

    with opened_image(data) as image:
        # -1 (gray, CMYK) and other formats: full chroma, as nothing says that it may go
        sampling = JpegImagePlugin.get_sampling(image) if image.format in ("JPEG", "MPO") else 0
        scale = shorter / min(image.size)
        size = (max(shorter, round(image.width * scale)), max(shorter, round(image.height * scale)))
        small = as_rgb(image, background).resize(size, Image.Resampling.LANCZOS)
    exif = Image.Exif()
    if orientation != 1:
        exif[ExifTags.Base.Orientation] = orientation
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=quality, subsampling=max(0, sampling), exif=exif)
    return buffer.getvalue()
