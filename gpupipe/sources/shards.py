"""WebDataset shards: tar files whose members with the same key are one sample."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.errors import DataError, SampleError
from gpupipe.host.files import open_regular, read_regular
from gpupipe.host.whereabouts import note
from gpupipe.sources.building import BuiltIndex, load_or_build, reopen_index
from gpupipe.sources.headers import DAMAGED, Header, ReadRange, probe
from gpupipe.sources.indexed import ARRAYS, IndexedSource
from gpupipe.sources.patterns import expand_shards
from gpupipe.sources.reading import MOST_BYTES, OpenFiles, Stamp
from gpupipe.sources.samples import Sample, group, read_label
from gpupipe.sources.scanning import Advance, scan_in_threads
from gpupipe.sources.source import Encoded, content_fingerprint
from gpupipe.sources.storage import StoredIndex, pack_strings
from gpupipe.sources.tar import Member, scan_tar
from gpupipe.sources.wds_idx import BadIdxError, idx_path, read_idx

__all__ = ["CLASSES_NAME", "ShardSource", "open_shards"]

CLASSES_NAME = "classes.json"
"""Beside the shards: a JSON list of class names, the label being the place in it."""

MOST_CLASSES_BYTES = 64 << 20

log = logging.getLogger("gpupipe")


class ShardSource(IndexedSource):
    """The images of tar shards, in the shards' order. Made by `open_shards`.

    A shard that is written to or replaced while it is in use has bad samples: what is read is what was indexed, or an
    error. One that was replaced by renaming is read as it was for as long as it stays open.
    """

    def __init__(self, shards: Sequence[str], index: StoredIndex) -> None:
        super().__init__(index)
        self.shards = list(shards)
        self.classes = _class_names(Path(self.shards[0]).parent)
        self.class_to_idx = {name: i for i, name in enumerate(self.classes)} if self.classes is not None else None
        self._offsets: NDArray[np.int64] = index.arrays["offsets"]
        self._starts: list[int] = index.arrays["starts"].tolist()
        self._stamps = [Stamp(entry["size"], entry["mtime_ns"]) for entry in index.info["shards"]]
        self._files = OpenFiles()

    def __repr__(self) -> str:
        return f"ShardSource({len(self.shards)} shards from {self.shards[0]!r}, {len(self)} samples)"

    def __reduce__(self) -> tuple[Callable[..., ShardSource], tuple[list[str], str, str]]:
        return _reopen, (self.shards, self.index_path, self.fingerprint)

    @property
    def samples_per_shard(self) -> NDArray[np.int64]:
        """How many samples each shard holds, (shards,) int64."""
        return np.diff(self._starts, append=len(self))

    def _read(self, index: int) -> Encoded:
        """The bytes of one image. Raises SampleError where the shard is gone or not as it was when it was indexed."""
        note(index)
        shard, size = self._shard(index), self._bytes(index)
        try:
            data, stamp = self._files.read(self.shards[shard], int(self._offsets[index]), size)
        except OSError as error:
            raise self._bad(index, f"can't be read: {error.strerror}") from error
        if stamp != self._stamps[shard]:
            raise self._bad(index, _difference(self._stamps[shard], stamp))
        if len(data) != size:  # though the file is as long as it was
            raise self._bad(index, f"the storage gave {len(data)} of its {size} bytes")
        return data

    def location(self, index: int) -> str:
        """Key, shard and offset of the image, printable on any terminal."""
        text = f"key {self._keys[index]!r} in shard {self.shards[self._shard(index)]} at offset {self._offsets[index]}"
        return text.encode("utf-8", "backslashreplace").decode()

    def _shard(self, index: int) -> int:
        return bisect_right(self._starts, index) - 1

    def _bad(self, index: int, reason: str) -> SampleError:
        remedy = f"put the shard back, or index again: gpupipe index PATTERN --rebuild (index: {self.index_path})"
        return SampleError(index, self.location(index), reason, remedy)


def _difference(indexed: Stamp, now: Stamp) -> str:
    if indexed.size != now.size:
        how = "cut" if now.size < indexed.size else "changed"
        return f"the shard has {now.size} bytes where the index says {indexed.size}: it was {how} since it was indexed"
    return "the shard was written to, or touched, since it was indexed: its time of change is another"


def open_shards(
    patterns: Sequence[str | os.PathLike[str]], *, label_field: str = "label", rebuild: bool = False
) -> ShardSource:
    """Open tar shards given by paths, brace patterns or globs, indexing them if they have no fresh index.

    `label_field` names the field of `.json` members that holds the label. Raises ConfigError for a URL, DataError for
    a missing, cut or damaged shard and for a sample without label or with a key that comes twice.
    """
    shards = expand_shards(patterns)
    folder = shards[0].parent
    index = load_or_build(
        folder,
        _index_name(shards, label_field),
        arrays=ARRAYS | {"offsets", "starts"},
        stale=lambda info: _changes(shards, info),
        build=lambda: _scan(shards, label_field),
        rebuild=rebuild,
    )
    return ShardSource([str(shard) for shard in shards], index)


def _reopen(shards: list[str], index_path: str, fingerprint: str) -> ShardSource:
    return ShardSource(shards, reopen_index(index_path, fingerprint))


def _index_name(shards: Sequence[Path], label_field: str) -> str:
    """One name per set of shards and label field; the same wherever the set is mounted."""
    names = [os.path.relpath(shard, shards[0].parent) for shard in shards]
    digest = hashlib.sha256(json.dumps([names, label_field]).encode()).hexdigest()[:16]
    return f".gpupipe-{digest}.index"


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

    `files` are size and time of change of the tar and of the .idx used. `keys` and `key_offsets` are packed strings,
    `facts` is (N, 6) int64: label, offset, bytes, height, width, orientation. Arrays, as the samples of all shards
    would take several times the memory as objects.
    """

    files: dict[str, Any]
    keys: NDArray[np.uint8]
    key_offsets: NDArray[np.int64]
    facts: NDArray[np.int64]


