"""Videos in .tar shards: members that are frames, of a folder or of WebDataset's keys, or video files."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.batch import Schema, Video
from gpupipe.errors import DataError
from gpupipe.host.cache import digest
from gpupipe.sources.building import Advance, BuiltIndex, load_or_build, reopen_index, scan_in_threads
from gpupipe.sources.reading import OpenFiles
from gpupipe.sources.samples import IMAGE_EXTENSIONS, META
from gpupipe.sources.shard_index import Shard, changes_on_disk, opened_shard, stamps_of
from gpupipe.sources.source import content_fingerprint
from gpupipe.sources.storage import StoredIndex, Strings, pack_strings
from gpupipe.sources.videos.encoded import VIDEOS, EncodedVideo, video_decoder
from gpupipe.sources.videos.frames import FrameParts, in_order
from gpupipe.sources.videos.source import VideoSource

__all__ = ["VideoShards", "open_video_shards"]

ARRAYS = {
    "keys",
    "key_offsets",
    "classes",
    "class_offsets",
    "labels",
    "encoded",
    "shards",
    "starts",
    "offsets",
    "sizes",
}
MOST_LABEL = 4 << 10


class VideoShards(VideoSource):
    """Videos in the shards' order; an index holds where their frames are. Made by `open_video_shards`."""

    def __init__(self, shards: Sequence[str], index: StoredIndex, schema: Schema) -> None:
        super().__init__(schema)
        self._shards = list(shards)
        self.index_path, self.fingerprint = index.path, index.fingerprint
        self._arrays = index.arrays
        self._keys = Strings(index.arrays["keys"], index.arrays["key_offsets"])
        self._stamps = stamps_of(index, self._shards)
        self._open = OpenFiles()
        if index.arrays["encoded"].any():
            video_decoder()
        if "label" in schema:
            self.targets = index.arrays["labels"]
            self.classes = list(Strings(index.arrays["classes"], index.arrays["class_offsets"])) or None
            self.class_to_idx = {name: i for i, name in enumerate(self.classes)} if self.classes else None

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (self._shards, self.index_path, self.fingerprint, self.fields)

    def __len__(self) -> int:
        return len(self._keys)

    def __repr__(self) -> str:
        return f"VideoShards({len(self._shards)} shards from {self._shards[0]!r}, {len(self)} videos)"

    def key(self, index: int) -> str:
        return str(self._keys[index])

    def _where(self, index: int) -> str:
        return f"video {self.key(index)!r} in shard {self._shards[self._arrays['shards'][index]]}"

    def _video(self, index: int, name: str) -> Video:
        shard = int(self._arrays["shards"][index])
        part = slice(*self._arrays["starts"][index : index + 2])
        places = self._arrays["offsets"][part], self._arrays["sizes"][part]
        parts = FrameParts(self._open, self._shards[shard], self._stamps[shard], *places)
        return EncodedVideo(lambda: parts.read([0])[0]) if self._arrays["encoded"][index] else parts


def _reopened(shards: list[str], path: str, fingerprint: str, schema: Schema) -> VideoShards:
    return VideoShards(shards, reopen_index(path, fingerprint), schema)


def open_video_shards(shards: Sequence[Path], schema: Schema, pattern: str | None, rebuild: bool) -> VideoShards:
    """Open shards, indexing them if they have no fresh index.

    A video's frames are the images of one folder (class/video/00001.jpg), or of one key (video.00001.jpg), by the
    length of their names and by name; or it is one file (class/video.mp4). Its class number is in a member of its name
    (video.cls), or it is that of the folder that it lies in. Raises DataError for a shard that is damaged, a video that
    is in two, one without a class among others, and where there are none.
    """
    paths = [str(shard) for shard in shards]
    labels = "label" in schema
    index = load_or_build(
        shards[0].parent,
        f".gpupipe-{digest(['videos', [os.path.basename(path) for path in paths], pattern, labels])}.index",
        arrays=ARRAYS,
        stale=partial(_changes, paths),
        build=lambda: _built(paths, pattern, labels),
        rebuild=rebuild,
    )
    return VideoShards(paths, index, schema)


def _changes(shards: Sequence[str], info: Mapping[str, Any], is_in_place: bool) -> str:
    return changes_on_disk(shards, {**info, "kind": "shards"} if info.get("kind") == "videos" else {}, is_in_place)


@dataclass
class Found:
    """What is in one shard: of each video its frames by name, or the one file that it is, and its class number."""

    entry: Mapping[str, Any]
    frames: dict[str, dict[str, tuple[int, int]]] = field(default_factory=lambda: defaultdict(dict))
    files: dict[str, tuple[int, int]] = field(default_factory=dict)
    labels: dict[str, int] = field(default_factory=dict)

    @property
    def keys(self) -> list[str]:
        """Of the videos."""
        return [*self.frames, *self.files]

    def places(self, key: str) -> list[tuple[int, int]]:
        """Offset and bytes of a video's frames, or of its file."""
        if key in self.files:
            return [self.files[key]]
        frames = self.frames[key]
        return [frames[name] for name in in_order(list(frames))]


