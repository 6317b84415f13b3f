"""Image folders in a storage: what is listed there is their index."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.batch import Schema
from gpupipe.errors import ConfigError, SampleError
from gpupipe.sources.building import BuiltIndex
from gpupipe.sources.folder import FolderSource, Layout, listed, measured
from gpupipe.sources.headers import DAMAGED
from gpupipe.sources.indexed import SHAPES, Files
from gpupipe.sources.inside import Inside
from gpupipe.sources.remote.objects import Extent, Object, ReadError, is_remote, shown
from gpupipe.sources.remote.source import SKIP, RemoteSource
from gpupipe.sources.source import Encoded
from gpupipe.sources.storage import StoredIndex, Strings, pack_strings
from gpupipe.sources.wanted import Wanted

__all__ = ["RemoteFolderSource", "folder_index"]


class _UrlLayout(Layout):
    """Paths are URLs."""

    def within(self, folder: str) -> str:
        inner = posixpath.normpath(folder) if folder else "."
        if inner.startswith(("/", "..")) or is_remote(folder):
            raise ConfigError(f"fields: folder={folder!r} does not lie below {shown(self.root)}: pass one that does")
        return self.root if inner == "." else f"{self.root}/{inner}"


@dataclass(frozen=True)
class _Listed(_UrlLayout, Inside):
    """The same of which all objects are known."""

    names: Mapping[str, Object]

    def size(self, path: str) -> int:
        found = self.names.get(self.name(path))
        return -1 if found is None else found.size

    def measure(self, path: str) -> tuple[int, int, int, int]:
        """Images are not read for it."""
        return self.size(path), *DAMAGED


def folder_index(root: str, objects: Mapping[str, Object], files: Wanted, info: Mapping[str, Any]) -> BuiltIndex:
    """The index of the image folder of these objects, by their paths below it. Raises as `open_folder` does."""
    plain = _UrlLayout.of(root, files)
    layout = _Listed(plain.root, plain.files, plain.image, root, objects)
    listing = listed(layout, files)
    listing.directories.clear()
    paths = (layout.name(layout.path(key, number)) for key in listing.paths for number in range(len(layout.files)))
    tags, ends = pack_strings([objects[path].etag if path in objects else "" for path in paths])
    built = measured(layout, files, listing, info).without(SHAPES)
    return replace(built, arrays={**built.arrays, "etags": tags, "etag_offsets": ends})


class RemoteFolderSource(RemoteSource, FolderSource):
    """The images of a folder by URL in the order of torchvision's ImageFolder."""

    _layout_of = _UrlLayout.of

    def __init__(self, root: str, index: StoredIndex, schema: Schema, wanted: Wanted) -> None:
        super().__init__(root, index, schema, wanted)
        self._etags = Strings(index.arrays["etags"], index.arrays["etag_offsets"])
        self.pinned = index.info["listing"]

    def location(self, index: int) -> str:
        return shown(self._layout.path(str(self._keys[index]), self._layout.image))

    def extents(self, index: int) -> list[Extent]:
        return [Extent(found, 0, found.size) for found in self._objects(index) if found is not None]

    def _objects(self, index: int) -> list[Object | None]:
        """Of each of its files."""
        return [self._object(index, number) for number in range(len(self._layout.files))]

    def _object(self, index: int, number: int) -> Object | None:
        size = self._size(index, number)
        if size < 0:
            return None
        etag = self._etags[index * len(self._layout.files) + number]
        return Object(self._layout.path(str(self._keys[index]), number), size, str(etag))

    def unread(self, index: int, error: ReadError) -> SampleError:
        return SampleError(index, self.location(index), str(error), SKIP)

    def stored_bytes(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.sizes[indices].clip(0)

    def _files(self, indices: list[int]) -> list[Files]:
        taken = iter(part for parts in self.taken(indices) for part in parts)
        there = self._bytes[indices] >= 0
        rows = [[next(taken) if each else None for each in row] for row in there.tolist()]
        return list(zip(*rows, strict=True)) or [()] * len(self._layout.files)

    def _file(self, index: int, number: int) -> Encoded | None:
        found = self._object(index, number)
        if found is None:
            return None
        return self._next(index, self.reading.take([Extent(found, 0, found.size)]))

    def _looked_for(self, file: int) -> str:
        folder, suffix = self._layout.files[file]
        return f"there is none in folder={folder!r} with suffix={suffix!r}; check both"
