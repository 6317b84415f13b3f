"""The engine that shares each batch out: some rows to DALI, the others to the CPU kernel in worker processes.

    job ──► rows ─┬► DALI's part  ──► hardware engines, hybrid decoder ─┬► one uint8 batch on the device
                  └► the CPU's part ──► worker processes ───────────────┘

Both parts are jobs like any other, since a job is no more than positions and samples. The engines don't know of each
other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.batch import Batch, Columns, Image, Images, Job, Schema
from gpupipe.batch.batch import join
from gpupipe.decode.engine import Batches, Engine
from gpupipe.decode.rendering import crops_of
from gpupipe.kernels.philox import uniform
from gpupipe.kernels.transfer import put
from gpupipe.plan.stream import DECODER, Stream
from gpupipe.recipe import Views
from gpupipe.sources import Source

__all__ = ["Share", "SharingEngine"]

Rows = NDArray[np.int64]
Split = tuple[Job, dict[str, Rows]]
"""A job, and its rows in both parts."""

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
        return _Merged(splits, _Part(self._dali, splits, "dali"), _Part(self._cpu, splits, "cpu"), self.device)

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


class _Part:
    """The batches of one reader's rows. Where its stream has ended, as none were in sight, another begins."""

    def __init__(self, engine: Engine, splits: _Splits, reader: str) -> None:
        self._engine = engine
        self._splits = splits
        self._reader = reader
        self._batches = engine.stream(splits.parts(reader))

    def next(self) -> Batch:
        batch = next(self._batches, None)
        if batch is None:
            self._batches = self._engine.stream(self._splits.parts(self._reader))
            batch = next(self._batches)
        return batch

    def close(self) -> None:
        self._batches.close()


class _Merged:
    """The batches of one stream, each of its parts."""

    def __init__(self, splits: _Splits, dali: _Part, cpu: _Part, device: torch.device) -> None:
        self._splits = splits
        self._dali = dali
        self._cpu = cpu
        self._device = device

    def __iter__(self) -> _Merged:
        return self

    def __next__(self) -> Batch:
        split = self._splits.next("all")
        if split is None:
            failure = self._splits.failure
            self.close()
            try:
                raise StopIteration if failure is None else failure
            finally:
                del failure  # else it and this frame would hold each other
        job, rows = split
        parts = ((rows["dali"], self._dali), (rows["cpu"], self._cpu))
        return _merged(job, [(own, part.next()) for own, part in parts if len(own)], self._device)

    def close(self) -> None:
        self._splits.close()
        self._dali.close()
        self._cpu.close()


class _Splits:
    """Splits jobs as they come, for three readers, each at its own pace. `failure`: why there are no more."""

    def __init__(self, jobs: Iterable[Job], share: Callable[[Job], NDArray[np.bool_]]) -> None:
        self._jobs = iter(jobs)
        self._share = share
        self._waiting: dict[str, deque[Split]] = {"dali": deque(), "cpu": deque(), "all": deque()}
        self.failure: Exception | None = None

    def next(self, reader: str) -> Split | None:
        """The reader's next split; None after the last."""
        waiting = self._waiting[reader]
        if not waiting and not self._split():
            return None
        return waiting.popleft()

    def parts(self, reader: str) -> Iterator[Job]:
        """The jobs of one part; those without a row are left out. IN_SIGHT of them end it: jobs may have no end."""
        without = 0
        while without < IN_SIGHT and (split := self.next(reader)) is not None:
            rows = split[1][reader]
            without = 0 if len(rows) else without + 1
            if len(rows):
                yield split[0].take(rows)

    def close(self) -> None:
        """No more jobs; what made them is let go."""
        self._jobs, self.failure = iter(()), None
        for waiting in self._waiting.values():
            waiting.clear()

    def _split(self) -> bool:
        """Whether there was a further job, which all readers now have."""
        try:
            job = next(self._jobs, None)
            if job is None:
                return False
            cpu = self._share(job)
        except Exception as error:  # raised when the batches before it have been given
            self._jobs, self.failure = iter(()), error
            return False
        for waiting in self._waiting.values():
            waiting.append((job, {"dali": np.flatnonzero(~cpu), "cpu": np.flatnonzero(cpu)}))
        return True


def _merged(job: Job, parts: list[tuple[Rows, Batch]], device: torch.device) -> Batch:
    """One batch of the rows of several, which are not collated; its pixels are on the device."""
    if len(parts) == 1:
        return join(job, parts)
    pixels, others = zip(*(_sorted(part.columns) for _, part in parts), strict=True)
    merged = join(
        job, [(rows, replace(part, columns=columns)) for (rows, part), columns in zip(parts, others, strict=True)]
    )
    for name, views in pixels[0].items():
        whole = tuple(torch.empty((len(job), *view.shape[1:]), dtype=view.dtype, device=device) for view in views)
        merged.columns[name] = whole
        for (rows, _), made in zip(parts, pixels, strict=True):
            for into, view in zip(whole, made[name], strict=True):
                put(into, rows, view)
    return merged


def _sorted(columns: Columns) -> tuple[Columns, Columns]:
    """Those of pixels, which are a tensor for each view, and all others."""
    pixels = {name for name, column in columns.items() if isinstance(column, tuple) and torch.is_tensor(column[0])}
    return {name: columns[name] for name in pixels}, {n: column for n, column in columns.items() if n not in pixels}
