"""Image files that a dataset has listed, with a class number for each, wherever they lie."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from gpupipe.batch import Schema
from gpupipe.errors import DataError
from gpupipe.host.cache import digest
from gpupipe.sources.building import load_or_build
from gpupipe.sources.folder import FolderSource, Layout, Listing, changed_below, files_of, measured
from gpupipe.sources.indexed import arrays_of

__all__ = ["ListedSource", "open_listed"]


class ListedSource(FolderSource):
    """The files in the order of the list; their keys are the paths below the folder that all lie in."""

    def _remedy(self, what: str, data: str) -> str:
        return f"put {what} back, or remove {self.index_path} to index again"


def open_listed(paths: Sequence[str | os.PathLike[str]], labels: Sequence[int]) -> ListedSource:
    """The source for these files, whose headers are indexed once.

    The index is in the cache folder: beside the data it might be taken for a sample by whoever lists them.

    Raises DataError where there are none, or none of the folders that they lie in.
    """
    if not paths:
        raise DataError("the dataset lists no files: check its root and split")
    files = [os.path.abspath(path) for path in paths]
    folders = {os.path.dirname(file) for file in files}
    root = os.path.commonpath(folders).rstrip("/")
    if not os.path.isdir(root or "/"):
        raise DataError(f"no folder at {root}, in which the dataset's files lie: check its root")
    schema = Schema.of(None)
    wanted = files_of(schema)
    layout = Layout.of(root, wanted)
    listing = Listing([], [file[len(root) + 1 :] for file in files], list(labels))
    for folder in folders:
        with suppress(OSError):  # of a file that is gone `fetch` tells
            listing.directories[folder[len(root) + 1 :]] = os.stat(folder).st_mtime_ns
    index = load_or_build(
        Path(root or "/"),
        f"listed-{digest([listing.paths, *map(int, listing.labels)])}",
        arrays=arrays_of(wanted),
        stale=lambda info: changed_below(f"{root}/", info["directories"]),
        build=lambda: measured(layout, wanted, listing),
        beside=False,
    )
    return ListedSource(layout.root, index, schema, wanted)
