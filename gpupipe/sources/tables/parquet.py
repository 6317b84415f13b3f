"""Parquet with images in it, as Hugging Face's `data/train-00000-of-00002.parquet`: a file, several, a folder of them.

Images are read row by row, or where that can't be by row groups, of which some are kept (`row_groups`). Numbers and
texts are read once, when the files are opened.
"""

from __future__ import annotations

import json
import logging
import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, zip_longest
from pathlib import Path as FilePath
from typing import Any, TypeVar

import numpy as np
import PIL.Image
import pyarrow as pa
from numpy.typing import NDArray

from gpupipe.batch import MISSING, Array, Bytes, Coming, Field, Image, Images, Mask, Schema
from gpupipe.errors import DataError, SampleError
from gpupipe.host.whereabouts import note
from gpupipe.sources.building import Advance, scan_in_threads
from gpupipe.sources.packed import AS_STORED
from gpupipe.sources.reading import OpenFiles
from gpupipe.sources.remote.loose import Known
from gpupipe.sources.remote.objects import is_remote
from gpupipe.sources.source import Encoded, content_fingerprint
from gpupipe.sources.tables.blobs import Blobs
from gpupipe.sources.tables.columns import Path, as_indices, cells, located, paths_of, type_at
from gpupipe.sources.tables.contents import contents
from gpupipe.sources.tables.files import Parquet
from gpupipe.sources.tables.numbering import numberings, tell_of_numberings
from gpupipe.sources.tables.row_groups import SNAPPY, Footer, LocalFooter, RowGroup, RowGroups, default_memory
from gpupipe.sources.tables.rows import Files, RowSource
from gpupipe.sources.tables.upright import turn
from gpupipe.texts import printable

__all__ = ["ParquetSource", "class_label_names", "open_parquet"]

log = logging.getLogger("gpupipe")

Got = TypeVar("Got")

KNOWN = 256 << 20
"""Bytes of a column of numbers or texts up to which it is kept whole; a larger one is read by row groups."""

LARGE = 8
"""A row group that is read whole is large if less than so many have room in a process's memory."""

MIB = 1 << 20


