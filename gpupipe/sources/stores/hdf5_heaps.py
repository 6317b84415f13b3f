"""Values of varying length in HDF5 files: whether the heaps in which they lie are sound.

HDF5 2.0 goes through a heap from header to header, and round for ever at one that is all zeros: no error, no end, and
no Ctrl-C. Zeros are what a disk that was full, or a copy that was broken off, leaves of a file. So the headers are gone
through here first, which are read one by one: for rows of 110 kB that took no time to speak of (270 us of the CPU each
way, in an order that was shuffled), for rows of 3 kB a quarter more (246 us, not 194).

In the terms of the HDF5 File Format Specification 3.0: a value is a reference (length, address of a global heap
collection, index in it); a collection is "GCOL", its version and size, and objects one after the other, of which index
0 is the free space behind the last.
"""

from __future__ import annotations

import math
import os
import struct
import zlib
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Heaps"]

REFERENCE = np.dtype([("length", "<u4"), ("address", "<u8"), ("index", "<u4")])
COLLECTION, OBJECT = struct.Struct("<4sB3xQ"), struct.Struct("<HHIQ")
DEFLATE, SHUFFLE = 1, 2  # filters of chunks, by their numbers
KNOWN = 4096  # heaps that are known to be sound; h5py makes them of 64 KiB, of many small values
AHEAD = 4096  # bytes that are read for a header, in which more of them may lie


class Heaps:
    """Of one dataset in an open file.

    Not looked at is what lies in chunks that are compressed otherwise than by deflate (as h5py's "lzf" does), in the
    object header itself, or in a file of addresses that have not 8 bytes: h5py's default has none of these.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset.id
        self._shape = dataset.shape
        self._chunks = dataset.chunks
        self._descriptor = dataset.file.id.get_vfd_handle()
        self._size = os.fstat(self._descriptor).st_size
        self._base = dataset.file.userblock_size  # from which addresses of heaps count
        self._sound: set[int] = set()
        is_written = dataset.id.get_storage_size() > 0
        has_function = self._chunks is None or hasattr(self._dataset, "get_chunk_info_by_coord")  # HDF5 1.10.5 or later
        self._can_look = is_written and has_function and dataset.file.id.get_create_plist().get_sizes() == (8, 8)
        plist = dataset.id.get_create_plist()
        self._filters = [plist.get_filter(number)[0] for number in range(plist.get_nfilters())]

    def check(self, begin: int, end: int) -> None:
        """Those of the rows from `begin` to `end`. Raises ValueError."""
        if not self._can_look:
            return
        if (values := (end - begin) * math.prod(self._shape[1:])) > self._size:
            raise ValueError(f"it claims {values:,} values, more than the file has bytes")
        for references in self._references(begin, end):
            for address in set(references["address"][references["length"] > 0].tolist()) - self._sound:
                self._check_collection(self._base + address)
                self._remember(address)

    def _remember(self, address: int) -> None:
        if len(self._sound) >= KNOWN:
            self._sound.clear()
        self._sound.add(address)

    def _check_collection(self, address: int) -> None:
        name, _, size = COLLECTION.unpack(self._read(address, COLLECTION.size))
        if name != b"GCOL":
            raise ValueError(f"its heap at byte {address} is damaged: it does not begin as one")
        place, ahead, start = address + COLLECTION.size, b"", 0
        while (left := address + size - place) >= OBJECT.size:
            if not start <= place <= start + len(ahead) - OBJECT.size:
                start, ahead = place, self._read(place, OBJECT.size, AHEAD)
            index, _, _, length = OBJECT.unpack_from(ahead, place - start)
            needed = OBJECT.size + -(-length // 8) * 8 if index else length
            if not 0 < needed <= left:
                raise ValueError(f"its heap at byte {address} is damaged: an object of {needed} bytes in {left}")
            place += needed

    def _read(self, place: int, least: int, most: int = 0) -> bytes:
        data = os.pread(self._descriptor, max(least, most), place) if place + least <= self._size else b""
        if len(data) < least:
            raise ValueError(f"its heap at byte {place} is damaged: it lies beyond the end of the file")
        return data

    def _references(self, begin: int, end: int) -> Iterator[NDArray[Any]]:
        if self._chunks is None:
            offset, width = self._dataset.get_offset(), REFERENCE.itemsize * math.prod(self._shape[1:])
            if offset is not None:  # as one in the object header has
                yield np.frombuffer(self._read(offset + begin * width, (end - begin) * width), REFERENCE)
            return
        starts = [range(0, side, chunk) for side, chunk in zip(self._shape[1:], self._chunks[1:], strict=True)]
        step = self._chunks[0]
        for first in range(begin - begin % step, end, step):
            for rest in product(*starts):
                found = self._chunk((first, *rest))
                if found is not None:
                    yield found[max(begin - first, 0) : end - first]

    def _chunk(self, place: tuple[int, ...]) -> NDArray[Any] | None:
        """The references of a chunk; None if there is none, or none that can be looked at."""
        info = self._dataset.get_chunk_info_by_coord(place)
        if info.byte_offset is None or not info.size:
            return None
        data: bytes | None = self._read(info.byte_offset, info.size)
        for number in reversed(range(len(self._filters))):
            if data is not None and not info.filter_mask >> number & 1:
                data = _unfiltered(self._filters[number], data, REFERENCE.itemsize * math.prod(self._chunks))
        return None if data is None else np.frombuffer(data, REFERENCE).reshape(self._chunks)


def _unfiltered(code: int, data: bytes, size: int) -> bytes | None:
    """What a filter has made its bytes of; None of other filters. Raises ValueError."""
    if code == DEFLATE:
        try:
            data = zlib.decompressobj().decompress(data, size)
        except zlib.error as error:
            raise ValueError(f"a chunk is damaged: {error}") from error
    elif code == SHUFFLE:
        data = np.frombuffer(data, np.uint8).reshape(REFERENCE.itemsize, -1).T.tobytes()
    else:
        return None
    if len(data) != size:
        raise ValueError(f"a chunk is damaged: it has {len(data)} bytes, not {size}")
    return data
