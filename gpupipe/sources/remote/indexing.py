"""The index of tar shards in a storage: of a file that was made for it, or of their headers. In `apart` only."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpupipe.errors import DataError
from gpupipe.host.files import replacing
from gpupipe.sources.building import Advance, BuiltIndex, scan_in_threads
from gpupipe.sources.remote.client import client
from gpupipe.sources.remote.hops import Hops
from gpupipe.sources.remote.objects import (
    Extent,
    MissingError,
    Object,
    ReadError,
    is_remote,
    join,
    name,
    parent,
    shown,
)
from gpupipe.sources.remote.shards import beside
from gpupipe.sources.shard_index import Part, Scan, Shard, changes
from gpupipe.sources.shards import CLASSES_NAME
from gpupipe.sources.storage import BadIndexError, StoredIndex, open_index

__all__ = ["ShardIndexing", "extensions", "whole"]

log = logging.getLogger("gpupipe")

THREADS = 64  # they wait for the storage
UNKNOWN = -1


def extensions(url: str, size: int, etag: str) -> str:
    """For a message: those of a shard's members."""
    return _shard(Object(url, size, etag)).extensions()


def whole(found: Object) -> bytes:
    """All bytes of an object, which may be of unknown size. Raises ReadError."""
    (reading,) = client().read([Extent(found, 0, found.size)])
    return reading.result().tobytes()


def _shard(found: Object) -> Shard:
    return Shard(shown(found.url), _entry(found), Hops(found).read)


def _entry(found: Object) -> dict[str, Any]:
    return {"name": name(found.url), "size": found.size, "etag": found.etag}


@dataclass(frozen=True)
class ShardIndexing:
    """scan: what is looked for. folder: takes files meanwhile."""

    scan: Scan
    objects: Sequence[Object]
    folder: Path

    @property
    def _names(self) -> list[str]:
        return [shown(one.url) for one in self.objects]

    @property
    def _entries(self) -> list[dict[str, Any]]:
        return list(map(_entry, self.objects))

    def changes(self, info: Mapping[str, Any]) -> str:
        """What changed since an index was made, or an empty string: where nothing tells, it may have."""
        silent = next((one for one in self.objects if not one.etag), None)
        told = "has no ETag, and others of the same size would go unnoticed"
        return changes(self._names, self._entries, info) if silent is None else f"{shown(silent.url)} {told}"

    def index(self, given: str | None, anew: bool) -> BuiltIndex:
        """That of a file which the user gives, or of one beside the shards; else what their headers say, all of them
        `anew` or those that are not known from before."""
        if given is not None:
            return self._given(given)
        beside = None if anew else self._beside()
        if beside is not None:
            return beside
        known = {} if anew else self._known()

        def part(one: Object, advance: Advance) -> Part:
            if one in known:
                advance(one.size)
                return known[one]
            return self.scan.part(_shard(one), advance)

        total = sum(one.size for one in self.objects)
        parts = scan_in_threads(f"indexing {len(self.objects)} shards", total, part, self.objects, THREADS)
        self.scan.check_any(parts, _shard(self.objects[0]))
        return self.scan.built(parts)

    def _known(self) -> dict[Object, Part]:
        """Of shards that have not changed, what the index of before says, where an ETag tells that."""
        with suppress(OSError, BadIndexError, KeyError, TypeError, ValueError):
            old = open_index(self.folder / "index" / "found.index")
            if not self.scan.arrays - old.arrays.keys():
                parts = {tuple(part.entry.items()): part for part in self.scan.parts_of(old)}
                pairs = [(one, parts.get(tuple(_entry(one).items()))) for one in self.objects]
                return {one: part for one, part in pairs if part is not None and one.etag.startswith('"')}
        return {}

    def _beside(self) -> BuiltIndex | None:
        """That of the file which `gpupipe index --out` has written, if it was copied to where the shards are."""
        url = beside([one.url for one in self.objects], self.scan)
        data = _optional(url)
        if data is None:
            return None
        index, why = self._opened(data)
        if index is not None and any("etag" not in entry for entry in index.info.get("shards", ())):
            log.info("%s was made on a disk: pass it as index= if these are the shards that it was made of", shown(url))
            return None
        if index is not None and not (why := self.changes(index.info)):
            return BuiltIndex(index.fingerprint, index.info, index.arrays)
        log.warning("gpupipe: the index %s is of no use (%s); the shards' headers are read", shown(url), why)
        return None

    def _given(self, given: str) -> BuiltIndex:
        """That of a file, which may have been made of the same shards on a disk: then sizes have to do."""
        try:
            data = whole(Object(given, UNKNOWN, "")) if is_remote(given) else Path(given).expanduser().read_bytes()
        except (OSError, MissingError) as error:
            raise DataError(f"index='{shown(given)}' can't be read ({error}): check it") from error
        index, why = self._opened(data)
        if index is not None:
            told = index.info.get("shards") or [{}]
            entries = [{name: entry[name] for name in entry if name in told[0]} for entry in self._entries]
            why = changes(self._names, entries, index.info)
        if index is None or why:
            raise DataError(
                f"the index {shown(given)} is not that of {self._names[0]} and the other shards, or of these fields "
                f"({why}): make it anew, gpupipe index URL --out FILE, or leave it out"
            )
        return BuiltIndex(index.fingerprint, index.info | {"shards": self._entries}, index.arrays)

    def _opened(self, data: bytes) -> tuple[StoredIndex | None, str]:
        """The index that a file's bytes are, or why not."""
        path = self.folder / "other.index"
        try:
            with replacing(path) as file:
                file.write(data)
            index = open_index(path)
        except BadIndexError as error:
            return None, str(error)
        finally:
            path.unlink(missing_ok=True)
        lacking = self.scan.arrays - index.arrays.keys()
        return (None, f"it lacks {', '.join(sorted(lacking))}") if lacking else (index, "")

    def fetch_classes(self, folder: Path) -> None:
        """Have what names the classes beside the shards in this folder, too."""
        data = _optional(join(parent(self.objects[0].url), CLASSES_NAME))
        if data is None:
            (folder / CLASSES_NAME).unlink(missing_ok=True)
            return
        with replacing(folder / CLASSES_NAME) as file:
            file.write(data)


def _optional(url: str) -> bytes | None:
    """What is at a URL; None where there is nothing, or it may not be looked at: storages say so of what is not there
    to those who may read, but not list."""
    try:
        return whole(Object(url, UNKNOWN, ""))
    except MissingError:
        return None
    except ReadError as error:
        if "answered 403" not in str(error):
            raise
        log.info("%s is passed over: %s", shown(url), error)
        return None
