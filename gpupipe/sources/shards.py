"""WebDataset shards: tar files whose members with the same key are one sample."""

from __future__ import annotations

import json
import os
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import add
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpupipe.batch import Field, Image, Schema
from gpupipe.errors import ConfigError, DataError, SampleError
from gpupipe.host.files import read_regular
from gpupipe.host.whereabouts import note
from gpupipe.sources.building import Advance, BuiltIndex, load_or_build, scan_in_threads
from gpupipe.sources.indexed import Files, IndexedSource
from gpupipe.sources.patterns import expand_shards
from gpupipe.sources.reading import OpenFiles, Stamp
from gpupipe.sources.samples import IMAGE_EXTENSIONS
from gpupipe.sources.shard_index import Part, Scan, changes_on_disk, entry_of, opened_shard, stamps_of
from gpupipe.sources.source import Encoded
from gpupipe.sources.storage import BadIndexError, StoredIndex, open_index, write_index
from gpupipe.sources.wanted import Names, Wanted, check_kind, wanted
from gpupipe.texts import printable

__all__ = ["CLASSES_NAME", "ShardSource", "index_shards", "open_shards", "scanned_shard", "unindexed", "wanted_members"]

CLASSES_NAME = "classes.json"
"""Beside the shards: a JSON list of class names, the label being the place in it."""

MOST_CLASSES_BYTES = 64 << 20

# Bytes between a sample's members that are read with them: 0.5 us more, where another read takes 2.4 (page cache).
WASTE = 16 << 10


class ShardSource(IndexedSource):
    """The images of tar shards, in the shards' order. Made by `open_shards`.

    A shard that is written to or replaced while it is in use has bad samples: what is read is what was indexed, or an
    error. One that was replaced by renaming is read as it was for as long as it stays open.
    """

    _shown: Callable[[str], str] = staticmethod(str)

    def __init__(self, shards: Sequence[str], index: StoredIndex, schema: Schema, wanted: Wanted) -> None:
        super().__init__(list(shards), index, schema, wanted)
        self.shards: list[str] = self._place
        self._offsets: NDArray[np.int64] = index.arrays["offsets"].reshape(-1, len(wanted.files))
        self._starts: list[int] = index.arrays["starts"].tolist()
        self._prepare(index)

    def _prepare(self, index: StoredIndex) -> None:
        """What is needed to read the shards, and the names of classes beside them."""
        self._stamps = stamps_of(index, self.shards)
        self._open = OpenFiles()
        self._name_classes(Path(self.shards[0]).parent)

    def _name_classes(self, folder: Path) -> None:
        self.classes = _class_names(folder)
        self.class_to_idx = {name: i for i, name in enumerate(self.classes)} if self.classes is not None else None

    def __repr__(self) -> str:
        first = self._shown(self.shards[0])
        return f"{type(self).__name__}({len(self.shards)} shards from {first!r}, {len(self)} samples)"

    @property
    def samples_per_shard(self) -> NDArray[np.int64]:
        """How many samples each shard holds, (shards,) int64."""
        return np.diff(self._starts, append=len(self))

    def _files(self, indices: list[int]) -> list[Files]:
        """Of each sample those that lie side by side are read at once, with headers and other members between them."""
        if len(self._wanted.files) == 1:
            return super()._files(indices)
        return list(zip(*map(self._together, indices), strict=True)) or [()] * len(self._wanted.files)

    def _together(self, index: int) -> Files:
        note(index)
        return self._cut(index, [self._read(index, offset, size) for offset, size in self._spans(index)])

    def _spans(self, index: int) -> list[tuple[int, int]]:
        """Offset and bytes of what is read of the shard: of each file, or of all at once."""
        if len(self._wanted.files) == 1:
            size = self._size(index, 0)
            return [] if size < 0 else [(self._offsets.item(index, 0), size)]
        offsets: list[int] = self._offsets[index].tolist()
        sizes = [self._size(index, number) for number in range(len(offsets))]
        begin = min((offset for offset in offsets if offset >= 0), default=0)
        span = max(map(add, offsets, sizes)) - begin
        if span <= WASTE + sum(size for size in sizes if size > 0):
            return [(begin, max(span, 0))]
        return [place for place in zip(offsets, sizes, strict=True) if place[1] >= 0]

    def _cut(self, index: int, read: Sequence[Encoded]) -> Files:
        """Its files, of what was read."""
        if len(self._wanted.files) == 1:
            return read or [None]
        places = list(zip(self._offsets[index].tolist(), self._bytes[index].tolist(), strict=True))
        if len(read) > 1:
            files = iter(read)
            return [next(files) if size >= 0 else None for _, size in places]
        begin = min((offset for offset, size in places if size >= 0), default=0)
        return [read[0][offset - begin :][:size] if size >= 0 else None for offset, size in places]

    def _file(self, index: int, number: int) -> Encoded | None:
        note(index)
        size = self._size(index, number)
        return None if size < 0 else self._read(index, self._offsets.item(index, number), size)

    def _read(self, index: int, offset: int, size: int) -> Encoded:
        """A part of the sample's shard. Raises SampleError where that is gone or not as it was when it was indexed."""
        shard = self._shard(index)
        try:
            return self._open.unchanged(self.shards[shard], self._stamps[shard], offset, size, "shard")
        except ValueError as error:
            raise self._bad(index, str(error)) from error

    def _looked_for(self, file: int) -> str:
        members = [f".{name}" for name in self._wanted.files[file]] or sorted(IMAGE_EXTENSIONS)
        with opened_shard(self.shards[0]) as shard:
            return f"there is no member {' or '.join(members)}, but {shard.extensions()}; check the source"

    def location(self, index: int) -> str:
        """Key, shard and offset of the first file, printable on any terminal."""
        offset = min((offset for offset in self._offsets[index].tolist() if offset >= 0), default=-1)
        shard = self._shown(self.shards[self._shard(index)])
        return f"key '{printable(self._keys[index])}' in shard {printable(shard)} at offset {offset}"

    def _shard(self, index: int) -> int:
        return bisect_right(self._starts, index) - 1

    def _bad(self, index: int, reason: str) -> SampleError:
        remedy = self._remedy("the shard", "PATTERN")
        return SampleError(index, self.location(index), reason, f"{remedy} (index: {self.index_path})")


