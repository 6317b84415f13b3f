"""Samples out of a database: the rows of a query, which is run once."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import repeat
from typing import Any

import pyarrow as pa

from gpupipe.batch import Schema
from gpupipe.errors import ConfigError, DataError, GpupipeError
from gpupipe.host.cache import cache_folder, digest
from gpupipe.host.files import private
from gpupipe.sources.building import load_or_build
from gpupipe.sources.needing import library
from gpupipe.sources.tables.rows import root_of
from gpupipe.sources.tables.settings import Query
from gpupipe.sources.tables.table import TableSource, frozen

__all__ = ["open_query"]

ROWS = 20_000  # fetched at a time, and made a part of the table
SECRET = re.compile("pass|pwd|token|secret|key|connect", re.IGNORECASE)


def open_query(query: Query, fields: Schema) -> TableSource:
    """The source for a query: its rows as they are now, kept under the hash of their content.

    Raises DataError where it can't be run, or gives no rows, ConfigError for a field that it has no column for.
    """
    root = root_of(query.root, ".", "the query's rows")
    if isinstance(query.connection, str) or type(query.connection).__name__ == "URL":
        where, table = _by_url(query, fields)
    elif not callable(getattr(query.connection, "cursor", None)):
        raise ConfigError(
            f"Query: connection is {type(query.connection).__name__}: pass a SQLAlchemy URL, or a connection of a "
            "DB-API driver or of ADBC; of a SQLAlchemy engine it is engine.raw_connection()"
        )
    else:
        where = f"query by {type(query.connection).__module__.partition('.')[0]}"
        with _failing(where, ()):
            table = _by_connection(query.connection, query, fields)
    built = frozen(table, fields, where, query.classes)
    folder = private(cache_folder())
    name = f"query-{built.fingerprint}-{digest(built.info)}"
    index = load_or_build(folder, name, arrays={"table"}, stale=lambda *_: "", build=lambda: built, beside=False)
    return TableSource(where, root, index, fields)


def _by_url(query: Query, fields: Schema) -> tuple[str, pa.Table]:
    sql = library("sqlalchemy", "tables")
    try:
        url = sql.make_url(query.connection)
        engine = sql.create_engine(url)
    except Exception as error:  # of what is no URL, or of a driver that is not installed; the URL is not told
        missing = isinstance(error, ImportError)
        remedy = f"{error}; install its driver" if missing else "write it as sqlite:///photos.db"
        raise ConfigError(f"Query: {type(error).__name__} of the connection's URL: {remedy}") from None
    where = f"query of {url.get_backend_name()} {'/'.join(filter(None, (url.host, url.database)))}"
    file = url.database if url.get_backend_name() == "sqlite" else None
    if file and file != ":memory:" and not file.startswith("file:") and not os.path.isfile(file):
        raise DataError(
            f"{where}: no file at {os.path.abspath(file)}, and SQLite would make an empty one: check the path"
        )
    secrets = [url.password, *(value for key, value in url.query.items() if SECRET.search(key))]
    try:
        with _failing(where, secrets), closing(engine.raw_connection()) as connection:
            return where, _by_connection(connection, query, fields)
    finally:
        engine.dispose()


@contextmanager
def _failing(where: str, secrets: Sequence[Any]) -> Iterator[None]:
    """Whatever the driver raises is a DataError, without the password."""
    try:
        yield
    except GpupipeError:
        raise
    except Exception as error:
        text = " ".join(str(getattr(error, "orig", None) or error).split())
        for secret in filter(None, map(str, secrets)):
            text = text.replace(secret, "***")
        raise DataError(
            f"{where} failed: {type(error).__name__}: {text}; nothing was kept of it: check the database, then open it "
            "again"
        ) from None


def _by_connection(connection: Any, query: Query, fields: Schema) -> pa.Table:
    with closing(connection.cursor()) as cursor:
        cursor.execute(query.text, *([query.parameters] if query.parameters else []))
        if hasattr(cursor, "fetch_arrow_table"):  # of ADBC and DuckDB
            return cursor.fetch_arrow_table()
        if cursor.description is None:
            raise DataError(f"the query {query.text!r} gives no rows: it must be a SELECT")
        names = [column[0] for column in cursor.description]
        asked = _asked(names, fields)
        parts = [_part(names, asked, ())]
        while rows := cursor.fetchmany(ROWS):
            parts.append(_part(names, asked, rows))
        return pa.concat_tables(parts, promote_options="permissive")


def _asked(names: Sequence[str], fields: Schema) -> set[str]:
    """The columns that fields may be in. Raises ConfigError for one that is there twice."""
    sources = {str(field.source or name) for name, field in fields.items()}
    asked = (sources | {source.partition(".")[0] for source in sources}) & set(names)
    for name in asked:
        if names.count(name) > 1:
            raise ConfigError(
                f"the query gives {names.count(name)} columns {name!r}; give each a name of its own, by AS"
            )
    return asked


def _part(names: Sequence[str], asked: set[str], rows: Sequence[Sequence[Any]]) -> pa.Table:
    """Some rows; other columns than the asked ones, of whose types Arrow may have none, are null."""
    columns = dict(zip(names, zip(*rows, strict=True) if rows else repeat(()), strict=False))
    arrays = {}
    for name, column in columns.items():
        try:
            arrays[name] = pa.array(map(_plain, column)) if name in asked and rows else pa.nulls(len(rows))
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise DataError(f"the query's column {name!r} has values of several types, or of none: {error}") from error
    return pa.table(arrays)


def _plain(value: Any) -> Any:
    return bytes(value) if isinstance(value, memoryview | bytearray) else value
