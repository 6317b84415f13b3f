"""What sources with a stored index share: all that is known of a sample without reading it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpupipe.batch import Columns, Images, Schema
from gpupipe.errors import SampleError
from gpupipe.sources.reading import MOST_BYTES
from gpupipe.sources.source import Encoded, Source
from gpupipe.sources.storage import StoredIndex, Strings

__all__ = ["ARRAYS", "IndexedSource"]

SHAPES = ("heights", "widths", "orientations")

ARRAYS = frozenset({"labels", "sizes", *SHAPES, "keys", "key_offsets"})
"""The names of what it takes from an index."""


class IndexedSource(Source):
    """Labels, sizes and keys from the arrays of an index.

    sizes: bytes of every encoded image, (len(self),) int64, read-only.
    """

    def __init__(self, index: StoredIndex) -> None:
        self.fields = Schema.of(None)
        self.index_path = index.path
        self.fingerprint = index.fingerprint
        self.targets = index.arrays["labels"]
        self.sizes: NDArray[np.int64] = index.arrays["sizes"]
        self._shapes = [index.arrays[name] for name in SHAPES]
        self._keys = Strings(index.arrays["keys"], index.arrays["key_offsets"])

    def __len__(self) -> int:
        return len(self.targets)

    def fetch(self, indices: NDArray[np.int64]) -> Columns:
        """Images as encoded, with their sizes, and labels."""
        data: list[Encoded | None] = [self._read(index) for index in indices.tolist()]
        return {"image": Images(data, self.shapes(indices)), "label": self.targets[indices]}

    def shapes(self, indices: NDArray[np.int64]) -> NDArray[np.int32]:
        """Height, width and orientation of each image, from the index."""
        shapes = np.empty((len(indices), len(SHAPES)), np.int32)
        for place, known in enumerate(self._shapes):
            shapes[:, place] = known[indices]
        return shapes

    def key(self, index: int) -> str:
        """The path below the root, with its extension; or the key in the shard: up to the first dot."""
        return str(self._keys[index])

    def _read(self, index: int) -> Encoded:
        """The bytes of one image. Raises SampleError where they can't be had."""
        raise NotImplementedError

    def _bytes(self, index: int) -> int:
        """Bytes of one encoded image. Raises SampleError where no image has so many."""
        size = int(self.sizes[index])
        if size > MOST_BYTES:
            raise SampleError(
                index, self.location(index), f"has {size:,} bytes, more than the {MOST_BYTES:,} of any image"
            )
        return size