def open_shards(
    patterns: Sequence[str | os.PathLike[str]],
    fields: Mapping[str, Field] | None = None,
    *,
    label_field: str = "label",
    rebuild: bool = False,
) -> ShardSource:
    """Open tar shards given by paths, brace patterns or globs, indexing them if they have no fresh index.

    A field is in the member with its source's extension, or with its own name's; `image` is the member
    with any image extension, `label` the number in `.cls` or in `label_field` of `.json`. Raises ConfigError for a URL
    and for a field that can be in no member, DataError for a missing, cut or damaged shard and for a sample without
    class number or with a key that comes twice.
    """
    shards = expand_shards(patterns)
    schema = Schema.of(fields)
    members = wanted_members(schema)
    scan = Scan(members, label_field)
    index = load_or_build(
        shards[0].parent,
        scan.index_name(shards),
        arrays=scan.arrays,
        stale=partial(changes_on_disk, list(map(str, shards))),
        build=lambda: _scanned(scan, shards, again=rebuild),
        rebuild=rebuild,
    )
    source = ShardSource([str(shard) for shard in shards], index, schema, members)
    source.check_absent()
    return source


def index_shards(shards: Sequence[Path], fields: Mapping[str, Field] | None, label_field: str) -> None:
    """Index each of these by itself, beside it: the index of them and others is then made without reading them.

    Several processes may do so, each with other shards. Raises as `open_shards` does, DataError also where an index
    can't be written.
    """
    scan = Scan(wanted_members(Schema.of(fields)), label_field)
    total = sum(shard.stat().st_size for shard in shards)
    scan_in_threads(f"indexing {len(shards)} shards", total, partial(_keep, scan), shards)


