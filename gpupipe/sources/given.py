"""What a user's dataset gives as a field, as columns have it: encoded or decoded images, masks, boxes, text, numbers.

Each raises TypeError or ValueError, which says what was given and what to give instead.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
import PIL.Image
from numpy.typing import NDArray

from gpupipe.batch import Array, Boxes, Bytes, Field, Image, Mask, Text
from gpupipe.sources.values import as_array

__all__ = ["as_given"]

FORMATS = ("xyxy", "xywh", "cxcywh")


def as_given(field: Field, value: Any) -> Any:
    """A value of a user's, as a column of the field has it."""
    if isinstance(field, Image):
        return _image(value)
    if type(value) is int and isinstance(field, Array):  # the usual label
        return as_array(field, value)
    if isinstance(field, Mask):
        return _mask(value)
    if isinstance(field, Text):
        return as_array(field, value)
    if isinstance(field, Bytes):
        return value if isinstance(value, bytes) else _bytes(value)
    if isinstance(field, Boxes):
        value = _in_format(value, field.format)
    return as_array(field, _array(value) if _is_tensor(value) else value)


def _image(value: Any) -> NDArray[np.uint8]:
    """Encoded bytes (N,), or pixels (height, width, 3)."""
    if isinstance(value, bytes):
        return np.frombuffer(value, np.uint8)
    if isinstance(value, PIL.Image.Image):
        return np.asarray(value.convert("RGB"))
    if isinstance(value, str | os.PathLike):
        raise TypeError(f"it is {value!r}, a path where the bytes belong: return Path(path).read_bytes()")
    array = _array(value)
    if array.dtype != np.uint8:
        raise TypeError(
            f"it is {_described(value, array)}, and images are uint8, 0 to 255, or encoded bytes: leave out what makes "
            "floats (ToTensor, ToDtype, Normalize), which the recipe does at the end"
        )
    if array.ndim == 1:
        return np.ascontiguousarray(array)
    if array.ndim == 3 and _is_tensor(value):
        array = array.transpose(1, 2, 0)
    if array.ndim == 2:
        array = array[:, :, None]
    if array.ndim != 3 or array.shape[2] not in (1, 3) or not array.size:
        form = "(3 or 1, height, width)" if _is_tensor(value) else "(height, width, 3 or 1)"
        raise ValueError(f"it is {_described(value, array)}, and pixels are uint8 {form} or (height, width)")
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
        raise ValueError(f"it is {_described(value, array)}, and a mask is integers or bools (height, width)")
    return array


def _bytes(value: Any) -> bytes:
    array = _array(value)
    if array.ndim != 1 or array.dtype != np.uint8:
        raise TypeError(f"it is {_described(value, array)}, and no bytes")
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
    return value.detach().cpu().numpy() if _is_tensor(value) else np.asarray(value)


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")  # which is imported where there is one
    return torch is not None and isinstance(value, torch.Tensor)


def _described(value: Any, array: NDArray[Any]) -> str:
    return f"{type(value).__name__} ({array.dtype}, {' x '.join(map(str, array.shape)) or 'no sides'})"
