"""What lies at URLs, and its index: found in a process `apart`, once for all of a machine that ask at once."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gpupipe.batch import Schema
from gpupipe.batch.stored import schema_from_json, schema_to_json
from gpupipe.errors import ConfigError, DataError
from gpupipe.host.cache import cache_folder, digest
from gpupipe.host.files import folder_lock, read_regular, replacing
from gpupipe.sources.building import BuiltIndex, load_or_build
from gpupipe.sources.folder import EXTENSIONS, files_of
from gpupipe.sources.indexed import SHAPES, arrays_of
from gpupipe.sources.packed import PLAN_NAME, Packing
from gpupipe.sources.patterns import SHARD
from gpupipe.sources.remote.folder import folder_index
from gpupipe.sources.remote.indexing import ShardIndexing, whole
from gpupipe.sources.remote.objects import Object, ReadError, is_web, name, shown
from gpupipe.sources.remote.patterns import is_pattern, listed, objects_of
from gpupipe.sources.shard_index import Scan
from gpupipe.sources.shards import wanted_members
from gpupipe.sources.source import content_fingerprint
from gpupipe.sources.storage import StoredIndex

__all__ = ["PATIENCE", "found"]

PATIENCE = 300.0
"""Seconds for which the process that looks may stand still until others that wait for it give up: more than any request
is tried."""

MOST_ANSWER = 1 << 30

Fields = dict[str, Any] | None
"""As `schema_to_json` gives them; None: image and label, or what was packed."""


def found(data: list[str], fields: Fields, label_field: str, rebuild: bool, index: str | None) -> dict[str, Any]:
    """What data by URL is, and where its index lies: kind, place, index, fingerprint; and fields, where these are what
    was packed there. Raises as `open_source` does."""
    asked = digest([data, fields, label_field, index])
    folder = cache_folder() / "urls" / digest([list(map(shown, data)), fields, label_field, index])
    told = f"{shown(data[0])}{' and others' if len(data) > 1 else ''}"
    begin = time.time_ns()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with folder_lock(folder, wait=True, doing=f"looks at {told}", patience=PATIENCE):
            answer = None if rebuild else _answer_since(folder / "answer.json", begin, asked)
            if answer is None:
                answer = _Finding(folder, fields, label_field, rebuild, index).look(data) | {"asked": asked}
                with replacing(folder / "answer.json") as file:
                    file.write(json.dumps(answer).encode())
            return answer
    except TimeoutError:
        raise DataError(
            f"another process looks at {told} and has not moved for {PATIENCE:.0f} s: end it if it was stopped "
            f"(`lslocks` names what has locked {folder}), or set GPUPIPE_CACHE to another folder"
        ) from None
    except ReadError as error:
        raise DataError(str(error)) from error
    except OSError as error:
        raise DataError(f"{folder} can't be written ({error}): set GPUPIPE_CACHE to a folder that can be") from error


def _answer_since(path: Path, begin: int, asked: str) -> dict[str, Any] | None:
    """What another process has found while this one waited for it."""
    try:
        if path.stat().st_mtime_ns < begin:
            return None
        answer: dict[str, Any] = json.loads(read_regular(path, MOST_ANSWER))
        return answer if answer["asked"] == asked else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


@dataclass(frozen=True)
class _Finding:
    """folder: where what is found is kept, and locked meanwhile. The rest is as `open_source` has it."""

    folder: Path
    fields: Fields
    label_field: str
    rebuild: bool
    given: str | None

    def look(self, data: Sequence[str]) -> dict[str, Any]:
        """What it is."""
        url = data[0]
        if len(data) > 1 or is_pattern(url) or SHARD.fullmatch(name(url)) or (is_web(url) and not url.endswith("/")):
            return self.shards(objects_of(data, "shard"), self.fields)
        objects = listed(url)
        return self.below(url.rstrip("/"), objects) if objects else self.shards(objects_of(data, "shard"), self.fields)

    def below(self, url: str, objects: Mapping[str, Object]) -> dict[str, Any]:
        """What is in a folder, as on a disk."""
        fields, where = self.fields, shown(url)
        if PLAN_NAME in objects and fields is None:
            packing = Packing.read(f"{where}/{PLAN_NAME}", whole(objects[PLAN_NAME]))
            packing.check(where, objects.keys())
            fields = None if packing.fields is None else schema_to_json(packing.fields)
        if any(path.endswith(".parquet") and path.count("/") <= path.startswith("data/") for path in objects):
            return {"kind": "parquet", "fields": self._packed(fields)}
        shards = sorted(path for path in objects if "/" not in path and SHARD.fullmatch(path))
        if not shards:
            return self.images(url, objects, fields)
        image = next((path for path in objects if "/" in path and path.lower().endswith(EXTENSIONS)), None)
        if image is not None:
            raise ConfigError(
                f"{where} holds .tar files ({shards[0]}) and folders with images ({image}): pass {f'{where}/*.tar'!r} "
                "for the shards, or move them away to have the image folder"
            )
        return self.shards([objects[path] for path in shards], fields)

    def images(self, url: str, objects: Mapping[str, Object], fields: Fields) -> dict[str, Any]:
        """An image folder: what was listed is all that its index needs."""
        files = files_of(_schema(fields))
        if self.given is not None:
            raise ConfigError(f"index={self.given!r} is for .tar shards, and {shown(url)} has none: leave it out")
        entries = (f"{path}\0{one.size}\0{one.etag}" for path, one in sorted(objects.items()))
        listing = content_fingerprint([*entries], [])
        stored = self._kept(
            (arrays_of(files) - SHAPES.keys()) | {"etags", "etag_offsets"},
            lambda info: "" if info.get("listing") == listing else "objects were added, replaced or removed",
            lambda: folder_index(url, objects, files, {"kind": "folder", "listing": listing}),
        )
        return self._answer("folder", url, stored, fields)

    def shards(self, objects: Sequence[Object], fields: Fields) -> dict[str, Any]:
        """Shards, whose headers are read unless an index is there."""
        scan = Scan(wanted_members(_schema(fields)), self.label_field, shapes=False)
        indexing = ShardIndexing(scan, objects, self.folder)
        stored = self._kept(scan.arrays, indexing.changes, partial(indexing.index, self.given, self.rebuild))
        indexing.fetch_classes(Path(stored.path).parent)
        return self._answer("shards", [one.url for one in objects], stored, fields)

    def _kept(
        self, arrays: set[str], stale: Callable[[dict[str, Any]], str], build: Callable[[], BuiltIndex]
    ) -> StoredIndex:
        place = self.folder / "index"  # another folder to lock
        place.mkdir(exist_ok=True)
        return load_or_build(place, "found.index", arrays=arrays, stale=stale, build=build, rebuild=self.rebuild)

    def _answer(self, kind: str, place: Any, stored: StoredIndex, fields: Fields) -> dict[str, Any]:
        where = {"kind": kind, "place": place, "index": stored.path, "fingerprint": stored.fingerprint}
        return where | {"fields": self._packed(fields)}

    def _packed(self, fields: Fields) -> Fields:
        return fields if self.fields is None else None


def _schema(fields: Fields) -> Schema:
    return Schema.of(None if fields is None else schema_from_json(fields))
