"""The kernel that decodes, for one crop of each image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gpupipe.kernels import BadImage, Crops, decode_crops


class Decoded(NamedTuple):
    images: np.ndarray
    failures: dict[int, BadImage]


def decode_crop_resize(encoded: Sequence[bytes | np.ndarray], windows: Any, size: Any, **more: Any) -> Decoded:
    """The only images of `decode_crops`; `more` are settings of `Crops.of` and of that."""
    geometry = {key: more.pop(key) for key in ("flips", "resized", "anchors", "bicubic") if key in more}
    out = [more.pop("out")] if "out" in more else None
    made = decode_crops(encoded, [Crops.of(windows, size, **geometry)], out=out, **more)
    return Decoded(made.images[0], made.failures)
