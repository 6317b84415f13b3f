"""What DALI is fed for a job: bytes, boxes and flips, and which rows it must not see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.batch import Images, Job
from gpupipe.decode.dali.graph import placeholder
from gpupipe.decode.dali.screen import unfit_rows
from gpupipe.decode.fetching import Fetched
from gpupipe.decode.reading import Reader
from gpupipe.decode.rendering import crops_of
from gpupipe.errors import SampleError
from gpupipe.host.tracing import Span, Stage
from gpupipe.kernels import Crops
from gpupipe.recipe import Views
from gpupipe.sources import Source

__all__ = ["Feed", "Feeder", "view_inputs", "visible_part"]

BLANK = (0, 1, 0, 1)  # starts, shapes, roi_starts, roi_ends of the placeholder


@dataclass
class Feed:
    """One job's inputs of the pipeline, kept alive until its batch is out: DALI reads them in place.

    encoded:  N uint8 arrays.
    geometry: four arrays for each view, one view after the other. starts, shapes: int32 (N, 2) as (y, x), the window
              to decode; roi_starts, roi_ends: float32 (N, 2), the region in it that the output covers, from right to
              left where the output is mirrored.
    fetched:  what was read; its failures are rows that hold the placeholder, and why. read: when that was.
    """

    job: Job
    encoded: list[NDArray[np.uint8]]
    geometry: tuple[NDArray[Any], ...]
    fetched: Fetched
    read: Span

    @property
    def inputs(self) -> tuple[Any, ...]:
        """In the order of the pipeline's external sources."""
        return self.encoded, *self.geometry


class Feeder:
    """Makes feeds; up to `threads` threads read. `refused` holds, by index, the samples that DALI could not decode."""

    def __init__(self, source: Source, views: Views, threads: int) -> None:
        self._source = source
        self._views = views
        self._read = Reader(source, threads)
        self.refused: dict[int, SampleError] = {}

    def __call__(self, job: Job) -> Feed:
        """The job's inputs; rows that can't be read or that DALI must not see hold the placeholder."""
        with Stage("read") as read:
            fetched = self._read(job)
        (name,) = self._source.fields.images
        images: Images = fetched.columns[name]
        encoded = [placeholder() if data is None else data for data in images.data]
        plans = crops_of(self._source.fields, self._views, job, fetched.columns)[name]
        geometry = tuple(array for planned in plans for array in view_inputs(planned))
        feed = Feed(job, encoded, geometry, fetched, read.span("consumer"))
        self._add_failures(feed, images)
        if fetched.failures:
            _blank(feed, list(fetched.failures))
        return feed

    def close(self) -> None:
        """End the threads that read."""
        self._read.close()

    def _add_failures(self, feed: Feed, images: Images) -> None:
        assert images.sizes is not None
        failures = feed.fetched.failures
        unfit = unfit_rows(feed.encoded, images.sizes, self._views[0].exif_orientation)
        for row, index in enumerate(feed.job.indices.tolist()):
            if index in self.refused:
                failures.setdefault(row, self.refused[index])
            elif row in unfit:
                failures.setdefault(row, SampleError(index, self._source.location(index), unfit[row]))


def view_inputs(crops: Crops) -> tuple[NDArray[Any], ...]:
    """What DALI is fed for one view of N images: four arrays, see `Feed.geometry`."""
    windows, roi_starts, roi_ends = visible_part(crops)
    starts, shapes = np.ascontiguousarray(windows[:, :2]), np.ascontiguousarray(windows[:, 2:])
    flipped = crops.flips
    roi_starts[flipped, 1], roi_ends[flipped, 1] = roi_ends[flipped, 1], roi_starts[flipped, 1]
    return starts, shapes, roi_starts, roi_ends


def visible_part(crops: Crops) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.float32]]:
    """The pixels that the output depends on, and where in them the output lies.

    Returns windows int32 (N, 4), each within the crops' windows, and the start and end, float32 (N, 2) as (y, x), of
    the region in that window which the output covers. For crops without an anchor that is the whole window.
    """
    window = crops.windows[:, 2:].astype(np.float64)
    scale = window / crops.resized
    start, end = crops.anchors * scale, (crops.anchors + np.array(crops.size, np.int64)) * scale
    # A bilinear filter reaches `scale` pixels beyond, at least 1, a bicubic one twice that; one more for rounding.
    reach = {"bilinear": 1, "bicubic": 2}[crops.filter] * np.maximum(scale, 1) + 1
    low, high = np.maximum(np.floor(start - reach), 0), np.minimum(np.ceil(end + reach), window)
    windows = np.concatenate([crops.windows[:, :2] + low, high - low], axis=1).astype(np.int32)
    return windows, (start - low).astype(np.float32), (end - low).astype(np.float32)


def _blank(feed: Feed, rows: list[int]) -> None:
    """Rows that DALI must not see get the placeholder."""
    for row in rows:
        feed.encoded[row] = placeholder()
    for number, array in enumerate(feed.geometry):
        array[rows] = BLANK[number % len(BLANK)]
