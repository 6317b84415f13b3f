"""Where in a Parquet file each value of a column of bytes lies, so that one can be read without its row group.

pyarrow reads row groups whole, 100 images and more for one of them, and each worker process would. But what is not
compressed lies there as it is, and of what Snappy has compressed a part can be had alone; Hugging Face writes images by
the one way or the other. For all else (`located` gives None) row groups are read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpupipe.sources.tables.snappy import FRAGMENT, expanded, fragments, preamble
from gpupipe.sources.tables.thrift import struct, unsigned

__all__ = ["NULL", "NULL_STRUCT", "Chunk", "Places", "Read", "located"]

Bytes = NDArray[np.uint8]
Numbers = NDArray[np.int64]
Read = Callable[[int, int], bytes]
"""From a byte on so many, fewer where what is read ends before."""

NULL, NULL_STRUCT = -1, -2
"""In the place of a value's size: it is null, or what it is in."""

DATA, DICTIONARY, DATA_V2 = 0, 2, 3  # types of pages
PLAIN, OF_DICTIONARY = 0, (2, 8)  # encodings
HEADER = 16 << 10  # bytes that a page's header may have: pyarrow's statistics in it take up to 8 KiB
MOST_RATIO = 64  # Snappy's copies make 64 bytes of 3


class Chunk(NamedTuple):
    """A column chunk, as the footer has it: where it begins, its bytes and values (with nulls), whether Snappy has
    compressed it, and on how many levels a value can be null (a struct's may be, or the struct)."""

    begin: int
    size: int
    values: int
    snappy: bool
    levels: int


@dataclass(frozen=True)
class Places:
    """Where each value begins, and its size, or NULL or NULL_STRUCT; both (values,).

    Without `fragments`: in the file. With them: in what is expanded, where each page begins with a fragment's 64 KiB;
    (F, 3), of each fragment where it begins and ends in the file, and its size when it is expanded.
    """

    offsets: Numbers
    sizes: Numbers
    fragments: Numbers | None

    def span(self, row: int) -> tuple[int, int, bytes]:
        """The part of the file that has a value, which is none of the two: where it begins, its size, and what has to
        stand before it."""
        begin, size = int(self.offsets[row]), int(self.sizes[row])
        if self.fragments is None or not size:
            return begin, size, b""
        first, last = begin // FRAGMENT, (begin + size - 1) // FRAGMENT
        start = int(self.fragments[first, 0])
        return start, int(self.fragments[last, 1]) - start, preamble(self._expanded(first, last))

    @property
    def stored(self) -> Numbers:
        """The sizes of all those parts; 0 where there is none."""
        sizes = self.sizes.clip(0)
        if self.fragments is None or not len(self.fragments):
            return sizes
        first, last = self.offsets // FRAGMENT, (self.offsets + sizes - 1) // FRAGMENT
        return np.where(sizes > 0, self.fragments[last, 1] - self.fragments[first, 0], 0)

    def value(self, row: int, data: Bytes) -> Bytes:
        """The value, of what stands before that part, and the part. Raises ValueError where it is damaged."""
        begin, size = int(self.offsets[row]), int(self.sizes[row])
        if self.fragments is None or not size:
            return data
        first, last = begin // FRAGMENT, (begin + size - 1) // FRAGMENT
        whole = np.frombuffer(expanded(data, self._expanded(first, last)), np.uint8)
        found: Bytes = whole[begin - first * FRAGMENT :][:size].copy()  # what pyarrow has allocated is used again
        return found

    def _expanded(self, first: int, last: int) -> int:
        assert self.fragments is not None
        return (last - first) * FRAGMENT + int(self.fragments[last, 2])


def located(chunk: Chunk, read: Read) -> Places | None:
    """The places of a chunk's values; None where it is compressed or encoded in another way.

    Raises OSError, and ValueError for what is damaged.
    """
    try:
        return _Scan(chunk, read).all()
    except (IndexError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"a page is damaged ({type(error).__name__}: {error})") from error


class _Page(NamedTuple):
    """Where a page begins behind its header, its bytes there and expanded."""

    kind: int
    header: dict[int, Any]
    begin: int
    size: int
    expanded: int


class _Body(NamedTuple):
    """What is in a page: how it is read, expanded, from its own first byte on, and what Snappy has made of it."""

    read: Read
    packed: bytes


