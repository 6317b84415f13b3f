"""What becomes of an image of any of Pillow's modes: RGB of 8 bits, by one rule for files and for PIL images."""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image

__all__ = ["Background", "as_rgb"]

Background = tuple[int, int, int] | None
"""The colour behind what is transparent; None: alpha is dropped, as by Pillow's `convert("RGB")`."""

BITS_PER_SAMPLE = 258  # a TIFF's tag


def as_rgb(image: Image.Image, background: Background = None) -> Image.Image:
    """The image's frame as Pillow's `convert("RGB")` has it, but for two things: of gray of 16 bits, which Pillow
    clips to white, the high bytes, as Pillow itself reads colours of 16 bits; and transparency over `background`.

    Raises ValueError where values of 32 bits are no pixels.
    """
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):
        image = _high_bytes(image)
    elif image.mode in ("I", "F"):
        _check_range(image)
    if background is None or not image.has_transparency_data:
        image.load()
        return image if image.mode == "RGB" else image.convert("RGB")  # which would copy
    canvas = Image.new("RGBA", image.size, (*background, 255))
    return Image.alpha_composite(canvas, image.convert("RGBA")).convert("RGB")


def _high_bytes(image: Image.Image) -> Image.Image:
    levels = np.asarray(image)
    tags: Any = getattr(image, "tag_v2", {})
    bits = tags.get(BITS_PER_SAMPLE, (16,))[0]  # a TIFF's 12 lie at the low end
    gray = Image.fromarray((levels >> (bits - 8)).astype(np.uint8))
    transparent = image.info.get("transparency")
    if transparent is not None:
        gray.putalpha(Image.fromarray(np.where(levels == transparent, 0, 255).astype(np.uint8)))
    return gray


def _check_range(image: Image.Image) -> None:
    values = np.asarray(image)
    low, high = values.min(), values.max()
    if not (low >= 0 and high <= 255) or (image.mode == "F" and 0 < high <= 1):
        raise ValueError(
            f"it is a PIL image of mode {image.mode!r} with values from {low} to {high}, and pixels are 0 to 255: "
            "scale them"
        )
