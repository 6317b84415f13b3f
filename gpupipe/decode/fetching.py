"""The columns of a job's samples as their source has them, whatever is missing or can't be read dealt with.

source ──► fetch, one by one where a sample is bad ──► what is missing ──► headers of images whose size is unknown
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.batch import (
    MISSING,
    Array,
    Columns,
    Coming,
    Field,
    Frames,
    Image,
    Images,
    Job,
    Scalar,
    Schema,
    StorageUse,
    Text,
)
from gpupipe.batch.columns import array_of, assemble, take
from gpupipe.decode.clips import Each, read_clips
from gpupipe.decode.costs import check_costs
from gpupipe.decode.headers import NOTHING, headers_of
from gpupipe.decode.seeding import seeding
from gpupipe.decode.texts import chosen, tokenized
from gpupipe.errors import GpupipeError, LoaderTimeoutError, SampleError, SkippedSampleError
from gpupipe.host.readers import Readers, StuckError
from gpupipe.host.tracing import Span
from gpupipe.sources import Source
from gpupipe.sources.parts import datasets_of, is_users
from gpupipe.sources.raised import as_raised

__all__ = ["Failures", "Fetched", "by_row", "check_shared_sizes", "fetch", "in_time", "upright"]

FAR = 4  # batches between: so many are being read while no more is asked of the storage
YOURS = "the traceback above says which line of your dataset waits"

Rows = NDArray[np.int64]
Failures = dict[int, SampleError]
Parts = list[tuple[Rows, Columns]]


@dataclass
class Fetched:
    """A job's samples as their source has them: columns with a row for each, and an error for each row that can't be
    had. storage: see `Batch`."""

    source: Source
    job: Job
    columns: Columns
    failures: Failures
    storage: StorageUse | None = None

    @property
    def bytes_read(self) -> int:
        """Bytes of all images, as they were read."""
        images = (column for column in self.columns.values() if isinstance(column, Images))
        return sum(data.nbytes for column in images for data in column.data)

    def spans(self, read: Span) -> tuple[Span, ...]:
        """The span in which it was read, and how long storage was waited for in it."""
        waited = 0.0 if self.storage is None else min(self.storage.storage_wait_s, read.end - read.start)
        return (read, Span("storage", read.who, read.start, read.start + waited)) if waited else (read,)

    def fail(self, row: int, reason: str, remedy: str = "", kind: type[SampleError] = SampleError) -> None:
        """That row can't be had, for this reason unless there is an earlier one."""
        if row not in self.failures:
            index = int(self.job.indices[row])
            self.failures[row] = kind(index, self.source.location(index), reason, remedy)

    def part(self, rows: Rows, failures: Failures) -> Fetched:
        """Some of the rows."""
        return Fetched(self.source, self.job.take(rows), take(self.columns, rows), failures)


def fetch(source: Source, job: Job, readers: Readers | None = None) -> Fetched:
    """The columns of a job's samples.

    What a user's dataset draws from the global random generators follows from the job, too; it is asked by this thread,
    also for a part of it, other sources by `readers`, a user's own by this thread where that is one alone: it may have
    what belongs to a thread, as a connection of sqlite3. Raises LoaderTimeoutError where they get stuck.
    """
    now, later = _told(job.ahead)
    for coming in now:
        source.ahead(coming)  # it can read while this batch is read and decoded
    rows, failures = np.arange(len(job)), Failures()
    datasets = datasets_of(source)
    here = readers is not None and readers.count == 1 and is_users(source)
    each = map if readers is None else partial(_by, readers, source, job, here)
    parts: Parts
    if job.given is not None:
        failures |= job.given.failures
        parts = [(rows, dict(job.given.columns))]
    elif datasets:
        parts_of_rows = 0 if job.parts is None else job.parts
        with (
            in_time(readers, source, job, here=True),
            seeding(datasets, job.seed, job.epoch, job.positions, parts_of_rows) as seed,
        ):
            parts = _read(
                lambda rows: _asked(source, job.indices[rows], lambda at: seed(int(rows[at]))), rows, failures
            )
    else:

        def read(rows: Rows) -> Parts:
            return _read(lambda rows: _asked(source, job.indices[rows]), rows, failures)

        threads = 1 if readers is None else min(readers.count, len(rows))
        shares = [rows[first::threads] for first in range(threads)]
        parts = [part for parts in each(read, shares) for part in parts]
    fetched = Fetched(source, job, _whole(parts, len(job), source.fields), failures, source.storage_use())
    for name, field in source.fields.items():
        _settle(fetched, name, field, each)
        if isinstance(field, Image):
            check_costs(fetched, name, field)
        if isinstance(field, Text):
            _settle_text(fetched, name, field)
    check_shared_sizes(fetched)
    for coming in later:
        source.ahead(coming)
    return fetched


