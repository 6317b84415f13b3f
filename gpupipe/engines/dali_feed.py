"""What DALI is fed for a job: bytes or paths, boxes and flips, and which rows it must not see."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.draws import Plan
from gpupipe.engines.base import Job, fetch, job_plan
from gpupipe.engines.dali_graph import PLACEHOLDER, placeholder
from gpupipe.errors import SampleError
from gpupipe.recipe import Views
from gpupipe.tracing import Span, Stage

if TYPE_CHECKING:
    from gpupipe.sources import SampleMeta, Source

__all__ = ["Feed", "Feeder", "view_inputs", "visible_part"]

Encoded = list[NDArray[np.uint8]] | NDArray[np.uint8]

BLANK = (0, 1, 0, 1)  # starts, shapes, roi_starts, roi_ends of the placeholder

TIFF_ENDINGS = (b".tif", b".tiff")
TIFF_STARTS = (b"II*\0", b"MM\0*")


@dataclass
class Feed:
    """One job's inputs of the pipeline, kept alive until its batch is out: DALI reads them in place.

    encoded:  uint8 arrays, or a zero-padded uint8 (N, length) array of paths.
    geometry: four arrays for each view, one view after the other. starts, shapes: int32 (N, 2) as (y, x), the window
              to decode; roi_starts, roi_ends: float32 (N, 2), the region in it that the output covers, from right to
              left where the output is mirrored.
    sizes:    int64 (N,), bytes as indexed.
    failures: rows that hold the placeholder, and why. read: when the inputs were made, which is when the bytes were
    fetched unless DALI reads the files itself.
    """

    job: Job
    encoded: Encoded
    geometry: tuple[NDArray[Any], ...]
    labels: NDArray[np.int64]
    sizes: NDArray[np.int64]
    failures: dict[int, SampleError]
    read: Span

    @property
    def inputs(self) -> tuple[Any, ...]:
        """In the order of the pipeline's external sources."""
        return self.encoded, *self.geometry

    def rows(self, rows: list[int]) -> tuple[Any, ...]:
        """The inputs of some rows."""
        encoded = self.encoded[rows] if isinstance(self.encoded, np.ndarray) else [self.encoded[r] for r in rows]
        return encoded, *(array[rows] for array in self.geometry)


class Feeder:
    """Makes feeds. `refused` holds the samples, by index, that DALI has refused before."""

    def __init__(self, source: Source, views: Views) -> None:
        self._source = source
        self._views = views
        self.refused: dict[int, SampleError] = {}

    @cached_property
    def as_paths(self) -> bool:
        """Whether DALI's own threads read the files."""
        return self._source.paths(np.zeros(1, np.int64)) is not None

    def __call__(self, job: Job) -> Feed:
        """The job's inputs; rows that can't be read or that DALI can't decode hold the placeholder."""
        with Stage("read") as read:
            encoded, meta, failures = self._fetched(job)
        plans = [job_plan(recipe, job, meta, view) for view, recipe in enumerate(self._views)]
        feed = Feed(
            job,
            encoded,
            tuple(array for planned in plans for array in view_inputs(planned)),
            meta.labels.astype(np.int64),
            meta.sizes,
            failures,
            read.span("consumer"),
        )
        self._add_failures(feed, meta)
        if failures:
            _blank(feed, list(failures))
        return feed

    def blank(self) -> tuple[Any, ...]:
        """Inputs of one row that holds the placeholder."""
        encoded = _padded([str(PLACEHOLDER)]) if self.as_paths else [placeholder()]
        zeros, ones = np.zeros((1, 2), np.int32), np.ones((1, 2), np.int32)
        geometry = zeros, ones, zeros.astype(np.float32), ones.astype(np.float32)
        return encoded, *(geometry * len(self._views))

    def _fetched(self, job: Job) -> tuple[Encoded, SampleMeta, dict[int, SampleError]]:
        if self.as_paths:
            return _padded(self._source.paths(job.indices) or []), self._source.meta(job.indices), {}
        fetched, meta, failures = fetch(self._source, job)
        return [placeholder() if data is None else data for data in fetched], meta, failures

    def _add_failures(self, feed: Feed, meta: SampleMeta) -> None:
        for row in np.flatnonzero(meta.heights == 0).tolist():
            self._leave_to_the_cpu(feed, row, "its image header can't be read")
        for row in _tiffs(feed.encoded):
            self._leave_to_the_cpu(feed, row, "DALI does not turn TIFFs upright as Pillow does")
        for row, index in enumerate(feed.job.indices.tolist()) if self.refused else ():
            if index in self.refused:
                feed.failures.setdefault(row, self.refused[index])

    def _leave_to_the_cpu(self, feed: Feed, row: int, reason: str) -> None:
        index = int(feed.job.indices[row])
        feed.failures.setdefault(row, SampleError(index, self._source.location(index), reason))


