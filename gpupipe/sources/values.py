"""From the bytes of a file, what a JSON document in it has, or what a user's dataset gives, to the value of a field as
columns have it. Nothing is ever unpickled."""

from __future__ import annotations

import io
import json
import math
import os
import reprlib
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import PIL.Image
from numpy.lib import format as npy
from numpy.typing import NDArray

from gpupipe.batch import MISSING, Array, Boxes, Bytes, Field, Frames, Image, Mask, Points, Scalar, Text
from gpupipe.batch.columns import array_of
from gpupipe.host.mapped import unmapped
from gpupipe.sources.rgb import Background, as_rgb

__all__ = ["around", "as_array", "as_given", "as_int64", "as_value", "document", "in_int64", "npy_array", "within"]

MOST_TEXT = 64 << 20
"""Bytes of a text or a JSON document; an object of Python's takes some ten times as much."""

NUMBERS = "biufc"
TEXTS = "SU"
FORMATS = ("xyxy", "xywh", "cxcywh")


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


def around(record: Any, path: str) -> str:
    """For a message about a path that a document or an item lacks: what there is, as deep as the path leads."""
    for key in path.split("."):
        inner = within(record, key)
        if inner is MISSING:
            break
        record = inner
    if isinstance(record, Mapping):
        return f"there are {reprlib.repr(list(record))}"
    return f"there is {type(record).__name__}" + (f" of {len(record)}" if isinstance(record, list | tuple) else "")


def as_value(field: Field, data: NDArray[np.uint8]) -> Any:
    """The value of a field whose file this is: text, bytes, a number, an array (.npy, or lists in JSON).

    Raises ValueError where it is none.
    """
    if isinstance(field, Bytes):
        return data.tobytes()
    if isinstance(field, Text):
        return _text(data)
    if data[: len(npy.MAGIC_PREFIX)].tobytes() == npy.MAGIC_PREFIX:
        return as_array(field, npy_array(data).copy())
    return _number(_text(data)) if isinstance(field, Scalar) else as_array(field, document(data))


def as_array(field: Field, value: Any) -> Any:
    """What a document or a user has for the field: a text as it is, an integer for a Scalar, else an array.

    Raises ValueError for what is none, TypeError for text where numbers belong and the other way round.
    """
    if isinstance(field, Text):
        if field.choose and isinstance(value, list | tuple) and all(isinstance(one, str) for one in value):
            return "\n".join(" ".join(one.splitlines()) for one in value)
        if not isinstance(value, str):
            raise TypeError(f"{_described(value)} is no text")
        return value
    if type(value) is int:
        return as_int64(value)
    array = array_of(value)
    if isinstance(field, Boxes | Points) and not array.size:
        return np.zeros((0, 4 if isinstance(field, Boxes) else 2), np.float32)  # of an empty list
    _check_integers(value, array)
    if array.dtype.kind not in NUMBERS:
        raise TypeError(f"{_described(value)} is no number and no array of numbers")
    return as_int64(int(array)) if not array.ndim and array.dtype.kind in "iu" else array


def _check_integers(value: Any, array: NDArray[Any]) -> None:
    """Raise ValueError where an integer is too large: NumPy makes an object of it, or floats of a list of integers."""
    numbers = list(array.flat) if array.dtype.hasobject else []
    if isinstance(value, list | tuple) and array.dtype.kind == "f" and np.abs(array).max(initial=0) >= 2**63:
        numbers = np.array(value, object).ravel().tolist()
        if not all(type(number) is int for number in numbers):
            return
    for number in numbers:
        if type(number) is int:
            as_int64(number)


def _described(value: Any) -> str:
    return f"{type(value).__name__} ({reprlib.repr(value)})"


def as_int64(number: int) -> int:
    """The same number. Raises ValueError where it is too large."""
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"{reprlib.repr(number)} has no place in int64")
    return number


def in_int64(numbers: NDArray[Any]) -> NDArray[Any] | None:
    """The same numbers (N,), integers as int64, all others as they are; None where some are too large for that."""
    if numbers.dtype == np.uint64 and numbers.size and numbers.max() >= 2**63:
        return None
    return numbers.astype(np.int64, copy=False) if numbers.dtype.kind in "iu" else numbers


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


