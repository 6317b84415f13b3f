"""Parquet in object storage or behind HTTP. What is read to find values is read once, by a process of its own, and kept
in the cache folder: footers, numbers and texts, and where each value of bytes lies.

Values that are not compressed are found by steps from one's length to the next, those in Snappy by reading all of their
column once. What is compressed by other means is had by row groups: a column of one is fetched for an image in it.
"""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, pairwise, takewhile
from pathlib import Path
from typing import IO, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from gpupipe.batch import Coming, Schema
from gpupipe.batch.stored import schema_from_json
from gpupipe.errors import DataError
from gpupipe.sources.building import Advance, BuiltIndex, reopen_index, scan_in_threads
from gpupipe.sources.remote.apart import apart
from gpupipe.sources.remote.client import client
from gpupipe.sources.remote.flight import MOST
from gpupipe.sources.remote.hops import Hops
from gpupipe.sources.remote.loose import Known
from gpupipe.sources.remote.objects import Extent, Object, ReadError, key_of, name, parent, shown
from gpupipe.sources.remote.once import as_json, kept, once
from gpupipe.sources.remote.patterns import listed, objects_of
from gpupipe.sources.source import Encoded, content_fingerprint
from gpupipe.sources.storage import StoredIndex
from gpupipe.sources.tables.columns import cells, paths_of
from gpupipe.sources.tables.files import ENDING, Parquet, in_folder, tell_of_splits
from gpupipe.sources.tables.pages import Chunk, Places, Read
from gpupipe.sources.tables.parquet import ParquetSource, fitting
from gpupipe.sources.tables.row_groups import END, Footer, RowGroup, chunks_of, footer_size
from gpupipe.sources.tables.rows import Files

__all__ = ["RemoteParquetSource", "index", "open_remote"]

TAIL = 64 << 10
"""Bytes of a file's end that are read at once: the footers of most are smaller."""

THREADS = MOST
"""They wait for the storage, with a request each; the client has as many under way as pay."""

UNPACKERS = 8
"""Threads that find values in Snappy: each holds some pages."""

Take = Callable[[Sequence[Extent]], Iterable[Encoded | ReadError]]


@dataclass(frozen=True)
class RemoteFooter(Footer):
    """Of an object; `take` reads parts of objects."""

    object: Object
    take: Take
    threads: ClassVar[int | None] = THREADS

    @classmethod
    def of(cls, object: Object, tail: bytes, take: Take) -> RemoteFooter:
        """From the end of a file. Raises `pyarrow.ArrowException` or DataError for what is damaged."""
        opened = pq.ParquetFile(pa.BufferReader(tail))
        path, about = shown(object.url), opened.metadata
        return cls(path, about, opened.schema_arrow, chunks_of(path, tail, about), object, take)

    @property
    def folder(self) -> str:
        return parent(self.object.url)

    def extents(self, parts: Sequence[str], groups: Sequence[int]) -> list[Extent]:
        """Where it has these columns of row groups."""
        leaves = [self.chunks[group][number] for group in groups for part in parts for number in self.within(part)]
        return [Extent(self.object, leaf.begin, leaf.size) for leaf in leaves]

    @contextmanager
    def opened(self, parts: Sequence[str], groups: Sequence[int]) -> Iterator[IO[bytes]]:
        extents = self.extents(parts, groups)
        read = {}
        for extent, data in zip(extents, self.take(extents), strict=True):
            if isinstance(data, ReadError):
                raise data
            read[extent.offset] = data
        yield _Read(read)  # type: ignore[misc]

    @contextmanager
    def reading(self, chunk: Chunk) -> Iterator[Read]:
        yield Hops(self.object, chunk.begin + chunk.size).read


