"""Find the index of some data, or build it once, however many processes ask."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from gpupipe.errors import DataError
from gpupipe.host.cache import cache_folder
from gpupipe.host.files import folder_lock
from gpupipe.sources.storage import BadIndexError, StoredIndex, open_index, write_index

__all__ = ["BuiltIndex", "load_or_build", "reopen_index"]

log = logging.getLogger("gpupipe")


@dataclass(frozen=True)
class BuiltIndex:
    """What a scan found, ready to be stored."""

    fingerprint: str
    info: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]]


def load_or_build(
    folder: Path,
    name: str,
    *,
    arrays: Set[str],
    stale: Callable[[dict[str, Any]], str],
    build: Callable[[], BuiltIndex],
    rebuild: bool = False,
) -> StoredIndex:
    """The index file `name` in `folder`, or in the cache folder where that can't be written.

    `arrays` are the names of those that it needs. `stale` gets the stored info and says what has changed since (empty:
    nothing). Of several processes on a machine
    one builds and the others wait. Raises DataError where the index can be written nowhere, and what `build` raises.
    """
    places = (folder / name, _cached(folder, name))
    found = None if rebuild else _fresh(places, arrays, stale)
    if found is not None:
        return found
    # Where there are no locks several may build, and the last whole index stays.
    with folder_lock(folder, wait=True, doing=f"builds the index of {folder}"):
        found = None if rebuild else _fresh(places, arrays, stale, quiet=True)
        return found if found is not None else _store(places, _build(folder, build))


def reopen_index(path: str, fingerprint: str) -> StoredIndex:
    """The index that another process has open. Raises DataError where it is gone or now describes other content."""
    again = "the data was indexed again while a loader used it; make the loader again"
    try:
        index = open_index(Path(path))
    except (OSError, BadIndexError) as error:
        raise DataError(f"index {path} can't be opened any more ({error}): {again}") from error
    if index.fingerprint != fingerprint:
        raise DataError(f"index {path} now describes other content: {again}")
    return index


def _build(folder: Path, build: Callable[[], BuiltIndex]) -> BuiltIndex:
    try:
        return build()
    except OSError as error:
        raise DataError(f"data in {folder} can't be read: {error}; check permissions and the disk") from error


def _cached(folder: Path, name: str) -> Path:
    digest = hashlib.sha256(f"{folder.resolve()}\n{name}".encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return cache_folder() / f"{folder.name}-{digest}.index"


def _fresh(
    places: tuple[Path, ...], arrays: Set[str], stale: Callable[[dict[str, Any]], str], quiet: bool = False
) -> StoredIndex | None:
    """The first index that fits the data; where there are only others it says why they don't."""
    reasons = []
    for place in places:
        try:
            index = open_index(place)
            lacking = ", ".join(sorted(arrays - index.arrays.keys()))
            reason = f"it lacks {lacking}" if lacking else stale(index.info)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (BadIndexError, OSError, KeyError, TypeError) as error:
            reason = f"{type(error).__name__}: {error}"
        if not reason:
            return index
        reasons.append(f"index {place} is stale ({reason})")
    if reasons and not quiet:
        log.warning("%s; it is built again", "; ".join(reasons))
    return None


def _store(places: tuple[Path, ...], built: BuiltIndex) -> StoredIndex:
    beside, cached = places
    try:
        write_index(beside, built.fingerprint, built.info, built.arrays)
        return open_index(beside)
    except OSError as error:
        log.info("index goes to the cache folder: %s can't be written (%s)", beside, error.strerror)
        reason = error
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        write_index(cached, built.fingerprint, built.info, built.arrays)
        return open_index(cached)
    except OSError as error:
        raise DataError(
            f"the index can be written neither to {beside} ({reason.strerror}) nor to {cached} ({error.strerror}); "
            "set GPUPIPE_CACHE to a folder with free space that can be written"
        ) from error
