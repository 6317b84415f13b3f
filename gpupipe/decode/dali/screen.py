"""Which encoded images DALI may see.

A file whose header its parser refuses, or whose size is another than the window was made for, ends DALI's pipeline by
an exception on one thread while others still write to what that frees. In batches of more than 4 images a thread the
process then often dies of SIGSEGV: with DALI 2.4 for 162 of 400 flips of one bit in JPEGs' markers and lengths. So
nothing goes to DALI whose header was not read here first, from the same bytes. What it refuses later, while it decodes,
ends the pipeline by an exception that waits for all threads.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpupipe.decode.pixels import mentions_exif, parse
from gpupipe.kernels import native, walk_jpegs
from gpupipe.sources.rgb import Background

__all__ = ["unfit_rows"]

Encoded = NDArray[np.uint8]


def unfit_rows(
    encoded: Sequence[Encoded], sizes: NDArray[np.int32], exif: bool, background: Background = None
) -> set[int]:
    """The rows of N images that the CPU has to make; that says nothing of whether they are damaged.

    They are of a format or kind that DALI does not get, have not as many pixels as expected, or an EXIF orientation
    that is in doubt. JPEGs are walked by the C++ kernels, 17 us for 110 kB; other formats, and JPEGs where they were
    not built, are parsed by nvImageCodec, which DALI does too, 3 us each.

    sizes: (N, 3), expected height, width and EXIF orientation. exif: whether images are turned upright. background: of
    what is transparent, which DALI drops.
    """
    expected, orientation = sizes[:, :2], sizes[:, 2]
    unfit = np.zeros(len(encoded), np.bool_)
    others: Sequence[int] = range(len(encoded))
    if native.library() is not None:
        walked = walk_jpegs(encoded)
        changed = (walked.headers[:, :2] != expected).any(axis=1) | ((walked.headers[:, 2] != orientation) & exif)
        changed[list(walked.odd)] = True  # DALI gets plain JPEGs only
        others = [row for row in walked.odd if encoded[row][:2].tobytes() != b"\xff\xd8"]
        changed[others] = False
        unfit |= changed
    for row in others:
        in_doubt = exif and (orientation[row] != 1 or mentions_exif(encoded[row]))
        unfit[row] |= in_doubt or not _fits(encoded[row], tuple(expected[row].tolist()), background)
    return set(np.flatnonzero(unfit).tolist())


def _fits(data: Encoded, size: tuple[int, ...], background: Background) -> bool:
    """Whether an image may go to DALI, by nvImageCodec's own parser: of 8 bits, and as `parse` has it."""
    stream = parse(data, background)
    if stream is None or (stream.height, stream.width) != size:
        return False
    try:
        return bool(stream.dtype == np.uint8)
    except TypeError:  # of a sample type without a name
        return False
