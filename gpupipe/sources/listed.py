"""Image files that a dataset has listed, with a class number for each, wherever they lie."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image

from gpupipe.batch import Schema
from gpupipe.errors import DataError
from gpupipe.host.cache import digest
from gpupipe.sources.building import BuiltIndex, load_or_build
from gpupipe.sources.folder import (
    FolderSource,
    Layout,
    Listing,
    changed_below,
    come_since,
    files_of,
    measured,
    times_of,
)
from gpupipe.sources.indexed import arrays_of
from gpupipe.sources.storage import StoredIndex
from gpupipe.sources.wanted import Wanted

__all__ = ["MAYBE_DEEP", "ListedSource", "open_listed"]


MAYBE_DEEP = (".png", ".pgm", ".ppm", ".tif", ".tiff")
DEEP_MODES = ("I", "F")


class ListedSource(FolderSource):
    """The files in the order of the list; their keys are the paths below the folder that all lie in."""

    def __init__(self, root: str, index: StoredIndex, schema: Schema, wanted: Wanted) -> None:
        super().__init__(root, index, schema, wanted)
        self.deep: list[str] = index.info["deep"]
        """The first file whose levels Pillow's RGB clips and its mode for Pillow, if there is one."""

    def _changed(self) -> None:
        with suppress(OSError):
            _mark(self.index_path).touch()

    def _remedy(self, what: str, data: str) -> str:
        return f"put {what} back, or build dataset and loader again: what has changed is indexed anew then"


def _absolute(path: str | os.PathLike[str]) -> str:
    """As the system reads it: `link/..` is the folder above what the link leads to, which abspath takes for its own."""
    path = os.fspath(path)
    folder, name = os.path.split(path)
    return os.path.join(os.path.realpath(folder), name) if os.pardir in folder.split(os.sep) else os.path.abspath(path)


def open_listed(paths: Sequence[str | os.PathLike[str]], labels: Sequence[int]) -> ListedSource:
    """The source for these files, whose headers are indexed once.

    The index is in the cache folder: beside the data it might be taken for a sample by whoever lists them.

    Raises DataError where there are none, or none of the folders that they lie in.
    """
    if not paths:
        raise DataError("the dataset lists no files: check its root and split")
    files = [_absolute(path) for path in paths]
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
            listing.directories[folder[len(root) + 1 :]] = times_of(os.stat(folder))
    open_index = partial(
        load_or_build,
        Path(root or "/"),
        f"listed-{digest([listing.paths, *map(int, listing.labels)])}",
        arrays=arrays_of(wanted),
        stale=partial(_changes, layout),
        build=lambda: _measured(layout, wanted, listing, files),
        beside=False,
    )
    index = open_index()
    if _mark(index.path).exists():
        index = open_index(rebuild=True)
        _mark(index.path).unlink(missing_ok=True)
    return ListedSource(layout.root, index, schema, wanted)


def _changes(layout: Layout, info: dict[str, Any], is_in_place: bool) -> str:
    """What changed since the index was made, or an empty string. is_in_place: as for `Stale`."""
    if "deep" not in info:
        return "it is of an older kind"
    return changed_below(f"{layout.root}/", info["directories"], is_in_place) or come_since(layout, info["unread"])


def _mark(index_path: str) -> Path:
    """The file that says that files have changed since they were indexed, as `fetch` has found."""
    return Path(f"{index_path}.stale")


def _measured(layout: Layout, wanted: Wanted, listing: Listing, files: Sequence[str]) -> BuiltIndex:
    """The index, which says what `ListedSource.deep` does. That takes 22 us for a PNG, 97 for a TIFF."""
    deep = next(([file, mode] for file in files if (mode := _mode(file)).startswith(DEEP_MODES)), [])
    return measured(layout, wanted, listing, {"deep": deep})


def _mode(file: str) -> str:
    """What a file is for Pillow, if it may be of more than 8 bits."""
    if file.lower().endswith(MAYBE_DEEP):
        with suppress(OSError, Image.DecompressionBombError), Image.open(file) as image:
            return str(image.mode)
    return ""
