"""Parquet's row groups, and what a process keeps of them: where values lie, and as many columns as have room.

Columns are kept for what `pages` can't find: those that are compressed by other means than Snappy, or are large and no
bytes. A process that has shuffled rows reads such a group for each batch with a row of it, unless it is kept.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import IO, Any, ClassVar, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from gpupipe.errors import DataError
from gpupipe.host.files import open_regular
from gpupipe.host.system import memory_limit, usable_cpus
from gpupipe.sources.reading import Stamp
from gpupipe.sources.tables.pages import Chunk, Places, Read, located
from gpupipe.sources.tables.thrift import struct

__all__ = [
    "END",
    "Footer",
    "Leaf",
    "LocalFooter",
    "RowGroup",
    "RowGroups",
    "chunks_of",
    "default_memory",
    "footer_size",
]

MAGIC = 4  # bytes at the end of a file
END = 4 + MAGIC  # behind its footer: how long that is, too
PART = 8
FEWEST = 64 << 20

CODECS = ("UNCOMPRESSED", "SNAPPY", "GZIP", "LZO", "BROTLI", "LZ4", "ZSTD", "LZ4_RAW")  # by Parquet's numbers
BYTE_ARRAY = 6
SNAPPY = {"UNCOMPRESSED": False, "SNAPPY": True}
"""What a column may be compressed by for its values to be found, and whether that is Snappy."""


def default_memory() -> int:
    """Bytes of columns that a process keeps: an eighth of the machine's memory, divided by its CPUs, as there may be a
    process on each."""
    return max(FEWEST, (memory_limit() or 0) // (PART * usable_cpus()))


class Leaf(NamedTuple):
    """What a footer says of a column chunk: by what it is compressed, whether it is of bytes, its values, its size, and
    that when it is expanded, and where it begins."""

    codec: str
    of_bytes: bool
    values: int
    size: int
    expanded: int
    begin: int

    @classmethod
    def of(cls, said: dict[int, Any]) -> Leaf:
        number, begins = said[4], filter(None, (said.get(11), said[9]))  # of its dictionary and its data
        codec = CODECS[number] if 0 <= number < len(CODECS) else f"the unknown codec {number}"
        return cls(codec, said[1] == BYTE_ARRAY, said[5], said[7], said[6], min(begins))


def footer_size(tail: bytes) -> int:
    """How many bytes a footer has, of the end of a file."""
    return int.from_bytes(tail[-END:-MAGIC], "little")


def chunks_of(path: str, tail: bytes, metadata: Any) -> list[list[Leaf]]:
    """The columns of each row group, from the end of a file of which pyarrow has read `metadata`: asked for one that is
    damaged, or to write what it has read, pyarrow may end the process. 20 us for each column. Raises DataError."""
    try:
        groups = struct(tail[-END - footer_size(tail) :], 0)[0].get(4, [])
        chunks = [[Leaf.of(chunk[3]) for chunk in group[1]] for group in groups]
    except (IndexError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: its footer is damaged ({type(error).__name__}: {error})") from error
    if [*map(len, chunks)] != [metadata.num_columns] * metadata.num_row_groups:
        raise DataError(f"{path}: its footer is damaged (row groups have other columns than the schema)")
    return chunks


@dataclass(frozen=True)
class Footer:
    """What a file said of itself when it was opened.

    path: what messages call the file. chunks: the columns of each row group. threads: in how many at once several are
    read; None: as many as suit a disk.
    """

    path: str
    metadata: Any
    schema: Any
    chunks: list[list[Leaf]]
    threads: ClassVar[int | None] = None

    @property
    def folder(self) -> str:
        """The one that it lies in."""
        return os.path.dirname(self.path)

    @cached_property
    def leaves(self) -> dict[str, int]:
        """The number of each column without parts; those of a struct are behind dots."""
        schema = self.metadata.schema
        return {schema.column(number).path: number for number in range(len(schema.names))}

    def within(self, part: str) -> list[int]:
        """The numbers of the columns that are this one, or parts of it."""
        return [number for leaf, number in self.leaves.items() if leaf == part or leaf.startswith(f"{part}.")]

    def part(self, path: tuple[str, ...]) -> str:
        """By what name the file has a column, and nothing else if that can be: not the other parts of a struct."""
        name = ".".join(path)
        return name if self.within(name) else path[0]

    def read(self, parts: list[str], group: int | None = None) -> Any:
        """Columns, of structs the parts that are asked for, of one group or all. Raises OSError, ValueError where the
        file is another one now and, for what is damaged, `pyarrow.ArrowException`."""
        groups = [*range(self.metadata.num_row_groups)] if group is None else [group]
        with self.opened(parts, groups) as file:
            opened = pq.ParquetFile(file, metadata=self.metadata, pre_buffer=False)  # which reads more, and in threads
            return opened.read_row_groups(groups, columns=parts, use_threads=False)  # forks have none of the threads

    def opened(self, parts: Sequence[str], groups: Sequence[int]) -> AbstractContextManager[IO[bytes]]:
        """The file, of which these columns of row groups will be read. That it is another one now is raised, in the
        place of whatever was raised because of that."""
        raise NotImplementedError

    def reading(self, chunk: Chunk) -> AbstractContextManager[Read]:
        """Any part of it, to find the pages of a chunk."""
        raise NotImplementedError


@dataclass(frozen=True)
class LocalFooter(Footer):
    """Of a file on a disk."""

    stamp: Stamp

    @classmethod
    def of(cls, path: Path) -> LocalFooter:
        """Read it. Raises OSError and, for what is damaged, `pyarrow.ArrowException` or
        DataError."""
        with open(open_regular(path), "rb", buffering=0) as file:
            stamp = Stamp.of(file.fileno())
            opened = pq.ParquetFile(file)
            about = opened.metadata
            end = file.seek(0, os.SEEK_END)
            size = END + footer_size(os.pread(file.fileno(), END, end - END))
            tail = os.pread(file.fileno(), size, end - size)
            return cls(str(path), about, opened.schema_arrow, chunks_of(str(path), tail, about), stamp)

    @contextmanager
    def opened(self, parts: Sequence[str] = (), groups: Sequence[int] = ()) -> Iterator[IO[bytes]]:
        with open(open_regular(self.path), "rb", buffering=0) as file:
            try:
                yield file
            finally:
                self.check(Stamp.of(file.fileno()))

    @contextmanager
    def reading(self, _: Chunk) -> Iterator[Read]:
        with self.opened() as file:
            yield lambda at, size: os.pread(file.fileno(), size, at)

    def check(self, stamp: Stamp) -> None:
        """Raise ValueError unless that is of the file as it was."""
        changed = self.stamp.difference(stamp, "file", "opened")
        if changed:
            raise ValueError(changed)


@dataclass(frozen=True)
class RowGroup:
    """One of a file's."""

    footer: Footer
    number: int

    @property
    def rows(self) -> int:
        """How many it has."""
        return int(self.footer.metadata.row_group(self.number).num_rows)

    def leaf(self, name: str) -> Leaf:
        """What the footer says of a column without parts."""
        return self.footer.chunks[self.number][self.footer.leaves[name]]

    def size(self, part: str) -> int:
        """Bytes of a column that is expanded, with all its parts."""
        chunks = self.footer.chunks[self.number]
        return sum(chunks[number].expanded for number in self.footer.within(part))

    def column(self, name: str) -> Any:
        """All of it, as pyarrow has it: within its struct. Raises as `Footer.read` does."""
        size, most = self.size(name), memory_limit()
        if most is not None and size > most:
            raise ValueError(f"its row group claims {size:,} bytes, and the machine has {most:,}")
        column = self.footer.read([name], self.number).column(0)
        return column.chunk(0) if column.num_chunks == 1 else column

    def places(self, name: str) -> Places | None:
        """Where its values lie, if they can be read one by one. Raises OSError, and ValueError for what is damaged."""
        leaf = self.leaf(name)
        kind = self.footer.metadata.schema.column(self.footer.leaves[name])
        if leaf.codec not in SNAPPY or not leaf.of_bytes or kind.max_repetition_level:
            return None
        chunk = Chunk(leaf.begin, leaf.size, leaf.values, SNAPPY[leaf.codec], kind.max_definition_level)
        with self.footer.reading(chunk) as read:
            return located(chunk, read)


