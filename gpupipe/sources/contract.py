"""What every source promises, asked of one: for whoever writes a source of their own."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.batch import (
    MISSING,
    Boxes,
    Bytes,
    Columns,
    Coming,
    Field,
    Frames,
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
from gpupipe.errors import ConfigError, DataError, SampleError
from gpupipe.sources.source import Source

__all__ = ["check_source"]

SAMPLES = 16


def check_source(source: Source) -> None:
    """Try out a source on some of its samples.

    Raises ConfigError for what is no source at all, AssertionError for the first promise that it does not keep. That a
    sample can't be read breaks none, if a SampleError says which.
    """
    if not isinstance(source, Source) or not isinstance(getattr(source, "fields", None), Schema):
        raise ConfigError(
            f"{type(source).__name__} is no source: inherit from gpupipe.Source and set `fields` to a gpupipe.Schema"
        )
    size, fingerprint = len(source), getattr(source, "fingerprint", None)
    _hold(size > 0, f"len() is {size}; a source has samples")
    _hold(isinstance(fingerprint, str) and fingerprint != "", f"fingerprint={fingerprint!r} must be a string")
    indices = np.linspace(0, size - 1, min(SAMPLES, size)).astype(np.int64)
    _check_names(source, indices.tolist())
    alone = {index: columns for index in indices.tolist() if (columns := _alone(source, index)) is not None}
    _fetched(source, np.empty(0, np.int64))
    some = np.array([*reversed(alone), *list(alone)[:1]], np.int64)  # in another order, and one of them twice
    source.ahead(Coming(some))
    copy = _copy(source)
    _hold((len(copy), copy.fingerprint) == (size, fingerprint), "pickled, it has another len() or fingerprint")
    for one, which in ((source, "a batch"), (source, "the next batch"), (copy, "a batch of a pickled copy")):
        _check_same(_fetched(one, some), some.tolist(), alone, which)
    _check_end(source, size)
    for name, field in source.fields.items():
        if isinstance(field, Scalar | Text):
            _check_known(source, name, alone)


def _copy(source: Source) -> Source:
    """As a worker process that is not forked gets it; where it can't be pickled, there are no such workers."""
    try:
        sent = pickle.dumps(source)
    except Exception:  # of classes of a function's, and of whatever else the source holds
        return source
    copy: Source = pickle.loads(sent)
    return copy


def _hold(holds: bool, message: str) -> None:
    if not holds:
        raise AssertionError(message)


def _alone(source: Source, index: int) -> Columns | None:
    """One sample's columns; None where it can't be read."""
    try:
        return _fetched(source, np.array([index]))
    except SampleError as error:
        _hold(error.index == index, f"fetch of sample {index} raised a SampleError about sample {error.index}")
        return None


def _fetched(source: Source, indices: NDArray[np.int64]) -> Columns:
    """Columns, checked by their form."""
    try:
        columns, shapes = source.fetch(indices), source.shapes(indices)
    except SampleError:
        raise
    except Exception as error:  # code of the user's
        raise AssertionError(
            f"fetch of the samples {indices.tolist()} raised {type(error).__name__}: {error}; what can't be read is a "
            "gpupipe.SampleError"
        ) from error
    _hold(isinstance(columns, dict), f"fetch gave {type(columns).__name__}; it must be a dict of columns")
    _hold(set(columns) == set(source.fields), f"fetch gave the columns {sorted(columns)} for {sorted(source.fields)}")
    for name, field in source.fields.items():
        _check_column(name, field, columns[name], indices.tolist())
        if isinstance(columns[name], Images):
            _check_shapes(f"{name!r}.sizes", columns[name].sizes, len(indices))
    _check_shapes("shapes()", shapes, len(indices))
    first = getattr(columns[source.fields.images[0]], "sizes", None) if source.fields.images else None
    differ = shapes is not None and first is not None and not np.array_equal(shapes, first)
    _hold(not differ, f"shapes() are not the sizes of the images that fetch gave, of the samples {indices}")
    return columns


