"""Samples chosen by what is known of them without reading any."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.errors import ConfigError, DataError
from gpupipe.sources.source import Source
from gpupipe.sources.subset import SubsetSource

__all__ = ["Known", "filtered"]


class Known(Mapping[str, NDArray[Any]]):
    """The columns of a source that are known, each asked for when it is used; those of texts are arrays of objects."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def __getitem__(self, name: str) -> NDArray[Any]:
        column = self._source.column(name)
        return column if isinstance(column, np.ndarray) else np.fromiter(column, object, len(column))

    def __iter__(self) -> Iterator[str]:
        """All that could be: fields, "key" and "index"."""
        return iter(dict.fromkeys([*self._source.fields, "key", "index"]))

    def __len__(self) -> int:
        return len(list(iter(self)))


def filtered(source: Source, predicate: Callable[[Known], Any]) -> SubsetSource:
    """See `Source.filter`."""
    chosen, name = np.asarray(predicate(Known(source))), getattr(predicate, "__qualname__", repr(predicate))
    if chosen.dtype != np.bool_ or chosen.shape != (len(source),):
        raise ConfigError(
            f"filter: {name} gave {chosen.dtype} of shape {chosen.shape}; it is called once, with whole columns, and "
            f"must give an array of {len(source)} bools, as lambda columns: columns['label'] < 10 does; indices are "
            "for select"
        )
    if not chosen.any():
        raise DataError(f"filter: {name} is true of none of the {len(source)} samples of {source!r}")
    return SubsetSource(source, np.flatnonzero(chosen))
