"""What is asked for, one batch, and that batch on its way from an engine to the consumer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.batch.columns import Columns, assemble, take
from gpupipe.batch.coming import NONE, Coming
from gpupipe.errors import GpupipeError, SampleError
from gpupipe.host.limits import Limits

__all__ = ["ENDLESS", "Batch", "Given", "Job", "StorageUse", "join", "listed"]

LISTED = 6  # samples that a message lists
BY_ROW = ("positions", "indices", "keep", "partners", "parts")

ENDLESS = 1 << 47
"""Samples of an epoch whose end is not known: fewer than can be drawn for, more than are ever read."""


def listed(samples: NDArray[np.int64]) -> str:
    """How many samples there are, and the first of them."""
    first = ", ".join(map(str, samples[:LISTED].tolist()))
    return f"{len(samples)} samples ({first}{', ...' if len(samples) > LISTED else ''})"


@dataclass(frozen=True)
class Given:
    """The samples of a job that were read when it was made, as those of a stream are, which can't be asked for by their
    number.

    columns: as a source fetches them. failures: row -> why there is none. ends: the samples of the epoch, where this
    job is its last; None: others follow, or it is known anyway. mark: where the stream stands, for a state. following:
    gives the samples that come next in the epoch, which may stand in for bad ones, in this process.
    """

    columns: Columns
    failures: Mapping[int, SampleError]
    ends: int | None = None
    mark: Mapping[str, Any] | None = None
    following: Callable[[], Job] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """What a worker process makes a batch of."""
        return Given, (self.columns, self.failures, self.ends, self.mark)

    def take(self, rows: NDArray[np.int64]) -> Given:
        """Some of the rows."""
        places = {int(row): place for place, row in enumerate(rows)}
        failures = {places[row]: error for row, error in self.failures.items() if row in places}
        return replace(self, columns=take(self.columns, rows), failures=failures, following=None)


@dataclass(frozen=True)
class Job:
    """One batch to make: the samples, and the counters from which each one's draws follow.

    indices, positions: int64 (N,). step: of the epoch. A job is small and picklable, so that it can be sent to a
    worker process, and it travels with its batch. keep, drop: of the samples, see `Coming`. ahead: what its reader is
    asked for later, where a source wants to know. whole: not some rows of one, which are collated when they are put
    together with the others. given: the samples themselves, where there is no source to fetch them from. limits: of
    what a file may cost.
    partners: (N, parts), where a row is made of several samples: those after its own, by the part that each is; -1:
    none. parts: (N,), which part of a row each is, of a job that `widened` has made.
    """

    seed: int
    epoch: int
    positions: NDArray[np.int64]
    indices: NDArray[np.int64]
    step: int = 0
    keep: NDArray[np.bool_] | None = None
    drop: NDArray[np.int64] = field(default_factory=lambda: NONE)
    ahead: tuple[Coming, ...] = ()
    whole: bool = True
    given: Given | None = None
    limits: Limits = field(default_factory=Limits)
    partners: NDArray[np.int64] | None = None
    parts: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.indices)

    def take(self, rows: NDArray[np.int64] | slice) -> Job:
        """The job of some of the rows."""
        given = None if self.given is None else self.given.take(np.arange(len(self))[rows])
        some = {name: column[rows] for name in BY_ROW if (column := getattr(self, name)) is not None}
        return replace(self, **some, ahead=(), whole=False, given=given)

    @property
    def told(self) -> str:
        """Which batch it is, and of what, for messages."""
        return f"step {self.step} of epoch {self.epoch}, {listed(self.indices)}"

    @property
    def members(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Of each sample that is to be read, row after row, the row that it is for, and the part of it that it is."""
        assert self.partners is not None
        rows, parts = np.nonzero(np.pad(self.partners >= 0, ((0, 0), (1, 0)), constant_values=True))
        return rows, parts

    def widened(self) -> Job:
        """The job of all samples of which its rows are made: a row for each of `members`."""
        rows, parts = self.members
        assert self.partners is not None
        indices = np.column_stack([self.indices, self.partners])[rows, parts]
        return replace(self, positions=self.positions[rows], indices=indices, partners=None, parts=parts)

    @property
    def coming(self) -> Coming:
        """What its source is told of it ahead."""
        return Coming(self.indices if self.partners is None else self.widened().indices, self.keep, self.drop)

    def telling(self, ahead: tuple[Coming, ...]) -> Job:
        """The job as its reader gets it, with all that this is to tell the source."""
        return replace(self, keep=None, drop=NONE, ahead=ahead) if ahead else self

    @property
    def ends(self) -> int | None:
        """The samples of the epoch, where it has shown that this job is its last."""
        return None if self.given is None else self.given.ends

    def standing_in(self, row: int, other: Mapping[int, int]) -> Job:
        """The job of one row, in which others stand for some samples, by their numbers; where samples are given it is
        one of this job's, or of those that follow."""
        index = int(self.indices[row])
        index = other.get(index, index)
        of, at = self, row
        if self.given is not None:
            following = self.given.following
            of = self if following is None or index in self.indices else following()
            at = int(np.flatnonzero(of.indices == index)[0])
        one = replace(of.take(np.array([at])), positions=self.positions[row : row + 1], indices=np.array([index]))
        if one.partners is None:
            return one
        return replace(one, partners=np.array([[other.get(index, index) for index in one.partners[0].tolist()]]))