class RowGroups:
    """What a process keeps of row groups; several threads may ask, and a child that was forked meanwhile.

    memory: bytes of all columns. Where there are more that is dropped which is needed last, as far as that is known.
    """

    def __init__(self, groups: list[RowGroup], memory: int) -> None:
        self.groups = groups
        self._memory = memory
        self._places: dict[tuple[int, str], Places | None] = {}
        self._kept: OrderedDict[tuple[int, str], Any] = OrderedDict()
        self._told: list[list[int]] = []
        self._next: dict[int, int] = {}
        self._locked = os.getpid(), threading.Lock()

    @property
    def _lock(self) -> threading.Lock:
        """This process's: that of a parent may have been held by another thread when this was forked."""
        if self._locked[0] != os.getpid():
            self._locked = os.getpid(), threading.Lock()
        return self._locked[1]

    def places(self, group: int, name: str) -> Places | None:
        """As `RowGroup.places`: found once."""
        key = group, name
        if key not in self._places:
            with self._lock:
                if key not in self._places:
                    self._places[key] = self.groups[group].places(name)
        return self._places[key]

    def found(self, group: int, name: str) -> Places | None:
        """The same where it has been asked for before."""
        return self._places.get((group, name))

    def know(self, name: str, places: Iterable[Places | None]) -> None:
        """Of each group the places that were found before, and are stored."""
        self._places |= {(group, name): found for group, found in enumerate(places)}

    def holds(self, group: int, name: str) -> bool:
        """Whether the column is kept now."""
        return (group, name) in self._kept

    def column(self, group: int, name: str) -> Any:
        """As `RowGroup.column`."""
        key = group, name
        with self._lock:
            column = self._kept.pop(key, None)
            if column is None:
                column = self.groups[group].column(name)
                self._make_room(column.nbytes)
            self._kept[key] = column
        return column

    def row(self, group: int, number: int, part: str) -> Any:
        """One row of `RowGroup.column`, as an array that shares its memory."""
        one = self.column(group, part).slice(number, 1)
        return one if isinstance(one, pa.Array) else one.combine_chunks()

    def _make_room(self, size: int) -> None:
        room = self._memory - size - sum(column.nbytes for column in self._kept.values())
        while room < 0 and self._kept:  # of those that are not known to be needed the least recently used is the first
            dropped = max(self._kept, key=lambda key: self._next.get(key[0], len(self._next)))
            room += self._kept.pop(dropped).nbytes

    def needed(self, groups: list[int], turns: int) -> None:
        """These are needed, in this order, after those that were told of the last so many times."""
        self._told = [*(self._told[-turns:] if turns else ()), groups]
        self._next = {group: turn for turn, group in enumerate(dict.fromkeys(chain(*self._told)))}
