"""What Snappy has compressed, of which a part can be had alone: compressors take 64 KiB at a time, and so copies, which
may reach further by the format, do not."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["FRAGMENT", "expanded", "fragments", "preamble"]

FRAGMENT = 1 << 16
"""Bytes that all known compressors take at once, each such part without regard to others."""

MOST_ELEMENTS = 64
"""In a fragment, on average: of so many it is text, through which Python walks slowly."""


def fragments(data: bytes, size: int) -> NDArray[np.int64] | None:
    """Where in `data`, `size` bytes compressed, each fragment begins and ends, and how many bytes it becomes, (F, 3).

    None where fragments can't be told apart, or are of many elements. Raises ValueError for what is damaged.
    """
    total, at = _varint(data)
    if total != size:
        raise ValueError(f"a page has {total:,} bytes where its header says {size:,}")
    found: list[tuple[int, int, int]] = []
    begin, produced, elements, most = at, 0, 0, MOST_ELEMENTS * (1 + size // FRAGMENT)
    while at < len(data):
        count, offset, at = _element(data, at)
        elements += 1
        if offset > produced or produced + count > FRAGMENT or elements > most:
            return None
        produced += count
        if produced == FRAGMENT:
            found.append((begin, at, produced))
            begin, produced = at, 0
    if produced:
        found.append((begin, at, produced))
    table = np.array(found, np.int64).reshape(-1, 3)
    if at != len(data) or table[:, 2].sum() != size:
        raise ValueError("a page ends before all that Snappy has compressed")
    return table


def expanded(data: Any, size: int) -> Any:
    """The `size` bytes that were compressed. Raises ValueError where they are damaged."""
    import pyarrow

    try:
        return pyarrow.decompress(pyarrow.py_buffer(data), size, "snappy")
    except OSError as error:
        raise ValueError(f"what Snappy has compressed is damaged ({error})") from error


def _element(data: bytes, at: int) -> tuple[int, int, int]:
    """Bytes that an element becomes, how far back it copies from (0: a literal), and where the next one begins."""
    tag = data[at]
    kind, count = tag & 3, (tag >> 2) + 1
    if kind == 0:
        at, more = at + 1, max(0, count - 60)
        if more:
            count = int.from_bytes(data[at : at + more], "little") + 1
        return count, 0, at + more + count
    if kind == 1:
        return (tag >> 2 & 7) + 4, (tag >> 5) << 8 | data[at + 1], at + 2
    more = 2 if kind == 2 else 4
    return count, int.from_bytes(data[at + 1 : at + 1 + more], "little"), at + 1 + more


def _varint(data: bytes) -> tuple[int, int]:
    value = at = 0
    while True:
        value |= (data[at] & 127) << 7 * at
        at += 1
        if data[at - 1] < 128:
            return value, at


def preamble(size: int) -> bytes:
    """What stands before that which becomes `size` bytes: some fragments behind it can be expanded alone."""
    parts = []
    while size > 127:
        parts.append(size & 127 | 128)
        size >>= 7
    return bytes([*parts, size])
