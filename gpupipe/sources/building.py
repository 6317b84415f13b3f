"""Find the index of some data, or build it once, however many processes ask, by a scan in a few threads."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from concurrent.futures import CancelledError
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from numpy.typing import NDArray

from gpupipe.errors import DataError
from gpupipe.host.cache import alone, cache_folder, digest
from gpupipe.host.files import make_private, unsafe
from gpupipe.host.progress import progress
from gpupipe.host.readers import Readers
from gpupipe.host.system import usable_cpus
from gpupipe.sources.storage import BadIndexError, StoredIndex, open_index, write_index

__all__ = ["Advance", "BuiltIndex", "Stale", "load_or_build", "reopen_index", "scan_in_threads"]

log = logging.getLogger("gpupipe")

Item = TypeVar("Item")
Result = TypeVar("Result")
Advance = Callable[[int], None]
Stale = Callable[[dict[str, Any], bool], str]
"""Gets what an index notes of the data, and whether both lie where they lay when it was made; says what has changed
since, or gives an empty string. Where they lie in place, `ctime` tells of every change, as nothing sets it back. In a
copy it is that of the copying, so that sizes and `mtime` have to do."""

# Reading waits for storage without the interpreter's lock, parsing holds it: threads overlap the waiting. Processes
# would parse in parallel too, but spawning them from inside a training script runs that script again.
THREADS_PER_CPU = 2
MOST_THREADS = 32


@dataclass(frozen=True)
class BuiltIndex:
    """What a scan found, ready to be stored."""

    fingerprint: str
    info: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]]

    def without(self, names: Collection[str]) -> BuiltIndex:
        """The same without some arrays, which its fingerprint is not made of."""
        return replace(self, arrays={name: array for name, array in self.arrays.items() if name not in names})


def load_or_build(
    folder: Path,
    name: str,
    *,
    arrays: Set[str],
    stale: Stale,
    build: Callable[[], BuiltIndex],
    rebuild: bool = False,
    beside: bool = True,
) -> StoredIndex:
    """The index file `name` in `folder`, or in the cache folder where that can't be written, or not `beside` the data.

    `arrays` are the names of those that it needs. Of several processes on a machine one builds and the others wait.
    Raises DataError where the index can be written nowhere, and what `build` raises.
    """
    kept = cache_folder() / f"{folder.name}-{digest([str(folder.resolve()), name])}.index"
    places = (folder / name, kept) if beside else (kept,)
    found = None if rebuild else _fresh(places, folder, arrays, stale)
    if found is not None:
        return found
    # Where there are no locks several may build, and the last whole index stays. Data may be others' to lock for ever.
    with alone(digest(str(folder.resolve())), f"builds the index of {folder}"):
        found = None if rebuild else _fresh(places, folder, arrays, stale, quiet=True)
        if found is not None:
            return found
        try:
            inode = os.stat(folder).st_ino
            built = build()
        except OSError as error:
            raise DataError(f"data in {folder} can't be read: {error}; check permissions and the disk") from error
        return _store(places, built, inode)


def reopen_index(path: str, fingerprint: str) -> StoredIndex:
    """The index that another process has open. Raises DataError where it is gone or now describes other content."""
    again = "it was removed, or the data indexed again, while a loader used it; make the loader again"
    try:
        index = open_index(Path(path))
    except (OSError, BadIndexError) as error:
        raise DataError(f"index {path} can't be opened any more ({error}): {again}") from error
    if index.fingerprint != fingerprint:
        raise DataError(f"index {path} now describes other content: {again}")
    return index


def _fresh(
    places: tuple[Path, ...], folder: Path, arrays: Set[str], stale: Stale, quiet: bool = False
) -> StoredIndex | None:
    """The first index that fits the data; where there are only others it says why they don't."""
    reasons = []
    for place in places:
        try:
            index = open_index(place)
            lacking = ", ".join(sorted(arrays - index.arrays.keys()))
            reason = f"it lacks {lacking}" if lacking else stale(index.info, index.is_in_place(folder))
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


def _store(places: tuple[Path, ...], built: BuiltIndex, folder: int) -> StoredIndex:
    reasons = []
    for place in places:
        try:
            make_private(place.parent)
            _leave_others(place)
            write_index(place, built.fingerprint, built.info, built.arrays, folder)
            return open_index(place)
        except OSError as error:
            log.info("the index goes elsewhere: %s can't be written (%s)", place, error.strerror)
            reasons.append(f"to {place} ({error.strerror})")
    raise DataError(
        f"the index can't be written {' nor '.join(reasons)}; set GPUPIPE_CACHE to a folder with free space that can be"
    )


def _leave_others(place: Path) -> None:
    """Raise OSError (EPERM) for an index that another user has made in a folder of a third one's, as those of a group
    may: neither reads the other's, and each would build his own anew at every start."""
    with contextlib.suppress(FileNotFoundError):
        folder, facts = place.parent.stat().st_uid, place.lstat()
        reason = unsafe(facts, (folder,))
        if reason and os.geteuid() not in (folder, facts.st_uid):
            raise OSError(errno.EPERM, f"one is there already: {reason}", str(place))


def scan_in_threads(
    description: str,
    total: int,
    function: Callable[[Item, Advance], Result],
    items: Iterable[Item],
    threads: int | None = None,
) -> list[Result]:
    """`function(item, advance)` of every item, in order. threads: None: as many as suit local storage.

    The function calls `advance` now and then with how much of `total` is done. After the first exception,
    KeyboardInterrupt included, `advance` raises in all threads, so that none goes on for long.
    """
    stopped = threading.Event()
    threads = threads or min(MOST_THREADS, THREADS_PER_CPU * usable_cpus())
    with progress(description, total) as tick:

        def advance(steps: int) -> None:
            if stopped.is_set():
                raise CancelledError
            tick(steps)

        readers = Readers(threads)
        try:
            return readers.map(lambda item: function(item, advance), items)
        finally:
            stopped.set()
            readers.close()
