"""Two sources side by side: each sample of one with the fields of that sample of the other which has the same key."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.batch import MISSING, Columns, Coming, Images, Index, Key, Schema
from gpupipe.errors import ConfigError, DataError
from gpupipe.sources.parts import Before, fetched, stored
from gpupipe.sources.source import Source, content_fingerprint

__all__ = ["JoinedSource"]

NONE = -1


class JoinedSource(Source):
    """The samples of `source`, in its order, with fields of `other` beside theirs. See `Source.join`."""

    def __init__(
        self, source: Source, other: Source, on: str | tuple[str, str] = "key", fields: Sequence[str] | None = None
    ) -> None:
        self._on = (on, on) if isinstance(on, str) else on
        self.parts = self._source, self._other = source, other
        self._names = _names(source, other, self._on[1], fields)
        self.fields = Schema({**source.fields, **{name: other.fields[name] for name in self._names}})
        labelled = other if "label" in self._names else source
        self.classes, self.class_to_idx = labelled.classes, labelled.class_to_idx
        self._rows = _matched(source, other, *self._on)
        self.fingerprint = content_fingerprint(
            ["join", source.fingerprint, other.fingerprint, *self._names], [self._rows]
        )

    def __len__(self) -> int:
        return len(self._source)

    def __repr__(self) -> str:
        return f"JoinedSource({self._source!r}, {', '.join(self._names)} of {self._other!r})"

    @cached_property
    def targets(self) -> NDArray[np.int64]:
        """All labels. Raises DataError where they aren't known, or a sample has none."""
        if "label" not in self._names:
            return self._source.targets
        if (self._rows == NONE).any():
            raise DataError(f"the labels of {self!r}: {self._lacking(int(np.argmin(self._rows)))}")
        labels: NDArray[np.int64] = self._other.targets[self._rows]
        labels.setflags(write=False)
        return labels

    def column(self, name: str) -> NDArray[Any] | list[Any]:
        """As the source that it is of knows it."""
        if name not in self._names:
            return self._source.column(name)
        known = self._other.column(name)
        if isinstance(known, np.ndarray) and (self._rows != NONE).all():
            return known[self._rows]
        return [MISSING if row == NONE else known[row] for row in self._rows.tolist()]

    def fetch(self, indices: NDArray[np.int64], before: Before = None) -> Columns:
        """The fields of both; what the other has no sample for is missing."""
        columns = fetched(self._source, indices, indices, before)
        theirs = self._rows[indices]
        rows = np.flatnonzero(theirs != NONE)
        other = fetched(self._other, theirs[rows], indices[rows], before, rows)
        return columns | {name: _spread(other[name], rows, len(indices)) for name in self._names}

    def shapes(self, indices: NDArray[np.int64]) -> NDArray[np.int32] | None:
        if self._source.fields.images:
            return self._source.shapes(indices)
        rows = self._rows[indices]
        return None if (rows == NONE).any() else self._other.shapes(rows)

    def stored_bytes(self, indices: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Of both; 0 of one that is local."""
        theirs = self._rows[indices]
        rows = np.flatnonzero(theirs != NONE)
        parts = [(self._source, np.arange(len(indices)), indices), (self._other, rows, theirs[rows])]
        return stored(parts, len(indices))

    def lacks(self, index: int, name: str) -> str:
        if name not in self._names:
            return self._source.lacks(index, name)
        row = int(self._rows[index])
        return self._lacking(index) if row == NONE else self._other.lacks(row, name)

    def location(self, index: int) -> str:
        return self._source.location(index)

    def key(self, index: int) -> str:
        return self._source.key(index)

    def ahead(self, coming: Coming) -> None:
        self._source.ahead(coming)
        self._other.ahead(coming.take(self._rows[coming.indices] != NONE).mapped(self._theirs))

    def _theirs(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        rows = self._rows[indices]
        there: NDArray[np.int64] = rows[rows != NONE]
        return there

    @property
    def looks_ahead(self) -> int:
        return max(part.looks_ahead for part in self.parts)

    def _lacking(self, index: int) -> str:
        own, theirs = self._on
        what = repr(self.key(index)) if own == "key" else f"the {own!r} of {self.location(index)}"
        return f"no {theirs!r} of {self._other!r} is {what}"


def _names(source: Source, other: Source, on: str, fields: Sequence[str] | None) -> list[str]:
    """The fields of the other that are taken."""
    own = {on, *other.fields.of_kind(Key), *other.fields.of_kind(Index)}
    taken = [name for name in other.fields if name not in own] if fields is None else list(fields)
    for name in taken:
        if name not in other.fields:
            raise ConfigError(f"join: fields={fields!r}: {name!r} is none of {', '.join(other.fields)} of {other!r}")
        if name in source.fields:
            raise ConfigError(
                f"join: {name!r} is a field of {source!r} and of {other!r}: list by fields= those of the other to be "
                "taken without it, or open the other with another name for it"
            )
    if not taken:
        raise ConfigError(f"join: fields={fields!r} takes none of {', '.join(other.fields)} of {other!r}")
    return taken


def _matched(source: Source, other: Source, own: str, theirs: str) -> NDArray[np.int64]:
    """Of each sample of the source that of the other which has the same value; NONE where none has."""
    ours, values = _values(source, own), _values(other, theirs)
    rows = {value: row for row, value in enumerate(values) if value is not MISSING}
    if len(rows) < len(values) - values.count(MISSING):
        value = next(value for value, count in Counter(values).items() if count > 1 and value is not MISSING)
        first = values.index(value)
        raise DataError(
            f"join: {theirs!r} is {value!r} in {other.location(first)} and in {other.location(rows[value])} of "
            f"{other!r}: nothing says which is meant; leave one out, by filter or select"
        )
    matched = np.fromiter((rows.get(value, NONE) for value in ours), np.int64, len(ours))
    if (matched == NONE).all():
        raise DataError(
            f"join: {source!r} and {other!r} have no value in common: {own!r} there is such as {ours[0]!r}, {theirs!r} "
            f"here such as {values[0]!r}; on= names the fields to go by, as on='key' or on=('key', 'file')"
        )
    return matched


def _values(source: Source, name: str) -> list[Any]:
    column = source.column(name)
    values = column.tolist() if isinstance(column, np.ndarray) else column
    if not {type(value) for value in values} <= {str, int, float, bool, type(MISSING)}:
        raise DataError(f"join: {name!r} of {source!r} is not one text or number for each sample")
    return values


def _spread(column: Any, rows: NDArray[np.int64], count: int) -> Any:
    """A column of `count` rows, of which these are there."""
    if len(rows) == count:
        return column
    values: list[Any] = [MISSING] * count
    if isinstance(column, Images):
        values = [None] * count
    for row, value in zip(rows.tolist(), column.data if isinstance(column, Images) else column, strict=True):
        values[row] = value
    if not isinstance(column, Images):
        return values
    sizes = None
    if column.sizes is not None:
        sizes = np.tile(np.array([0, 0, 1], np.int32), (count, 1))
        sizes[rows] = column.sizes
    return Images(values, sizes)
