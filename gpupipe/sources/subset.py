"""Some samples of another source, as torch's `Subset` and `random_split` pick them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpupipe.batch import Columns, Coming, Index
from gpupipe.errors import DataError
from gpupipe.sources.parts import Before, fetched
from gpupipe.sources.source import Source, content_fingerprint

__all__ = ["SubsetSource"]


class SubsetSource(Source):
    """The samples `indices` of `source`, in that order. What is known of them stays known, and nothing is read for it.

    Raises DataError where the indices are no integers or lie outside the source.
    """

    def __init__(self, source: Source, indices: Sequence[int] | ArrayLike) -> None:
        self.source = source
        self.parts = (source,)
        self.fields = source.fields
        self.classes = source.classes
        self.class_to_idx = source.class_to_idx
        self._indices = _checked(indices, len(source))
        self.fingerprint = content_fingerprint(["subset", source.fingerprint], [self._indices])

    def __len__(self) -> int:
        return len(self._indices)

    def __repr__(self) -> str:
        return f"SubsetSource({len(self)} samples of {self.source!r})"

    @cached_property
    def targets(self) -> NDArray[np.int64]:
        """Their labels, (len(self),) int64. Raises DataError where the source's aren't known."""
        labels: NDArray[np.int64] = self.source.targets[self._indices]
        labels.setflags(write=False)
        return labels

    def column(self, name: str) -> NDArray[Any] | list[Any]:
        """What the source knows of them, but that they are numbered from 0 on."""
        if isinstance(self._kind(name), Index):
            return super().column(name)
        known = self.source.column(name)
        return known[self._indices] if isinstance(known, np.ndarray) else [known[index] for index in self._indices]

    def fetch(self, indices: NDArray[np.int64], before: Before = None) -> Columns:
        """As the source has them, at once. What is noted or raised meanwhile is about their indices here."""
        own = {name: indices.astype(np.int64) for name in self.fields.of_kind(Index)}
        return fetched(self.source, self._indices[indices], indices, before) | own

    # As the source has it.

    def shapes(self, indices: NDArray[np.int64]) -> NDArray[np.int32] | None:
        return self.source.shapes(self._indices[indices])

    def stored_bytes(self, indices: NDArray[np.int64]) -> NDArray[np.int64] | None:
        return self.source.stored_bytes(self._indices[indices])

    def lacks(self, index: int, name: str) -> str:
        return self.source.lacks(int(self._indices[index]), name)

    def location(self, index: int) -> str:
        return self.source.location(int(self._indices[index]))

    def key(self, index: int) -> str:
        return self.source.key(int(self._indices[index]))

    def ahead(self, coming: Coming) -> None:
        self.source.ahead(coming.mapped(lambda indices: self._indices[indices]))

    @property
    def looks_ahead(self) -> int:
        return self.source.looks_ahead


def _checked(indices: Sequence[int] | ArrayLike, size: int) -> NDArray[np.int64]:
    """Indices of a source of `size` samples, negative ones counted from its end."""
    given = np.asarray(indices)
    if given.ndim != 1 or not np.issubdtype(given.dtype, np.integer) or not len(given):
        raise DataError(
            f"Subset: its indices are {given.dtype} of shape {given.shape}; it must have a list of one or more integers"
        )
    outside = given[(given < -size) | (given >= size)]
    if len(outside):
        raise DataError(f"Subset: sample {outside[0]} is not in a source of {size} samples; pick them anew for it")
    found = given.astype(np.int64)  # before anything is added: a uint8 has no place for the size
    return np.where(found < 0, found + size, found)
