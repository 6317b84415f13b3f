"""Objects that lie one by one, as the cells of a table name them."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpupipe.errors import DataError
from gpupipe.sources.building import reopen_index
from gpupipe.sources.remote.apart import apart
from gpupipe.sources.remote.client import client
from gpupipe.sources.remote.objects import Extent, MissingError, Object, ReadError, is_remote, is_web, join, shown
from gpupipe.sources.remote.once import private_folder, unwritable
from gpupipe.sources.source import content_fingerprint
from gpupipe.sources.storage import Strings, open_index, pack_strings, write_index

__all__ = ["UNKNOWN", "Known", "Loose", "find", "url_of"]

log = logging.getLogger("gpupipe")

UNKNOWN, ABSENT = -1, -2
"""In the place of a size."""

URLS = "urls.index"


class Known(NamedTuple):
    """The file in the cache folder that has sizes and ETags, and its fingerprint."""

    path: str
    fingerprint: str


class Loose:
    """Where the paths in a column lead: to objects, or to files.

    paths: an array of Arrow's. root: the folder of relative paths, or its URL. known: what was found of the objects;
    None: nothing, as web servers list nothing, and to ask for each takes as long as to read it.
    """

    def __init__(self, paths: Any, root: str, known: Known | None) -> None:
        self._paths = paths
        self._root = root
        self.known = known
        arrays = {} if known is None else reopen_index(*known).arrays
        self.sizes: NDArray[np.int64] = arrays.get("sizes", np.full(len(paths), UNKNOWN))
        """Of each row; 0 where it has no object."""
        self.has_unknown = bool((self.sizes == UNKNOWN).any())
        self._etags = Strings(arrays["etags"], arrays["etag_offsets"]) if arrays else [""] * len(paths)

    @classmethod
    def of(cls, paths: Any, root: str) -> Loose:
        """As storages have them now. Raises DataError where that can't be noted."""
        urls = [_url_or_none(path, root) for path in paths.to_pylist()]
        asked = ["" if url is None or is_web(url) else url for url in urls]
        if not any(asked):
            return cls(paths, root, None)
        folder = private_folder("objects")
        try:
            with TemporaryDirectory(dir=folder) as place:
                blob, offsets = pack_strings(asked)
                files = np.array([url is None for url in urls])
                write_index(Path(place, URLS), "", {}, {"urls": blob, "url_offsets": offsets, "files": files})
                return cls(paths, root, Known(*apart(f"{__name__}:find", place=place)))
        except ReadError as error:
            log.warning("gpupipe: objects that a table names are read as they come, of any version: %s", error)
            return cls(paths, root, None)
        except OSError as error:
            raise unwritable(folder, error) from error

    def extent(self, row: int) -> Extent | None:
        """The object of a row; None where there is none. Raises ReadError where it is known that it can't be read."""
        try:
            url = url_of(self._paths[row].as_py(), self._root)
        except DataError as error:
            raise ReadError(str(error)) from error
        if url is None:
            return None
        size = self.sizes.item(row)
        if size == ABSENT:
            raise MissingError(f"{shown(url)}: there is no such object")
        return Extent(Object(url, size, self._etags[row]), 0, size)


def url_of(path: str | None, root: str) -> str | None:
    """Where a path leads, if not to a file. Raises DataError for one that leaves the root."""
    if path is None or is_remote(path):
        return path
    return join(root, path) if is_remote(root) else None


def _url_or_none(path: str | None, root: str) -> str | None:
    with suppress(DataError):  # which is told of when it is read
        return url_of(path, root)
    return None


def find(place: str) -> Known:
    """Ask storages for the objects, in a process of its own; keep what they say, by its content."""
    arrays = open_index(Path(place, URLS)).arrays
    urls = list(Strings(arrays["urls"], arrays["url_offsets"]))
    found = iter(client().head([url for url in urls if url]))
    unasked = [Object("", 0 if is_file else UNKNOWN, "") for is_file in arrays["files"].tolist()]
    objects = [next(found) if url else other for url, other in zip(urls, unasked, strict=True)]
    etags, offsets = pack_strings(["" if one is None else one.etag for one in objects])
    sizes = np.array([ABSENT if one is None else one.size for one in objects], np.int64)
    fingerprint = content_fingerprint(urls, [sizes, etags, offsets])
    path = Path(place).with_name(f"{fingerprint}.index")
    try:
        write_index(path, fingerprint, {}, {"sizes": sizes, "etags": etags, "etag_offsets": offsets})
    except OSError as error:
        raise unwritable(path.parent, error) from error
    return Known(str(path), fingerprint)
