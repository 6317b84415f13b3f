"""Which column of a table a field is, and what its cells become. A null cell is one that the sample lacks."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from gpupipe.batch import MISSING, Array, Boxes, Bytes, Field, Image, Images, Mask, Points, Scalar, Schema, Text
from gpupipe.errors import ConfigError, DataError
from gpupipe.sources.source import Encoded, as_column
from gpupipe.sources.values import as_array, as_int64, in_int64
from gpupipe.sources.wanted import is_own

__all__ = [
    "BadCellError",
    "Path",
    "as_indices",
    "as_numpy",
    "cells",
    "class_names",
    "is_binary",
    "is_text",
    "large",
    "located",
    "numbered",
    "paths_of",
    "type_at",
    "values",
    "whole_decimals",
]

Path = tuple[str, ...]
"""A column, and within it the keys of structs."""

Read = Callable[[int, str], Encoded]
"""The file of a row at the path in its cell. Raises whatever is to be raised where it can't be read."""

WHOLE = re.compile(r"[+-]?\d+", re.ASCII)

Kind = Any  # pyarrow has no types for type checkers


class BadCellError(ValueError):
    """Of a cell the field can't be made. `row`: of the asked rows."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(reason)
        self.row = row


def located(fields: Schema, schema: pa.Schema, where: str) -> dict[str, Path]:
    """The column of each field that has one: under its source, or its own name; keys of structs behind dots.

    where: what the table is called. Raises ConfigError for a column that there is not, or that is there twice, and for
    one of whose type the field can't be made.
    """
    return {name: _located(name, field, schema, where) for name, field in fields.items() if not is_own(name, field)}


def _located(name: str, field: Field, schema: pa.Schema, where: str) -> Path:
    source = name if field.source is None else field.source
    columns = [one.name + f" ({one.type})" * (not pa.types.is_null(one.type)) for one in schema]
    there = f"{where} has the columns {', '.join(columns)}"
    if isinstance(source, int) or field.folder is not None:
        raise ConfigError(f"fields: {name!r} is {field!r}, but columns are found by their names; {there}")
    path = (source,) if source in schema.names else tuple(source.split("."))
    count = schema.names.count(path[0])
    kind = type_at(schema.field(path[0]).type, path[1:]) if count == 1 else None
    if count > 1:
        raise ConfigError(f"fields: {name!r}: {where} has {count} columns {path[0]!r}; give each a name of its own")
    fits, forms = next((fits, forms) for kinds, fits, forms in FORMS if isinstance(field, kinds))
    if kind is None:
        fitting = [one.name for one in schema if fits(type_at(one.type, ()))] or ["column"]
        example = fitting[0 if isinstance(field, Image) else -1]
        raise ConfigError(
            f"fields: {name!r} is to be in the column {source!r}, which is not there: {there}; name the one that it "
            f"is in, as fields={{{name!r}: gpupipe.{type(field).__name__}({example!r})}}"
        )
    if not (fits(kind) or pa.types.is_null(kind)):
        raise ConfigError(
            f"fields: {name!r} is {type(field).__name__}, which can't be made of the column {source!r}, {kind}: "
            f"it must be {forms}"
        )
    return path


def type_at(kind: Kind, keys: Path) -> Kind | None:
    """The type of what is at keys of structs, of which there may be lists; None where there is no such key."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if not keys:
        return kind
    if _is_list(kind):
        inner = type_at(kind.value_type, keys)
        return None if inner is None else pa.list_(inner)
    if not pa.types.is_struct(kind) or kind.get_field_index(keys[0]) < 0:
        return None
    return type_at(kind.field(keys[0]).type, keys[1:])


