"""What a process reads of storages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from gpupipe.batch import Coming
from gpupipe.sources.remote.cache import Cache
from gpupipe.sources.remote.client import client
from gpupipe.sources.remote.objects import Extent, ReadError

__all__ = ["LOOKS_AHEAD", "Reading"]

LOOKS_AHEAD = 2048


class Reading:
    """What a source reads by."""

    def __init__(self, cache: Cache | None = None) -> None:
        self.cache = cache

    def announce(
        self,
        extents: Sequence[Extent],
        coming: Coming,
        counts: NDArray[np.int64] | int = 1,
        drop: Sequence[Extent] = (),
    ) -> None:
        """These are taken when the samples of `coming` are fetched."""

    def take(self, extents: Sequence[Extent]) -> Iterator[NDArray[np.uint8] | ReadError]:
        """The bytes of each, read-only, or why they can't be had. All are begun before the first is waited for."""
        for reading in client().read(extents):
            try:
                yield reading.result()
            except ReadError as error:
                yield error