def _check_column(name: str, field: Field, column: Any, indices: list[int]) -> None:
    is_image = isinstance(field, Image) and not isinstance(field, Frames)
    kinds = Images if is_image else (list, np.ndarray)
    _hold(isinstance(column, kinds), f"column {name!r} is {type(column).__name__}; it must be {kinds}")
    _hold(len(column) == len(indices), f"column {name!r} has {len(column)} rows for {len(indices)} indices")
    fits, form = next((fits, form) for kinds, fits, form in FORMS if isinstance(field, kinds))
    for index, value in zip(indices, _values(column), strict=True):
        lacking = value is None if isinstance(field, Image) else value is MISSING
        what = f"{type(value).__name__} {getattr(value, 'dtype', '')} {getattr(value, 'shape', '')}".rstrip()
        _hold(lacking or fits(value), f"{name!r} of sample {index} is {what}; it must be {form}")
        _hold(not isinstance(field, Index) or value == index, f"{name!r} of sample {index} is {value}")


def _values(column: Any) -> Any:
    return column.data if isinstance(column, Images) else column


def _check_shapes(name: str, shapes: Any, count: int) -> None:
    if shapes is not None:
        form = f"{shapes.dtype} {shapes.shape}"
        _hold(form == f"int32 ({count}, 3)", f"{name} is {form}; it must be int32 (N, 3): height, width, orientation")


def _numbers(*sides: int) -> Callable[[Any], bool]:
    def fits(value: Any) -> bool:
        array = np.asarray(value)
        return array.dtype.kind in "biufc" and array.shape[array.ndim - len(sides) :] == sides

    return fits


def _pixels(kinds: str, *sides: int) -> Callable[[Any], bool]:
    def fits(value: Any) -> bool:
        if not isinstance(value, np.ndarray):
            return False
        encoded = value.ndim == 1 and value.dtype == np.uint8
        return encoded or (value.dtype.kind in kinds and value.ndim == 2 + len(sides) and value.shape[2:] == sides)

    return fits


FORMS: tuple[tuple[Any, Callable[[Any], bool], str], ...] = (
    (Frames, lambda value: hasattr(value, "__len__") and hasattr(value, "read"), "a video, with __len__ and read"),
    (Image, _pixels("u", 3), "a uint8 array: encoded bytes (N,) or pixels (height, width, 3)"),
    (Mask, _pixels("biu"), "an array: encoded bytes, uint8 (N,), or integers (height, width)"),
    (Text | Key, lambda value: isinstance(value, str), "a str"),
    (Bytes, lambda value: isinstance(value, bytes), "bytes"),
    (Boxes, _numbers(4), "an array (M, 4)"),
    (Points, _numbers(2), "an array (M, 2)"),
    (Field, _numbers(), "a number or an array"),
)


def _check_same(columns: Columns, indices: list[int], alone: dict[int, Columns], which: str) -> None:
    """The samples are those that were fetched one by one."""
    for name, column in columns.items():
        for index, value in zip(indices, _values(column), strict=True):
            one = _values(alone[index][name])[0]
            _hold(
                _equal(value, one), f"{name!r} of sample {index} in {which} is not what it is when it is fetched alone"
            )


def _check_names(source: Source, indices: list[int]) -> None:
    keys = [source.key(index) for index in indices]
    names = [*keys, *map(source.location, indices)]
    _hold(all(isinstance(name, str) for name in names), f"key() and location() must give strings, not {names[:4]}")
    _hold(len(set(keys)) == len(keys), f"key() gives one string for several of the samples {indices}")


def _equal(one: Any, other: Any) -> bool:
    """NaN is NaN; of videos the first frame counts."""
    if hasattr(one, "read"):
        return len(one) == len(other) and np.array_equal(one.read([0])[0], other.read([0])[0])
    is_float = all(np.asarray(value).dtype.kind == "f" for value in (one, other))
    return one is other or np.array_equal(one, other, equal_nan=is_float)


def _check_known(source: Source, name: str, alone: dict[int, Columns]) -> None:
    """Where all values of a field are known, they are those that are fetched."""
    try:
        known = source.column(name)
    except DataError:
        return
    _hold(len(known) == len(source), f"column({name!r}) has {len(known)} values for {len(source)} samples")
    for index, columns in alone.items():
        one, other = known[index], columns[name][0]
        _hold(_equal(one, other), f"column({name!r}) has {one!r} for sample {index}, where fetch gives {other!r}")


def _check_end(source: Source, size: int) -> None:
    try:
        source.fetch(np.array([size]))
    except IndexError:
        return
    raise AssertionError(f"fetch of sample {size}, which is beyond the end, must raise IndexError")
