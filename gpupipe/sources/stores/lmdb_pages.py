"""The keys of an LMDB database, and where in its file their values lie.

The file is read, not mapped by LMDB's own library: that ends the process with a bus error where the file is cut, and
reads every value when only the keys are asked for. What is found here is read by offset, as the members of a shard.
The format, of 64-bit machines, has been the same since 2011 (lmdb.h, mdb.c: MDB_DATA_VERSION 1).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from gpupipe.errors import DataError
from gpupipe.host.files import open_regular
from gpupipe.sources.reading import Stamp

__all__ = ["Entries", "entries"]

MAGIC, VERSION = 0xBEEFC0DE, 1
# Behind a page's header: magic, version, address, size of the map; of the free pages and of the data each padding (at
# first the bytes of a page), flags, depth, pages of branches, leaves and overflow, entries, root; last page, number of
# the transaction.
META = struct.Struct("<IIQQ IHHQQQQQ IHHQQQQQ QQ")
HEADER = 16  # of a page: number, padding, flags, lower and upper end of what is free
NODE = struct.Struct("<HHHH")  # size in two halves, or with the flags the page below; flags; bytes of the key
BRANCH, LEAF = 1, 2
BIG, NAMED, DUPLICATES = 1, 2, 4  # flags of a node: its value is on pages of its own; is a database; is several
EMPTY = 2**64 - 1
PAGES = (256, 64 << 10)  # the fewest and most bytes of a page


@dataclass(frozen=True)
class Entries:
    """In the database's order. offsets, sizes: (N,) int64, of the values in the file."""

    keys: list[bytes]
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    stamp: Stamp


class _Meta(NamedTuple):
    page_size: int
    flags: int
    root: int
    last_page: int
    transaction: int


def entries(path: Path) -> Entries:
    """All of a database's file. Raises DataError for one that is none, is cut, damaged or written to meanwhile, or has
    named databases or several values for a key."""
    with open(open_regular(path), "rb", buffering=0) as file:
        before = Stamp.of(file.fileno())
        database = _Database(path, file.fileno(), before.size)
        found = list(database.walk())
        if Stamp.of(file.fileno()) != before:
            raise DataError(f"{path} is being written to by another process: wait until that has ended")
    keys = [key for key, _, _ in found]
    places = np.array([place[1:] for place in found], np.int64).reshape(-1, 2)
    return Entries(keys, places[:, 0].copy(), places[:, 1].copy(), before)


class _Database:
    """An open file, of which each page is read once."""

    def __init__(self, path: Path, descriptor: int, size: int) -> None:
        self._path = path
        self._descriptor = descriptor
        self._size = size
        self._meta = self._latest()

    def _latest(self) -> _Meta:
        """Of the two descriptions of the database that which was written last."""
        first = self._described(0)
        size = 0 if first is None else first.page_size
        second = self._described(size) if PAGES[0] <= size <= PAGES[1] else None
        if first is None or second is None or second.page_size != size:
            self._refuse("is no LMDB database of a 64-bit machine with a little end first, or is damaged")
        return max(first, second, key=lambda meta: meta.transaction)

    def _described(self, offset: int) -> _Meta | None:
        data = os.pread(self._descriptor, META.size, offset + HEADER)
        if len(data) < META.size:
            return None
        magic, version, _, _, page_size, *_, flags, _, _, _, _, _, root, last, transaction = META.unpack(data)
        known = magic == MAGIC and version == VERSION
        return _Meta(page_size, flags, root, last, transaction) if known else None

    def walk(self) -> Iterator[tuple[bytes, int, int]]:
        """Every key with offset and bytes of its value."""
        if self._meta.flags & DUPLICATES:
            self._refuse("has several values for a key (dupsort)")
        pages = [] if self._meta.root == EMPTY else [self._meta.root]
        left = self._meta.last_page + 1  # of damaged pages one may lead to itself
        while pages:
            number = pages.pop()
            left -= 1
            if left < 0:
                self._refuse("is damaged: its pages lead in circles")
            try:
                yield from self._page(number, pages)
            except (struct.error, IndexError, OverflowError) as error:  # the last of a number beyond any file
                self._refuse(f"is damaged at page {number} ({error})")

    def _page(self, number: int, pages: list[int]) -> Iterator[tuple[bytes, int, int]]:
        """What is on a leaf; the pages below a branch come to those that are to be read."""
        size = self._meta.page_size
        page = os.pread(self._descriptor, size, number * size) if number <= self._meta.last_page else b""
        if len(page) < size:
            self._refuse(f"is cut or damaged: it has no page {number}, but {self._size:,} bytes")
        flags, lower = struct.unpack_from("<HH", page, 10)
        kind = flags & (BRANCH | LEAF)
        nodes = struct.unpack_from(f"<{(lower - HEADER) // 2}H", page, HEADER)
        if kind == LEAF:
            for at in nodes:
                yield self._entry(page, number * size, at)
        elif kind == BRANCH:
            below = [NODE.unpack_from(page, at) for at in reversed(nodes)]
            pages += [low | high << 16 | flags << 32 for low, high, flags, _ in below]
        else:
            self._refuse(f"is damaged: page {number} is neither branch nor leaf")

    def _entry(self, page: bytes, begin: int, at: int) -> tuple[bytes, int, int]:
        low, high, flags, length = NODE.unpack_from(page, at)
        size, value = low | high << 16, at + NODE.size + length
        key = page[at + NODE.size : value]
        if flags & (NAMED | DUPLICATES):
            what = "several values for" if flags & DUPLICATES else "another database under"
            self._refuse(f"has {what} the key {key!r}; write one of plain keys and values")
        offset = begin + value
        if flags & BIG:
            (number,) = struct.unpack_from("<Q", page, value)
            offset = number * self._meta.page_size + HEADER
        if offset + size > (self._size if flags & BIG else begin + self._meta.page_size):
            self._refuse(f"is cut or damaged: the value of {key!r} lies beyond its end, {self._size:,} bytes")
        return key, offset, size

    def _refuse(self, reason: str) -> NoReturn:
        raise DataError(f"database {self._path} {reason}; copy or write it again")
