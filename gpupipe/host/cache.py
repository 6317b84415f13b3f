"""The folder for what was found out once and is used again: indices of read-only data, verdicts, tuned settings."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpupipe.host.files import read_regular, replacing

__all__ = ["cache_folder", "digest", "everything", "recall", "remember"]

MOST_BYTES = 1 << 20

log = logging.getLogger("gpupipe")

_kept: dict[Path, tuple[dict[str, Any], dict[str, Any]]] = {}
"""What this process could not write: the folder may be one that can't be."""


def cache_folder() -> Path:
    """$GPUPIPE_CACHE, else $XDG_CACHE_HOME/gpupipe, else ~/.cache/gpupipe."""
    own = os.environ.get("GPUPIPE_CACHE")
    if own:
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "gpupipe"


def recall(kind: str, key: dict[str, Any]) -> dict[str, Any] | None:
    """What was remembered last under `kind` ("selftest", say) for this key; None where nothing was, or not readably.

    Where the folder can't be written a process has what it remembered itself.
    """
    path = _path(kind, key)
    stored = _stored(path) or _kept.get(path)
    return stored[1] if stored is not None and stored[0] == key else None


def everything(kind: str) -> Iterator[tuple[Path, dict[str, Any], dict[str, Any]]]:
    """File, key and value of all that is remembered under `kind`, readably."""
    for path in sorted(cache_folder().glob(f"{kind}-*.json")):
        stored = _stored(path)
        if stored is not None:
            yield path, *stored


def _stored(path: Path) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Key and value in a file; None where they are not there or not readable."""
    try:
        stored = json.loads(read_regular(path, MOST_BYTES))
        key, value = stored["key"], stored["value"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return (key, value) if isinstance(key, dict) and isinstance(value, dict) else None


def remember(kind: str, key: dict[str, Any], value: dict[str, Any]) -> Path | None:
    """Keep a value that JSON can hold; the file, or None where the folder can't be written, which is logged."""
    path = _path(kind, key)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(f"{json.dumps({'key': key, 'value': value}, indent=1)}\n".encode())
    except OSError as error:
        log.warning("gpupipe: %s can't be kept in %s (%s); set GPUPIPE_CACHE to another folder", kind, path, error)
        _kept[path] = key, value
        return None
    return path


def _path(kind: str, key: dict[str, Any]) -> Path:
    return cache_folder() / f"{kind}-{digest(key)}.json"


def digest(key: Any) -> str:
    """16 hexadecimal digits for plain values, as a part of a file's name."""
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
