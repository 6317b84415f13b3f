"""The engine that shares each batch out: some rows to DALI, the others to the CPU kernel in worker processes.

    job ──► rows ─┬► DALI's part  ──► hardware engines, hybrid decoder ─┬► one uint8 batch on the device
                  └► the CPU's part ──► worker processes ───────────────┘

Both parts are jobs like any other, since a job is no more than positions and samples. The engines don't know of each
other.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from itertools import tee

import numpy as np
from numpy.typing import NDArray

from gpupipe.batch import Batch, Image, Images, Job, Schema
from gpupipe.batch.batch import join
from gpupipe.decode.engine import Batches, Engine
from gpupipe.decode.rendering import crops_of
from gpupipe.kernels.philox import uniform
from gpupipe.plan.stream import DECODER, Stream
from gpupipe.recipe import Views
from gpupipe.sources import Source

__all__ = ["Share", "SharingEngine"]

Rows = NDArray[np.int64]
Split = tuple[Job, tuple[Rows, Rows]]
"""A job, and its rows in both parts: DALI's and the CPU's."""

FIRST = Schema({"image": Image()})  # of the images of a sample the first decides
IN_SIGHT = 100  # jobs ahead in which a part's next row is looked for
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
        sizes = self._source.shapes(job.indices)
        # Where many images have the same size and the same crop, the draw decides.
        return drawn if sizes is None else self._parts(job, sizes) + 0.01 * drawn

    def _parts(self, job: Job, sizes: NDArray[np.int32]) -> NDArray[np.float64]:
        """Of each image the part, 0 to 1, in which its crops lie."""
        crops = crops_of(FIRST, self._views, job, {"image": Images([None] * len(job), sizes)})["image"]
        windows = np.stack([planned.windows for planned in crops])
        low, high = windows[..., :2].min(axis=0), (windows[..., :2] + windows[..., 2:]).max(axis=0)
        areas = (high - low).astype(np.float64).prod(axis=1)
        parts: NDArray[np.float64] = areas / np.maximum(sizes[:, :2].astype(np.float64).prod(axis=1), 1)
        return parts


class SharingEngine(Engine):
    """DALI and worker processes, side by side on each batch; `share` says which rows are the workers'."""

    name = "dali"

    def __init__(self, dali: Engine, cpu: Engine, share: Callable[[Job], NDArray[np.bool_]]) -> None:
        self.device = dali.device
        self._dali = dali
        self._cpu = cpu
        self._share = share

    def stream(self, jobs: Iterable[Job]) -> Batches:
        """A uint8 batch for each job on the engine's device, not augmented."""
        splits, *shares = tee(_split(jobs, self._share), 3)  # for three readers, each at its own pace
        # Workers first: a fork while DALI's threads run may inherit a lock that one of them holds.
        cpu = _Part(self._cpu, shares[1], 1)
        parts = [_Part(self._dali, shares[0], 0), cpu]
        merged = _merged(splits, parts)

        def close() -> None:
            merged.close()
            for part in parts:
                part.close()

        return Batches(partial(next, merged), close)

    def interrupt(self) -> None:
        self._cpu.interrupt()

    def close(self) -> None:
        self._dali.close()
        self._cpu.close()


def _split(jobs: Iterable[Job], share: Callable[[Job], NDArray[np.bool_]]) -> Iterator[Split | Exception]:
    """Each job with its rows, and then why there is no further one, which is raised after the batches before it."""
    try:
        for job in jobs:
            cpu = share(job)
            yield job, (np.flatnonzero(~cpu), np.flatnonzero(cpu))
    except Exception as error:
        yield error


class _Part:
    """The batches of one part's rows. Where its stream has ended, as none were in sight, another begins."""

    def __init__(self, engine: Engine, splits: Iterator[Split | Exception], number: int) -> None:
        self._engine = engine
        self._splits = splits
        self._number = number
        self._batches = engine.stream(self._jobs())

    def next(self) -> Batch:
        batch = next(self._batches, None)
        if batch is None:
            self._batches = self._engine.stream(self._jobs())
            batch = next(self._batches)
        return batch

    def close(self) -> None:
        """No more jobs; what made them is let go."""
        self._splits = iter(())
        self._batches.close()

    def _jobs(self) -> Iterator[Job]:
        """Those without a row are left out. IN_SIGHT of them end it: jobs may have no end."""
        without = 0
        while without < IN_SIGHT and isinstance(split := next(self._splits, None), tuple):
            job, rows = split[0], split[1][self._number]
            without = 0 if len(rows) else without + 1
            if len(rows):
                yield job.take(rows)


def _merged(splits: Iterator[Split | Exception], parts: Sequence[_Part]) -> Generator[Batch, None, None]:
    """The batch of each job, of its parts; its pixels are where DALI has its own."""
    for split in splits:
        if isinstance(split, Exception):
            try:
                raise split
            finally:
                del split  # else it and this frame would hold each other
        job, rows = split
        yield join(job, [(own, part.next()) for own, part in zip(rows, parts, strict=True) if len(own)])