def npy_header(data: NDArray[np.uint8]) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Shape, whether columns come first, dtype and where the values begin, of the bytes with which an .npy file begins.
    Raises ValueError where they are none, or of an array of objects or records."""
    file = io.BytesIO(data[: 64 << 10].tobytes())
    try:
        version = npy.read_magic(file)
        read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[version]
        shape, columns_first, dtype = read(file)
    except Exception as error:  # of damaged headers NumPy raises TokenError and others, too
        raise ValueError(f"its .npy has a header that can't be read ({type(error).__name__}: {error})") from None
    if dtype.kind not in NUMBERS + TEXTS:
        raise ValueError(f"its .npy holds {dtype}, no numbers" + ", and pickles are never loaded" * dtype.hasobject)
    return shape, columns_first, dtype, file.tell()


def npy_array(data: NDArray[np.uint8]) -> NDArray[Any]:
    """The array of an .npy file's bytes, a view into them. Raises ValueError where it is none, or not of numbers.

    NumPy's own reader takes the memory that a header claims before it looks for it.
    """
    shape, columns_first, dtype, begin = npy_header(data)
    if dtype.kind in TEXTS:
        raise ValueError(f"its .npy holds {dtype}, no numbers")
    values, size = data[begin:], math.prod(shape) * dtype.itemsize
    if len(values) != size:
        raise ValueError(f"its .npy has {len(values):,} bytes of values where its header says {size:,}")
    return values.view(dtype).reshape(shape, order="F" if columns_first else "C")


# What a user's dataset gives: encoded or decoded images, masks, boxes, text, numbers.


def as_given(field: Field, value: Any) -> Any:
    """A value of a user's. Raises TypeError or ValueError, which says what was given and what to give instead."""
    if isinstance(field, Frames):
        from gpupipe.sources.videos.given import given_video  # late: it needs what this room's files have

        return given_video(field, value, lambda frame: _image(frame, field.background))
    if isinstance(value, np.ndarray):
        value = unmapped(value)
    if isinstance(field, Image):
        return _image(value, field.background)
    if type(value) is int and isinstance(field, Array):  # the usual label
        return as_int64(value)
    if isinstance(field, Mask):
        return _mask(value)
    if isinstance(field, Text):
        return as_array(field, value)
    if isinstance(field, Bytes):
        return value if isinstance(value, bytes) else _bytes(value)
    if isinstance(field, Boxes):
        value = _in_format(value, field.format)
    return as_array(field, _array(value) if _is_tensor(value) else value)


def _image(value: Any, background: Background) -> NDArray[np.uint8]:
    """Encoded bytes (N,), or pixels (height, width, 3)."""
    if isinstance(value, bytes):
        return np.frombuffer(value, np.uint8)
    if isinstance(value, str | os.PathLike):
        raise TypeError(f"it is {value!r}, a path where the bytes belong: return Path(path).read_bytes()")
    array = np.asarray(as_rgb(value, background)) if isinstance(value, PIL.Image.Image) else _array(value)
    if array.dtype != np.uint8:
        raise TypeError(
            f"it is {_described_array(value, array)}, and images are uint8, 0 to 255, or encoded bytes: leave out "
            "what makes floats (ToTensor, ToDtype, Normalize), which the recipe does at the end"
        )
    if array.ndim == 1:
        return np.ascontiguousarray(array)
    if array.ndim == 3 and _is_tensor(value):
        array = array.transpose(1, 2, 0)
    if array.ndim == 2:
        array = array[:, :, None]
    if array.ndim != 3 or array.shape[2] not in (1, 3) or not array.size:
        form = "(3 or 1, height, width)" if _is_tensor(value) else "(height, width, 3 or 1)"
        raise ValueError(f"it is {_described_array(value, array)}, and pixels are uint8 {form} or (height, width)")
    return np.ascontiguousarray(np.broadcast_to(array, (*array.shape[:2], 3)))


def _mask(value: Any) -> NDArray[Any]:
    """Encoded bytes (N,), or numbers (height, width), which of a palette are its entries'."""
    if isinstance(value, PIL.Image.Image) and len(value.getbands()) > 1:
        raise ValueError(f"it is a PIL image of mode {value.mode!r}, and a mask has one channel")
    array = np.asarray(value) if isinstance(value, PIL.Image.Image) else _array(value)
    if array.ndim == 3 and array.shape[0 if _is_tensor(value) else 2] == 1:
        array = array[0] if _is_tensor(value) else array[:, :, 0]
    encoded = array.ndim == 1 and array.dtype == np.uint8
    if not encoded and (array.ndim != 2 or array.dtype.kind not in "biu" or not array.size):
        raise ValueError(f"it is {_described_array(value, array)}, and a mask is integers or bools (height, width)")
    return array


def _bytes(value: Any) -> bytes:
    array = _array(value)
    if array.ndim != 1 or array.dtype != np.uint8:
        raise TypeError(f"it is {_described_array(value, array)}, and no bytes")
    return array.tobytes()


def _in_format(value: Any, format: str) -> Any:
    """Boxes of torchvision's say in which format they are."""
    own = getattr(value, "format", None) if _is_tensor(value) else None
    if own is None or own.name.lower() == format:
        return value
    if own.name.lower() not in FORMATS:
        raise ValueError(f"its boxes have the format {own.name}, and gpupipe has {', '.join(FORMATS)}")
    from torchvision.transforms.v2.functional import convert_bounding_box_format

    return convert_bounding_box_format(value, new_format=format.upper())


def _array(value: Any) -> NDArray[Any]:
    if isinstance(value, bytes | bytearray | memoryview):
        return np.frombuffer(value, np.uint8)
    if not _is_tensor(value):
        return np.asarray(value)
    try:
        array: NDArray[Any] = value.detach().cpu().numpy()
    except TypeError as error:
        raise TypeError(
            f"it is a tensor of {value.dtype}, which NumPy can't take ({error}); return .float() of it"
        ) from error
    return array


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")  # which is imported where there is one
    return torch is not None and isinstance(value, torch.Tensor)


def _described_array(value: Any, array: NDArray[Any]) -> str:
    return f"{type(value).__name__} ({array.dtype}, {' x '.join(map(str, array.shape)) or 'no sides'})"
