"""Tar shards in a storage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpupipe.errors import SampleError
from gpupipe.sources.indexed import Files
from gpupipe.sources.reading import MOST_BYTES
from gpupipe.sources.remote.apart import apart
from gpupipe.sources.remote.objects import Extent, Object, ReadError, join, parent, shown
from gpupipe.sources.remote.source import SKIP, RemoteSource
from gpupipe.sources.shard_index import Scan
from gpupipe.sources.shards import WASTE, ShardSource
from gpupipe.sources.source import Encoded, content_fingerprint
from gpupipe.sources.storage import StoredIndex

__all__ = ["RemoteShardSource", "beside"]


def beside(shards: Sequence[str], scan: Scan) -> str:
    """The URL of an index of these in the folder of the first."""
    return join(parent(shards[0]), scan.index_name([shown(url) for url in shards]))


class RemoteShardSource(RemoteSource, ShardSource):
    """The images of tar shards by URL, in the shards' order. A shard that is replaced while it is in use has bad
    samples: each read is of the object that was indexed, or an error."""

    _shown = staticmethod(shown)

    def _prepare(self, index: StoredIndex) -> None:
        entries = zip(self.shards, index.info["shards"], strict=True)
        self._objects = [Object(url, entry["size"], entry["etag"]) for url, entry in entries]
        self._begins: NDArray[np.int64] = index.arrays["starts"]
        self._label_field: str = index.info["label_field"]
        self.pinned = content_fingerprint([one.etag for one in self._objects], [])
        self._name_classes(Path(index.path).parent)

    @property
    def index_url(self) -> str:
        """Where beside the shards a file with their index is looked for."""
        return beside(self.shards, Scan(self._wanted, self._label_field, shapes=False))

    def extents(self, index: int) -> list[Extent]:
        found = self._objects[self._shard(index)]
        return [Extent(found, offset, size) for offset, size in self._spans(index)]

    def _parts(self, indices: NDArray[np.int64], extents: Callable[[int], list[Extent]]) -> list[list[Extent]]:
        sizes = self._bytes[indices]
        if sizes.shape[1] > 1 or not ((sizes >= 0) & (sizes <= MOST_BYTES)).all():
            return super()._parts(indices, extents)
        shards = np.searchsorted(self._begins, indices, side="right") - 1
        objects = map(self._objects.__getitem__, shards.tolist())
        return [[part] for part in map(Extent, objects, self._offsets[indices, 0].tolist(), sizes[:, 0].tolist())]

    def unread(self, index: int, error: ReadError) -> SampleError:
        return SampleError(index, self.location(index), str(error), SKIP)

    def stored_bytes(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        sizes = self.sizes[indices]
        if self._bytes.shape[1] == 1:
            return sizes.clip(0)
        offsets, each = self._offsets[indices], self._bytes[indices]
        begins = np.where(each < 0, np.iinfo(np.int64).max, offsets).min(axis=1)
        spans = (offsets + each).max(axis=1) - begins
        return np.where(spans > WASTE + sizes, sizes, spans.clip(0))

    def _files(self, indices: list[int]) -> list[Files]:
        files = [self._cut(index, read) for index, read in zip(indices, self.taken(indices), strict=True)]
        return list(zip(*files, strict=True)) or [()] * len(self._wanted.files)

    def _read(self, index: int, offset: int, size: int) -> Encoded:
        return self._next(index, self.reading.take([Extent(self._objects[self._shard(index)], offset, size)]))

    def _looked_for(self, file: int) -> str:
        members = " or ".join(f".{name}" for name in self._wanted.files[file]) or "image"
        there = apart("gpupipe.sources.remote.indexing:extensions", **self._objects[0]._asdict())
        return f"there is no member {members}, but {there}; check the source"