class _Scan:
    """One pass over a chunk's pages."""

    def __init__(self, chunk: Chunk, read: Read) -> None:
        self._chunk = chunk
        self._read = read
        self._fragments = [np.zeros((0, 3), np.int64)]
        self._dictionary = np.zeros((2, 0), np.int64)

    def all(self) -> Places | None:
        """The places, or None."""
        parts, at, count = [np.zeros((2, 0), np.int64)], self._chunk.begin, 0
        while count < self._chunk.values:
            page = self._page(at)
            at = page.begin + page.size
            if page.kind == DICTIONARY:
                found = self._plain(page, self._body(page), 0, page.header[7][1])
                self._dictionary = found if found is not None else self._dictionary
            elif page.kind == DATA or (page.kind == DATA_V2 and not self._chunk.snappy):
                found = self._values(page)
            else:
                continue
            if found is None:
                return None
            if page.kind != DICTIONARY:
                parts.append(found)
                count += found.shape[1]
        offsets, sizes = np.concatenate(parts, axis=1)
        return Places(offsets, sizes, np.concatenate(self._fragments) if self._chunk.snappy else None)

    def _page(self, at: int) -> _Page:
        room = self._chunk.begin + self._chunk.size - at
        header, length = struct(self._bytes(at, min(HEADER, room)), 0)
        page = _Page(header[1], header, at + length, header[3], header[2])
        if not (0 <= page.size <= room - length and 0 <= page.expanded <= MOST_RATIO * (page.size + 1)):
            raise ValueError(f"a page claims {page.size:,} bytes, expanded {page.expanded:,}, and {room:,} are there")
        return page

    def _bytes(self, at: int, size: int) -> bytes:
        data = self._read(at, size)
        if len(data) < size or size < 1:
            raise ValueError(f"it ends before the {size:,} bytes from {at:,} on")
        return data

    def _body(self, page: _Page) -> _Body:
        if self._chunk.snappy:
            packed = self._bytes(page.begin, page.size)
            whole = memoryview(expanded(packed, page.expanded))
            return _Body(lambda at, size: bytes(whole[at : at + size]), packed)
        return _Body(lambda at, size: self._read(page.begin + at, max(0, min(size, page.size - at))), b"")

    def _values(self, page: _Page) -> Numbers | None:
        """Offsets and sizes of a data page's values, (2, values)."""
        header, body, at = page.header[5 if page.kind == DATA else 8], self._body(page), 0
        count, encoding = header[1], header[2 if page.kind == DATA else 4]
        if not 0 < count <= self._chunk.values:
            raise ValueError(f"a page claims {count:,} values, its column has {self._chunk.values:,}")
        there = np.full(count, self._chunk.levels)
        if self._chunk.levels:
            if page.kind == DATA:
                at, size = 4, int.from_bytes(body.read(0, 4), "little")
            else:
                size = header[5]
            there = _hybrid(body.read(at, size), self._chunk.levels.bit_length(), count)
            at += size
        is_value = there == self._chunk.levels
        values = int(is_value.sum())
        if encoding in OF_DICTIONARY:
            numbers = _hybrid(body.read(at + 1, page.expanded), body.read(at, 1)[0], values)
            found: Numbers | None = self._dictionary[:, numbers]
        else:
            found = self._plain(page, body, at, values) if encoding == PLAIN else None
        if found is None:
            return None
        whole = np.zeros((2, count), np.int64)
        whole[1] = np.where(there == self._chunk.levels - 1, NULL, NULL_STRUCT)
        whole[:, is_value] = found
        return whole

    def _plain(self, page: _Page, body: _Body, at: int, count: int) -> Numbers | None:
        """Of so many values from there on, each behind its size in 4 bytes."""
        begin = page.begin
        if self._chunk.snappy:
            parts = fragments(body.packed, page.expanded)
            if parts is None:
                return None
            begin = sum(map(len, self._fragments)) * FRAGMENT
            self._fragments.append(parts + np.array([page.begin, page.begin, 0]))
        places = []
        for _ in range(count):
            size = int.from_bytes(body.read(at, 4), "little")
            places.append((begin + at + 4, size))
            at += 4 + size
            if at > page.expanded:  # however many there are said to be
                raise ValueError("a value ends beyond its page")
        found = np.array(places, np.int64).reshape(-1, 2)
        return np.ascontiguousarray(found.T)


def _hybrid(data: bytes, width: int, count: int) -> Numbers:
    """`count` numbers of `width` bits each, in runs of one number and in groups of eight packed ones."""
    if width > 32:
        raise ValueError(f"a page's numbers have {width} bits")
    parts, at, got = [np.zeros(0, np.int64)], 0, 0
    while got < count:
        header, at = unsigned(data, at)
        if header & 1:
            size = (header >> 1) * width
            bits = np.unpackbits(np.frombuffer(data, np.uint8, size, at), bitorder="little")
            part = bits.reshape((header >> 1) * 8, width) @ (1 << np.arange(width))
        else:
            size = (width + 7) // 8
            part = np.full(min(header >> 1, count), int.from_bytes(data[at : at + size], "little"))
        at, got = at + size, got + len(part)
        parts.append(part)
    return np.concatenate(parts)[:count]
