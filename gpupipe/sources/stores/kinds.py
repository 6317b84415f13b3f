"""Which files hold many samples, by their names."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

from gpupipe.sources.patterns import is_url
from gpupipe.sources.source import Source
from gpupipe.sources.stores.archive import open_archive
from gpupipe.sources.stores.lmdb import is_database, open_lmdb

__all__ = ["store_opener"]

ARCHIVES = (".zip",)
DATABASES = (".lmdb", ".mdb")


def store_opener(data: Any) -> Callable[..., Source] | None:
    """A function that opens the data, of `fields` and whether to `rebuild` an index; None for data of other kinds."""
    if not isinstance(data, str | os.PathLike) or is_url(os.fspath(data)):
        return None
    path = os.path.expanduser(os.fspath(data))
    if os.path.isdir(path):
        return partial(open_lmdb, path) if is_database(path) else None
    openers = {ARCHIVES: open_archive, DATABASES: open_lmdb}
    return next((partial(one, path) for endings, one in openers.items() if path.lower().endswith(endings)), None)
