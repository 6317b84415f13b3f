"""The index of tar shards: what a scan of them finds, wherever they lie, and whether they are still as it says."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.errors import DataError
from gpupipe.host.cache import digest
from gpupipe.host.files import open_regular
from gpupipe.sources.building import Advance, BuiltIndex
from gpupipe.sources.headers import DAMAGED, Header, ReadRange, probe
from gpupipe.sources.indexed import SHAPES, arrays_of, found
from gpupipe.sources.reading import MOST_BYTES, Stamp
from gpupipe.sources.samples import NO_LABEL, Sample, class_number, group, read_label, split_name
from gpupipe.sources.storage import StoredIndex, pack_strings
from gpupipe.sources.tar import Member, scan_tar
from gpupipe.sources.wanted import Wanted
from gpupipe.texts import printable

__all__ = ["Part", "Scan", "Shard", "changes", "changes_on_disk", "entry_of", "opened_shard", "stamps_of"]

MOST_TOLD = 10

Entry = Mapping[str, Any]
"""What an index notes of a shard: its name, its bytes, and what tells whether it was changed."""


@dataclass(frozen=True)
class Shard:
    """A shard that can be scanned: what it is called in messages, what is noted of it, and what reads its bytes."""

    path: str
    entry: Entry
    read: ReadRange

    def members(self) -> Iterator[Member]:
        """Its files, in turn. Raises DataError where it is no whole tar."""
        return scan_tar(self.path, self.read, self.entry["size"])

    def extensions(self) -> str:
        """For a message: those of its members, the usual ones first."""
        names = [split_name(member.name) for member in self.members()]
        counts = Counter(name[1] for name in names if name is not None)
        return (
            ", ".join(f".{printable(extension, 40)}" for extension, _ in counts.most_common(MOST_TOLD)) or "none at all"
        )


@contextmanager
def opened_shard(path: str | Path) -> Iterator[Shard]:
    """One on a disk. Raises DataError where it can't be read."""
    try:
        opened = open_regular(path)
    except OSError as error:
        remedy = "check the path and its permissions"
        raise DataError(f"shard {path} can't be read: {error.strerror}; {remedy}") from error
    with open(opened, "rb", buffering=0) as file:
        descriptor = file.fileno()
        # Before reading: a change meanwhile makes the index stale, not wrong.
        entry = entry_of(path, Stamp.of(descriptor))
        yield Shard(str(path), entry, lambda offset, size: os.pread(descriptor, size, offset))


def entry_of(path: str | Path, stamp: Stamp) -> Entry:
    """What is noted of a shard on a disk."""
    return {"name": os.path.basename(path), **stamp._asdict()}


def stamps_of(index: StoredIndex, shards: Sequence[str]) -> list[Stamp]:
    """Those of the shards on a disk that have this index."""
    return _stamps(index.info, index.is_in_place(os.path.dirname(shards[0])))


def _stamps(info: Mapping[str, Any], is_in_place: bool) -> list[Stamp]:
    return [Stamp.noted([entry[name] for name in Stamp._fields], is_in_place) for entry in info["shards"]]


def changes(shards: Sequence[str], now: Sequence[Entry], info: Mapping[str, Any]) -> str:
    """What changed since the index was made, or an empty string. now: what would be noted of each shard."""
    if info.get("kind") != "shards" or len(info["shards"]) != len(shards):
        return "it belongs to other data"
    for shard, entry, stored in zip(shards, now, info["shards"], strict=True):
        if {name: stored[name] for name in entry} != entry:
            return f"{shard} was changed"
    return ""


def changes_on_disk(shards: Sequence[str], info: Mapping[str, Any], is_in_place: bool) -> str:
    """The same of shards on a disk, as they are now. is_in_place: as for `Stale`. Raises OSError, and KeyError for an
    index that has too little."""
    other = changes(shards, [{"name": os.path.basename(shard)} for shard in shards], info)
    if other:
        return other
    for shard, stamp in zip(shards, _stamps(info, is_in_place), strict=True):
        if not stamp.is_of(Stamp.from_stat(os.stat(shard))):
            return f"{shard} was changed"
    return ""


@dataclass(frozen=True)
class Part:
    """What the scan of one shard found.

    `keys` and `key_offsets` are packed strings, `facts` is (N, F) int64: label, height, width, orientation, and then
    offset and bytes of each file, -1 for none. Arrays, as the samples of all shards would take several times the memory
    as objects.
    """

    entry: Entry
    keys: NDArray[np.uint8]
    key_offsets: NDArray[np.int64]
    facts: NDArray[np.int64]


