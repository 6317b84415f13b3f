"""In which array of those that are there a field is, and which one might be meant where its name is not among them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from gpupipe.batch import Boxes, Field, Image, Mask, Points, Scalar, Schema, Text
from gpupipe.errors import ConfigError, DataError
from gpupipe.sources.stores.rows import ArrayFile, Rows
from gpupipe.sources.wanted import is_own

__all__ = ["arrays_of", "element", "refuse_single", "told"]

MOST_TOLD = 12


def refuse_single(data: str | dict[str, str], there: Mapping[str, ArrayFile]) -> None:
    """Raise ConfigError for one array where images and labels are wanted."""
    if len(there) != 1 or not isinstance(data, str):
        return
    (array,) = there
    both = f"{{'image': {os.path.basename(data)!r}, 'label': 'labels.npy'}} with the labels' file, or "
    raise ConfigError(
        f"{data} holds a single array, {array!r}, so its images have no labels: pass "
        f"{both if data.endswith('.npy') else ''}fields={{'image': gpupipe.Image({array!r})}} for images alone"
    )


def arrays_of(fields: Schema, there: Mapping[str, ArrayFile]) -> dict[str, str]:
    """The arrays by their fields. Raises ConfigError, which shows what might be meant, where one is not there."""
    parts = {name: field for name, field in fields.items() if not is_own(name, field)}
    found = {name: _array_of(name, field, there) for name, field in parts.items()}
    lacking = next((name for name in parts if found[name] is None), "")
    if not lacking:
        return {name: array for name, array in found.items() if array is not None}
    known = _known(there, parts)
    meant = {name: found[name] or _meant(name, field, known) or "NAME" for name, field in parts.items()}
    shown = ", ".join(f"{name!r}: gpupipe.{type(parts[name]).__name__}({array!r})" for name, array in meant.items())
    raise ConfigError(
        f"fields: {lacking!r} is to be in the array {parts[lacking].source or lacking!r}, which is not there, but "
        f"{', '.join(f'{array} {told(rows)}' for array, rows in known) or 'none'}"
        f"{' ...' if len(there) > MOST_TOLD else ''}: name it, as fields={{{shown}}}"
    )


def _array_of(name: str, field: Field, there: Mapping[str, ArrayFile]) -> str | None:
    """The array of a field: under its source, or else its own name, or that with an s."""
    if isinstance(field.source, int) or field.folder is not None:
        raise ConfigError(f"fields: {name!r} is {field!r}, but arrays are found by their names; pass that as source")
    names = [name, f"{name}s"] if field.source is None else [field.source.strip("/")]
    return next((array for array in names if array in there), None)


def _meant(name: str, field: Field, known: Sequence[tuple[str, Rows]]) -> str:
    """The array that a field might be in: of those that fit, the first that is named like it, or else the first."""
    fitting = [array for array, rows in known if _fits(field, rows)]
    return min(fitting, key=lambda array: name not in array.rpartition("/")[2].lower(), default="")


def _fits(field: Field, rows: Rows) -> bool:
    kind, sides, varies = element(rows), len(rows.shape), _varies(rows)
    if isinstance(field, Image):
        return kind.kind == "V" or (kind == np.uint8 and (varies or sides == 3 or rows.shape[3:] in ((1,), (3,))))
    if isinstance(field, Boxes | Points):
        return kind.kind in "iuf" and (varies or rows.shape[2:] == (4 if isinstance(field, Boxes) else 2,))
    if isinstance(field, Mask):
        return kind.kind in "biu" and sides == 3
    if isinstance(field, Text):
        return kind.kind in "OUS"
    return not isinstance(field, Scalar) or (kind.kind in "biufOUS" and sides == 1 and not varies)


def _varies(rows: Rows) -> bool:
    """Whether its values are arrays of different lengths, as HDF5 has them."""
    metadata: Any = rows.dtype.metadata
    return metadata is not None and isinstance(metadata.get("vlen"), np.dtype)


def element(rows: Rows) -> np.dtype[Any]:
    """What its values consist of."""
    return rows.dtype.metadata["vlen"] if rows.dtype.metadata is not None and _varies(rows) else rows.dtype


def told(rows: Rows) -> str:
    """What an array is, for a message."""
    kind = "text" if element(rows).kind == "O" else str(element(rows))
    return f"{kind}{' of varying length' if _varies(rows) else ''} {rows.shape}"


def _known(there: Mapping[str, ArrayFile], fields: Iterable[str]) -> list[tuple[str, Rows]]:
    """What can be told, those first that are named like a field."""
    known = []
    for array in sorted(there, key=lambda array: not any(name in array.lower() for name in fields))[:MOST_TOLD]:
        try:
            known.append((array, there[array].rows(array)))
        except (DataError, ConfigError):
            continue
    return known
