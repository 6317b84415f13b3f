"""A table in memory, as it was when it was read: it is kept in the cache folder, where other processes open it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from gpupipe.batch import Array, Bytes, Image, Mask, Schema
from gpupipe.errors import DataError
from gpupipe.sources.building import BuiltIndex, reopen_index
from gpupipe.sources.remote.loose import Known
from gpupipe.sources.remote.objects import unsigned
from gpupipe.sources.source import content_fingerprint
from gpupipe.sources.storage import StoredIndex
from gpupipe.sources.tables.columns import as_indices, cells, is_text, large, located, paths_of
from gpupipe.sources.tables.contents import contents
from gpupipe.sources.tables.numbering import numberings, tell_of_numberings
from gpupipe.sources.tables.rows import RowSource, told
from gpupipe.texts import utf8

__all__ = ["TableSource", "frozen"]


class TableSource(RowSource):
    """The rows of a manifest or of a query. Their keys are the paths of their images, where no two have the same one;
    of URLs without what gives the right to read, which is another when they are signed anew.

    where: what the table is called in messages. index: what `frozen` made.
    """

    def __init__(
        self,
        where: str,
        root: str,
        index: StoredIndex,
        fields: Schema,
        known: Mapping[str, Known | None] | None = None,
    ) -> None:
        info = index.info
        super().__init__(root, fields, {name: tuple(path) for name, path in info["paths"].items()}, info["names"])
        self.where = where
        self.index_path = index.path
        self.fingerprint = index.fingerprint
        (self._table,) = pa.ipc.open_stream(pa.py_buffer(index.arrays["table"])).read_all().to_batches()
        self._keys = cells(self._table, self._paths[info["key"]]) if info["key"] else None
        files = (name for name, field in fields.items() if isinstance(field, Image | Mask | Bytes))
        self.look({name: cells(self._table, self._paths[name]) for name in files}, known)

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __repr__(self) -> str:
        classes = f", {len(self.classes)} classes" if self.classes is not None else ""
        return f"TableSource({self.where!r}, {len(self)} samples{classes})"

    def __reduce__(self) -> tuple[Any, ...]:
        made = self.where, self.root, self.index_path, self.fingerprint, self.fields, self.known
        return _reopened, made, {"reading": self.reading}

    def _rows(self, indices: NDArray[np.int64]) -> pa.RecordBatch:
        return self._table.take(as_indices(indices))

    def _whole(self, name: str) -> pa.Array | None:
        return None if isinstance(self.fields[name], Image | Mask | Bytes) else cells(self._table, self._paths[name])

    def _paths_in(self, name: str) -> pa.Array | None:
        return paths_of(cells(self._table, self._paths[name]))

    def key(self, index: int) -> str:
        """The path of its image, or its row."""
        return str(index) if self._keys is None else utf8(unsigned(self._keys[index].as_py()))

    def location(self, index: int) -> str:
        """The table and the row, of which the first is 0; and its path."""
        return f"{self.where} row {index}" + ("" if self._keys is None else f" ({told(self._keys[index].as_py())})")


def _reopened(
    where: str, root: str, path: str, fingerprint: str, fields: Schema, known: Mapping[str, Known | None]
) -> TableSource:
    return TableSource(where, root, reopen_index(path, fingerprint), fields, known)


def frozen(table: pa.Table, fields: Schema, where: str, classes: Sequence[str] | None, **info: Any) -> BuiltIndex:
    """What is kept of a table: the columns of the fields; info: what else is noted of it.

    Raises ConfigError for a field that has no column, or `classes` that name none, DataError for a table without rows,
    and for names of classes that `classes` lacks, or among which there are numbers.
    """
    paths = located(fields, table.schema, where)
    if not table.num_rows:
        raise DataError(f"{where} has no rows")
    table = _large(table.select(list(dict.fromkeys(path[0] for path in paths.values())))).combine_chunks()
    try:
        table.validate(full=True)
    except (pa.ArrowInvalid, UnicodeDecodeError) as error:
        raise DataError(f"{where} is damaged, or its texts are not UTF-8: {error}") from error
    columns = ((name, cells(table, path)) for name, path in paths.items() if isinstance(fields[name], Array))
    names = numberings(columns, where, classes)
    tell_of_numberings(names, where)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    kept = {"paths": paths, "names": names, "key": _key(fields, paths, table), **info}
    texts = [f"{name} {one.type}" for name, one in zip(table.column_names, table.columns, strict=True)]
    texts += [f"{name} in {'.'.join(path)}" for name, path in paths.items()]
    texts += [name for some in names.values() for name in some]
    parts = (part for column in table.columns for part in contents(column.combine_chunks()))
    return BuiltIndex(content_fingerprint(texts, parts), kept, {"table": np.frombuffer(sink.getvalue(), np.uint8)})


def _large(table: pa.Table) -> pa.Table:
    """Texts and bytes with offsets of 64 bits, so that a column of any size is one array."""
    return table.cast(pa.schema([(one.name, _kept_as(one.type)) for one in table.schema]))


def _kept_as(kind: Any) -> Any:
    """The type of a column in the table that is kept. Types are in fingerprints."""
    if pa.types.is_dictionary(kind):
        return kind.value_type
    return kind if pa.types.is_nested(kind) else large(kind)


def _key(fields: Schema, paths: Mapping[str, Sequence[str]], table: pa.Table) -> str | None:
    """The first image field, if each row has a path of its own there."""
    for name in fields.images[:1]:
        column = cells(table, tuple(paths[name]))
        if is_text(column.type) and not column.null_count:
            secret = pc.any(pc.match_substring_regex(column, "^https?://.*[?@]", ignore_case=True)).as_py()
            keys = {unsigned(url) for url in column.to_pylist()} if secret else pc.unique(column)
            return name if len(keys) == len(column) else None
    return None
