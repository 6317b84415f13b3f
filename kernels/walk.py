"""The segments of JPEGs, walked strictly, many files in one call: which of them every decoder takes in the same way."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpupipe.kernels import native
from gpupipe.kernels.decode import Limits

__all__ = ["Walked", "walk_jpegs"]


@dataclass(frozen=True)
class Walked:
    """headers: int32 (N, 3), height and width as stored, and the EXIF orientation: 1 to 8, 1 where there is none, 0
             where decoders may read it differently; all three are 0 for what is odd.
    odd:     row -> why it is no plain JPEG.
    """

    headers: NDArray[np.int32]
    odd: dict[int, str]


def walk_jpegs(encoded: Sequence[NDArray[np.uint8]], threads: int = 1) -> Walked:
    """Walk N files, each 1-D contiguous uint8.

    A plain JPEG has 8 bits, Huffman codes, and one frame, baseline or progressive, of 1 or 3 components; its segments
    are filled to their ends with what ITU T.81, annex B, allows there; its scans find all their tables, and are no more
    than `Limits().max_scans`. Anything else is odd, which need not be damage. What is coded is not looked at.
    Releases the GIL. Raises RuntimeError where the kernels were not built.
    """
    opened = native.library()
    if opened is None:
        raise RuntimeError(native.problem())
    count = len(encoded)
    data = native.addresses(encoded)
    sizes = np.array([len(each) for each in encoded], np.int64)
    headers = np.zeros((count, 3), np.int32)
    odd = (ctypes.c_char_p * count)()
    files = native.Walks(
        count,
        threads,
        Limits().max_scans,
        data.ctypes.data,
        sizes.ctypes.data,
        headers.ctypes.data,
        ctypes.addressof(odd),
    )
    opened.gp_walk_files(ctypes.byref(files))
    return Walked(headers, {row: reason.decode() for row, reason in enumerate(odd) if reason is not None})
