"""What is found out of data by URL, in a process `apart`: once for all of a machine that ask at the same time."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpupipe.batch import Schema
from gpupipe.batch.stored import schema_to_json
from gpupipe.errors import DataError
from gpupipe.host.cache import cache_folder, digest
from gpupipe.host.files import folder_lock, private, read_own, replacing
from gpupipe.sources.building import BuiltIndex, load_or_build
from gpupipe.sources.remote.client import client
from gpupipe.sources.remote.objects import ReadError, shown
from gpupipe.sources.storage import StoredIndex

__all__ = ["as_json", "kept", "once", "private_folder", "unwritable"]

PATIENCE = 300.0
"""Seconds for which the process that looks may stand still until others that wait for it give up: more than any request
is tried."""

MOST_ANSWER = 1 << 30


def once(
    urls: Sequence[str], how: Sequence[Any], look: Callable[[Path], dict[str, Any]], rebuild: bool
) -> dict[str, Any]:
    """What `look` finds at these URLs, or what it has found in another process while this one waited. It gets the
    folder for what is to be kept. how: what else the answer depends on. Raises DataError."""
    asked = digest([*urls, *how])
    folder = private_folder(digest([*map(shown, urls), *how]))
    told = f"{shown(urls[0])}{' and others' if len(urls) > 1 else ''}"
    before = _state(folder / "answer.json")
    try:
        doing = f"looks at {told}"
        with folder_lock(folder, doing=doing, patience=PATIENCE, alive=lambda: client().counts().requests):
            is_new = not rebuild and _state(folder / "answer.json") != before
            answer = _answer(folder / "answer.json", asked) if is_new else None
            if answer is None:
                answer = look(folder) | {"asked": asked}
                if urls == [*map(shown, urls)]:  # else who waits looks, too: no right to read is left on a disk
                    with replacing(folder / "answer.json") as file:
                        file.write(json.dumps(answer).encode())
            return answer
    except TimeoutError as error:
        raise DataError(f"{error}: end it if it was stopped, or set GPUPIPE_CACHE to another folder") from None
    except ReadError as error:
        raise DataError(str(error)) from error
    except OSError as error:
        raise unwritable(folder, error) from error


def private_folder(name: str) -> Path:
    """In the cache folder one for what is kept of data by URL, of which the right to read may be a part: for this user
    alone. Raises DataError."""
    try:
        return private(cache_folder(), "urls", name)
    except OSError as error:
        raise unwritable(cache_folder() / "urls", error) from error


def unwritable(folder: Path, error: OSError) -> DataError:
    """What to raise where such a folder can't be used."""
    return DataError(f"{folder} can't be written ({error}): set GPUPIPE_CACHE to a folder that can be")


def as_json(schema: Schema) -> dict[str, Any]:
    """Fields as such a process gets them: without what JSON can't hold and no index depends on."""
    return schema_to_json(Schema({name: replace(field, collate=None) for name, field in schema.items()}))


def _state(path: Path) -> tuple[int, int]:
    """What is another after it was written, whatever the clocks say."""
    try:
        stat = path.stat()
        return stat.st_ino, stat.st_mtime_ns
    except OSError:
        return 0, 0


def _answer(path: Path, asked: str) -> dict[str, Any] | None:
    """What another process has found while this one waited for it."""
    try:
        answer: dict[str, Any] = json.loads(read_own(path, MOST_ANSWER))
        return answer if answer["asked"] == asked else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def kept(
    folder: Path,
    arrays: Set[str],
    stale: Callable[[dict[str, Any]], str],
    build: Callable[[], BuiltIndex],
    rebuild: bool,
) -> StoredIndex:
    """The index in such a folder, built where it is stale."""
    place = private(folder, "index")  # another folder to lock
    return load_or_build(
        place, "found.index", arrays=arrays, stale=lambda info, _: stale(info), build=build, rebuild=rebuild
    )
