"""Which encoded images DALI may see.

A file whose header its parser refuses, or whose size is another than the window was made for, ends DALI's pipeline by
an exception on one thread while others still write to what that frees. In batches of more than 4 images a thread the
process then often dies of SIGSEGV: with DALI 2.4 for 162 of 400 flips of one bit in JPEGs' markers and lengths. So
nothing goes to DALI whose header was not read here first, from the same bytes. What it refuses later, while it decodes,
ends the pipeline by an exception that waits for all threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.decode.pixels import mentions_exif, parse
from gpupipe.kernels import Limits, native, walk_jpegs

__all__ = ["unfit_rows"]

Encoded = NDArray[np.uint8]

# As nvImageCodec names them. A TIFF it does not turn upright as Pillow does.
FORMATS = frozenset({"jpeg", "png", "webp", "bmp", "pnm"})
CHANGED = "its size in pixels is another than expected"
TURNED = "its EXIF orientation is in doubt"


def unfit_rows(encoded: Sequence[Encoded], sizes: NDArray[np.int32], exif: bool) -> dict[int, str]:
    """The rows of N images that the CPU has to make, and why; that says nothing of whether they are damaged.

    JPEGs are walked by the C++ kernels, 1.3 us each; other formats, and JPEGs where the kernels were not built, are
    parsed by nvImageCodec, which DALI does too, 3 us each.

    sizes: (N, 3), expected height, width and EXIF orientation. exif: whether images are turned upright.
    """
    expected, orientation = sizes[:, :2], sizes[:, 2]
    reasons: dict[int, str] = {}
    others: Sequence[int] = range(len(encoded))
    if native.library() is not None:
        walked = walk_jpegs(encoded)
        reasons = {row: f"DALI gets plain JPEGs only, and this one has {odd}" for row, odd in walked.odd.items()}
        others = [row for row in reasons if not _is_jpeg(encoded[row])]
        plain = np.ones(len(encoded), bool)
        plain[list(reasons)] = False
        changed = (walked.headers[:, :2] != expected).any(axis=1)
        reasons |= dict.fromkeys(np.flatnonzero(plain & changed).tolist(), CHANGED)
        turned = (walked.headers[:, 2] != orientation) & exif
        reasons |= dict.fromkeys(np.flatnonzero(plain & turned).tolist(), TURNED)
    for row in others:
        reasons.pop(row, None)
        if reason := _parsed(encoded[row], (int(expected[row, 0]), int(expected[row, 1]))):
            reasons[row] = reason
        elif exif and (orientation[row] != 1 or mentions_exif(encoded[row])):
            reasons[row] = TURNED
    pixels = expected.astype(np.int64).prod(axis=1)
    return reasons | dict.fromkeys(np.flatnonzero(pixels > Limits().max_pixels).tolist(), "it has too many pixels")


def _is_jpeg(data: Encoded) -> bool:
    return data[:2].tobytes() == b"\xff\xd8"


def _parsed(data: Encoded, size: tuple[int, int]) -> str:
    """Why an image can't go to DALI, by nvImageCodec's own parser, or an empty string."""
    stream = parse(data)
    if stream is None or stream.codec_name not in FORMATS:
        return "it is of a format that DALI does not get"
    if stream.codec_name == "jpeg" and stream.num_channels not in (1, 3):
        return "DALI gets JPEGs of 1 or 3 components only"
    if not _has_8_bits(stream):
        return "DALI gets images of 8 bits only"
    return "" if (stream.height, stream.width) == size else CHANGED


def _has_8_bits(stream: Any) -> bool:
    try:
        return bool(stream.dtype == np.uint8)
    except TypeError:  # of a sample type without a name
        return False
