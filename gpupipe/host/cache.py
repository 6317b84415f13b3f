"""The folder for what was found out once and is used again: indices of read-only data, verdicts, tuned settings. It is
made for this user alone; what others have put there, or could have, is not read."""

from __future__ import annotations

import atexit
import errno
import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from gpupipe.host.files import folder_lock, private, read_own, replacing, unsafe

__all__ = ["alone", "cache_folder", "chosen_folder", "digest", "everything", "recall", "remember"]

MOST_BYTES = 1 << 20
PATIENCE = 60.0  # seconds in which another process gives no sign of life

log = logging.getLogger("gpupipe")

_kept: dict[Path, tuple[dict[str, Any], dict[str, Any]]] = {}
"""What this process could not write: the folder may be one that can't be."""


def cache_folder() -> Path:
    """The chosen one; where others can write into it one of this process's own, which ends with it."""
    chosen = chosen_folder()
    try:
        reason = unsafe(chosen.lstat()) or unsafe(chosen.stat())
    except OSError:  # it will be made
        return chosen
    return _elsewhere(chosen, reason) if reason else chosen


@lru_cache
def _elsewhere(chosen: Path, reason: str) -> Path:
    made = tempfile.mkdtemp(prefix="gpupipe-")
    log.warning(
        "gpupipe: the cache folder %s is not used, since %s; %s takes its place until this process ends (but not for "
        "blocks of remote data, which have a folder of this user's own in it). If all in it is yours: chmod go-w %s; "
        "else set GPUPIPE_CACHE to a folder of your own",
        *(chosen, reason, made, chosen),
    )
    atexit.register(_remove, made, os.getpid())
    return Path(made)


def _remove(folder: str, process: int) -> None:
    if os.getpid() == process:  # not a fork of it
        shutil.rmtree(folder, ignore_errors=True)


def chosen_folder() -> Path:
    """$GPUPIPE_CACHE, else $XDG_CACHE_HOME/gpupipe, else ~/.cache/gpupipe."""
    own = os.environ.get("GPUPIPE_CACHE")
    if own:
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "gpupipe"


@contextmanager
def alone(name: str, doing: str) -> Iterator[None]:
    """Keep this user's other processes of the machine out of the block, as long as the one in it gives signs of life;
    where the cache folder can't be had each goes its own way. doing: what it does, for the log."""
    folder = cache_folder()
    with ExitStack() as stack:
        try:
            folder = private(folder, "locks", name)
            stack.enter_context(folder_lock(folder, doing=doing, patience=PATIENCE))
        except TimeoutError as error:
            log.warning("gpupipe: %s: this one goes on without waiting for it", error)
        except OSError:
            log.debug("no lock on %s", folder, exc_info=True)
        yield


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
        stored = json.loads(read_own(path, MOST_BYTES))
        key, value = stored["key"], stored["value"]
    except OSError as error:
        if error.errno == errno.EPERM:
            _passed_over(path, error.strerror)
        return None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return (key, value) if isinstance(key, dict) and isinstance(value, dict) else None


@lru_cache
def _passed_over(path: Path, reason: str) -> None:
    """Said once."""
    log.warning("gpupipe: %s is passed over, since %s; remove it", path, reason)


def remember(kind: str, key: dict[str, Any], value: dict[str, Any]) -> Path | None:
    """Keep a value that JSON can hold; the file, or None where the folder can't be written, which is logged."""
    path = _path(kind, key)
    try:
        private(path.parent)
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