def _told(ahead: tuple[Coming, ...]) -> tuple[tuple[Coming, ...], tuple[Coming, ...]]:
    """What a source is told before it is asked for a batch, and what after that.

    One that is far comes after: what the source does about it in a thread of its own goes on while this one decodes,
    rather than taking turns with this one at the interpreter while it reads. From a disk cache came 98.0 % of a
    folder's images a second, and 94.9 % where it was told before (two cores of an AMD EPYC, one worker). One that is
    near can't wait for a slow storage.
    """
    if len(ahead) == 1 and ahead[0].turns >= FAR:
        return (), (replace(ahead[0], turns=ahead[0].turns - 1),)
    return ahead, ()


def _by(
    readers: Readers, source: Source, job: Job, here: bool, function: Callable[[Any], Any], items: Iterable[Any]
) -> list[Any]:
    """What the function makes of each item, by the readers, or if `here` by this thread."""
    with in_time(readers, source, job, here=here):
        return list(map(function, items)) if here else readers.map(function, items)


@contextmanager
def in_time(readers: Readers | None, source: Source, job: Job, *, here: bool = False) -> Iterator[None]:
    """Raises LoaderTimeoutError where the readers get stuck, or if `here` this thread, in code of the user's."""
    try:
        with readers.limited() if here and readers is not None else nullcontext():
            yield
    except StuckError as error:
        assert readers is not None
        at = "" if error.index is None else f"sample {error.index} ({source.location(error.index)}), "
        why = "the disk or the network file system does not answer: look at the mount and at dmesg"
        raise LoaderTimeoutError(
            f"{job.told}: what this process reads itself did not come within timeout={readers.timeout:g} s: {at}where "
            f"it has been for {error.seconds:.1f} s; {YOURS if here else why}; if that is only slow, raise timeout",
            ((job.epoch, job.step),),
        ) from error.__cause__


def _asked(source: Any, indices: NDArray[np.int64], *before: Callable[[int], None]) -> Columns:
    """What the source fetches. What one of the user's own raises is a SampleError, too: about the first sample, so that
    at which it was is known where they are asked for one by one. before: called before each, by a dataset."""
    try:
        columns: Columns = source.fetch(indices, *before)
    except GpupipeError:
        raise
    except Exception as error:
        index, name = int(indices[0]), type(source).__name__
        reason = f"{name}.fetch raised {type(error).__name__}: {error}"
        raise as_raised(error, index, source.location(index), reason) from error
    return columns


def by_row(read: Callable[[Rows], Columns], count: int, schema: Schema, failures: Failures) -> Columns:
    """The columns of so many rows, which `read` gives for some of them; why a row can't be had comes to `failures`."""
    return _whole(_read(read, np.arange(count), failures), count, schema)


def _read(read: Callable[[Rows], Columns], rows: Rows, failures: Failures) -> Parts:
    """Those rows at once; one by one where a sample can't be read, so that one bad sample leaves the others whole."""
    with suppress(SampleError):
        return [(rows, read(rows))]
    parts = []  # their errors stand for themselves, not "during handling of" the first one
    for row in rows.tolist():
        try:
            parts.append((np.array([row]), read(np.array([row]))))
        except SampleError as error:
            failures[row] = error
    return parts


def _whole(parts: Parts, count: int, schema: Schema) -> Columns:
    if len(parts) == 1 and len(parts[0][0]) == count:
        return parts[0][1]
    whole = assemble(count, parts)
    return {name: whole[name] if name in whole else _none(count, name in schema.images) for name in schema}


def _none(count: int, is_image: bool) -> Images | list[Any]:
    """A column of its own for each field, into which substitutes are written."""
    none: list[Any] = [None] * count
    return Images(none) if is_image else none


# What a sample lacks, and what is of the wrong kind.


def _settle(fetched: Fetched, name: str, field: Field, each: Each) -> None:
    """Apply the field's policy where it is missing, its dtype, read the headers of images of unknown size, and clips,
    by `each`."""
    column = fetched.columns[name]
    missing: list[int] = []
    if isinstance(field, Frames):
        column = column.data if isinstance(column, Images) else column  # the former where no row could be read
        missing = [row for row, video in enumerate(column) if video is None or video is MISSING]
    elif isinstance(column, Images):
        missing = [row for row, data in enumerate(column.data) if data is None]
        if missing:
            data = [NOTHING if data is None else data for data in column.data]
            column = fetched.columns[name] = Images(data, column.sizes)
        if column.sizes is None:
            column.sizes = headers_of(column.data)
    elif isinstance(column, list):
        missing = [row for row, value in enumerate(column) if value is MISSING]
    kind = SkippedSampleError if field.missing == "skip" else SampleError
    for row in missing:
        if field.missing == "default":
            column[row] = field.absent
        else:
            fetched.fail(row, *_lacking(fetched, row, name, field), kind)
    if isinstance(field, Array):
        fetched.columns[name] = _typed(fetched, name, field)
    elif isinstance(field, Frames):
        fetched.columns[name] = read_clips(fetched, name, field, column, each)


