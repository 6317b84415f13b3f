"""The samples of a source as they are written, encoded in a few threads."""

from __future__ import annotations

import re
import struct
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from PIL import UnidentifiedImageError
from PIL.Image import DecompressionBombError

from gpupipe.batch import MISSING, Columns, Image, Images
from gpupipe.errors import REPAIR, GpupipeError, SampleError, SkippedSampleError
from gpupipe.sources import Source, explain_damage
from gpupipe.sources.headers import DAMAGED, indexed_damage, probe_bytes
from gpupipe.sources.indexed import VERIFIED, IndexedSource
from gpupipe.texts import utf8
from gpupipe.tools.packing.images import shrunk
from gpupipe.tools.packing.layout import Layout, Stored, digest, stored
from gpupipe.tools.packing.settings import PackSettings

__all__ = ["Sample", "damage", "encoded", "fetched", "sample"]

KEY = re.compile(r"[^A-Za-z0-9_-]+")
KEY_NAME_LENGTH = 60  # with number and extension well below the 100 bytes of a plain tar header
REMEDY = "repair it, or leave it out with --skip-bad (skip_bad=True)"
AGAIN = "if that may pass, run the same again to go on; skip_bad leaves out what a dataset raises ValueError for"
REPAIRS = (REPAIR, REMEDY, VERIFIED)
# What damaged data make decoders raise; Pillow's raise OSError, too, without a number.
DAMAGE = (ValueError, TypeError, LookupError, ArithmeticError, EOFError, SyntaxError, struct.error, zlib.error)
AHEAD = 4  # samples for each thread: so many are in memory besides the one that is written


@dataclass(frozen=True)
class Sample:
    """`index` and `key` are the source's; `name` is unique, and plain letters; `digest` is over the values."""

    index: int
    key: str
    values: dict[str, Stored]
    digest: bytes

    @property
    def name(self) -> str:
        """By number and key, as a shard's members can be named."""
        stem = self.key.rpartition("/")[2].partition(".")[0]
        return f"{self.index:08d}_{KEY.sub('_', stem)[:KEY_NAME_LENGTH]}"

    @property
    def nbytes(self) -> int:
        """Of the values."""
        return sum(value.nbytes if isinstance(value, np.ndarray) else len(value) for value in self.values.values())


def encoded(
    source: Source, layout: Layout, settings: PackSettings, indices: list[int], pool: Executor, threads: int
) -> Iterator[Sample | None]:
    """The samples in this order, None for a damaged one that is left out. Raises SampleError where it may not be, and
    for one that can't be had now, which only its file's later writing can take in."""
    make = partial(sample, source, layout, settings)
    if isinstance(source, IndexedSource):  # whose files several threads may read
        calls: Iterator[Callable[[], Sample | None]] = (partial(make, index) for index in indices)
    else:  # a user's dataset may be for one thread
        calls = (partial(make, index, fetched(source, index)) for index in indices)
    waiting: deque[Any] = deque()
    for call in calls:
        waiting.append(pool.submit(call))
        if len(waiting) > AHEAD * threads:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def fetched(source: Source, index: int) -> Columns | SampleError:
    """One sample's columns, or why they can't be had: also where it lacks a field that has no default."""
    try:
        columns = source.fetch(np.array([index]))
    except SampleError as error:
        return error
    for name, field in source.fields.items():
        value = columns[name].data[0] if isinstance(columns[name], Images) else columns[name][0]
        if field.missing != "default" and (value is None or value is MISSING):
            kind = SkippedSampleError if field.missing == "skip" else SampleError
            told = f"has no {name!r} {source.lacks(index, name)}".rstrip()
            return kind(index, source.location(index), told, REMEDY)
    return columns


def sample(
    source: Source, layout: Layout, settings: PackSettings, index: int, given: Columns | SampleError | None = None
) -> Sample | None:
    """One sample; `given`: its columns, where they are fetched. As `encoded` has it."""
    try:
        columns = fetched(source, index) if given is None else given
        if isinstance(columns, SampleError):
            raise columns
        values = stored(layout, columns)
        for name, field in source.fields.items():
            if isinstance(field, Image):
                values[name] = _image(values[name], settings, field)  # type: ignore[arg-type]
        return Sample(index, utf8(source.key(index)), values, digest(values))
    except Exception as error:  # also of a user's own source
        damaged = _is_damage(error)
        if isinstance(error, SkippedSampleError) or (settings.skip_bad and damaged):
            return None
        if isinstance(error, GpupipeError):
            if settings.skip_bad and isinstance(error, SampleError) and error.remedy == REPAIR:
                error.remedy = AGAIN
            raise
        reason = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise SampleError(index, source.location(index), reason, REMEDY if damaged else AGAIN) from error


def _is_damage(error: BaseException) -> bool:
    """Whether a sample is bad for good, rather than out of reach now: without memory, open files, or its storage."""
    if isinstance(error, SkippedSampleError):
        return True
    if isinstance(error, SampleError):
        return error.remedy in REPAIRS and (error.__cause__ is None or _is_damage(error.__cause__))
    if isinstance(error, OSError):
        return isinstance(error, UnidentifiedImageError) or (type(error) is OSError and error.errno is None)
    return isinstance(error, DAMAGE) and not isinstance(error, GpupipeError)


def _image(data: bytes, settings: PackSettings, field: Image) -> bytes:
    """As it is written. Raises ValueError where it is damaged, MemoryError."""
    height, width, orientation = header = probe_bytes(data)
    if header == DAMAGED:
        raise ValueError(explain_damage(data))
    if settings.max_size is not None and min(height, width) > settings.max_size:
        try:
            return shrunk(data, settings.max_size, settings.quality, orientation, field.background)
        except (ValueError, MemoryError):
            raise
        except DecompressionBombError as error:
            raise ValueError(f"it has {width} x {height} pixels, more than Pillow shrinks") from error
        except Exception as error:  # nearly every kind, of Pillow for damaged files
            raise ValueError(f"can't be decoded: {type(error).__name__}: {error}") from error
    return data


def damage(source: Source, index: int) -> str:
    """What is wrong with a damaged image."""
    try:
        columns: Columns = source.fetch(np.array([index]))
        return indexed_damage(columns[source.fields.images[0]].data[0].data)[0]
    except SampleError as error:
        return error.reason
