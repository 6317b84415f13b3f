"""What is wrong with a text file that lists samples, and in which line, where pyarrow doesn't say or see it."""

from __future__ import annotations

import csv
import json
import logging
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from gpupipe.errors import DataError
from gpupipe.host.files import open_regular
from gpupipe.sources.tables.columns import WHOLE

__all__ = [
    "SHOWN",
    "check_integers",
    "check_json_integers",
    "check_quotes",
    "check_texts",
    "first_clash",
    "first_wrong",
    "looks_like_data",
]

log = logging.getLogger("gpupipe")

SHOWN = 80
CHUNK = 1 << 20
KINDS = {str: "text", bool: "true or false", int: "a number", float: "a number", list: "a list", dict: "an object"}
REMEDY = 'close it, or write a quote that is part of a text twice ("a 5"" nail")'


def check_quotes(path: Path, delimiter: str, encoding: str) -> None:
    """Raise DataError for a quote that is not closed, as all rows up to the next quote would be one cell; of a cell
    whose lines look like rows the log says so. Python's own reader is asked, and only where there are quotes."""
    with open(open_regular(path), "rb") as file:
        if not any(b'"' in chunk for chunk in iter(lambda: file.read(CHUNK), b"")):
            return
    limit = csv.field_size_limit(1 << 30)
    try:
        for begin, end, cells, fault in _records(path, delimiter, encoding):
            inside = [line for cell in cells for line in cell.split("\n")[1:-1]] if end > begin else []
            if fault and (end > begin or "unexpected end" in fault):
                raise DataError(f"{path} line {begin}: a quote that is opened there is not closed; {REMEDY}")
            if inside and len(cells) > 1 and all(line.count(delimiter) == len(cells) - 1 for line in inside):
                log.warning(
                    "%s line %d: the lines up to %d are one cell, in quotes, and look like rows; if a quote is not "
                    "closed there, %s",
                    path,
                    begin,
                    end,
                    REMEDY,
                )
    finally:
        csv.field_size_limit(limit)


def _records(path: Path, delimiter: str, encoding: str) -> Iterator[tuple[int, int, list[str], str]]:
    """Of each record its first line and its last, counted from 1, its cells, and what is wrong with it."""
    known = "utf-8-sig" if encoding == "utf-8" else encoding  # a quote may follow the mark
    with open(path, encoding=known, errors="replace", newline="") as file:
        reader, end = csv.reader(file, delimiter=delimiter, strict=True), 0
        while True:
            begin, cells, fault = end + 1, [], ""
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                fault = str(error)
            end = reader.line_num
            yield begin, end, cells, fault


def check_texts(path: Path, encoding: str, error: object) -> None:
    """Raise DataError for the first line that is not in UTF-8, where that is the encoding."""
    where = first_wrong(path, lambda line: line.decode("utf-8")) if encoding == "utf-8" else ""
    if where:
        raise DataError(
            f"{path}{where} is not UTF-8, and can't be read as CSV: {error}; say what it is in, such as "
            f"gpupipe.Manifest({str(path)!r}, encoding='latin-1')"
        )


def check_integers(table: pa.Table, names: Sequence[str], path: Path, delimiter: str, encoding: str) -> None:
    """Raise DataError for a whole number beyond 64 bits, of which pyarrow makes a float."""
    for name in names:
        number = table.column_names.index(name)
        if not _has_large(table.column(name)):
            continue
        for begin, _, cells, _ in _records(path, delimiter, encoding):
            if number < len(cells) and WHOLE.fullmatch(cells[number]) and _is_too_large(cells[number]):
                raise _too_large(path, begin, name, cells[number])


