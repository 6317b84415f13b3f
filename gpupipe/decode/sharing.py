"""The engine that shares each batch out: some rows to DALI, the others to the CPU kernel in worker processes.

    job ──► rows ─┬► DALI's part  ──► hardware engines, hybrid decoder ─┬► one uint8 batch on the device
                  └► the CPU's part ──► worker processes ───────────────┘

Both parts are jobs like any other, since a job is no more than positions and samples. The engines don't know of each
other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.batch import Batch, Images, Job
from gpupipe.batch.columns import assemble
from gpupipe.decode.engine import Batches, Engine
from gpupipe.decode.rendering import crops_of
from gpupipe.kernels.philox import uniform
from gpupipe.kernels.transfer import to_device
from gpupipe.plan.stream import DECODER, Stream
from gpupipe.recipe import Views
from gpupipe.sources.indexed import IndexedSource

if TYPE_CHECKING:
    from gpupipe.sources import Source

__all__ = ["Share", "SharingEngine"]

Rows = NDArray[np.int64]

PROBES = 1024  # samples by which the limit is set: the share is met within 3 points, in 95 of 100 datasets


class Share:
    """Which rows the CPU decodes: a pure function of seed, epoch, position and sample.

    So a sample is decoded by the same of the two in whatever batch and on whatever rank it is.

    share: of the samples, 0 to 1. Those are chosen whose crop is the smallest part of its image: the CPU decodes no
    more than the crop. At a share of 0.4 of 500 ImageNet training images that made the CPU 1.28 times as fast as on any
    40 %, and left the images of DALI's part as large as they were on the average (one core of an AMD EPYC).
    """

    def __init__(self, source: Source, views: Views, share: float) -> None:
        self._source = source
        self._views = views
        probes = np.linspace(0, len(source) - 1, min(PROBES, len(source))).astype(np.int64)
        scores = self._scores(Job(seed=0, epoch=0, positions=np.arange(len(probes)), indices=probes))
        self._limit = float(np.quantile(scores, share))

    def __call__(self, job: Job) -> NDArray[np.bool_]:
        """Whether each row is the CPU's, (N,)."""
        return self._scores(job) < self._limit

    def _scores(self, job: Job) -> NDArray[np.float64]:
        drawn: NDArray[np.float64] = uniform(Stream(job.seed, job.epoch, job.positions).words(DECODER)[0])
        if not isinstance(self._source, IndexedSource):
            return drawn  # sizes would cost a read of each sample
        # Where many images have the same size and the same crop, the draw decides.
        return self._parts(job) + 0.01 * drawn

    def _parts(self, job: Job) -> NDArray[np.float64]:
        """Of each image the part, 0 to 1, in which its crops lie."""
        sizes = self._source.shapes(job.indices)
        assert sizes is not None
        name = self._source.fields.images[0]
        crops = crops_of(self._source.fields, self._views, job, {name: Images([None] * len(job), sizes)})[name]
        windows = np.stack([planned.windows for planned in crops])
        low, high = windows[..., :2].min(axis=0), (windows[..., :2] + windows[..., 2:]).max(axis=0)
        areas = (high - low).astype(np.float64).prod(axis=1)
        parts: NDArray[np.float64] = areas / np.maximum(sizes[:, :2].astype(np.float64).prod(axis=1), 1)
        return parts


@dataclass(frozen=True)
class _Split:
    """A job and its rows in both parts."""

    job: Job
    dali: Rows
    cpu: Rows


class SharingEngine:
    """DALI and worker processes, side by side on each batch; `share` says which rows are the workers'."""

    name = "dali"

    def __init__(self, dali: Engine, cpu: Engine, share: Callable[[Job], NDArray[np.bool_]]) -> None:
        self.device = dali.device
        self._dali = dali
        self._cpu = cpu
        self._share = share

    def stream(self, jobs: Iterable[Job]) -> Batches:
        """A uint8 batch for each job on the engine's device, not augmented."""
        splits = _Splits(jobs, self._share)
        dali, cpu = self._dali.stream(splits.parts("dali")), self._cpu.stream(splits.parts("cpu"))
        return _Merged(splits, dali, cpu, self.device)

    def ready(self) -> None:
        """None: DALI does not tell."""
        return

    def interrupt(self) -> None:
        """End what waits for workers."""
        self._dali.interrupt()
        self._cpu.interrupt()

    def close(self) -> None:
        """Close both engines."""
        self._dali.close()
        self._cpu.close()


class _Merged:
    """The batches of one stream, each of its parts."""

    def __init__(self, splits: _Splits, dali: Batches, cpu: Batches, device: torch.device) -> None:
        self._splits = splits
        self._dali = dali
        self._cpu = cpu
        self._device = device

    def __iter__(self) -> _Merged:
        return self

    def __next__(self) -> Batch:
        split = self._splits.next()
        if split is None:
            self.close()
            raise StopIteration
        parts = ((split.dali, self._dali), (split.cpu, self._cpu))
        made = [(rows, next(batches)) for rows, batches in parts if len(rows)]
        return made[0][1] if len(made) == 1 else _merged(split.job, made, self._device)

    def close(self) -> None:
        self._dali.close()
        self._cpu.close()


class _Splits:
    """Splits jobs as they come, for three readers, each at its own pace."""

    def __init__(self, jobs: Iterable[Job], share: Callable[[Job], NDArray[np.bool_]]) -> None:
        self._jobs = iter(jobs)
        self._share = share
        self._waiting: dict[str, deque[_Split]] = {"dali": deque(), "cpu": deque(), "all": deque()}

    def next(self, reader: str = "all") -> _Split | None:
        """The reader's next split; None after the last."""
        waiting = self._waiting[reader]
        if not waiting:
            job = next(self._jobs, None)
            if job is None:
                return None
            cpu = self._share(job)
            split = _Split(job, np.flatnonzero(~cpu), np.flatnonzero(cpu))
            for others in self._waiting.values():
                others.append(split)
        return waiting.popleft()

    def parts(self, reader: str) -> Iterator[Job]:
        """The jobs of one part; those without a row are left out."""
        while (split := self.next(reader)) is not None:
            rows: Rows = getattr(split, reader)
            if len(rows):
                yield split.job.take(rows)


def _merged(job: Job, made: list[tuple[Rows, Batch]], device: torch.device) -> Batch:
    """One batch of the rows of several; none of them collated."""
    pixels = {name for name, column in made[0][1].columns.items() if isinstance(column, tuple)}
    rest = [(rows, {n: c for n, c in part.columns.items() if n not in pixels}) for rows, part in made]
    merged = Batch(job, assemble(len(job), rest))
    for name in pixels:
        views = made[0][1].columns[name]
        merged.columns[name] = tuple(torch.empty((len(job), *v.shape[1:]), dtype=v.dtype, device=device) for v in views)
    for rows, part in made:
        at = to_device(torch.from_numpy(rows), device)
        for name in pixels:
            for whole, view in zip(merged.columns[name], part.columns[name], strict=True):
                _put(whole, at, to_device(view, device))
        merged.failures |= {int(rows[row]): error for row, error in part.failures.items()}
        merged.bytes_read += part.bytes_read
        merged.spans += part.spans
    return merged


def _put(whole: torch.Tensor, at: torch.Tensor, part: torch.Tensor) -> None:
    """`whole[at] = part`, eight bytes at a time where an image's size allows."""
    size = whole[0].numel()
    word = torch.int64 if size % 8 == part.storage_offset() % 8 == 0 else torch.uint8
    whole.view(len(whole), size).view(word).index_copy_(0, at, part.reshape(len(part), size).view(word))