def _is_list(kind: Kind) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def is_text(kind: Kind) -> bool:
    """Whether it is a type of strings."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind)) or str(kind) == "string_view"


def is_binary(kind: Kind) -> bool:
    """Whether it is a type of bytes."""
    known = pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
    return bool(known) or str(kind) == "binary_view"


def large(kind: Kind) -> Kind:
    """The type of the same texts, bytes or lists with offsets of 64 bits, so that a column of any size is one array; of
    what is encoded by a dictionary that of its values. Any other type is as it is."""
    if pa.types.is_dictionary(kind):
        return large(kind.value_type)
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(large(kind.value_type), kind.list_size)
    if _is_list(kind):
        return pa.large_list(large(kind.value_type))
    if is_text(kind):
        return pa.large_string()
    return pa.large_binary() if is_binary(kind) and not pa.types.is_fixed_size_binary(kind) else kind


def _is_number(kind: Kind) -> bool:
    types = pa.types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind))


def _is_file(kind: Kind) -> bool:
    """Bytes, a path, or a struct of one or both, as Hugging Face has it."""
    if not pa.types.is_struct(kind):
        return is_text(kind) or is_binary(kind)
    names = {kind.field(number).name for number in range(kind.num_fields)}
    return bool(names & {"bytes", "path"})


def _leaf(kind: Kind) -> Kind:
    while _is_list(kind):
        kind = kind.value_type
    return type_at(kind, ())


def _is_value(kind: Kind) -> bool:
    return _is_number(kind) or is_text(kind)


FORMS: tuple[tuple[Any, Callable[[Kind], bool], str], ...] = (
    (Image | Mask | Bytes, _is_file, "the bytes (binary), the path of a file (string), or a struct of bytes and path"),
    (Text, lambda kind: is_text(_leaf(kind)), "string, or lists of these with choose=True"),
    (Scalar, _is_value, "numbers, or names of classes (string)"),
    (
        Array,
        lambda kind: _is_value(_leaf(kind)) and not is_text(kind),
        "numbers, or lists of these or of names of classes. Text such as '[1, 2]' is not parsed: write lists, in "
        "JSON lines or Parquet; names of classes, one in a cell, are a Scalar",
    ),
    (Boxes | Points, lambda kind: _is_list(kind) and _is_number(_leaf(kind)), "lists of numbers"),
)


def cells(rows: pa.Table | pa.RecordBatch, path: Path) -> pa.Array:
    """Those of one column, or of what is at keys in it, as one array."""
    column = rows.column(path[0])
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    return _at(column, path[1:])


def _at(array: pa.Array, keys: Path) -> pa.Array:
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if not keys:
        return array
    if _is_list(array.type):
        return _mapped(array, lambda inner: _at(inner, keys))
    return _at(pc.struct_field(array, keys[0]), keys[1:])


def _mapped(array: pa.Array, change: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """Lists of what `change` makes of their values."""
    lists = _lists(array)
    mask = lists.is_null() if lists.null_count else None
    return pa.LargeListArray.from_arrays(lists.offsets, change(lists.values), mask=mask)


def _lists(array: pa.Array) -> pa.Array:
    """The same lists, of any length, from the start of their memory: a mask can't be put on others."""
    if array.offset:
        array = array.take(as_indices(np.arange(len(array))))
    return array.cast(pa.large_list(array.type.value_type))


def class_names(column: pa.Array | pa.ChunkedArray, where: str) -> list[str] | None:
    """The different texts in a column of names of classes, or of lists of these, sorted; None for numbers, which may be
    written as text.

    Raises DataError for some of both: the names that numbers would get are hardly what they say.
    """
    if not is_text(_leaf(column.type)):
        return None
    while _is_list(column.type):
        column = pc.list_flatten(column)
    names = sorted(pc.unique(column).drop_null().to_pylist())
    numbers = [name for name in names if WHOLE.fullmatch(name)]
    if numbers and len(numbers) < len(names):
        text = next(name for name in names if not WHOLE.fullmatch(name))
        raise DataError(
            f"{where} has numbers, such as {numbers[0]!r}, and names, such as {text!r}: mend what is wrong; where both "
            "are names of classes let all begin with a letter"
        )
    return None if numbers else names


def numbered(column: pa.Array, names: pa.Array) -> pa.Array:
    """Their numbers in the place of names of classes: int64; null for another name."""
    if _is_list(column.type):
        return _mapped(column, lambda inner: numbered(inner, names))
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return pc.index_in(column.cast(names.type), value_set=names).cast(pa.int64())


def values(field: Field, column: pa.Array, read: Read) -> Any:
    """The column of a batch. Raises BadCellError for the first cell of which none can be made."""
    if isinstance(field, Image):
        return Images(files(column, read))
    if isinstance(field, Mask):
        return [MISSING if data is None else data for data in files(column, read)]
    if isinstance(field, Bytes):
        return [MISSING if data is None else data.tobytes() for data in files(column, read)]
    if (isinstance(field, Text) and is_text(column.type)) or pa.types.is_null(column.type):
        return [MISSING if text is None else text for text in column.to_pylist()]
    if pa.types.is_decimal(column.type):
        column = _of_decimals(column)
    if is_text(_leaf(column.type)) and not isinstance(field, Text):
        column = _numbers(column)
    whole = None if column.null_count or _is_list(column.type) else _whole(column)
    return as_column(field, _each(field, column)) if whole is None else whole


def whole_decimals(column: pa.Array) -> pa.Array | None:
    """Decimals as int64; None where some are no whole numbers, or too large for that."""
    if column.type.bit_width < 128:  # of 32 bits Arrow makes no integers
        column = column.cast(pa.decimal128(38, column.type.scale))
    try:
        return column.cast(pa.int64())
    except pa.ArrowInvalid:
        return None


def _of_decimals(column: pa.Array) -> pa.Array:
    """int64 of a type without fractions, else float64. Raises BadCellError for the first beyond int64."""
    if column.type.scale > 0:
        return column.cast(pa.float64())
    whole = whole_decimals(column)
    if whole is None:
        _refuse_large(column.to_pylist())
    return whole