class ParquetSource(RowSource):
    """The rows of Parquet files, in the files' order. Made by `open_parquet`.

    samples_per_shard: how many rows each row group has, (groups,) int64: the blocks of `BlockShuffled.of_shards`.
    """

    def __init__(
        self, settings: Parquet, fields: Schema, footers: Sequence[Footer], known: pa.Table | None = None
    ) -> None:
        schema = footers[0].schema
        paths = located(fields, schema, footers[0].path)
        groups = [RowGroup(footer, number) for footer in footers for number in range(footer.metadata.num_row_groups)]
        self._settings = settings
        self._schema = schema
        self._folder = self._common_folder(footers)
        self._memory = settings.memory or default_memory()
        self._groups = RowGroups(groups, self._memory)
        self.samples_per_shard = np.array([group.rows for group in groups], np.int64)
        self._starts: list[int] = np.cumsum(np.append(0, self.samples_per_shard)).tolist()
        self._files = OpenFiles()
        self._blobs = {
            name: Blobs(path, type_at(schema.field(path[0]).type, path[1:]), self._groups)
            for name, path in paths.items()
            if isinstance(fields[name], Image | Mask | Bytes)
        }
        self._modes = {name: _mode(schema, paths[name]) for name in fields.images if _is_turned(schema, paths[name])}
        others = {name: footers[0].part(path) for name, path in paths.items() if name not in self._blobs}
        large = {part for part in set(others.values()) if sum(group.size(part) for group in groups) > KNOWN}
        self._by_group = {name: part for name, part in others.items() if part in large}
        self._known = _known(footers, sorted(set(others.values()) - large)) if known is None else known
        noted = class_label_names(schema, paths["label"]) if "label" in paths else None
        columns = (
            (name, cells(self._known, paths[name]))
            for name in others
            if name not in self._by_group and isinstance(fields[name], Array)
        )
        names = numberings(columns, footers[0].path, settings.classes, noted)
        super().__init__(os.path.expanduser(settings.root or footers[0].folder), fields, paths, names)
        if self.classes is None and noted is not None:
            self.classes, self.class_to_idx = noted, {name: number for number, name in enumerate(noted)}
        self.fingerprint = self._fingerprint()

    def __len__(self) -> int:
        return self._starts[-1]

    def __repr__(self) -> str:
        groups = self.groups
        files = len({group.footer.path for group in groups})
        size = f"{len(groups)} row groups, {len(self)} samples"
        return f"ParquetSource({files} files from {groups[0].footer.path!r}, {size})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (self._settings, self.fields, self.fingerprint, self.known), {"reading": self.reading}

    def _fingerprint(self) -> str:
        """Of the rows of each group and the sizes of what is in them, and of all that is known."""
        groups = self.groups
        parts = sorted({part for blobs in self._blobs.values() for part in blobs.parts} | set(self._by_group.values()))
        sizes = np.array([[group.size(part) for part in parts] for group in groups], np.int64)
        files = {group.footer.path: printable(self._name(group.footer)) for group in groups}
        classes = self.names.get("label", []) if self._settings.classes is not None else []
        names = [*parts, *files.values(), *classes]
        known = chain.from_iterable(contents(column.combine_chunks()) for column in self._known.columns)
        return content_fingerprint(names, [self.samples_per_shard, sizes, *known])

    @property
    def groups(self) -> list[RowGroup]:
        """All row groups."""
        return self._groups.groups

    @property
    def direct(self) -> list[str]:
        """The columns of bytes, by name."""
        return sorted({blobs.direct for blobs in self._blobs.values()} - {""})

    def _common_folder(self, footers: Sequence[Footer]) -> str:
        return os.path.commonpath([footer.folder for footer in footers])

    def _name(self, footer: Footer) -> str:
        """Of the file, from the folder of all."""
        return os.path.relpath(footer.path, self._folder)

    def _place(self, index: int) -> tuple[int, int]:
        """The row group of a sample, and its row there."""
        group = bisect_right(self._starts, index) - 1
        return group, index - self._starts[group]

    def _in_file(self, index: int) -> tuple[RowGroup, int]:
        """The row group of a sample, and its row in the file."""
        number, _ = self._place(index)
        group = self.groups[number]
        return group, index - self._starts[number - group.number]

    def key(self, index: int) -> str:
        """The file, and the row in it."""
        group, row = self._in_file(index)
        return f"{printable(self._name(group.footer))} row {row}"

    def location(self, index: int) -> str:
        """File, row and row group."""
        group, row = self._in_file(index)
        return f"{printable(group.footer.path)} row {row} (row group {group.number})"

    def remarks(self) -> list[tuple[str, str]]:
        """Row groups that are read whole, of which few have room in memory."""
        large = [(group.size(leaf), group, leaf) for group, leaf in self._read_whole() if self._is_large(group, leaf)]
        if not large:
            return []
        size, group, leaf = max(large, key=lambda one: one[0])
        what = (
            f"{len(large)} of {len(self.groups)} row groups are read whole for each image, and are {self._where}: row "
            f"group {group.number} of {printable(group.footer.path)} has {size // MIB:,} MiB in the column {leaf!r}, "
            f"compressed by {group.leaf(leaf).codec}; a process keeps {self._memory // MIB:,} MiB"
        )
        remedy = (
            "write the images without compression, which `gpupipe pack` does, or a smaller row_group_size; or let the "
            "order be BlockShuffled.of_shards(source, window)"
        )
        return [(what, remedy)]

    def paths(self) -> pa.Table:
        """The columns of which the cells are paths alone."""
        footers = list({group.footer.path: group.footer for group in self.groups}.values())
        return _known(footers, sorted(blobs.parts[0] for blobs in self._blobs.values() if not blobs.direct))

    def _paths_in(self, name: str) -> pa.Array | None:
        return None if self._blobs[name].direct else paths_of(cells(self.paths(), self._paths[name]))

    def look_into(self, paths: pa.Table, known: Mapping[str, Known | None] | None = None) -> None:
        """As `look`, of these columns."""
        names = (name for name, blobs in self._blobs.items() if not blobs.direct)
        self.look({name: cells(paths, self._paths[name]) for name in names}, known)

    @property
    def names_objects(self) -> bool:
        """Whether the first of its paths are those of objects."""
        read = partial(self._part, {})
        firsts = [blobs.get(0, 0, read) for blobs in self._blobs.values() if not blobs.direct]
        return any(isinstance(first, str) and (is_remote(first) or is_remote(self.root)) for first in firsts)

    _where = "large"

    def _is_large(self, group: RowGroup, leaf: str) -> bool:
        return group.size(leaf) > self._memory // LARGE

    def _read_whole(self) -> Iterator[tuple[RowGroup, str]]:
        """Row groups and columns of which a value can't be read alone."""
        return ((one, leaf) for one in self.groups for leaf in self.direct if one.leaf(leaf).codec not in SNAPPY)

    @property
    def reads_groups(self) -> bool:
        """Whether there are such, so that samples of one had better come one soon after the other."""
        return any(True for _ in self._read_whole())

    @property
    def looks_ahead(self) -> int:
        """Of one fetch."""
        return max(1, super().looks_ahead)

    def ahead(self, coming: Coming) -> None:
        """Of row groups those are kept that are needed; what is read by itself, the system reads meanwhile."""
        super().ahead(coming)
        places = [self._place(index) for index in np.sort(coming.indices).tolist()]
        self._groups.needed([group for group, _ in places], coming.turns)
        for blobs in self._blobs.values():
            for group, row in places:
                if (span := blobs.span(group, row)) is not None:
                    self._files.advise(self.groups[group].footer.path, *span)

    def _whole(self, name: str) -> pa.Array | None:
        return None if name in self._blobs or name in self._by_group else cells(self._known, self._paths[name])

    def _rows(self, indices: NDArray[np.int64]) -> pa.Table:
        """What is known of them."""
        if len(indices) and not 0 <= indices.min() <= indices.max() < len(self):
            raise IndexError(f"samples {indices} of {self!r}")
        return self._known.take(as_indices(indices)) if self._known.num_columns else self._known

    def _made(self, name: str, field: Field, rows: pa.Table, indices: NDArray[np.int64], read: Files) -> Any:
        if name in self._by_group:
            part, top = self._by_group[name], self._paths[name][0]
            found = [self._had(name, index, partial(self._cell, part)) for index in indices.tolist()]
            kind = found[0].type if found else self._schema.field(top).type
            column = cells(pa.table({top: pa.chunked_array(found, kind)}), self._paths[name])
            return self._values(name, field, column, indices, read)
        if name not in self._blobs:
            return super()._made(name, field, rows, indices, read)
        files: list[Any] = [None] * len(indices)
        for row in np.argsort(indices, kind="stable").tolist():  # one row group after the other
            files[row] = self._file(name, int(indices[row]), read)
        if isinstance(field, Image):
            images = Images(files)
            if name in self._modes:
                turn(field, images, self._modes[name])
            return images
        of_bytes = isinstance(field, Bytes)
        return [MISSING if data is None else data.tobytes() if of_bytes else data for data in files]

    def _part(self, _: Files, footer: Any, begin: int, size: int, head: bytes) -> Encoded:
        """A part of a file, behind what has to stand before it. Raises OSError and ValueError."""
        data, stamp = self._files.read(footer.path, begin, size, head)
        footer.check(stamp)
        if len(data) != len(head) + size:
            raise ValueError(f"the storage gave {len(data) - len(head):,} of its {size:,} bytes")
        return data

    def _file(self, name: str, index: int, read: Files) -> Any:
        """The bytes of a field of one sample; None where the cell is null. Raises SampleError."""
        note(index)
        found = self._had(name, index, lambda at: self._blobs[name].get(*at, partial(self._part, read)))
        return self._read(name, index, found, read) if isinstance(found, str) else found

    def _cell(self, part: str, place: tuple[int, int]) -> pa.Array:
        """One cell of a column that is read by row groups. Raises OSError, ValueError and `pyarrow.ArrowException`."""
        cell = self._groups.row(*place, part)
        if pa.types.is_dictionary(cell.type):  # of which all would be looked at
            cell = cell.dictionary_decode()
        cell.validate(full=True)
        return cell

    def _had(self, name: str, index: int, get: Callable[[tuple[int, int]], Got]) -> Got:
        """What lies at the sample's place. Raises SampleError."""
        try:
            return get(self._place(index))
        except (OSError, ValueError, pa.ArrowException) as error:
            reason = f"its field {name!r} (column {'.'.join(self._paths[name])!r}): {error}"
            remedy = "put the file back, or make the loader again with the files as they are now"
            raise SampleError(index, self.location(index), reason, remedy) from error


