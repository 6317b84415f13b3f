"""The truth that engines are held to: Pillow alone, slow and plain."""

from __future__ import annotations

import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from gpupipe.plan import Plan

__all__ = ["render_reference"]


def render_reference(encoded: bytes, plan: Plan, exif: bool = False) -> NDArray[np.uint8]:
    """Decode, crop, resize and flip one image with Pillow.

    encoded: a whole image file; plan: of this one image. Returns uint8 RGB (out_height, out_width, 3).
    """
    image: Image.Image = Image.open(io.BytesIO(encoded))
    if exif:
        image = ImageOps.exif_transpose(image)
    top, left, height, width = (int(v) for v in plan.windows[0])
    window = image.convert("RGB").crop((left, top, left + width, top + height))
    # Along rows, then along columns, as all Pillows before 13; that one turns the order round for some sizes.
    for size in ((int(plan.resized[0, 1]), height), (int(plan.resized[0, 1]), int(plan.resized[0, 0]))):
        window = window.resize(size, Image.Resampling[plan.filter.upper()])
    y, x = (int(v) for v in plan.anchors[0])
    output = window.crop((x, y, x + plan.size[1], y + plan.size[0]))
    if plan.flips[0]:
        output = ImageOps.mirror(output)
    return np.asarray(output)
