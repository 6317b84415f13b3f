"""How names of classes are numbered: as they are sorted, or as `classes=` lists them. The log says how."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest

import pyarrow as pa

from gpupipe.errors import ConfigError, DataError
from gpupipe.sources.tables.columns import class_names

__all__ = ["numberings", "tell_of_numberings"]

log = logging.getLogger("gpupipe")

MOST_NAMED = 5


def numberings(
    columns: Iterable[tuple[str, pa.Array]],
    where: str,
    classes: Sequence[str] | None = None,
    noted: Sequence[str] | None = None,
) -> dict[str, list[str]]:
    """By field, of those of these columns that hold names of classes, the names in the order of their numbers.

    where: what the table is called. classes: the names of those of `label`, in that order; None: as they are sorted.
    noted: the names that its numbers have already, if it is of numbers.

    Raises ConfigError for `classes` that name none, or others than are noted, DataError for names that they lack, or
    among which are numbers.
    """
    names = {}
    for name, column in columns:
        found = class_names(column, f"{where}: {name!r}")
        if found is not None:
            names[name] = _checked(found, classes if name == "label" else None, where)
    if classes is not None and "label" not in names:
        _check_noted(classes, noted, where)
    return names


def _check_noted(classes: Sequence[str], noted: Sequence[str] | None, where: str) -> None:
    """Raise ConfigError unless these are the names that a label's numbers have."""
    if noted is None:
        raise ConfigError(f"{where}: classes= numbers the names of classes of the field 'label', which has none")
    if list(classes) != list(noted):
        own, given = next(pair for pair in zip_longest(noted, classes) if pair[0] != pair[1])
        raise ConfigError(
            f"{where}: 'label' has class numbers, whose names as they are noted there differ from classes= at {own!r} "
            f"and {given!r}: one label would mean two things; write the file with datasets.ClassLabel(names=classes), "
            "by cast_column of the column of names"
        )


def _checked(names: list[str], classes: Sequence[str] | None, where: str) -> list[str]:
    """The names in the order of their numbers. Raises DataError for one that has none."""
    unknown = sorted(set(names) - set(classes or names))
    if unknown:
        raise DataError(f"{where}: {unknown[:MOST_NAMED]} are not among the {len(classes or ())} names of classes=")
    return list(classes or names)


def tell_of_numberings(names: Mapping[str, Sequence[str]], where: str) -> None:
    """Into the log, as names that are numbered by themselves get other numbers where some are lacking."""
    for name, some in names.items():
        listed = ", ".join(f"{one!r} is {number}" for number, one in enumerate(some[:MOST_NAMED]))
        log.info("%s: %d classes of %r: %s, ...", where, len(some), name, listed)