def _opened(settings: Parquet, schema: Schema) -> ParquetSource:
    """Of local files."""
    paths = settings.paths()
    footers = scan_in_threads(f"opening {len(paths)} Parquet files", len(paths), _footer, paths)
    return ParquetSource(settings, schema, fitting(schema, footers))


def _reopened(settings: Parquet, fields: Schema, fingerprint: str, known: Mapping[str, Known | None]) -> ParquetSource:
    source = _opened(settings, fields)
    if source.fingerprint != fingerprint:
        raise DataError(f"{source!r}: the files were changed while a loader used them; make the loader again")
    if known:
        source.look_into(source.paths(), known)
    return source


def open_parquet(
    settings: Parquet, fields: Mapping[str, Field] | None = None, *, rebuild: bool = False
) -> ParquetSource:
    """The source for these files; None for `fields`: the columns image and label. rebuild: of remote files the index
    that is kept.

    Raises ConfigError for fields that the columns don't have, and `classes` that name none, DataError for files that
    are missing, damaged, empty, or have other columns than the first, and for names that `classes` lacks.
    """
    schema, urls = Schema.of(fields), settings.urls()
    if urls:
        from gpupipe.sources.tables.remote import open_remote

        source: ParquetSource = open_remote(settings, urls, schema, rebuild=rebuild)
    else:
        source = _opened(settings, schema)
        if source.names_objects:
            source.look_into(source.paths())
    tell_of_numberings(source.names, source.groups[0].footer.path)
    for remark in source.remarks():
        log.warning("gpupipe: %s: %s", *remark)
    return source