@dataclass(frozen=True)
class Scan:
    """What is looked for in shards. shapes: whether images' headers are read, too."""

    wanted: Wanted
    label_field: str
    shapes: bool = True

    @property
    def arrays(self) -> set[str]:
        """The names of what it makes."""
        arrays = arrays_of(self.wanted) | {"offsets", "starts"}
        return arrays if self.shapes else arrays - SHAPES.keys()

    def index_name(self, shards: Sequence[str | Path]) -> str:
        """One name per set of shards, label field and files; the same wherever the set is mounted."""
        names = [os.path.relpath(shard, os.path.dirname(shards[0])) for shard in shards]
        wanted: list[Any] = [names, self.label_field]
        if not self.wanted.is_usual:
            wanted = [names, self.label_field if self.wanted.labels else None, self.wanted.files, self.wanted.image]
            wanted += [] if self.wanted.label is None else [self.wanted.label]
        return f".gpupipe-{digest(wanted)}.index"

    def part(self, shard: Shard, advance: Advance) -> Part:
        """What is in one. Raises DataError where it is damaged or its samples are unfit."""
        advance(0)
        names, facts, done = [], [], 0
        unfit = None
        for sample in group(shard.members(), self.wanted, shard.path):
            names.append(sample.key)
            try:
                facts.append(self._facts(sample, shard))
            except DataError as error:  # what else is wrong with the shard may be why
                unfit = unfit or error
            advance(sample.offset - done)
            done = sample.offset
        if unfit is not None:
            raise unfit
        advance(shard.entry["size"] - done)
        keys, key_offsets = pack_strings(names)
        columns = 4 + 2 * len(self.wanted.files)
        return Part(shard.entry, keys, key_offsets, np.array(facts, np.int64).reshape(-1, columns))

    def _facts(self, sample: Sample, shard: Shard) -> tuple[int, ...]:
        if self.wanted.labels:
            label = read_label(sample, shard.read, shard.path, self.label_field)
        else:
            label = NO_LABEL if self.wanted.label is None else class_number(sample, self.wanted.label, shard.read)
        image = sample.files[self.wanted.image] if self.wanted.image is not None and self.shapes else None
        header = DAMAGED if image is None else _header(shard.read, image)
        places = [(-1, -1) if file is None else (file.offset, file.size) for file in sample.files]
        return label, *header, *chain(*places)

    def parts_of(self, index: StoredIndex) -> list[Part]:
        """What an index says of each of its shards."""
        arrays, files = index.arrays, len(self.wanted.files)
        facts = np.full((len(arrays["key_offsets"]) - 1, 4 + 2 * files), NO_LABEL, np.int64)
        for column, name in enumerate(("labels", *SHAPES)):
            if name in arrays:
                facts[:, column] = arrays[name]
        facts[:, 4::2] = arrays["offsets"].reshape(-1, files)
        facts[:, 5::2] = arrays["sizes"].reshape(-1, files)
        parts = []
        for entry, (start, stop) in zip(index.info["shards"], pairwise([*arrays["starts"], len(facts)]), strict=True):
            places = arrays["key_offsets"][start : stop + 1]
            keys = arrays["keys"][places[0] : places[-1]]
            parts.append(Part(entry, keys, places - places[0], facts[start:stop]))
        return parts

    def built(self, parts: Sequence[Part]) -> BuiltIndex:
        """The index of shards that were scanned."""
        facts = np.concatenate([part.facts for part in parts])
        key_offsets = np.zeros(len(facts) + 1, np.int64)
        np.cumsum(np.concatenate([np.diff(part.key_offsets) for part in parts]), out=key_offsets[1:])
        at: Any = 4 if len(self.wanted.files) == 1 else np.arange(4, facts.shape[1], 2)
        built = found(
            self.wanted,
            [part.entry["name"] for part in parts],
            (np.concatenate([part.keys for part in parts]), key_offsets),
            np.concatenate([facts[:, :4], facts[:, 5::2]], axis=1),
            {"kind": "shards", "label_field": self.label_field, "shards": [part.entry for part in parts]},
            **({"labels": facts[:, 0].copy()} if (facts[:, 0] != NO_LABEL).all() else {}),
            offsets=facts[:, at].copy(),
            starts=np.cumsum([0] + [len(part.facts) for part in parts])[:-1].astype(np.int64),
        )
        return built if self.shapes else built.without(SHAPES)

    def check_any(self, parts: Sequence[Part], first: Shard) -> None:
        """Raise DataError where no shard has a sample."""
        if not any(len(part.facts) for part in parts):
            what = ", ".join(f".{name}" for names in self.wanted.files for name in names)
            files = f"members {what}" if what else "images"
            there = f", but {first.extensions()}; check the source" if what else ""
            raise DataError(f"no {files} in {first.path}{' and the other shards' if len(parts) > 1 else ''}{there}")


def _header(read: ReadRange, image: Member) -> Header:
    if image.size > MOST_BYTES:
        return DAMAGED
    return probe(lambda offset, length: read(image.offset + offset, length), image.size)
