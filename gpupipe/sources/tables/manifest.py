"""Files that list samples: CSV, TSV, JSON lines."""

from __future__ import annotations

import glob
import json
import os
import re
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.json

from gpupipe.batch import Bytes, Image, Mask, Schema, Text
from gpupipe.errors import ConfigError, DataError
from gpupipe.host.cache import digest
from gpupipe.host.files import open_regular
from gpupipe.sources.building import BuiltIndex, load_or_build
from gpupipe.sources.reading import Stamp
from gpupipe.sources.remote.copies import copied, object_at
from gpupipe.sources.remote.objects import is_remote, parent, shown
from gpupipe.sources.remote.once import private_folder
from gpupipe.sources.tables.faults import (
    SHOWN,
    check_integers,
    check_json_integers,
    check_quotes,
    check_texts,
    first_clash,
    first_wrong,
    looks_like_data,
)
from gpupipe.sources.tables.rows import root_of
from gpupipe.sources.tables.settings import Manifest
from gpupipe.sources.tables.table import TableSource, frozen

__all__ = ["open_manifest"]

# Types of columns are found in the first block: in the whole file, where it is not larger.
LEAST_BLOCK, MOST_BLOCK = 1 << 20, 1 << 30

# pyarrow ends the process where JSON is nested some ten thousand deep.
MOST_NESTED = 1000
STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
BEFORE = b"\xef\xbb\xbf \t\r\n"  # of a line's content: a mark of the encoding, and space
BRACKET = re.compile(rb"[\[\]{}]")


def open_manifest(manifest: Manifest, fields: Schema, *, rebuild: bool = False) -> TableSource:
    """The source for a manifest, which is read once and again when it was changed or replaced.

    Raises DataError where it is missing, damaged or has no rows, ConfigError for a field that it has no column for.
    """
    if is_remote(os.fspath(manifest.path)):
        return _open_remote(manifest, os.fspath(manifest.path), fields, rebuild)
    path = Path(manifest.path).expanduser().absolute()
    root = root_of(manifest.root, path.parent, str(path))
    try:
        stamp = _stamp(path)
    except OSError as error:
        is_pattern = glob.has_magic(path.name)
        remedy = (
            "a table is one file, not a pattern: pass several as a Mixture, or join them"
            if is_pattern
            else "check the path"
        )
        raise DataError(f"{path} can't be read: {error.strerror}; {remedy}") from error
    index = load_or_build(
        path.parent,
        _index_name(manifest, path.name, fields),
        arrays={"table"},
        stale=lambda info, is_in_place: (
            "" if Stamp.noted(info["stamp"], is_in_place).is_of(stamp) else f"{path} was changed"
        ),
        build=lambda: _built(manifest, path, fields, stamp),
        rebuild=rebuild,
        beside=False,
    )
    return TableSource(str(path), root, index, fields)


def _index_name(manifest: Manifest, name: str, fields: Schema) -> str:
    asked = [[name, type(field).__name__, field.source] for name, field in fields.items()]
    how = [manifest.columns and list(manifest.columns), manifest.delimiter, manifest.encoding]
    return f"{name}-{digest([asked, how, manifest.classes and list(manifest.classes)])}"


def _open_remote(manifest: Manifest, url: str, fields: Schema, rebuild: bool) -> TableSource:
    """The same of a file in a storage, which is copied to be read."""
    where, root, one = shown(url), root_of(manifest.root, parent(url), shown(url)), object_at(url)
    stamp = [one.size, one.etag]

    def build() -> BuiltIndex:
        with copied(one) as path:
            try:
                return _built(manifest, path, fields, _stamp(path), stamp, where)
            except (DataError, ConfigError) as error:
                raise type(error)(str(error).replace(str(path), where)) from error

    folder = private_folder(digest(where))
    index = load_or_build(
        folder,
        _index_name(manifest, "table", fields),
        arrays={"table"},
        stale=lambda info, _: "" if info["stamp"] == stamp and one.etag else f"{where} was changed",
        build=build,
        rebuild=rebuild,
    )
    return TableSource(where, root, index, fields)


def _stamp(path: Path) -> Stamp:
    with open(open_regular(path), "rb") as file:
        return Stamp.of(file.fileno())


def _built(
    manifest: Manifest, path: Path, fields: Schema, stamp: Stamp, noted: list[Any] | None = None, named: str = ""
) -> BuiltIndex:
    """noted: what stands for the table in the index, if not the file's stamp. named: what the log calls it."""
    read = {".jsonl": _json_lines, ".ndjson": _json_lines}.get(path.suffix.lower(), _csv)
    table = read(manifest, path, fields)
    if _stamp(path) != stamp:
        raise DataError(f"{path} was changed while it was read; open it again when it is whole")
    try:
        return frozen(table, fields, named or str(path), manifest.classes, stamp=list(noted or stamp))
    except ConfigError as error:
        root = path.parent if manifest.root is None else Path(manifest.root).expanduser()
        if read is _csv and manifest.columns is None and looks_like_data(table.column_names, root):
            columns = ", ".join(f"'column_{number}'" for number in range(table.num_columns))
            raise ConfigError(
                f"{path} has {table.column_names} in its first line, which look like a sample, not like names of "
                f"columns: pass gpupipe.Manifest({str(path)!r}, columns=[{columns}]) with names of yours ({error})"
            ) from error
        raise


