"""From a value for each row to a batch's columns, by each field's policy; and all tensors of a batch at once."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, MutableMapping, MutableSequence, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.batch.columns import Columns, Ragged
from gpupipe.batch.fields import Array, Boxes, Collate, Field, Image, Mask, Pad, Points
from gpupipe.batch.schema import Schema
from gpupipe.errors import ConfigError, DataError

__all__ = ["CollationError", "collate", "move"]

Arrays = list[NDArray[Any]]

NUMBERS = "biufc"  # kinds of NumPy's dtypes


class CollationError(DataError):
    """Values of a field that don't fit together. rows: those that the message names."""

    def __init__(self, message: str, rows: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.rows = rows


def collate(schema: Schema, columns: Columns, views: int) -> Columns:
    """The batch's columns of `columns`, which hold a value for each row; pixels pass as they are.

    With several views, columns of what follows a view, which are boxes, points and their labels, are tuples: an entry
    for each view. A field whose `Pad` has a mask is followed by `<field>_mask`. dtypes are those of torch's
    `default_collate`, but that ints among floats are always float64, whichever comes first.

    Raises CollationError, which names the field, for values that don't fit together, ConfigError for a padding that
    does not fit them.
    """
    labels, several = schema.labels, schema.per_view(views)
    collated: Columns = {}
    for name, field in schema.items():
        if isinstance(field, Image | Mask):
            collated[name] = columns[name]
        elif name in several:
            made = [_collated(name, field, name in labels, values) for values in columns[name]]
            collated |= {key: tuple(one[key] for one in made) for key in made[0]}
        else:
            collated |= _collated(name, field, name in labels, columns[name])
    return collated


def _collated(name: str, field: Field, is_label: bool, values: Any) -> Columns:
    """The field's column and, where it has one, that of its mask."""
    policy: Collate = field.collate or ("ragged" if is_label else field.usual)
    dtype = field.dtype if isinstance(field, Array) else None
    try:
        if policy == "stack":
            return {name: _stacked(values, dtype)}
        if policy == "ragged":
            return {name: _ragged(_alike(_arrays(values, dtype)))}
        if isinstance(policy, Pad):
            return _padded(name, policy, isinstance(field, Boxes | Points), _alike(_arrays(values, dtype)))
        alike = _of_one_dtype(values) if isinstance(field, Array) and dtype is None else values
        listed = [_plain(value, dtype) for value in alike]
    except (TypeError, ValueError, OverflowError) as error:
        if isinstance(error, ConfigError):
            raise
        message = f"field {name!r}, {type(field).__name__}: {error}"
        raise CollationError(message, getattr(error, "rows", ())) from error
    return {name: listed if isinstance(policy, str) else _called(policy, name, listed)}


def _called(function: Callable[[list[Any]], Any], name: str, values: list[Any]) -> Any:
    try:
        return function(values)
    except Exception as error:  # code of the user's
        called = getattr(function, "__qualname__", type(function).__name__)
        kinds = [value.shape if isinstance(value, torch.Tensor) else type(value).__name__ for value in values]
        reason = f"field {name!r}: its collate function {called} raised {type(error).__name__}: {error}, for values"
        raise _unlike(kinds, reason) from error


def _arrays(values: Any, dtype: str | None) -> Arrays:
    arrays = []
    for row, value in enumerate(values):
        array = np.asarray(value, dtype)
        if array.dtype.kind not in NUMBERS:
            reason = f"row {row} is {type(value).__name__}, which makes no tensor; pass collate='list' or a function"
            raise CollationError(reason, [row])
        arrays.append(array)
    return arrays


def _common(arrays: Arrays) -> np.dtype[Any]:
    """The dtype that holds the values of all."""
    kinds = {array.dtype for array in arrays}
    common = np.result_type(*kinds)
    if common.kind == "f" and all(kind.kind in "iu" for kind in kinds):
        told = [str(array.dtype) if array.size else None for array in arrays]  # an empty list's is another row's
        raise _unlike(told, "no integer dtype holds the values of all rows:")
    native: np.dtype[Any] = common.newbyteorder("=")
    return native


def _stacked(values: Any, dtype: str | None) -> torch.Tensor:
    if isinstance(values, np.ndarray) and values.dtype.kind in NUMBERS:  # the usual label, 2 us
        return _tensor(values if dtype is None else values.astype(dtype, copy=False))
    arrays = _arrays(values, dtype)
    shapes = [array.shape for array in arrays]
    if len(set(shapes)) > 1:
        remedy = "; pass collate='ragged', or gpupipe.Pad() to fill them up, for the field"
        raise _unlike(shapes, "rows of different shapes can't be stacked:", remedy)
    stacked = np.empty((len(arrays), *shapes[0]), _common(arrays))
    for row, array in enumerate(arrays):
        stacked[row] = array
    return _from_numpy(stacked)


def _alike(arrays: Arrays) -> Arrays:
    """Rows of length 0 with dtype and further sides of the others: those of an empty list say nothing."""
    for row, array in enumerate(arrays):
        if not array.ndim:
            reason = f"row {row} is a single number, which has no length; leave collate out to stack them"
            raise CollationError(reason, [row])
    like = next((array for array in arrays if len(array)), None)
    return arrays if like is None else [one if len(one) else like[:0] for one in arrays]


def _of_one_dtype(values: Any) -> Any:
    """Rows without values with the dtype of the others, whichever worker has made them: their own says nothing."""
    like = next((value.dtype for value in values if isinstance(value, np.ndarray) and value.size), None)
    if like is None:
        return values
    return [one.astype(like) if isinstance(one, np.ndarray) and not one.size else one for one in values]


def _ragged(arrays: Arrays) -> Ragged:
    shapes = [array.shape for array in arrays]
    if len({shape[1:] for shape in shapes}) > 1:
        remedy = "; pass gpupipe.Pad() or collate='list' for the field"
        raise _unlike(shapes, "ragged rows may differ along their first side alone:", remedy)
    values = np.concatenate(arrays, dtype=_common(arrays))
    offsets = np.zeros(len(arrays) + 1, np.int64)
    np.cumsum([len(array) for array in arrays], out=offsets[1:])
    return Ragged(_from_numpy(values), torch.from_numpy(offsets))


def _padded(name: str, pad: Pad, by_rows: bool, arrays: Arrays) -> Columns:
    """by_rows: whether the arrays are known to differ along their first side."""
    shapes = [array.shape for array in arrays]
    if len({len(shape) for shape in shapes}) > 1:
        raise _unlike(shapes, "rows can't be padded to one shape, as they have different numbers of sides:")
    sides: NDArray[np.int64] = np.array(shapes, np.int64)
    grows = (sides != sides[0]).any(axis=0)
    grows[0] |= by_rows or pad.mask or sides.shape[1] == 1
    if pad.mask and grows[1:].any():
        raise _unlike(shapes, "Pad(mask=True) is for rows that differ along their first side alone:")
    longest = sides.max(axis=0)
    whole = np.where(grows, -(-longest // pad.multiple) * pad.multiple, longest).tolist()
    padded = np.full((len(arrays), *whole), _filling(name, pad.value, _common(arrays)))
    for row, array in enumerate(arrays):
        padded[row][tuple(map(slice, array.shape))] = array
    made: Columns = {name: _from_numpy(padded)}
    if pad.mask:
        made[f"{name}_mask"] = torch.from_numpy(np.arange(whole[0]) < sides[:, :1])
    return made


def _filling(name: str, value: float, dtype: np.dtype[Any]) -> Any:
    with suppress(OverflowError, ValueError), np.errstate(over="ignore"):  # NumPy's for what no integer of the dtype is
        made = dtype.type(value)
        if np.isfinite(made) == math.isfinite(value) and (dtype.kind in "fc" or made == value):
            return made
    raise ConfigError(f"field {name!r}: Pad(value={value!r}) is no {dtype}, which its values are; choose another value")


def _plain(value: Any, dtype: str | None) -> Any:
    """For lists and functions: arrays as tensors, which can be pinned and moved; numbers as Python's."""
    if dtype is None and not isinstance(value, np.ndarray | np.generic):
        return value
    array = np.asarray(value, dtype)
    if not array.ndim:
        return array.item()
    return _tensor(array) if array.dtype.kind in NUMBERS else array


def _tensor(array: NDArray[Any]) -> torch.Tensor:
    """On the array's memory, where torch can use that."""
    return _from_numpy(np.require(array, array.dtype.newbyteorder("="), ["C", "W"]))


def _from_numpy(array: NDArray[Any]) -> torch.Tensor:
    """Of integers of 2**63 and more NumPy makes C's long long, which is its uint64, too, but none that torch takes."""
    return torch.from_numpy(array.view(array.dtype.str))


def _unlike(shapes: Sequence[Any], reason: str, remedy: str = "") -> CollationError:
    """Between the two each shape that there is, with the first row that has it; None: a row that says nothing."""
    rows = [shapes.index(shape) for shape in dict.fromkeys(shapes) if shape is not None]
    listed = [f"{tuple(one) if not isinstance(one := shapes[row], str) else one} in row {row}" for row in rows[:8]]
    return CollationError(f"{reason} {', '.join(listed + ['...'] * (len(rows) > 8))}{remedy}", rows[:8])


def move(columns: Any, function: Callable[[torch.Tensor], Any], method: str = "") -> Any:
    """`columns` with `function` applied to every tensor in it, through the containers that torch's `pin_memory` enters:
    mappings, tuples, named tuples and sequences keep their types. What else has a method called `method` is asked for
    it; all other values stay.
    """
    if isinstance(columns, torch.Tensor):
        return function(columns)
    if isinstance(columns, Ragged):
        return Ragged(function(columns.values), function(columns.offsets))
    if method and hasattr(columns, method):
        return getattr(columns, method)()
    if isinstance(columns, Mapping):
        return _moved_mapping(columns, {key: move(value, function, method) for key, value in columns.items()})
    if isinstance(columns, Sequence) and not isinstance(columns, str | bytes):
        return _moved_sequence(columns, [move(value, function, method) for value in columns])
    return columns


# As torch does: a copy keeps what a class of the user's has beside its values. Where there is none, plain ones.


def _moved_mapping(given: Mapping[Any, Any], moved: dict[Any, Any]) -> Any:
    with suppress(TypeError):
        if not isinstance(given, MutableMapping):
            return type(given)(moved)  # type: ignore[call-arg]
        clone = copy.copy(given)
        clone.update(moved)
        return clone
    return moved


def _moved_sequence(given: Sequence[Any], moved: list[Any]) -> Any:
    with suppress(TypeError):
        if isinstance(given, tuple) and hasattr(given, "_fields"):
            return type(given)(*moved)
        if not isinstance(given, MutableSequence):
            return type(given)(moved)  # type: ignore[call-arg]
        clone = copy.copy(given)
        for place, value in enumerate(moved):
            clone[place] = value
        return clone
    return moved
