"""What sources with a stored index share: all that is known of a sample without reading it."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from gpupipe.errors import SampleError
from gpupipe.sources.reading import MOST_BYTES
from gpupipe.sources.source import SampleMeta, Source
from gpupipe.sources.storage import StoredIndex, Strings

__all__ = ["ARRAYS", "IndexedSource"]

ARRAYS = frozenset({field.name for field in fields(SampleMeta)} | {"keys", "key_offsets"})
"""The names of what it takes from an index."""


class IndexedSource(Source):
    """Labels, sizes and keys from the arrays of an index."""

    def __init__(self, index: StoredIndex) -> None:
        self.index_path = index.path
        self.fingerprint = index.fingerprint
        self._facts = SampleMeta(**{field.name: index.arrays[field.name] for field in fields(SampleMeta)})
        self._keys = Strings(index.arrays["keys"], index.arrays["key_offsets"])

    def __len__(self) -> int:
        return len(self._facts)

    @property
    def targets(self) -> NDArray[np.int64]:
        """All labels, (len(self),) int64, read-only."""
        return self._facts.labels

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Bytes of every encoded image, (len(self),) int64, read-only."""
        return self._facts.sizes

    def meta(self, indices: NDArray[np.int64]) -> SampleMeta:
        """Labels and sizes of the samples at `indices`, from the index."""
        return self._facts.take(indices)

    def _bytes(self, index: int) -> int:
        """Bytes of one encoded image. Raises SampleError where no image has so many."""
        size = int(self._facts.sizes[index])
        if size > MOST_BYTES:
            raise SampleError(
                index, self.location(index), f"has {size:,} bytes, more than the {MOST_BYTES:,} of any image"
            )
        return size