def fitting(schema: Schema, footers: Sequence[Footer]) -> Sequence[Footer]:
    """Those of files with rows. Raises DataError where there are none, for columns that are not as in the first, and
    where files name classes differently."""
    if not any(footer.metadata.num_rows for footer in footers):
        raise DataError(f"{footers[0].path}{' and the others' * (len(footers) > 1)} have no rows")
    for path in located(schema, footers[0].schema, footers[0].path).values():
        for footer in footers[1:]:
            _check_alike(path, footers[0], footer)
        _check_names(path, footers)
    return [footer for footer in footers if footer.metadata.num_rows]


def _footer(path: FilePath, advance: Advance) -> LocalFooter:
    try:
        footer = LocalFooter.of(path)
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise DataError(f"{path} can't be read as Parquet, perhaps it is cut; copy it again ({error})") from error
    advance(1)
    return footer


def _check_alike(path: Path, first: Footer, other: Footer) -> None:
    """Raise DataError unless a column is of the same type in both."""
    kinds = [
        type_at(one.schema.field(path[0]).type, path[1:]) if path[0] in one.schema.names else None
        for one in (first, other)
    ]
    if kinds[0] != kinds[1]:
        raise DataError(
            f"the column {'.'.join(path)!r} is {kinds[0]} in {first.path}, but {kinds[1] or 'not there'} in "
            f"{other.path}: write all files with one schema, or pass those that are alike"
        )


def _check_names(path: Path, footers: Sequence[Footer]) -> None:
    """Raise DataError unless all files that name a column's class numbers name the same."""
    named = [(names, footer.path) for footer in footers if (names := class_label_names(footer.schema, path))]
    for names, place in named[1:]:
        first, beside = named[0]
        if names != first:
            differ = next(pair for pair in zip_longest(first, names) if pair[0] != pair[1])
            raise DataError(
                f"the column {'.'.join(path)!r} has {len(first)} names of classes in {beside} and {len(names)} in "
                f"{place}, which differ at {differ[0]!r} and {differ[1]!r}: one label would mean two things; write all "
                "files with one ClassLabel, or pass a gpupipe.Mixture of both, by whose classes= labels are renumbered"
            )


def _known(footers: Sequence[Footer], parts: list[str]) -> pa.Table:
    """These columns of all rows, each in one piece."""
    if not parts:
        return pa.table({})

    def read(footer: Footer, advance: Advance) -> pa.Table:
        try:
            table = footer.read(parts)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise DataError(f"{footer.path}: the columns {', '.join(parts)} can't be read: {error}") from error
        try:
            table.validate(full=True)  # pyarrow reads texts that are not UTF-8, and gives them to nobody
        except (pa.ArrowInvalid, UnicodeDecodeError) as error:
            raise DataError(f"{footer.path} is damaged, or its texts are not UTF-8: {error}") from error
        about = footer.metadata
        rows = sum(about.row_group(number).num_rows for number in range(about.num_row_groups))
        if table.num_rows != rows:
            raise DataError(
                f"{footer.path} is damaged: it has {table.num_rows:,} rows and says {rows:,}; copy it again"
            )
        advance(1)
        return table.replace_schema_metadata(None)

    doing = f"reading columns of {len(footers)} Parquet files"
    tables = scan_in_threads(doing, len(footers), read, footers, footers[0].threads)
    return pa.concat_tables(tables).combine_chunks()


def class_label_names(schema: Any, path: Path) -> list[str] | None:
    """The names of a column's class numbers, where Hugging Face's datasets have noted them; else None."""
    names = _feature(schema, path).get("names")
    fits = isinstance(names, list) and all(isinstance(name, str) for name in names)
    return names if fits else None


def _is_turned(schema: Any, path: Path) -> bool:
    """Whether Hugging Face's datasets give a column's images upright."""
    feature = _feature(schema, path)
    return feature.get("_type") == "Image" and bool(feature.get("decode", True)) and AS_STORED not in schema.metadata


def _mode(schema: Any, path: Path) -> str | None:
    """To which Hugging Face's datasets convert a column's images; None: none."""
    mode = _feature(schema, path).get("mode")
    if mode is not None and mode not in PIL.Image.MODES:
        raise DataError(f"the column {'.'.join(path)!r}: its Image feature has the mode {mode!r}, which Pillow has not")
    return mode


def _feature(schema: Any, path: Path) -> dict[str, Any]:
    """What Hugging Face's datasets have noted of a column, or of a part of it; else nothing."""
    try:
        feature = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
        for key in path:
            feature = feature[key]
    except (KeyError, TypeError, ValueError, RecursionError):
        return {}
    return feature if isinstance(feature, dict) else {}
