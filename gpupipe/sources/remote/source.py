"""What sources have in common whose samples are parts of objects in a storage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.batch import Coming, StorageUse
from gpupipe.errors import DataError, SampleError
from gpupipe.host.whereabouts import note
from gpupipe.sources.remote.objects import Extent, ReadError
from gpupipe.sources.remote.reader import LOOKS_AHEAD, Reading
from gpupipe.sources.source import Encoded, Source

__all__ = ["SKIP", "RemoteSource"]

SKIP = "or pass on_error='skip' to replace bad samples"
"""Behind what a ReadError says to do."""


class RemoteSource(Source):
    """Reads all parts of a batch at once, and ahead what is announced. Stands before the class of the same data on a
    disk, from which the rest comes.

    reading: what reads, and keeps on a disk, for this source. pinned: what tells that all objects are the same where
    it is opened again from an index that may have been made anew.
    """

    reading: Reading
    pinned: str = ""

    def __reduce__(self) -> tuple[Any, ...]:
        return *super().__reduce__()[:2], {"reading": self.reading, "pinned": self.pinned}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if state.get("pinned", self.pinned) != self.pinned:
            raise DataError(
                f"objects of {self!r} were replaced, and it was indexed again, while a loader used it; make the loader "
                "again"
            )
        self.reading = state["reading"]

    def extents(self, index: int) -> list[Extent]:
        """What is read for a sample. Raises SampleError for what no image can be."""
        raise NotImplementedError

    def unread(self, index: int, error: ReadError) -> SampleError:
        """What to raise for a sample of which a part can't be had."""
        raise NotImplementedError

    def state_of_images(self, name: str) -> str:
        """Of the objects' ETags."""
        return self.pinned

    @property
    def reads_storage(self) -> bool:
        """Whether it reads anything there."""
        return True

    @property
    def looks_ahead(self) -> int:
        """So many samples."""
        return LOOKS_AHEAD

    def ahead(self, coming: Coming) -> None:
        """Have what comes read ahead; what no image can be, `fetch` tells."""
        parts = self._parts(coming.indices, self._extents)
        counts = np.array(list(map(len, parts)), np.int64)
        drop = list(chain(*self._parts(coming.drop, self._extents)))
        self.reading.announce(list(chain(*parts)), coming, counts, drop)

    def storage_use(self) -> StorageUse | None:
        return self.reading.usage() if self.reads_storage else None

    def _parts(self, indices: NDArray[np.int64], extents: Callable[[int], list[Extent]]) -> list[list[Extent]]:
        """Of each sample what `extents` gives; a source may find those of many at once."""
        return list(map(extents, indices.tolist()))

    def _extents(self, index: int) -> list[Extent]:
        try:
            return self.extents(index)
        except SampleError:
            return []

    def taken(self, indices: list[int]) -> list[list[Encoded]]:
        """What is read for each of these samples, in the order of its extents. Raises SampleError for the first of
        which something can't be had."""
        parts = self._parts(np.array(indices, np.int64), self.extents)
        read = self.reading.take(list(chain(*parts)))
        return [[self._next(index, read) for _ in part] for index, part in zip(indices, parts, strict=True)]

    def _next(self, index: int, read: Iterator[Encoded | ReadError]) -> Encoded:
        note(index)
        data = next(read)
        if isinstance(data, ReadError):
            raise self.unread(index, data) from data
        return data