@dataclass(frozen=True)
class StorageUse:
    """What was read of storages for a batch, or while it was made. cache_hits, cache_misses: parts of objects that the
    disk cache had, or the storage was asked for. cache_bytes: of those that the cache had; others: of the storage."""

    cache_hits: int = 0
    cache_misses: int = 0
    cache_bytes: int = 0
    storage_bytes: int = 0
    storage_requests: int = 0
    storage_retries: int = 0
    storage_wait_s: float = 0.0

    def __add__(self, other: StorageUse) -> StorageUse:
        mine, theirs = vars(self), vars(other)
        return StorageUse(**{name: mine[name] + theirs[name] for name in mine})


@dataclass
class Batch:
    """What an engine makes of a job, and what the consumer gets of it in the end.

    job:       what was asked for; `job.indices` are the samples that are in it.
    columns:   by field. Images: a tuple with the tensor of each view, from an engine uint8 (N, height, width, 3), or
               (N, pixels, 3) where each row has a size of its own; masks: the same without the last side. Others: a
               value for each row, or `collated`; where there are several views, what follows a view (boxes, points,
               their labels) is a tuple, too.
    sizes:     of image fields in which sizes vary, (N, 2) of each view.
    failures:  row -> why the engine could not make that row; its values are undefined.
    augmented: whether the recipe's augmentations have been applied, up to the first operation on whole batches.
    bytes_read: encoded bytes that were read for it. storage: what was read of storages; None: its data is local.
    spans:     who was busy with it, and when; stages "read", "storage" and "decode".
    bad:       the bad samples that were met while its failures were made good. replaced: for each row whose own sample
               was bad, which is more than to lack something, why.
    error:     why a worker process could not make it at all, and the traceback there.
    """

    job: Job
    columns: Columns
    failures: dict[int, SampleError] = field(default_factory=dict)
    sizes: dict[str, tuple[NDArray[np.int32], ...]] = field(default_factory=dict)
    augmented: bool = False
    collated: bool = False
    bytes_read: int = 0
    storage: StorageUse | None = None
    spans: tuple[Any, ...] = ()
    bad: list[SampleError] = field(default_factory=list)
    replaced: list[SampleError] = field(default_factory=list)
    error: tuple[GpupipeError, str] | None = None


def total(uses: Iterable[StorageUse | None]) -> StorageUse | None:
    """All together; None where there is none."""
    known = [use for use in uses if use is not None]
    return sum(known[1:], known[0]) if known else None


def join(job: Job, parts: Sequence[tuple[NDArray[np.int64], Batch]]) -> Batch:
    """One batch of all rows of a job out of batches of some of them, which are not collated unless there is one."""
    whole = replace(parts[0][1], job=job)
    if len(parts) > 1:
        whole.columns = assemble(len(job), [(rows, part.columns) for rows, part in parts])
        whole.sizes = assemble(len(job), [(rows, part.sizes) for rows, part in parts])
        whole.failures = {int(rows[row]): error for rows, part in parts for row, error in part.failures.items()}
        whole.error = next((part.error for _, part in parts if part.error is not None), None)
        whole.bytes_read = sum(part.bytes_read for _, part in parts)
        whole.storage = total(part.storage for _, part in parts)
        whole.spans = tuple(span for _, part in parts for span in part.spans)
    return whole
