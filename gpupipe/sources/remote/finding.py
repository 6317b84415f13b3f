"""What lies at URLs, and its index: found in a process `apart`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gpupipe.batch import Schema
from gpupipe.batch.stored import schema_from_json, schema_to_json
from gpupipe.errors import ConfigError, DataError
from gpupipe.sources.folder import EXTENSIONS, files_of
from gpupipe.sources.indexed import SHAPES, arrays_of
from gpupipe.sources.packed import PLAN_NAME, Packing
from gpupipe.sources.patterns import SHARD
from gpupipe.sources.remote.folder import folder_index
from gpupipe.sources.remote.indexing import ShardIndexing, whole
from gpupipe.sources.remote.objects import Object, is_web, name, shown
from gpupipe.sources.remote.once import kept, once
from gpupipe.sources.remote.patterns import listed, objects_of
from gpupipe.sources.shard_index import Scan
from gpupipe.sources.shards import wanted_members
from gpupipe.sources.source import content_fingerprint
from gpupipe.sources.storage import StoredIndex

__all__ = ["found"]

Fields = dict[str, Any] | None
"""As `schema_to_json` gives them; None: image and label, or what was packed."""


def found(data: list[str], fields: Fields, label_field: str, rebuild: bool, index: str | None) -> dict[str, Any]:
    """What data by URL is, and where its index lies: kind, place, index, fingerprint; and fields, where these are what
    was packed there. Raises as `open_source` does."""
    return once(
        data,
        [fields, label_field, index],
        lambda folder: _Finding(folder, fields, label_field, rebuild, index).look(data),
        rebuild,
    )


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
        named = len(data) > 1 or SHARD.fullmatch(name(url)) or (is_web(url) and not url.endswith("/"))
        objects = {} if named else listed(url)  # a folder's name may look like a pattern
        if not (named or objects) and (url.endswith("/") or "/" not in url.partition("://")[2]):
            raise DataError(f"there is nothing below {shown(url)}: check the bucket, the path and the endpoint")
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
        stored = kept(
            self.folder,
            (arrays_of(files) - SHAPES.keys()) | {"etags", "etag_offsets"},
            lambda info: "" if info.get("listing") == listing else "objects were added, replaced or removed",
            lambda: folder_index(url, objects, files, {"kind": "folder", "listing": listing}),
            self.rebuild,
        )
        return self._answer("folder", url, stored, fields)

    def shards(self, objects: Sequence[Object], fields: Fields) -> dict[str, Any]:
        """Shards, whose headers are read unless an index is there."""
        scan = Scan(wanted_members(_schema(fields)), self.label_field, shapes=False)
        indexing = ShardIndexing(scan, objects, self.folder)
        build = partial(indexing.index, self.given, self.rebuild)
        stored = kept(self.folder, scan.arrays, indexing.changes, build, self.rebuild)
        indexing.fetch_classes(Path(stored.path).parent)
        return self._answer("shards", [one.url for one in objects], stored, fields)

    def _answer(self, kind: str, place: Any, stored: StoredIndex, fields: Fields) -> dict[str, Any]:
        where = {"kind": kind, "place": place, "index": stored.path, "fingerprint": stored.fingerprint}
        return where | {"fields": self._packed(fields)}

    def _packed(self, fields: Fields) -> Fields:
        return fields if self.fields is None else None


def _schema(fields: Fields) -> Schema:
    return Schema.of(None if fields is None else schema_from_json(fields))
