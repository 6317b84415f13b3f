"""What is hot and no library does as well. Plain arrays and tensors in and out; imported as `gpupipe.kernels`."""

from __future__ import annotations

from gpupipe.kernels.decode import BadImage, Decoded, Limits, crop_resize, decode_crop_resize
from gpupipe.kernels.finish import finish, finish_reference

__all__ = [
    "BadImage",
    "Decoded",
    "Limits",
    "crop_resize",
    "decode_crop_resize",
    "finish",
    "finish_reference",
]