class _Read(io.RawIOBase):
    """A file of which some parts were read, by where they begin: what pyarrow asks for is one of them, or in one."""

    def __init__(self, parts: Mapping[int, Encoded]) -> None:
        self._parts = parts
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_END:
            offset += max(begin + len(part) for begin, part in self._parts.items())
        self._at = offset + self._at * (whence == io.SEEK_CUR)
        return self._at

    def read(self, size: int = -1) -> Any:
        for begin, part in self._parts.items():
            if begin <= self._at and self._at + size <= begin + len(part):
                data = part[self._at - begin :][:size].data
                self._at += size
                return data
        raise OSError(f"the footer says that the column is elsewhere than at byte {self._at:,}")


class RemoteParquetSource(ParquetSource):
    """The rows of Parquet files in a storage. Made by `open_remote`."""

    _where = "fetched from a storage"

    def __init__(self, settings: Parquet, fields: Schema, urls: Sequence[str], index: StoredIndex) -> None:
        self._urls = urls
        self._index = index
        self.pinned = content_fingerprint([etag for _, etag in index.info["objects"]], [])
        self.index_path = index.path
        objects = [Object(url, size, etag) for url, (size, etag) in zip(urls, index.info["objects"], strict=True)]
        ends, tails = index.arrays["footer_offsets"].tolist(), index.arrays["footers"].tobytes()
        footers = [
            RemoteFooter.of(one, tails[begin:end], self._take)
            for one, (begin, end) in zip(objects, pairwise(ends), strict=True)
        ]
        there = [footer for footer in footers if footer.metadata.num_rows]
        super().__init__(settings, fields, there, _table(index.arrays["known"]))
        places, groups = _restored(index.arrays), range(len(self.groups))
        for part in self.direct:
            self._groups.know(part, [next(places) for _ in groups])
        by_group = set(self._by_group.values())
        self._units = [
            sorted(by_group | {part for part in self.direct if not self._groups.found(group, part)}) for group in groups
        ]
        """Of each row group the columns that are fetched whole."""
        self._told: deque[set[int]] = deque()
        """Of each fetch that comes the row groups that were announced for it."""

    def __reduce__(self) -> tuple[Any, ...]:
        index = self._index
        made = self._settings, self.fields, self._urls, index.path, index.fingerprint, self.known
        return _reopened, made, {"reading": self.reading}

    @property
    def reads_storage(self) -> bool:
        return True

    def look_into(self, paths: pa.Table | None = None, known: Mapping[str, Known | None] | None = None) -> None:
        super().look_into(_table(self._index.arrays["paths"]) if paths is None else paths, known)

    def _paths_in(self, name: str) -> pa.Array | None:
        paths = _table(self._index.arrays["paths"])  # nothing is fetched for it
        return None if self._blobs[name].direct else paths_of(cells(paths, self._paths[name]))

    def _take(self, extents: Sequence[Extent]) -> Iterable[Encoded | ReadError]:
        return self.reading.take(extents)

    def _common_folder(self, footers: Sequence[Footer]) -> str:
        names = [footer.folder.split("/") for footer in footers]
        alike = takewhile(lambda part: len(set(part)) == 1, zip(*names, strict=False))
        return "/".join(part[0] for part in alike)

    def _name(self, footer: Any) -> str:
        return key_of(self._folder, footer.object.url)

    def extents(self, index: int) -> list[Extent]:
        """The parts of files that have its values, as far as these can be had alone, and the objects that they name."""
        group, row = self._place(index)
        spans = [one.span(group, row) for one in self._blobs.values()]
        found = [Extent(self._footer(group).object, *span) for span in spans if span is not None]
        return found + super().extents(index) if self._loose else found

    def _footer(self, group: int) -> Any:
        return self.groups[group].footer

    def stored_bytes(self, indices: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """None where row groups are fetched whole, too."""
        named = super().stored_bytes(indices) if self._loose else 0
        return None if self._sizes is None or named is None else self._sizes[indices] + named

    @cached_property
    def _sizes(self) -> NDArray[np.int64] | None:
        if any(self._units):
            return None
        found = np.zeros(len(self), np.int64)
        for part in self.direct:
            places = (self._groups.found(group, part) for group in range(len(self.groups)))
            found += np.concatenate([one.stored for one in places if one is not None])
        return found

    def _is_large(self, group: RowGroup, leaf: str) -> bool:
        return True

    def _read_whole(self) -> Iterator[tuple[RowGroup, str]]:
        units = zip(self.groups, self._units, strict=True)
        return ((group, part) for group, parts in units for part in parts if part in self.direct)

    def ahead(self, coming: Coming) -> None:
        """Values are fetched, and row groups that are neither kept nor on their way."""
        if not coming.turns:
            self._told.clear()
        while len(self._told) > coming.turns:
            self._told.popleft()
        indices = coming.indices.tolist()
        groups = [self._place(index)[0] for index in indices]
        self._groups.needed(groups, coming.turns)
        on_their_way, told = set().union(*self._told), set[int]()
        extents: list[list[Extent]] = []
        for index, group in zip(indices, groups, strict=True):
            extents.append(self._extents(index))
            if self._units[group] and group not in on_their_way and group not in told:
                told.add(group)
                absent = [part for part in self._units[group] if not self._groups.holds(group, part)]
                extents[-1] += self._footer(group).extents(absent, [self.groups[group].number])
        self._told.append(told)
        drop = [*chain(*map(self._extents, coming.drop.tolist()))]
        if any(self._units):  # of which no plan knows the size
            coming = replace(coming, keep=None)
        self.reading.announce([*chain(*extents)], coming, np.array([*map(len, extents)], np.int64), drop)

    def _part(self, read: Files, footer: Any, begin: int, size: int, head: bytes) -> Encoded:
        data = read[Extent(footer.object, begin, size)] if size else np.empty(0, np.uint8)
        return np.concatenate([np.frombuffer(head, np.uint8), data]) if head else data


def open_remote(settings: Parquet, patterns: Sequence[str], schema: Schema, rebuild: bool) -> RemoteParquetSource:
    """The source for files that URLs name. Raises as `open_parquet` does."""
    found = apart(f"{__name__}:index", patterns=[*patterns], fields=as_json(schema), rebuild=rebuild)
    source = RemoteParquetSource(settings, schema, found["urls"], reopen_index(found["path"], found["fingerprint"]))
    source.look_into()
    return source


def _reopened(
    settings: Parquet,
    fields: Schema,
    urls: list[str],
    path: str,
    fingerprint: str,
    known: Mapping[str, Known | None],
) -> RemoteParquetSource:
    source = RemoteParquetSource(settings, fields, urls, reopen_index(path, fingerprint))
    source.look_into(known=known)
    return source


def _table(stream: NDArray[np.uint8]) -> pa.Table:
    return pa.ipc.open_stream(pa.py_buffer(stream)).read_all()


# What follows runs in a process of its own.


def index(patterns: list[str], fields: dict[str, Any], rebuild: bool) -> dict[str, Any]:
    """Find files, and index those that have changed since they were indexed."""

    def look(folder: Path) -> dict[str, Any]:
        objects = _objects(patterns)
        stamps, etags = [[one.size, one.etag] for one in objects], [one.etag for one in objects]
        found = kept(
            folder,
            {"footers", "footer_offsets", "known", "paths", *_stored(())},
            lambda info: "" if info["objects"] == stamps and all(etags) else "objects were added, replaced or removed",
            lambda: _built(objects, schema_from_json(fields)),
            rebuild,
        )
        return {"path": found.path, "fingerprint": found.fingerprint, "urls": [one.url for one in objects]}

    return once(patterns, ["parquet", fields], look, rebuild)


def _objects(patterns: Sequence[str]) -> list[Object]:
    folder = patterns[0].rstrip("/")
    if len(patterns) == 1 and not name(folder).lower().endswith(ENDING):
        there = listed(folder)
        return [there[path] for path in in_folder(there, shown(folder))]
    found = objects_of(patterns, "file")
    tell_of_splits([shown(one.url) for one in found])
    return found


def _built(objects: Sequence[Object], schema: Schema) -> BuiltIndex:
    found = scan_in_threads(f"opening {len(objects)} Parquet files", len(objects), _footer, objects, THREADS)
    footers = fitting(schema, [footer for footer, _ in found])
    source = ParquetSource(Parquet("", root="."), schema, footers)
    kept = [(group, part) for part in source.direct for group in source.groups]
    packed = {group.leaf(part).codec for group, part in kept} != {"UNCOMPRESSED"}
    doing = f"looking for {len(source)} values in {len(objects)} Parquet files"
    places = scan_in_threads(doing, len(kept), _places, kept, UNPACKERS if packed else THREADS)
    tails = [tail for _, tail in found]
    arrays: dict[str, NDArray[Any]] = {
        "footers": np.frombuffer(b"".join(tails), np.uint8),
        "footer_offsets": np.cumsum([0, *map(len, tails)], dtype=np.int64),
        "known": _stream(source._known),
        "paths": _stream(source.paths()),
    }
    info = {"objects": [[one.size, one.etag] for one in objects]}
    return BuiltIndex(source.fingerprint, info, arrays | _stored(places))


def _footer(one: Object, advance: Advance) -> tuple[RemoteFooter, bytes]:
    """And the bytes that it was read from."""
    file = Hops(one)
    try:
        tail = file.read(max(0, one.size - TAIL), TAIL)
        size = END + footer_size(tail)
        tail = file.read(max(0, one.size - size), size) if size > len(tail) else tail[-size:]
        footer = RemoteFooter.of(one, tail, _read_now)
    except pa.ArrowException as error:
        raise DataError(
            f"{shown(one.url)} can't be read as Parquet, perhaps it is cut; copy it again ({error})"
        ) from error
    except ReadError as error:
        raise DataError(str(error)) from error
    advance(1)
    return footer, tail


def _read_now(extents: Sequence[Extent]) -> Iterator[Encoded]:
    return (reading.result() for reading in client().read(extents))


def _places(one: tuple[RowGroup, str], advance: Advance) -> Places | None:
    group, part = one
    try:
        places = group.places(part)
    except ValueError as error:
        raise DataError(f"{group.footer.path}: the column {part!r} of row group {group.number}: {error}") from error
    advance(1)
    return places


def _stream(table: pa.Table) -> NDArray[np.uint8]:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return np.frombuffer(sink.getvalue(), np.uint8)


def _stored(places: Sequence[Places | None]) -> dict[str, NDArray[np.int64]]:
    """As arrays; the counts are -1 for what there is not."""
    there = [one for one in places if one is not None]
    fragments = [one.fragments for one in there if one.fragments is not None]
    counts = [(-1, -1) if one is None else (len(one.sizes), _length(one.fragments)) for one in places]
    return {
        "counts": np.array(counts, np.int64).reshape(-1, 2),
        "places": np.concatenate([np.zeros((2, 0), np.int64), *([one.offsets, one.sizes] for one in there)], axis=1),
        "fragments": np.concatenate([np.zeros((0, 3), np.int64), *fragments]),
    }


def _length(array: NDArray[Any] | None) -> int:
    return -1 if array is None else len(array)


def _restored(arrays: Mapping[str, NDArray[Any]]) -> Iterator[Places | None]:
    """What was stored."""
    row = fragment = 0
    for rows, fragments in arrays["counts"].tolist():
        if rows < 0:
            yield None
            continue
        offsets, sizes = arrays["places"][:, row : row + rows]
        yield Places(offsets, sizes, None if fragments < 0 else arrays["fragments"][fragment : fragment + fragments])
        row, fragment = row + rows, fragment + max(fragments, 0)
