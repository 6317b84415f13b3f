"""Which files hold many samples, by their names."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

from gpupipe.sources.patterns import is_url
from gpupipe.sources.source import Source
from gpupipe.sources.stores.archive import open_archive
from gpupipe.sources.stores.arrays import FILES, open_arrays
from gpupipe.sources.stores.lmdb import is_database, open_lmdb

__all__ = ["store_opener"]

OPENERS: dict[str, Callable[..., Source]] = {
    ".zip": open_archive,
    ".lmdb": open_lmdb,
    ".mdb": open_lmdb,
    **dict.fromkeys(FILES, open_arrays),
}


def store_opener(data: Any) -> Callable[..., Source] | None:
    """A function that opens the data, of `fields` and whether to `rebuild` an index; None for data of other kinds."""
    if isinstance(data, dict) and data and all(_ending(path) == ".npy" for path in data.values()):
        return partial(open_arrays, data)
    if not isinstance(data, str | os.PathLike) or is_url(os.fspath(data)):
        return None
    path = os.path.expanduser(os.fspath(data))
    if os.path.isdir(path):
        return partial(open_lmdb, path) if is_database(path) else None
    opener = OPENERS.get(_ending(path))
    return None if opener is None else partial(opener, path)


def _ending(path: Any) -> str:
    return os.path.splitext(path)[1].lower() if isinstance(path, str | os.PathLike) else ""
