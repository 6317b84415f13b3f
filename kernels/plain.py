"""The sizes of JPEGs that need no decoder to tell."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpupipe.kernels import native

__all__ = ["plain_sizes"]


def plain_sizes(encoded: Sequence[NDArray[np.uint8]], most_pixels: int) -> NDArray[np.int32]:
    """Height and width of each of N files, 1-D contiguous uint8: (N, 2), zeros where a decoder has to look.

    It has to at all but JPEGs of 8 bits without EXIF or further images that end as they should, of `most_pixels` at
    most; at all where the C++ kernels are not there.
    """
    sizes = np.zeros((len(encoded), 2), np.int32)
    opened = native.library()
    if opened is not None:
        lengths = np.array([len(each) for each in encoded], np.int64)
        arrays = (native.addresses(encoded), lengths)
        opened.gp_plain_files(
            ctypes.c_int64(len(encoded)),
            *(ctypes.c_void_p(array.ctypes.data) for array in arrays),
            ctypes.c_int64(most_pixels),
            ctypes.c_void_p(sizes.ctypes.data),
        )
    return sizes
