"""Images as Hugging Face's `datasets` gives them: turned as their EXIF orientation says, in the mode of the feature."""

from __future__ import annotations

import io
from contextlib import suppress
from typing import Any

import numpy as np
import PIL.Image
import PIL.ImageOps
from numpy.typing import NDArray

from gpupipe.batch import Image, Images
from gpupipe.sources.headers import probe_bytes
from gpupipe.sources.values import as_given

__all__ = ["MODES", "turn"]

MODES = (None, "RGB")
"""Those in which an image is as it is stored."""


def turn(field: Image, images: Images, mode: str | None = None) -> None:
    """Put the pixels of those few that have to be turned in their places, of another mode those of all; all sizes are
    known then."""
    images.sizes = np.array([_header(data) for data in images.data], np.int32).reshape(-1, 3)
    changed = images.sizes[:, 2] > (1 if mode in MODES else 0)
    for row in np.flatnonzero(changed).tolist():
        with suppress(Exception):  # what is damaged is found where the others are decoded
            upright = _upright(images.data[row])
            images.data[row] = as_given(field, upright if mode in MODES else upright.convert(mode))
            images.sizes[row] = (*images.data[row].shape[:2], 1)


def _header(data: Any) -> tuple[int, int, int]:
    return (0, 0, 1) if data is None else probe_bytes(data.data)


def _upright(data: NDArray[np.uint8]) -> PIL.Image.Image:
    with PIL.Image.open(io.BytesIO(data.tobytes())) as image:
        image.load()
        return PIL.ImageOps.exif_transpose(image)
