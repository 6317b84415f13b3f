"""WebDataset shards: tar files whose members with the same key are one sample."""

from __future__ import annotations

import json
import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.batch import Field, Image, Schema
from gpupipe.errors import ConfigError, DataError, SampleError
from gpupipe.host.cache import digest
from gpupipe.host.files import open_regular, read_regular
from gpupipe.host.whereabouts import note
from gpupipe.sources.building import Advance, BuiltIndex, load_or_build, scan_in_threads
from gpupipe.sources.headers import DAMAGED, Header, ReadRange, probe
from gpupipe.sources.indexed import SHAPES, Files, IndexedSource, arrays_of, found, printable
from gpupipe.sources.patterns import expand_shards
from gpupipe.sources.reading import MOST_BYTES, OpenFiles, Stamp
from gpupipe.sources.samples import IMAGE_EXTENSIONS, NO_LABEL, Sample, class_number, group, read_label, split_name
from gpupipe.sources.source import Encoded
from gpupipe.sources.storage import BadIndexError, StoredIndex, open_index, pack_strings, write_index
from gpupipe.sources.tar import Member, scan_tar
from gpupipe.sources.wanted import Names, Wanted, check_kind, wanted

__all__ = ["CLASSES_NAME", "ShardSource", "index_shards", "open_shards", "scanned_shard", "unindexed"]

CLASSES_NAME = "classes.json"
"""Beside the shards: a JSON list of class names, the label being the place in it."""

MOST_CLASSES_BYTES = 64 << 20

# Bytes between a sample's members that are read with them: 0.5 us more, where another read takes 2.4 (page cache).
WASTE = 16 << 10
MOST_TOLD = 10