def _scan(shards: Sequence[Path], label_field: str) -> BuiltIndex:
    total = sum(shard.stat().st_size for shard in shards)

    def scan(shard: Path, advance: Advance) -> _Part:
        return _scan_shard(shard, label_field, advance)

    parts = scan_in_threads(f"indexing {len(shards)} shards", total, scan, shards)
    if not any(len(part.facts) for part in parts):
        raise DataError(f"no images in {shards[0]}{' and the other shards' if len(shards) > 1 else ''}")
    return _built(parts, label_field)


def _scan_shard(path: Path, label_field: str, advance: Advance) -> _Part:
    advance(0)
    with open(_opened(path), "rb", buffering=0) as file:
        descriptor = file.fileno()
        files: dict[str, Any] = {"name": path.name, **Stamp.of(descriptor)._asdict()}  # before reading: a change
        # meanwhile makes the index stale, not wrong
        members, files["idx"] = _members(path, descriptor)
        samples = group(members, str(path))
        facts = _facts(samples, descriptor, str(path), label_field, advance)
    advance(files["size"] - (samples[-1].image.offset if samples else 0))
    keys, key_offsets = pack_strings([sample.key for sample in samples])
    return _Part(files, keys, key_offsets, np.array(facts, np.int64).reshape(-1, 6))


def _opened(path: Path) -> int:
    try:
        return open_regular(path)
    except OSError as error:
        raise DataError(f"shard {path} can't be read: {error.strerror}; check the path and its permissions") from error


def _facts(
    samples: Sequence[Sample], descriptor: int, shard: str, label_field: str, advance: Advance
) -> list[tuple[int, ...]]:
    facts: list[tuple[int, ...]] = []
    done = 0

    def read(offset: int, length: int) -> bytes:
        return os.pread(descriptor, length, offset)

    for sample in samples:
        offset, size = sample.image.offset, sample.image.size
        label = read_label(sample, read, shard, label_field)
        facts.append((label, offset, size, *_header(read, sample.image)))
        advance(offset - done)
        done = offset
    return facts


def _header(read: ReadRange, image: Member) -> Header:
    if image.size > MOST_BYTES:
        return DAMAGED
    return probe(lambda offset, length: read(image.offset + offset, length), image.size)


def _members(shard: Path, descriptor: int) -> tuple[list[Member], dict[str, Any] | None]:
    """The shard's members, from its .idx if that fits, and the stamp of the .idx used."""
    idx = idx_path(shard)
    try:
        stamp = _stamp(idx)
        return read_idx(idx, descriptor), stamp
    except FileNotFoundError:
        pass
    except (BadIdxError, OSError) as error:
        log.warning("%s does not fit its shard and is not used: %s", idx, error)
    return scan_tar(str(shard), descriptor), None


def _stamp(path: Path) -> dict[str, Any]:
    stat = path.stat()
    return {"name": path.name, "size": stat.st_size, "mtime_ns": stat.st_mtime_ns}


def _built(parts: Sequence[_Part], label_field: str) -> BuiltIndex:
    facts = np.concatenate([part.facts for part in parts])
    key_offsets = np.zeros(len(facts) + 1, np.int64)
    np.cumsum(np.concatenate([np.diff(part.key_offsets) for part in parts]), out=key_offsets[1:])
    arrays: dict[str, NDArray[Any]] = {
        "labels": facts[:, 0].copy(),
        "offsets": facts[:, 1].copy(),
        "sizes": facts[:, 2].copy(),
        "heights": facts[:, 3].astype(np.int32),
        "widths": facts[:, 4].astype(np.int32),
        "orientations": facts[:, 5].astype(np.uint8),
        "keys": np.concatenate([part.keys for part in parts]),
        "key_offsets": key_offsets,
        "starts": np.cumsum([0] + [len(part.facts) for part in parts])[:-1].astype(np.int64),
    }
    content = [arrays[name] for name in ("keys", "key_offsets", "starts", "sizes", "labels")]
    fingerprint = content_fingerprint([part.files["name"] for part in parts], content)
    info = {"kind": "shards", "label_field": label_field, "shards": [part.files for part in parts]}
    return BuiltIndex(fingerprint, info, arrays)


def _changes(shards: Sequence[Path], info: dict[str, Any]) -> str:
    """What changed since the index was made, or an empty string."""
    if info.get("kind") != "shards" or len(info["shards"]) != len(shards):
        return "it belongs to other data"
    for shard, stored in zip(shards, info["shards"], strict=True):
        files = [(shard, {name: stored[name] for name in ("name", "size", "mtime_ns")})]
        if stored["idx"] is not None:
            files.append((idx_path(shard), stored["idx"]))
        for path, stamp in files:
            if not path.exists() or _stamp(path) != stamp:
                return f"{path} was changed"
    return ""
