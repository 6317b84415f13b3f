"""Rows of arrays in files: values that can be had one by one, or are held in memory, as labels are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gpupipe.sources.reading import Stamp

__all__ = ["MOST_HELD", "ArrayFile", "Held", "Rows"]

MOST_HELD = 1 << 30
"""Bytes of an array that is read whole."""


class Rows(Protocol):
    """`shape[0]` values of an array, of which `read` gives one. Raises ValueError, which says for a message why it
    can't be had."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...

    def read(self, row: int) -> Any: ...


@dataclass(frozen=True)
class Held:
    """An array in memory."""

    values: NDArray[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of all values."""
        shape: tuple[int, ...] = self.values.shape
        return shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of each; texts are objects."""
        dtype: np.dtype[Any] = self.values.dtype
        return dtype

    def read(self, row: int) -> Any:
        return self.values[row]


class ArrayFile(Protocol):
    """A file of arrays. stamp: of when it was opened."""

    path: str
    stamp: Stamp

    def names(self) -> list[str]:
        """Of the arrays that are there."""

    def rows(self, name: str) -> Rows:
        """Of one of them: held if they are plain numbers or texts. Raises DataError for what is no array of values, or
        is cut, ConfigError where it is too large for how it is stored."""