class ShardSource(IndexedSource):
    """The images of tar shards, in the shards' order. Made by `open_shards`.

    A shard that is written to or replaced while it is in use has bad samples: what is read is what was indexed, or an
    error. One that was replaced by renaming is read as it was for as long as it stays open.
    """

    def __init__(self, shards: Sequence[str], index: StoredIndex, schema: Schema, wanted: Wanted) -> None:
        super().__init__(list(shards), index, schema, wanted)
        self.shards: list[str] = self._place
        self.classes = _class_names(Path(self.shards[0]).parent)
        self.class_to_idx = {name: i for i, name in enumerate(self.classes)} if self.classes is not None else None
        self._offsets: NDArray[np.int64] = index.arrays["offsets"].reshape(-1, len(wanted.files))
        self._starts: list[int] = index.arrays["starts"].tolist()
        self._stamps = [Stamp(entry["size"], entry["mtime_ns"]) for entry in index.info["shards"]]
        self._open = OpenFiles()

    def __repr__(self) -> str:
        return f"ShardSource({len(self.shards)} shards from {self.shards[0]!r}, {len(self)} samples)"

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
        offsets: list[int] = self._offsets[index].tolist()
        sizes = [self._size(index, number) for number in range(len(offsets))]
        begin = min((offset for offset in offsets if offset >= 0), default=0)
        span = max(map(add, offsets, sizes)) - begin
        if span > WASTE + sum(size for size in sizes if size > 0):
            return [self._file(index, number) for number in range(len(offsets))]
        data = self._read(index, begin, max(span, 0))
        places = zip(offsets, sizes, strict=True)
        return [data[offset - begin :][:size] if size >= 0 else None for offset, size in places]

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
        return f"there is no member {' or '.join(members)}, but {_members(self.shards[0])}; check the source"

    def location(self, index: int) -> str:
        """Key, shard and offset of the first file, printable on any terminal."""
        offset = min((offset for offset in self._offsets[index].tolist() if offset >= 0), default=-1)
        return printable(f"key {self._keys[index]!r} in shard {self.shards[self._shard(index)]} at offset {offset}")

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
    members = wanted(schema, _member)
    scan = _Scan(members, label_field)
    index = load_or_build(
        shards[0].parent,
        _index_name(shards, scan),
        arrays=scan.arrays,
        stale=lambda info: _changes(shards, info),
        build=lambda: scan.all(shards, again=rebuild),
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
    scan = _Scan(wanted(Schema.of(fields), _member), label_field)
    total = sum(shard.stat().st_size for shard in shards)
    scan_in_threads(f"indexing {len(shards)} shards", total, scan.keep, shards)


def unindexed(shards: Sequence[Path], fields: Mapping[str, Field] | None, label_field: str) -> int:
    """How many of these have no such index that is fresh."""
    scan = _Scan(wanted(Schema.of(fields), _member), label_field)
    return sum(scan.known(shard) is None for shard in shards)


def scanned_shard(path: Path, fields: Mapping[str, Field]) -> ShardSource:
    """One shard, scanned now, of which no index is written. Raises as `open_shards` does."""
    schema = Schema.of(fields)
    members = wanted(schema, _member)
    scan = _Scan(members, "label")
    built = scan.built([scan.shard(path, lambda done: None)])
    index = StoredIndex("", built.fingerprint, dict(built.info), dict(built.arrays))
    return ShardSource([str(path)], index, schema, members)


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


def _index_name(shards: Sequence[Path], scan: _Scan) -> str:
    """One name per set of shards, label field and files; the same wherever the set is mounted."""
    names = [os.path.relpath(shard, shards[0].parent) for shard in shards]
    wanted: list[Any] = [names, scan.label_field]
    if not scan.wanted.is_usual:
        wanted = [names, scan.label_field if scan.wanted.labels else None, scan.wanted.files, scan.wanted.image]
        wanted += [] if scan.wanted.label is None else [scan.wanted.label]
    return f".gpupipe-{digest(wanted)}.index"


def _class_names(folder: Path) -> list[str] | None:
    """The names in `classes.json`, or None where there is none or it is a file of another kind."""
    try:
        names = json.loads(read_regular(folder / CLASSES_NAME, MOST_CLASSES_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    fits = isinstance(names, list) and all(isinstance(name, str) for name in names)
    return names if fits else None


@dataclass(frozen=True)
class _Part:
    """What the scan of one shard found.

    `stamp` is the tar's name, size and time of change. `keys` and `key_offsets` are packed strings, `facts` is (N, F)
    int64: label, height, width, orientation, and then offset and bytes of each file, -1 for none. Arrays, as the
    samples of all shards would take several times the memory as objects.
    """

    stamp: dict[str, Any]
    keys: NDArray[np.uint8]
    key_offsets: NDArray[np.int64]
    facts: NDArray[np.int64]


@dataclass(frozen=True)
class _Scan:
    """What is looked for in shards."""

    wanted: Wanted
    label_field: str

    @property
    def arrays(self) -> set[str]:
        """The names of what it makes."""
        return arrays_of(self.wanted) | {"offsets", "starts"}

    def all(self, shards: Sequence[Path], again: bool) -> BuiltIndex:
        """The index of the shards; again: also of those that have one by themselves."""
        total = sum(shard.stat().st_size for shard in shards)
        parts = scan_in_threads(f"indexing {len(shards)} shards", total, self.shard if again else self.part, shards)
        if not any(len(part.facts) for part in parts):
            what = ", ".join(f".{name}" for names in self.wanted.files for name in names)
            files = f"members {what}" if what else "images"
            there = f", but {_members(str(shards[0]))}; check the source" if what else ""
            raise DataError(f"no {files} in {shards[0]}{' and the other shards' if len(shards) > 1 else ''}{there}")
        return self.built(parts)

    def keep(self, path: Path, advance: Advance) -> None:
        """Index one by itself, unless that is done."""
        if self.known(path) is None:
            built, place = self.built([self.shard(path, advance)]), path.parent / _index_name([path], self)
            try:
                write_index(place, built.fingerprint, built.info, built.arrays)
            except OSError as error:
                raise DataError(f"the index of {path} can't be written beside it: {error}") from error

    def part(self, path: Path, advance: Advance) -> _Part:
        """What is in one, by its own index where that is fresh."""
        known = self.known(path)
        if known is None:
            return self.shard(path, advance)
        advance(known.stamp["size"])
        return known

    def known(self, path: Path) -> _Part | None:
        """What the shard's own index says; None where there is none that is fresh."""
        try:
            index = open_index(path.parent / _index_name([path], self))
            if self.arrays - index.arrays.keys() or _changes([path], index.info):
                return None
        except (OSError, BadIndexError, KeyError, TypeError):
            return None
        arrays, files = index.arrays, len(self.wanted.files)
        facts = np.full((len(arrays["key_offsets"]) - 1, 4 + 2 * files), NO_LABEL, np.int64)
        for column, name in enumerate(("labels", *SHAPES)):
            if name in arrays:
                facts[:, column] = arrays[name]
        facts[:, 4::2] = arrays["offsets"].reshape(-1, files)
        facts[:, 5::2] = arrays["sizes"].reshape(-1, files)
        return _Part(index.info["shards"][0], arrays["keys"], arrays["key_offsets"], facts)

    def shard(self, path: Path, advance: Advance) -> _Part:
        """What is in one."""
        advance(0)
        try:
            opened = open_regular(path)
        except OSError as error:
            remedy = "check the path and its permissions"
            raise DataError(f"shard {path} can't be read: {error.strerror}; {remedy}") from error
        with open(opened, "rb", buffering=0) as file:
            descriptor = file.fileno()
            # Before reading: a change meanwhile makes the index stale, not wrong.
            stamp: dict[str, Any] = {"name": path.name, **Stamp.of(descriptor)._asdict()}
            samples = group(scan_tar(str(path), descriptor), self.wanted, str(path))
            facts = self._facts(samples, descriptor, str(path), advance)
        advance(stamp["size"] - (samples[-1].offset if samples else 0))
        keys, key_offsets = pack_strings([sample.key for sample in samples])
        return _Part(stamp, keys, key_offsets, np.array(facts, np.int64).reshape(-1, 4 + 2 * len(self.wanted.files)))

    def _facts(self, samples: Sequence[Sample], descriptor: int, shard: str, advance: Advance) -> list[tuple[int, ...]]:
        facts: list[tuple[int, ...]] = []
        done = 0

        def read(offset: int, length: int) -> bytes:
            return os.pread(descriptor, length, offset)

        for sample in samples:
            if self.wanted.labels:
                label = read_label(sample, read, shard, self.label_field)
            else:
                label = NO_LABEL if self.wanted.label is None else class_number(sample, self.wanted.label, read)
            image = None if self.wanted.image is None else sample.files[self.wanted.image]
            header = DAMAGED if image is None else _header(read, image)
            places = [(-1, -1) if file is None else (file.offset, file.size) for file in sample.files]
            facts.append((label, *header, *chain(*places)))
            advance(sample.offset - done)
            done = sample.offset
        return facts

    def built(self, parts: Sequence[_Part]) -> BuiltIndex:
        """The index of shards that were scanned."""
        facts = np.concatenate([part.facts for part in parts])
        key_offsets = np.zeros(len(facts) + 1, np.int64)
        np.cumsum(np.concatenate([np.diff(part.key_offsets) for part in parts]), out=key_offsets[1:])
        at: Any = 4 if len(self.wanted.files) == 1 else np.arange(4, facts.shape[1], 2)
        return found(
            self.wanted,
            [part.stamp["name"] for part in parts],
            (np.concatenate([part.keys for part in parts]), key_offsets),
            np.concatenate([facts[:, :4], facts[:, 5::2]], axis=1),
            {"kind": "shards", "label_field": self.label_field, "shards": [part.stamp for part in parts]},
            **({"labels": facts[:, 0].copy()} if (facts[:, 0] != NO_LABEL).all() else {}),
            offsets=facts[:, at].copy(),
            starts=np.cumsum([0] + [len(part.facts) for part in parts])[:-1].astype(np.int64),
        )


def _members(shard: str) -> str:
    """For a message: the extensions of a shard's members, the usual ones first."""
    with open(open_regular(shard), "rb", buffering=0) as file:
        names = [split_name(member.name) for member in scan_tar(shard, file.fileno())]
    counts = Counter(name[1] for name in names if name is not None)
    return ", ".join(f".{extension}" for extension, _ in counts.most_common(MOST_TOLD)) or "none at all"


def _header(read: ReadRange, image: Member) -> Header:
    if image.size > MOST_BYTES:
        return DAMAGED
    return probe(lambda offset, length: read(image.offset + offset, length), image.size)


def _changes(shards: Sequence[Path], info: dict[str, Any]) -> str:
    """What changed since the index was made, or an empty string."""
    if info.get("kind") != "shards" or len(info["shards"]) != len(shards):
        return "it belongs to other data"
    for shard, stored in zip(shards, info["shards"], strict=True):
        stat = shard.stat()
        now = {"name": shard.name, "size": stat.st_size, "mtime_ns": stat.st_mtime_ns}
        if {name: stored[name] for name in now} != now:
            return f"{shard} was changed"
    return ""