def check_json_integers(table: pa.Table, names: Sequence[str], path: Path) -> None:
    """The same of JSON lines, also for numbers in lists and objects."""
    large = [name for name in names if _has_large(table.column(name))]
    if not large:
        return
    decoder = json.JSONDecoder(parse_int=lambda text: _Large(text) if _is_too_large(text) else int(text))
    with open(open_regular(path), encoding="utf-8-sig", errors="replace", newline="\n") as file:
        for number, line in enumerate(file, start=1):
            for record in _objects(decoder, line):
                for key, value in _leaves("", {name: record.get(name) for name in large}):
                    if isinstance(value, _Large):
                        raise _too_large(path, number, key, value)


class _Large(str):
    """A whole number beyond 64 bits, as it is written."""

    __slots__ = ()


def _objects(decoder: json.JSONDecoder, line: str) -> Iterator[dict[str, Any]]:
    """Those of a line, of which pyarrow takes several."""
    rest = line.strip()
    while rest:
        found, end = decoder.raw_decode(rest)
        yield found
        rest = rest[end:].lstrip()


def _has_large(column: Any) -> bool:
    """Whether there is a float in it in whose place a whole number beyond 64 bits may have been."""
    kind = column.type
    if pa.types.is_struct(kind):
        return any(_has_large(pc.struct_field(column, number)) for number in range(kind.num_fields))
    if pa.types.is_list(kind):
        return _has_large(pc.list_flatten(column))
    return pa.types.is_floating(kind) and (pc.max(pc.abs(column)).as_py() or 0) >= 2**63


def _too_large(path: Path, line: int, name: str, number: str) -> DataError:
    return DataError(
        f"{path} line {line}: {number[:SHOWN]!r} in the column {name!r} has no place in int64; "
        "write it as text with a letter, or as a float (1e20)"
    )


def _is_too_large(number: str) -> bool:
    """Whether a whole number has no place in int64; Python reads none of thousands of digits."""
    digits = number.lstrip("+-0")
    return len(digits) > len(str(2**63)) or int(digits or 0) > 2**63 - (number[0] != "-")


def looks_like_data(names: Sequence[str], root: Path) -> bool:
    """Whether one of these names of columns is a number, or the path of a file."""
    return any(_is_number(name) or _is_file(root / name) for name in names)


def _is_number(text: str) -> bool:
    with suppress(ValueError):
        return math.isfinite(float(text))
    return False


def _is_file(path: Path) -> bool:
    with suppress(ValueError, OSError):  # of what can be no path
        return os.path.isfile(path)
    return False


def first_wrong(path: Path, parse: Callable[[bytes], Any]) -> str:
    """Which line can't be parsed, for a message."""
    with open(open_regular(path), "rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                if line.strip():
                    parse(line)
            except (ValueError, RecursionError):
                return f" line {number} ({line[:SHOWN]!r})"
    return ""


def first_clash(path: Path) -> str:
    """Which line of JSON has a key twice, or at a key another type than the lines before, for a message."""
    seen: dict[str, tuple[str, int]] = {}
    with open(open_regular(path), "rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                record = json.loads(line, object_pairs_hook=_once) if line.strip() else None
            except RecursionError:
                continue
            except ValueError as error:
                return f" line {number}: {error};"
            for key, value in _leaves("", record):
                kind, first = seen.setdefault(key, (KINDS[type(value)], number))
                if kind != KINDS[type(value)]:
                    return (
                        f" line {number}: {key!r} is {KINDS[type(value)]} ({str(value)[:SHOWN]!r}), but {kind} in line "
                        f"{first}; write one type in all lines, so it"
                    )
    return ""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    for key in keys:
        if keys.count(key) > 1:
            raise ValueError(f"the key {key!r} is there twice; leave one out")
    return dict(pairs)


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Every value that is not null, and the keys that lead to it; what is in one list is under one."""
    if value is not None:
        yield path, value
    inner = (
        value.items() if isinstance(value, dict) else [("[]", one) for one in value] if isinstance(value, list) else ()
    )
    for key, one in inner:
        yield from _leaves(f"{path}.{key}" if path else key, one)
