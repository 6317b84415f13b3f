"""Where in a file of the destination each field goes, in which form, and the schema by which it is found there."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields as settings_of, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.batch import (
    MISSING,
    Array,
    Boxes,
    Bytes,
    Field,
    Image,
    Images,
    Index,
    Key,
    Mask,
    Points,
    Scalar,
    Schema,
    Text,
)
from gpupipe.batch.columns import Columns, array_of
from gpupipe.batch.stored import schema_from_json, schema_to_json
from gpupipe.errors import ConfigError
from gpupipe.tools.packing.images import EXTENSIONS, png_of_pixels

__all__ = ["Layout", "Part", "Stored", "digest", "laid_out", "stored"]

Stored = bytes | str | NDArray[Any]
"""A field's value as a file of any format holds it: of images and masks the encoded file."""

NAME = re.compile(r"[^a-z0-9_-]+")
NAME_LENGTH = 20  # with the sample's name before it below the 100 bytes of a plain tar header
AS_PYTHON_HAS = ("int64", "float64")


@dataclass(frozen=True)
class Part:
    """How a field is stored.

    form:  "file" (of an image or a mask), "text", "bytes" or "numbers".
    place: the column; in shards the member's extension, or what stands before that of a file.
    dtype, sides: of numbers; 0 sides are one number.
    """

    form: str
    place: str
    dtype: str = ""
    sides: int = 0


@dataclass(frozen=True)
class Layout:
    """`parts` by the fields that are stored; `fields`: the schema of what is written."""

    fields: Schema
    parts: dict[str, Part]

    def to_json(self) -> dict[str, Any]:
        """As a plan has it."""
        usual = list(self.fields.items()) == list(Schema.of(None).items())
        parts = {name: asdict(part) for name, part in self.parts.items()}
        return {"fields": None if usual else schema_to_json(self.fields), "parts": parts}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Layout:
        """As it was. Raises what Python raises for another document."""
        fields = document["fields"]
        schema = Schema.of(None if fields is None else schema_from_json(fields))
        return cls(schema, {name: Part(**part) for name, part in document["parts"].items()})


def laid_out(schema: Schema, to: str, samples: Iterable[Columns]) -> Layout:
    """The layout for a source's fields, by some of its samples, which tell the numbers' dtypes and sides.

    Raises ConfigError for what the destination can't hold.
    """
    rows = list(samples)
    own = {name: field for name, field in schema.items() if not isinstance(field, Index)}
    parts = {name: _part(name, field, [row[name] for row in rows]) for name, field in own.items()}
    if to == "shards":
        parts = _members(schema, parts)
    elif "complex" in " ".join(part.dtype for part in parts.values()):
        raise ConfigError(f"to={to!r}: Parquet has no complex numbers; pack to shards")
    return Layout(Schema({name: _field(name, field, parts.get(name), to) for name, field in schema.items()}), parts)


def _part(name: str, field: Field, columns: list[Any]) -> Part:
    """With its own name as the place."""
    if isinstance(field, Image | Mask):
        return Part("file", name)
    if isinstance(field, Boxes | Points):
        return Part("numbers", name, "float64", 2)
    if isinstance(field, Array):
        arrays = [array_of(column[0]) for column in columns if column[0] is not MISSING] or [np.zeros(0, np.int64)]
        dtype = np.result_type(*(array.dtype for array in arrays))
        return Part("numbers", name, str(dtype), 0 if isinstance(field, Scalar) else max(one.ndim for one in arrays))
    return Part("bytes" if isinstance(field, Bytes) else "text", name)


def _members(schema: Schema, parts: dict[str, Part]) -> dict[str, Part]:
    """With members' extensions: a field that is alone of its kind has the usual one, others their names before it."""
    texts = [name for name, part in parts.items() if part.form == "text" and not isinstance(schema[name], Key)]
    placed: dict[str, Part] = {}
    for name, part in parts.items():
        plain = _unused(NAME.sub("_", name.lower())[:NAME_LENGTH] or "field", placed.values())
        if part.form == "file":
            place = "" if schema.images == (name,) else plain
        elif part.form == "text":
            place = "json" if isinstance(schema[name], Key) else "txt" if texts == [name] else f"{plain}.txt"
        elif part.form == "bytes":
            place = f"{plain}.bin"
        else:
            place = _place_of_numbers(name, part, schema, plain)
        placed[name] = replace(part, place=place)
    return placed


