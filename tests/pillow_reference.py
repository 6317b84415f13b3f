"""The truth that engines are held to: Pillow alone, slow and plain."""

from __future__ import annotations

import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from gpupipe.kernels import Crops

__all__ = ["render_reference"]


def render_reference(encoded: bytes, crops: Crops, exif: bool = False) -> NDArray[np.uint8]:
    """Decode, crop, resize and flip one image with Pillow.

    encoded: a whole image file; crops: of this one image. Returns uint8 RGB (out_height, out_width, 3).
    """
    image: Image.Image = Image.open(io.BytesIO(encoded))
    if exif:
        image = ImageOps.exif_transpose(image)
    top, left, height, width = (int(v) for v in crops.windows[0])
    window = cut(image.convert("RGB"), top, left, (height, width), crops.fill)
    # Along rows, then along columns, as all Pillows before 13; that one turns the order round for some sizes.
    for size in ((int(crops.resized[0, 1]), height), (int(crops.resized[0, 1]), int(crops.resized[0, 0]))):
        window = window.resize(size, Image.Resampling.BICUBIC if crops.bicubic[0] else Image.Resampling.BILINEAR)
    y, x = (int(v) for v in crops.anchors[0])
    if crops.padding != "constant":  # by NumPy, by so much that the output lies in it
        far = 1000
        window = Image.fromarray(np.pad(np.asarray(window), ((far, far), (far, far), (0, 0)), crops.padding))
        y, x = y + far, x + far
    output = cut(window, y, x, crops.size, crops.fill)
    if crops.flips[0]:
        output = ImageOps.mirror(output)
    return np.asarray(output)


def cut(
    image: Image.Image, top: int, left: int, size: tuple[int, int], fill: tuple[int, int, int] | None
) -> Image.Image:
    """A part of it, which may reach out of it."""
    canvas = Image.new("RGB", size[::-1], fill or 0)
    canvas.paste(image, (-left, -top))
    return canvas