def unindexed(shards: Sequence[Path], fields: Mapping[str, Field] | None, label_field: str) -> int:
    """How many of these have no such index that is fresh."""
    scan = Scan(wanted_members(Schema.of(fields)), label_field)
    return sum(_known(scan, shard) is None for shard in shards)


def scanned_shard(path: Path, fields: Mapping[str, Field]) -> ShardSource:
    """One shard, scanned now, of which no index is written. Raises as `open_shards` does."""
    schema = Schema.of(fields)
    members = wanted_members(schema)
    scan = Scan(members, "label")
    built = scan.built([_part(scan, path, lambda done: None)])
    index = StoredIndex("", built.fingerprint, dict(built.info), dict(built.arrays))
    return ShardSource([str(path)], index, schema, members)


def _scanned(scan: Scan, shards: Sequence[Path], again: bool) -> BuiltIndex:
    """The index of the shards; again: also of those that have one by themselves."""

    def part(path: Path, advance: Advance) -> Part:
        known = None if again else _known(scan, path)
        if known is None:
            return _part(scan, path, advance)
        advance(known.entry["size"])
        return known

    total = sum(shard.stat().st_size for shard in shards)
    parts = scan_in_threads(f"indexing {len(shards)} shards", total, part, shards)
    with opened_shard(shards[0]) as first:
        scan.check_any(parts, first)
    return scan.built(parts)


def _part(scan: Scan, path: Path, advance: Advance) -> Part:
    with opened_shard(path) as shard:
        return scan.part(shard, advance)


def _keep(scan: Scan, path: Path, advance: Advance) -> None:
    """Index one by itself, unless that is done."""
    if _known(scan, path) is None:
        built, place = scan.built([_part(scan, path, advance)]), path.parent / scan.index_name([path])
        try:
            write_index(place, built.fingerprint, built.info, built.arrays, path.parent.stat().st_ino)
        except OSError as error:
            raise DataError(f"the index of {path} can't be written beside it: {error}") from error


def _known(scan: Scan, path: Path) -> Part | None:
    """What the shard's own index says, which may have been copied with it; None where there is none that is fresh."""
    try:
        index = open_index(path.parent / scan.index_name([path]))
        now = Stamp.from_stat(path.stat())
        changed = changes_on_disk([str(path)], index.info, index.is_in_place(path.parent))
        if changed or scan.arrays - index.arrays.keys():
            return None
        return replace(scan.parts_of(index)[0], entry=entry_of(path, now))
    except (OSError, BadIndexError, KeyError, TypeError, ValueError):
        return None


def wanted_members(schema: Schema) -> Wanted:
    """What a schema wants of shards. Raises ConfigError for a field that can be in no member."""
    return wanted(schema, _member)


def _member(name: str, field: Field) -> tuple[Names, str]:
    """The extensions of a field's member, and the keys within it."""
    if isinstance(field.source, int) or field.folder is not None:
        has = f"folder={field.folder!r}" if field.source is None else f"source={field.source}"
        raise ConfigError(f"fields: {name!r} has {has}, but the data is .tar shards; pass a member's extension")
    if field.source is None and name == "image" and isinstance(field, Image):
        return (), ""
    extensions, _, path = (name if field.source is None else field.source).partition(":")
    names = tuple(extension.strip(" .").lower() for extension in extensions.split(";"))
    if not all(names):
        raise ConfigError(f"fields: {name!r} has source={field.source!r}; pass extensions: 'jpg;png', 'json:score'")
    check_kind(name, field, names, path)
    return names, path


def _class_names(folder: Path) -> list[str] | None:
    """The names in `classes.json`, or None where there is none or it is a file of another kind."""
    try:
        names = json.loads(read_regular(folder / CLASSES_NAME, MOST_CLASSES_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    fits = isinstance(names, list) and all(isinstance(name, str) for name in names)
    return names if fits else None
