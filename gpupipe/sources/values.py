"""From the bytes of a file, or what a JSON document in it has, to the value of a field. Nothing is ever unpickled."""

from __future__ import annotations

import io
import json
import math
import reprlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from gpupipe.batch import MISSING, Boxes, Bytes, Field, Points, Scalar, Text

__all__ = ["as_array", "as_int64", "as_value", "document", "within"]

MOST_TEXT = 64 << 20
"""Bytes of a text or a JSON document; an object of Python's takes some ten times as much."""

NUMBERS = "biufc"


def document(data: NDArray[np.uint8]) -> Any:
    """A JSON document. Raises ValueError."""
    try:
        return json.loads(_text(data))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its .json can't be parsed ({error})") from None


def within(record: Any, path: str) -> Any:
    """What a document has at dotted keys, of which numbers are places in lists; MISSING where it has not."""
    if isinstance(record, Mapping) and path in record:  # a key with dots in it
        return MISSING if record[path] is None else record[path]
    for key in path.split("."):
        if isinstance(record, Mapping) and key in record:
            record = record[key]
        elif isinstance(record, list | tuple) and key.isdecimal() and int(key) < len(record):
            record = record[int(key)]
        else:
            return MISSING
    return MISSING if record is None else record


def as_value(field: Field, data: NDArray[np.uint8]) -> Any:
    """The value of a field whose file this is: text, bytes, a number, an array (.npy, or lists in JSON).

    Raises ValueError where it is none.
    """
    if isinstance(field, Bytes):
        return data.tobytes()
    if isinstance(field, Text):
        return _text(data)
    if data[: len(npy.MAGIC_PREFIX)].tobytes() == npy.MAGIC_PREFIX:
        return as_array(field, _npy(data))
    return _number(_text(data)) if isinstance(field, Scalar) else as_array(field, document(data))


def as_array(field: Field, value: Any) -> Any:
    """What a document or a user has for the field: a text as it is, an integer for a Scalar, else an array.

    Raises ValueError for what is none, TypeError for text where numbers belong and the other way round.
    """
    if isinstance(field, Text):
        if not isinstance(value, str):
            raise TypeError(f"{_described(value)} is no text")
        return value
    if type(value) is int:
        return as_int64(value)
    array = np.asarray(value)
    if isinstance(field, Boxes | Points) and not array.size:
        return np.zeros((0, 4 if isinstance(field, Boxes) else 2), np.float32)  # of an empty list
    if array.dtype.kind not in NUMBERS:
        raise TypeError(f"{_described(value)} is no number and no array of numbers")
    return as_int64(int(array)) if not array.ndim and array.dtype.kind in "iu" else array


def _described(value: Any) -> str:
    return f"{type(value).__name__} ({reprlib.repr(value)})"


def as_int64(number: int) -> int:
    """The same number. Raises ValueError where it is too large."""
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"{reprlib.repr(number)} has no place in int64")
    return number


def _text(data: NDArray[np.uint8]) -> str:
    if len(data) > MOST_TEXT:
        raise ValueError(f"it has {len(data):,} bytes, more than the {MOST_TEXT:,} of a text or .json")
    return str(data.data, "utf-8")


def _number(text: str) -> int | float:
    for kind in (int, float):
        try:
            number = kind(text)
        except ValueError:
            continue
        return as_int64(number) if isinstance(number, int) else number
    raise ValueError(f"{text[:40]!r} is no number")


def _npy(data: NDArray[np.uint8]) -> NDArray[Any]:
    """The array of an .npy file. NumPy's own reader takes the memory that a header claims before it looks for it."""
    file = io.BytesIO(data[: 64 << 10].tobytes())
    try:
        version = npy.read_magic(file)
        read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[version]
        shape, columns_first, dtype = read(file)
    except Exception as error:  # of damaged headers NumPy raises TokenError and others, too
        raise ValueError(f"its .npy has a header that can't be read ({type(error).__name__}: {error})") from None
    if dtype.kind not in NUMBERS:
        raise ValueError(f"its .npy holds {dtype}, no numbers" + ", and pickles are never loaded" * dtype.hasobject)
    values, size = data[file.tell() :], math.prod(shape) * dtype.itemsize
    if len(values) != size:
        raise ValueError(f"its .npy has {len(values):,} bytes of values where its header says {size:,}")
    return np.frombuffer(bytearray(values.data), dtype).reshape(shape, order="F" if columns_first else "C")