def _texts(fields: Schema) -> dict[str, Any]:
    """Columns that hold texts, whatever those look like."""
    kinds = (Text, Image, Mask, Bytes)
    return {str(field.source or name): pa.string() for name, field in fields.items() if isinstance(field, kinds)}


def _block(path: Path) -> int:
    return min(max(path.stat().st_size + 1, LEAST_BLOCK), MOST_BLOCK)


def _csv(manifest: Manifest, path: Path, fields: Schema) -> pa.Table:
    wrong: list[Any] = []

    def refuse(row: Any) -> str:
        wrong.append(row)
        return "error"

    delimiter = manifest.delimiter or ("\t" if path.suffix.lower() == ".tsv" else ",")
    try:
        check_quotes(path, delimiter, manifest.encoding)
        table = pa.csv.read_csv(
            path,
            pa.csv.ReadOptions(
                use_threads=False,  # with threads it can't number the lines
                block_size=_block(path),
                column_names=manifest.columns and list(manifest.columns),
                encoding=manifest.encoding,
            ),
            pa.csv.ParseOptions(
                delimiter=delimiter,
                newlines_in_values=True,
                invalid_row_handler=refuse,
            ),
            # Only nothing at all is a null: NA and null may be names.
            pa.csv.ConvertOptions(
                column_types=_texts(fields),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
        names = table.column_names  # which are decoded now
    except DataError:
        raise
    except (pa.ArrowException, OSError, ValueError, LookupError) as error:
        if wrong:
            row = wrong[0]
            raise DataError(
                f"{path} line {row.number} has {row.actual_columns} columns where the first has "
                f"{row.expected_columns}: {row.text[:SHOWN]!r}; quote what has a delimiter in it"
            ) from None  # pyarrow's message has the line as it is
        check_texts(path, manifest.encoding, error)
        raise DataError(
            f"{path} can't be read as CSV: {error}; for another delimiter or encoding, or without names in the "
            "first line, pass gpupipe.Manifest(path, delimiter=, encoding=, columns=)"
        ) from None
    sources = {str(field.source or name) for name, field in fields.items()}
    asked = [name for name in names if name in sources and names.count(name) == 1]
    if any(pa.types.is_binary(table.schema.field(name).type) for name in asked):
        check_texts(path, manifest.encoding, "its texts are not in that encoding")
    check_integers(table, asked, path, delimiter, manifest.encoding)
    return table


def _json_lines(_: Manifest, path: Path, fields: Schema) -> pa.Table:
    _check_lines(path)
    texts = [(name, kind) for name, kind in _texts(fields).items() if "." not in name]
    failed: Exception | None = None
    for known in (texts, []):  # with none of them: where they are no texts, their types are told
        try:
            table = pa.json.read_json(
                path,
                pa.json.ReadOptions(use_threads=False, block_size=_block(path)),
                pa.json.ParseOptions(explicit_schema=pa.schema(known), unexpected_field_behavior="infer"),
            )
            names = table.column_names  # which are decoded now
            break
        except (pa.ArrowException, OSError, ValueError) as error:
            failed = error
    else:
        where = first_wrong(path, json.loads) or first_clash(path)
        raise DataError(f"{path}{where} can't be read as JSON lines: {failed}")
    sources = {source for name, field in fields.items() for source in _paths(str(field.source or name))}
    check_json_integers(table, [name for name in names if name in sources], path)
    return table


def _paths(source: str) -> tuple[str, str]:
    """What a source may name: a column, or what is in one."""
    return source, source.partition(".")[0]


def _check_lines(path: Path) -> None:
    """Raise DataError for a line that is nested too deeply, or is null, of which pyarrow's reader dies."""
    with open(open_regular(path), "rb") as file:
        for number, line in enumerate(file, start=1):
            if line.lstrip(BEFORE).startswith(b"null"):
                raise DataError(f"{path} line {number} is null, where an object is to be: {line[:SHOWN]!r}")
            if line.count(b"[") + line.count(b"{") > MOST_NESTED and _nested(line) > MOST_NESTED:
                raise DataError(f"{path} line {number} can't be read: its JSON is nested more than {MOST_NESTED} deep")


def _nested(line: bytes) -> int:
    """How deep."""
    steps = (1 if bracket in b"[{" else -1 for bracket in BRACKET.findall(STRING.sub(b"", line)))
    return max(accumulate(steps), default=0)
