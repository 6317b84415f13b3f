"""What decoding a JPEG costs: its segments tell."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpupipe.kernels import native

__all__ = ["jpeg_costs", "jpeg_costs_reference"]


def jpeg_costs(encoded: Sequence[NDArray[np.uint8]]) -> NDArray[np.int64]:
    """What decoding each of N files costs, 1-D contiguous uint8: (N, 6), zeros for what is no JPEG.

    channels, height, width; blocks: of 8 x 8 coefficients, 128 bytes each, that are in memory at once, 0 where all is
    in one scan; work and scans, see `Limits`. 1.3 us each where all is in one scan; others are searched for markers to
    their ends.
    """
    opened = native.library()
    if opened is None:
        return jpeg_costs_reference(encoded)
    costs = np.zeros((len(encoded), 6), np.int64)
    sizes = np.array([len(each) for each in encoded], np.int64)
    arrays = (native.addresses(encoded), sizes, costs)
    opened.gp_costs(ctypes.c_int64(len(encoded)), *(ctypes.c_void_p(array.ctypes.data) for array in arrays))
    return costs


def jpeg_costs_reference(encoded: Sequence[NDArray[np.uint8]]) -> NDArray[np.int64]:
    """The same in Python."""
    return np.array([_costs(data.tobytes()) for data in encoded], np.int64).reshape(-1, 6)


MARKER = re.compile(rb"\xff+([^\x00\xff])", re.DOTALL)
ALONE = frozenset({0x01, *range(0xD0, 0xD9)})  # no content follows them
FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
EOI, SOS, FIRST_ARITHMETIC, ARITHMETIC, MOST_COMPONENTS = 0xD9, 0xDA, 0xC9, 64, 10


class _Frame(NamedTuple):
    marker: int
    blocks: dict[int, int]  # by the component's name
    sides: tuple[int, int, int]  # channels, height, width
    total: int  # blocks


def _costs(data: bytes) -> tuple[int, ...]:
    frame, kept, work, scans, at = _Frame(0, {}, (0, 0, 0), 0), 0, 0, 0, 2
    while data[:2] == b"\xff\xd8" and (found := MARKER.search(data, at)):
        marker, at = found[1][0], found.end()
        if marker in ALONE:
            continue
        length = int.from_bytes(data[at : at + 2], "big")
        if marker == EOI or length < 2 or at + length > len(data):
            break
        content, at = data[at + 2 : at + length], at + length
        if marker in FRAMES and not frame.marker:
            made = _frame(marker, content)
            if made is None:
                break
            frame = made
        elif marker == SOS:
            scanned = content[0] if content else 0
            names = content[1 : 1 + 2 * scanned : 2]
            if not 1 <= scanned <= 4 or len(content) < 4 + 2 * scanned or not set(names) <= set(frame.blocks):
                break
            weight = ARITHMETIC if frame.marker >= FIRST_ARITHMETIC else 1
            work += weight * sum(frame.blocks[name] for name in names)
            scans += 1
            if scans == 1 and (frame.marker & 3 == 2 or scanned < frame.sides[0]):
                kept = frame.total
            if not kept:  # all of it is in this scan
                break
    return *frame.sides, kept, work, scans


def _frame(marker: int, content: bytes) -> _Frame | None:
    count = content[5] if len(content) > 5 else 0
    if not 1 <= count <= MOST_COMPONENTS or len(content) < 6 + 3 * count:
        return None
    names, factors = content[6 : 6 + 3 * count : 3], content[7 : 6 + 3 * count : 3]
    sides = [(factor & 15, factor >> 4) for factor in factors]
    if not all(1 <= side <= 4 for pair in sides for side in pair):
        return None
    most = [max(each) for each in zip(*sides, strict=True)]
    height, width = (int.from_bytes(content[begin : begin + 2], "big") for begin in (1, 3))
    down, across = -(-height // (8 * most[0])), -(-width // (8 * most[1]))
    each = [down * v * across * h for v, h in sides]
    return _Frame(marker, dict(zip(reversed(names), reversed(each), strict=True)), (count, height, width), sum(each))