def _found(path: str, pattern: str | None, labels: bool, advance: Advance) -> Found:
    with opened_shard(path) as shard:
        found = Found(shard.entry)
        for name, offset, size in shard.members():
            folder, slash, base = name.removeprefix("./").rpartition("/")
            stem, _, rest = base.partition(".")
            extension = rest.rpartition(".")[2].lower()
            if META.match(name) or not stem:
                continue
            if labels and rest == "cls":
                found.labels[folder + slash + stem] = _class_number(shard, name, offset, size)
            elif f".{extension}" in VIDEOS:
                _add(found.files, folder + slash + stem, (offset, size), path)
            elif fnmatchcase(base, pattern) if pattern else extension in IMAGE_EXTENSIONS:
                _add(found.frames[folder + slash + stem if "." in rest else folder], base, (offset, size), path)
        advance(shard.entry["size"])
        both = found.frames.keys() & found.files.keys()
        if both:
            raise DataError(f"video {min(both)!r} in shard {path} is frames and a file; leave one of them out")
        return found


def _add(files: dict[str, tuple[int, int]], name: str, place: tuple[int, int], path: str) -> None:
    if name in files:
        raise DataError(f"shard {path} has {name!r} twice, at offset {place[0]} again; pack it anew")
    files[name] = place


def _class_number(shard: Shard, name: str, offset: int, size: int) -> int:
    try:
        return int(shard.read(offset, min(size, MOST_LABEL)))
    except ValueError:
        raise DataError(f"member {name!r} of shard {shard.path} holds no class number; write it as text") from None


def _built(paths: Sequence[str], pattern: str | None, labels: bool) -> BuiltIndex:
    def scan(path: str, advance: Advance) -> Found:
        return _found(path, pattern, labels, advance)

    total = sum(os.stat(path).st_size for path in paths)
    parts = scan_in_threads(f"indexing {len(paths)} shards of videos", total, scan, paths)
    keys = [key for part in parts for key in part.keys]
    if not keys:
        what = f"files {pattern!r}" if pattern else f"images (.{', .'.join(sorted(IMAGE_EXTENSIONS))})"
        raise DataError(
            f"no videos in {paths[0]}{' and the others' * (len(paths) > 1)}: no {what}, no {', '.join(VIDEOS)}"
        )
    twice = [key for key, count in Counter(keys).items() if count > 1]
    if twice:
        raise DataError(f"video {twice[0]!r} is in two shards; its frames belong into one")
    classes, numbers = _classes(keys, {key: label for part in parts for key, label in part.labels.items()}, labels)
    places = [part.places(key) for part in parts for key in part.keys]
    flat = np.array([place for one in places for place in one], np.int64).reshape(-1, 2)
    arrays: dict[str, NDArray[Any]] = dict(
        labels=np.array(numbers, np.int64),
        encoded=np.array([key in part.files for part in parts for key in part.keys], np.bool_),
        shards=np.repeat(np.arange(len(parts)), [len(part.keys) for part in parts]),
        starts=np.cumsum([0, *map(len, places)]),
        offsets=flat[:, 0].copy(),
        sizes=flat[:, 1].copy(),
    )
    arrays["keys"], arrays["key_offsets"] = pack_strings(keys)
    arrays["classes"], arrays["class_offsets"] = pack_strings(classes)
    names = ("keys", "key_offsets", "starts", "sizes", "labels")
    fingerprint = content_fingerprint([os.path.basename(path) for path in paths], [arrays[name] for name in names])
    return BuiltIndex(fingerprint, {"kind": "videos", "shards": [part.entry for part in parts]}, arrays)


def _classes(keys: Sequence[str], given: Mapping[str, int], labels: bool) -> tuple[list[str], list[int]]:
    """Names of classes, none where the shards give numbers, and the class number of each video, -1 without labels."""
    if not labels:
        return [], [-1] * len(keys)
    if given:
        lacking = next((key for key in keys if key not in given), None)
        if lacking is not None:
            raise DataError(
                f"video {lacking!r} has no member {lacking + '.cls'!r} with its class number, as others have"
            )
        return [], [given[key] for key in keys]
    parents = [os.path.basename(os.path.dirname(key)) for key in keys]
    if not all(parents):
        raise DataError(
            f"video {keys[parents.index('')]!r} lies in no class folder, and has no .cls member with its class number; "
            "for videos without labels leave the label out of fields"
        )
    classes = sorted(set(parents))
    numbers = {name: number for number, name in enumerate(classes)}
    return classes, [numbers[parent] for parent in parents]
