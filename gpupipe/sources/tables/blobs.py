"""The bytes in a column of Parquet files, row by row, or the path of the file that has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from gpupipe.batch import MISSING
from gpupipe.sources.reading import MOST_BYTES
from gpupipe.sources.source import Encoded
from gpupipe.sources.tables.columns import Path, is_text
from gpupipe.sources.tables.pages import NULL_STRUCT
from gpupipe.sources.tables.row_groups import RowGroups

__all__ = ["Blobs", "Read"]

Read = Callable[[Any, int, int, bytes], Encoded]
"""Of a footer's file from a byte on so many, behind what has to stand before them. Raises OSError and ValueError."""


class Blobs:
    """A column of bytes, of paths, or of structs of both, of which the bytes count where there are any.

    parts: of which the column is made, or itself. direct: that of bytes; empty where there are only paths.
    """

    def __init__(self, path: Path, kind: Any, groups: RowGroups) -> None:
        self._groups = groups
        self._in_struct = pa.types.is_struct(kind)
        ends: list[Path] = [
            (name,) for name in ("bytes", "path") if self._in_struct and kind.get_field_index(name) >= 0
        ]
        ends = ends or [()]
        self._keys = [(*path[1:], *part) for part in ends]
        self.parts = [".".join((*path, *part)) for part in ends]
        is_path = is_text(kind) or ends[0] == ("path",)
        self.direct = "" if is_path else self.parts[0]

    def get(self, group: int, row: int, read: Read) -> Encoded | str | None:
        """Bytes or path of a group's row; None where the cell is null.

        Raises ValueError for a struct without either and for what is damaged, OSError, `pyarrow.ArrowException`.
        """
        for part, keys in zip(self.parts, self._keys, strict=True):
            value = self._value(group, row, part, keys, read)
            if value is not None:
                return None if value is MISSING else value
        if self._in_struct:
            raise ValueError("has neither bytes nor path")
        return None

    def _value(self, group: int, row: int, part: str, keys: Path, read: Read) -> Any:
        """MISSING where what it is in is null."""
        places = self._groups.places(group, part) if part == self.direct else None
        if places is None:
            return _in_cell(self._groups.column(group, part)[row], keys)
        size = int(places.sizes[row])
        if size < 0:
            return MISSING if size == NULL_STRUCT else None
        if size > MOST_BYTES:
            raise ValueError(f"it has {size:,} bytes, more than the {MOST_BYTES:,} of any image")
        return places.value(row, read(self._groups.groups[group].footer, *places.span(row)))

    def span(self, group: int, row: int) -> tuple[int, int] | None:
        """Where the file has it, and its bytes there, as far as that has been found; None also for what has none or too
        many."""
        places = self._groups.found(group, self.direct)
        return places.span(row)[:2] if places is not None and 0 < places.sizes[row] <= MOST_BYTES else None


def _in_cell(cell: Any, keys: Path) -> Any:
    """What is at keys of a struct: a copy, as a part would hold the whole column."""
    for key in keys:
        if not cell.is_valid:
            return MISSING
        cell = cell[key]
    if isinstance(cell, pa.DictionaryScalar):  # as pandas writes a Categorical
        cell = cell.value
    if not cell.is_valid:
        return None
    if is_text(cell.type):
        return cell.as_py()
    return np.frombuffer(cell.as_buffer(), np.uint8).copy()
