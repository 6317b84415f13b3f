"""Samples chosen by what is known of them without reading any."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.batch import MISSING
from gpupipe.errors import ConfigError, DataError
from gpupipe.sources.source import Source
from gpupipe.sources.subset import SubsetSource

__all__ = ["Known", "filtered"]


class Known(Mapping[str, NDArray[Any]]):
    """The columns of a source that are known, each asked for when it is used; those of texts are arrays of objects.

    What a sample lacks is the field's default where `missing` says so; else NaN among numbers and None among others.
    """

    def __init__(self, source: Source) -> None:
        self._source = source

    def __getitem__(self, name: str) -> NDArray[Any]:
        column = self._source.column(name)
        if isinstance(column, np.ndarray):
            return column
        field, there = self._source.fields.get(name), [value for value in column if value is not MISSING]
        absent = field.absent if field is not None and field.missing == "default" else None
        values = column if len(there) == len(column) else [absent if value is MISSING else value for value in column]
        if there and all(isinstance(value, int | float | np.number) for value in there):
            return np.array(values, np.float64 if absent is None else None)
        return np.fromiter(values, object, len(values))

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