def view_inputs(plan: Plan) -> tuple[NDArray[Any], ...]:
    """What DALI is fed for one view of N images: four arrays, see `Feed.geometry`."""
    windows, roi_starts, roi_ends = visible_part(plan)
    starts, shapes = np.ascontiguousarray(windows[:, :2]), np.ascontiguousarray(windows[:, 2:])
    flipped = plan.flips
    roi_starts[flipped, 1], roi_ends[flipped, 1] = roi_ends[flipped, 1], roi_starts[flipped, 1]
    return starts, shapes, roi_starts, roi_ends


def visible_part(plan: Plan) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.float32]]:
    """The pixels that the output depends on, and where in them the output lies.

    Returns windows int32 (N, 4), each within the plan's window, and the start and end, float32 (N, 2) as (y, x), of
    the region in that window which the output covers. For a plan without an anchor that is the whole window.
    """
    window = plan.windows[:, 2:].astype(np.float64)
    scale = window / plan.resized
    start, end = plan.anchors * scale, (plan.anchors + np.array(plan.size, np.int64)) * scale
    # A bilinear filter reaches `scale` pixels beyond, at least 1, a bicubic one twice that; one more for rounding.
    reach = {"bilinear": 1, "bicubic": 2}[plan.filter] * np.maximum(scale, 1) + 1
    low, high = np.maximum(np.floor(start - reach), 0), np.minimum(np.ceil(end + reach), window)
    windows = np.concatenate([plan.windows[:, :2] + low, high - low], axis=1).astype(np.int32)
    return windows, (start - low).astype(np.float32), (end - low).astype(np.float32)


def _blank(feed: Feed, rows: list[int]) -> None:
    """Rows that DALI must not see get the placeholder."""
    if isinstance(feed.encoded, np.ndarray):
        feed.encoded = _with_path(feed.encoded, rows, str(PLACEHOLDER))
    else:
        for row in rows:
            feed.encoded[row] = placeholder()
    for number, array in enumerate(feed.geometry):
        array[rows] = BLANK[number % len(BLANK)]


def _padded(paths: list[str]) -> NDArray[np.uint8]:
    """Paths as one zero-padded array: DALI stops at the zero, and one array is fed faster than many."""
    joined = np.array([os.fsencode(path) for path in paths])
    return joined.view(np.uint8).reshape(len(paths), -1)


def _tiffs(encoded: Encoded) -> list[int]:
    """The rows that hold TIFFs, by their names or their first bytes."""
    if isinstance(encoded, np.ndarray):
        names = encoded.view(f"S{encoded.shape[1]}")[:, 0].tolist()
        return [row for row, name in enumerate(names) if name.lower().endswith(TIFF_ENDINGS)]
    return [row for row, data in enumerate(encoded) if data[:4].tobytes() in TIFF_STARTS]


def _with_path(encoded: NDArray[np.uint8], rows: list[int], path: str) -> NDArray[np.uint8]:
    """A copy in which `rows` hold `path`."""
    raw = np.frombuffer(os.fsencode(path), np.uint8)
    wide = np.zeros((len(encoded), max(encoded.shape[1], len(raw))), np.uint8)
    wide[:, : encoded.shape[1]] = encoded
    wide[rows] = 0
    wide[rows, : len(raw)] = raw
    return wide