def _refuse_large(numbers: Sequence[Decimal | None]) -> None:
    """Raise BadCellError for the first that has no place in int64."""
    for row, number in enumerate(numbers):
        try:
            as_int64(int(number or 0))
        except ValueError as error:
            raise BadCellError(row, str(error)) from error


def _numbers(column: pa.Array) -> pa.Array:
    """Of whole numbers that are written as text."""
    return _mapped(column, _numbers) if _is_list(column.type) else column.cast(pa.int64())


def files(column: pa.Array, read: Read) -> list[Encoded | None]:
    """The bytes that cells hold, or whose path they hold; None for null."""
    if pa.types.is_struct(column.type):
        return _files_of_structs(column, read)
    if is_text(column.type):
        return [None if path is None else read(row, path) for row, path in enumerate(column.to_pylist())]
    if not is_binary(column.type):  # all null
        return [None] * len(column)
    column = column.cast(pa.large_binary())
    _, offsets, data = column.buffers()
    if data is None:
        return [None if null else np.empty(0, np.uint8) for null in column.is_null().to_pylist()]
    starts = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1].tolist()
    everything = np.frombuffer(data, np.uint8)
    found: list[Encoded | None] = [everything[start:end] for start, end in itertools.pairwise(starts)]
    if column.null_count:
        found = [None if null else one for null, one in zip(column.is_null().to_pylist(), found, strict=True)]
    return found


def _files_of_structs(column: pa.Array, read: Read) -> list[Encoded | None]:
    """The bytes of each where it has some, else the file at its path."""
    nulls = pa.nulls(len(column))
    parts = {
        name: pc.struct_field(column, name) if column.type.get_field_index(name) >= 0 else nulls
        for name in ("bytes", "path")
    }
    found, paths = files(parts["bytes"], read), parts["path"].to_pylist()
    for row, null in enumerate(column.is_null().to_pylist()):
        if not null and found[row] is None:
            if paths[row] is None:
                raise BadCellError(row, "has neither bytes nor path")
            found[row] = read(row, paths[row])
    return found


def paths_of(column: pa.Array) -> pa.Array | None:
    """The paths that cells of files hold, null for one that has its bytes; None for a column without any."""
    if pa.types.is_struct(column.type) and column.type.get_field_index("path") >= 0:
        paths = pc.struct_field(column, "path")
        if column.type.get_field_index("bytes") >= 0:
            paths = pc.if_else(pc.is_null(pc.struct_field(column, "bytes")), paths, None)
        return paths_of(paths)
    return column.cast(pa.large_string()) if is_text(column.type) else None


def _whole(column: pa.Array) -> NDArray[Any] | None:
    """Numbers, integers as int64; None where some are too large for that."""
    return in_int64(as_numpy(column).copy())  # as Arrow's memory can't be written to


def as_numpy(column: pa.Array) -> NDArray[Any]:
    """Numbers, or times, without nulls. Pyarrow's own way imports pandas where it can, 0.3 s in each process."""
    begin, end = column.offset, column.offset + len(column)
    data = (column.buffers()[1] if len(column) else None) or b""
    if pa.types.is_boolean(column.type):
        return np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")[begin:end].astype(np.bool_)
    is_number = _is_number(column.type)
    dtype = np.dtype(column.type.to_pandas_dtype() if is_number else f"V{column.type.bit_width // 8}")
    return np.frombuffer(data, dtype, end if len(column) else 0)[begin:end]


def as_indices(indices: NDArray[np.int64]) -> pa.Array:
    """As Arrow takes them, likewise without pandas."""
    return pa.Array.from_buffers(pa.int64(), len(indices), [None, pa.py_buffer(np.ascontiguousarray(indices))])


def _each(field: Field, column: pa.Array) -> list[Any]:
    made = []
    for row, value in enumerate(_python(column)):
        try:
            made.append(MISSING if value is None else as_array(field, value))
        except (ValueError, TypeError, OverflowError) as error:
            raise BadCellError(row, str(error)) from error
    return made


def _python(column: pa.Array) -> Sequence[Any]:
    """Lists of numbers as arrays, everything else as Python has it."""
    if not _is_list(column.type) or not _is_number(column.type.value_type):
        return column.to_pylist()  # type: ignore[no-any-return]
    lists = _lists(column)
    if lists.values.null_count or pa.types.is_decimal(lists.values.type):
        return lists.to_pylist()  # type: ignore[no-any-return]
    flat = as_numpy(lists.values).copy()
    offsets = as_numpy(lists.offsets).tolist()
    arrays = [flat[start:end] for start, end in itertools.pairwise(offsets)]
    if not lists.null_count:
        return arrays
    return [None if null else one for null, one in zip(lists.is_null().to_pylist(), arrays, strict=True)]
