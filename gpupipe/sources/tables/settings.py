"""What users write about a table, beyond a path. Nothing here needs pyarrow."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpupipe.errors import ConfigError
from gpupipe.sources.patterns import is_url
from gpupipe.sources.remote.objects import is_remote, shown

__all__ = ["Manifest", "Query", "check_names"]

# What may have an ORDER BY of its own, or the words: comments, quoted texts and names, what is in parentheses.
COMMENTS = re.compile(r"--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"", re.DOTALL)
INNER = re.compile(r"\([^()]*\)")
ORDERED = re.compile(r"\border\s+by\b", re.IGNORECASE)


@dataclass(frozen=True)
class Manifest:
    """A file that lists samples, a row each: JSON lines (.jsonl, .ndjson), TSV, or else CSV. Where there is nothing to
    say but its path, or URL, that alone does. Parquet that lists samples is opened as other Parquet is: see `Parquet`.

    root:      the folder of relative paths, or its URL; None: the one that the file lies in. Cells may be URLs, too.
    columns:   the names of a CSV file's columns where its first line has none.
    delimiter: between the columns of a CSV file; None: a tab in .tsv, else a comma.
    encoding:  of a CSV file.
    classes:   the names of the classes in the order of their numbers, for the field `label`; None: those that come,
               sorted. Pass `train.classes` for the data that the model is evaluated on, which may lack some.
    """

    path: str | os.PathLike[str]
    root: str | os.PathLike[str] | None = None
    columns: Sequence[str] | None = None
    delimiter: str | None = None
    encoding: str = "utf-8"
    classes: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if is_url(os.fspath(self.path)) and not is_remote(os.fspath(self.path)):
            raise ConfigError(f"Manifest: {self.path!r} is a command or a URL of no storage; pass a path or a URL")
        if os.fspath(self.path).lower().endswith(".parquet"):
            path = shown(os.fspath(self.path))
            raise ConfigError(f"Manifest: {path!r} is Parquet: pass gpupipe.Parquet({path!r}, root=...)")
        if self.delimiter is not None and len(self.delimiter) != 1:
            raise ConfigError(f"Manifest: delimiter={self.delimiter!r} must be one character")
        check_names("Manifest", "columns", self.columns)
        check_names("Manifest", "classes", self.classes)


@dataclass(frozen=True)
class Query:
    """Samples that are the rows of a query, run once when the data is opened.

    connection: a SQLAlchemy URL, or a connection that is open, by any DB-API driver or by ADBC.
    text:       the query, in the words of the database. It has to say the order, by ORDER BY at its end, over columns
                that no two rows share: without, a database may give another one each time.
    parameters: for what stands for values in the text, in the style of the driver; they go to it as they are.
    root:       the folder of relative paths in the rows, or its URL; None: the current one.
    classes:    as of a `Manifest`.
    """

    connection: Any = field(repr=False)  # it may hold a password
    text: str
    parameters: Sequence[Any] | Mapping[str, Any] = field(default=(), repr=False)
    root: str | os.PathLike[str] | None = None
    classes: Sequence[str] | None = None

    def __post_init__(self) -> None:
        check_names("Query", "classes", self.classes)
        outer, inner = COMMENTS.sub(" ", self.text), ""
        while inner != outer:
            inner, outer = outer, INNER.sub(" ", outer)
        if not ORDERED.search(outer):
            raise ConfigError(
                f"Query: {self.text!r} has no ORDER BY, so the rows may come in another order each time: end it with "
                "ORDER BY over columns that no two rows share, such as the primary key"
            )


def check_names(kind: str, name: str, names: Sequence[str] | None) -> None:
    """Raise ConfigError for a setting of `kind` that is to list names, unless it is None or lists different ones."""
    if names is None:
        return
    if isinstance(names, str) or not names or not all(isinstance(one, str) for one in names):
        raise ConfigError(f"{kind}: {name}={names!r} must be a list of one or more names")
    if len(set(names)) < len(names):
        raise ConfigError(f"{kind}: {name} has one name twice: {next(one for one in names if names.count(one) > 1)!r}")