def _settle_text(fetched: Fetched, name: str, field: Text) -> None:
    """Choose one of several texts, and make tokens of it."""
    columns = fetched.columns
    if field.choose:
        columns[name] = chosen(fetched.source.fields, name, fetched.job, columns[name])
    if field.tokenizer is not None:
        columns[name] = tokenized(
            field.tokenizer, columns[name], fetched.failures, lambda row, said: fetched.fail(row, f"{name!r}: {said}")
        )


def _lacking(fetched: Fetched, row: int, name: str, field: Field) -> tuple[str, str]:
    """Why a row is bad that lacks a field, and what to do."""
    looked_for = {key: getattr(field, key) for key in ("source", "folder", "suffix")}
    where = ", ".join(f"{key}={value!r}" for key, value in looked_for.items() if value is not None)
    there = fetched.source.lacks(int(fetched.job.indices[row]), name)
    policies = "missing='skip'"
    if not isinstance(field, Image):
        policies += " or 'default', with default=" if isinstance(field, Array) else " or 'default'"
    told = "; ".join(filter(None, (where, there)))
    return f"has no {name!r}" + (f" ({told})" if told else ""), f"add it, or pass {policies} for {name!r}"


def _typed(fetched: Fetched, name: str, field: Array) -> Any:
    """The values as arrays of the field's dtype; a scalar's without sides."""
    column = fetched.columns[name]
    if isinstance(column, np.ndarray) and (column.ndim == 1 or not isinstance(field, Scalar)):
        with suppress(ValueError):  # by its row, below
            return _cast(column, field.dtype)
    typed: list[Any] = [None] * len(column)
    for row, value in enumerate(column):
        if row in fetched.failures:
            continue
        try:
            typed[row] = _cast(array_of(value), field.dtype)
            _check_array(typed[row], field)
        except (TypeError, ValueError, OverflowError) as error:
            fetched.fail(row, f"{name!r} is {reprlib.repr(value)}: {error}")
    if field.dtype is None:  # what is empty is like the others
        like = next((array.dtype for array in typed if array is not None and array.size), None)
        typed = [array if array is None or array.size or like is None else array.astype(like) for array in typed]
    return typed


def _cast(array: NDArray[Any], dtype: str | None) -> NDArray[Any]:
    """The same values in that dtype, None: as they are. Raises ValueError where one would be another, beyond the
    rounding of floats and that of bools all but 0 is True."""
    if dtype is None or array.dtype == dtype:
        return array
    with np.errstate(invalid="ignore", over="ignore"):
        typed = array.astype(dtype)
    if array.dtype.kind in "biuf" and typed.dtype.kind in "iuf":
        same = typed == array if typed.dtype.kind in "iu" else np.isfinite(typed) == np.isfinite(array)
        if not np.all(same):
            raise ValueError(f"dtype={dtype!r} can't hold {array[~same].flat[0]}; pass another")
    return typed


def _check_array(array: NDArray[Any], field: Array) -> None:
    if array.dtype.hasobject or array.dtype.kind in "SU":
        raise ValueError("no number and no array of numbers")
    if isinstance(field, Scalar) and array.ndim:
        raise ValueError(f"an array of shape {array.shape}, where one number is wanted; use gpupipe.Array")


def check_shared_sizes(fetched: Fetched) -> None:
    """What shares the crop of another image must be of its size, as for torchvision's transforms."""
    schema = fetched.source.fields
    for name in schema.images:
        leader = schema.drawn_as(name)
        if leader == name:
            continue
        own, other = fetched.columns[name].sizes, fetched.columns[leader].sizes
        differ = (upright(own) != upright(other)).any(axis=1) & (own[:, 0] > 0) & (other[:, 0] > 0)  # 0: damaged
        for row in np.flatnonzero(differ).tolist():
            fetched.fail(
                row,
                f"{name!r} has {own[row, 0]} x {own[row, 1]} pixels, {leader!r} {other[row, 0]} x {other[row, 1]}",
                f"geometry={leader!r} needs images of one size; leave it out, and {name!r} gets draws of its own",
            )


def upright(sizes: NDArray[np.int32]) -> NDArray[np.int32]:
    """(N, 2) heights and widths after the turn that the orientation asks for: 5 to 8 swap the axes (EXIF 2.3)."""
    return np.where(sizes[:, 2:] >= 5, sizes[:, 1::-1], sizes[:, :2])
