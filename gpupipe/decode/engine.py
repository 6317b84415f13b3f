"""What every engine takes and gives: jobs in, batches out, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from gpupipe.decode.seeding import seeding
from gpupipe.errors import SampleError
from gpupipe.host.tracing import Span
from gpupipe.plan import Plan, plan
from gpupipe.recipe import Recipe
from gpupipe.sources import DatasetSource, Encoded, SampleMeta, Source

if TYPE_CHECKING:
    import torch

__all__ = ["Batches", "Engine", "EngineBatch", "Job", "fetch", "job_plan"]


@dataclass(frozen=True)
class Job:
    """One batch to make: the samples, and the counters from which each one's draws follow.

    indices, positions: int64 (N,). A job is small and picklable, so that it can be sent to a worker process.
    """

    seed: int
    epoch: int
    positions: NDArray[np.int64]
    indices: NDArray[np.int64]


@dataclass
class EngineBatch:
    """What an engine makes of a job.

    images:   of each view uint8 (N, height, width, 3).
    labels:   int64 (N,).
    failures: row -> why the engine could not make that row; its pixels are undefined.
    augmented: whether the recipe's augmentations have been applied.
    job, step: what was asked for, and for which step of the epoch; the loader adds them.
    bytes_read: encoded bytes that were read for it.
    spans:    who was busy with it, and when; stages "read" and "decode".
    """

    images: tuple[torch.Tensor, ...]
    labels: torch.Tensor
    failures: dict[int, SampleError] = field(default_factory=dict)
    augmented: bool = False
    job: Job | None = None
    step: int = 0
    bytes_read: int = 0
    spans: tuple[Span, ...] = ()

    def pin_memory(self) -> EngineBatch:
        """The same batch in page-locked memory; `torch.utils.data.DataLoader` calls this."""
        images = tuple(view.pin_memory() for view in self.images)
        return replace(self, images=images, labels=self.labels.pin_memory())


class Batches(Protocol):
    """The batches of some jobs."""

    def __iter__(self) -> Iterator[EngineBatch]: ...

    def __next__(self) -> EngineBatch: ...

    def close(self) -> None:
        """Nothing more is wanted of them. May be called twice."""
        ...


class Engine(Protocol):
    """Makes batches. It knows its source and recipe, and nothing of orders, epochs' ends or ranks."""

    name: str
    device: torch.device

    def stream(self, jobs: Iterable[Job]) -> Batches:
        """A batch for each job, in their order. It may take jobs ahead of the batches that it has given.

        What makes them is at work when this returns.
        """
        ...

    def ready(self) -> int | None:
        """Batches of the current stream that are made and wait to be taken; None where the engine can't tell."""
        ...

    def interrupt(self) -> None:
        """From another thread: whoever waits in the stream for something that may never come is to end soon."""
        ...

    def close(self) -> None:
        """Give back threads, processes and memory. May be called twice."""
        ...


def job_plan(recipe: Recipe, job: Job, meta: SampleMeta, view: int = 0) -> Plan:
    """What happens to each image of a job, whose sizes are known now, in one view."""
    heights, widths = meta.heights, meta.widths
    if recipe.exif_orientation:
        # Orientations 5 to 8 swap the axes (EXIF 2.3, tag 0x0112); boxes are drawn in the upright image.
        swapped = meta.orientations >= 5
        heights, widths = np.where(swapped, widths, heights), np.where(swapped, heights, widths)
    return plan(recipe, job.seed, job.epoch, job.positions, heights, widths, view)


Fetched = tuple[list[NDArray[np.uint8] | None], SampleMeta, dict[int, SampleError]]


def fetch(source: Source, job: Job) -> Fetched:
    """Encoded bytes and facts of a job's samples, and an error for each row that can't be read.

    What a user's dataset draws from the global random generators follows from the job, too.
    """
    if not isinstance(source, DatasetSource):
        return _fetch(lambda rows: source.fetch(job.indices[rows]), len(job.indices))
    with seeding(source, job.seed, job.epoch, job.positions) as seed:
        read = partial(_read, source, job, seed)
        return _fetch(read, len(job.indices))


Read = Callable[[slice], tuple[list[Encoded], SampleMeta]]


def _read(
    source: DatasetSource, job: Job, seed: Callable[[int], None], rows: slice
) -> tuple[list[Encoded], SampleMeta]:
    return source.fetch(job.indices[rows], lambda place: seed(rows.start + place))


def _fetch(read: Read, count: int) -> Fetched:
    with suppress(SampleError):
        encoded, meta = read(slice(0, count))
        return list(encoded), meta, {}
    return _fetch_each(read, count)  # its errors stand for themselves, not "during handling of" the first one


def _fetch_each(read: Read, count: int) -> Fetched:
    """One by one, so that one bad sample leaves the others whole."""
    encoded: list[NDArray[np.uint8] | None] = [None] * count
    failures: dict[int, SampleError] = {}
    meta = SampleMeta(
        labels=np.full(count, -1, np.int64),
        heights=np.zeros(count, np.int32),
        widths=np.zeros(count, np.int32),
        orientations=np.ones(count, np.uint8),
        sizes=np.zeros(count, np.int64),
    )
    for row in range(count):
        try:
            (encoded[row],), one = read(slice(row, row + 1))
        except SampleError as error:
            failures[row] = error
        else:
            for column in fields(meta):
                getattr(meta, column.name)[row] = getattr(one, column.name)[0]
    return encoded, meta, failures