def _unused(name: str, others: Iterable[Part]) -> str:
    taken = {other.place.partition(".")[0] for other in others}
    return name if name not in taken else _unused(f"{name}_", others)


def _place_of_numbers(name: str, part: Part, schema: Schema, plain: str) -> str:
    """What people write as text is in one .json of the sample, arrays are in files of NumPy's."""
    if name == "label" and _is_class_number(schema[name], part):
        return "cls"
    textual = isinstance(schema[name], Scalar | Boxes | Points) or (name in schema.labels and part.sides == 1)
    return "json" if (textual or not part.sides) and "complex" not in part.dtype else f"{plain}.npy"


def _is_class_number(field: Field, part: Part) -> bool:
    return not part.sides and np.dtype(part.dtype).kind in "iu" and field.missing == "error"


def _field(name: str, field: Field, part: Part | None, to: str) -> Field:
    """The field of what is written."""
    if part is None:
        return field
    own: dict[str, Any] = {"folder": None, "suffix": None, "source": _source(name, field, part, to)}
    if isinstance(field, Array) and field.dtype is None and part.dtype not in AS_PYTHON_HAS:
        own["dtype"] = part.dtype
    if name == "label" and isinstance(field, Array) and _is_class_number(field, part):
        given = {one.name: getattr(field, one.name) for one in settings_of(field)}
        return Scalar(**given | own)  # as class numbers are in shards, whose tuple is the same
    if isinstance(field, Key):
        return Text(own["source"], collate=field.collate)
    return replace(field, **own)


def _source(name: str, field: Field, part: Part, to: str) -> str | None:
    if to != "shards" or part.place == "cls" or (part.place == "" and name == "image" and isinstance(field, Image)):
        return None
    if part.form != "file":
        return f"json:{name}" if part.place == "json" else part.place
    return ";".join(f"{part.place}.{kind}" if part.place else kind for kind in EXTENSIONS)


def stored(layout: Layout, columns: Columns, row: int = 0) -> dict[str, Stored]:
    """The values of one of a source's samples by field, without those that it lacks.

    Raises ValueError, which says of which field and why, for one that has no place in the layout.
    """
    values = {}
    for name, part in layout.parts.items():
        column = columns[name]
        value = column.data[row] if isinstance(column, Images) else column[row]
        if value is not None and value is not MISSING:
            try:
                values[name] = _stored(part, value)
            except (ValueError, TypeError) as error:
                raise ValueError(f"its field {name!r}: {error}") from error
    return values


def _stored(part: Part, value: Any) -> Stored:
    if part.form == "file":
        return value.tobytes() if value.ndim == 1 else png_of_pixels(value)
    if part.form != "numbers":
        return value  # type: ignore[no-any-return]
    array = array_of(value)
    typed: NDArray[Any] = array.astype(part.dtype)
    if array.size and (array.ndim != part.sides or not np.array_equal(typed, array, equal_nan=True)):
        raise ValueError(
            f"it is {array.dtype} of {array.ndim} sides, {array.reshape(-1)[:4]}, where other samples have "
            f"{part.dtype} of {part.sides}; give all of them one form in the source"
        )
    return typed


def digest(values: Mapping[str, Stored]) -> bytes:
    """SHA-256 over the values of a sample; of an array without entries its shape does not count, as lists have none."""
    made = hashlib.sha256()
    for name, value in values.items():
        if isinstance(value, np.ndarray):
            data = np.ascontiguousarray(value).tobytes()
            name += f" {value.dtype} {value.shape if value.size else ''}"
        else:
            data = value.encode() if isinstance(value, str) else value
        made.update(f"{name} {len(data)} ".encode())
        made.update(data)
    return made.digest()
