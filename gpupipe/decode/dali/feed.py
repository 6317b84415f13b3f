"""What DALI is fed for a job: bytes, boxes and flips; and what the CPU makes beside it, with which it is a batch."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from itertools import cycle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.batch import Batch, Columns, Frames, Image, Job, Schema
from gpupipe.batch.columns import assemble
from gpupipe.batch.sized import Sizes
from gpupipe.decode.costs import each_image
from gpupipe.decode.dali.beside import Beside, Part, Threads
from gpupipe.decode.dali.graph import FILTERS, geometry, placeholder
from gpupipe.decode.dali.screen import unfit_rows
from gpupipe.decode.fetching import Fetched, fetch, upright
from gpupipe.decode.rendering import FieldCrops, crops_of, put_together, refuse_small, sizes_of
from gpupipe.errors import ConfigError
from gpupipe.host.tracing import Span, Stage
from gpupipe.kernels import Crops
from gpupipe.kernels.transfer import put
from gpupipe.recipe import Views
from gpupipe.sources import Source

__all__ = ["Feed", "Feeder", "frames_of", "view_inputs", "visible_part"]


@dataclass
class Feed:
    """One job on its way through DALI, kept alive until its batch is out: DALI reads the inputs in place.

    inputs:   of the pipeline's external sources: for each image field N uint8 arrays of encoded bytes, then five arrays
              for each view, four more where its crop has a fill. starts, shapes: int32 (N, 2) as (y, x), the window to
              decode; roi_starts, roi_ends: float32 (N, 2), the region in it that the output covers, from right to left
              where the output is mirrored; filters: int32 (N, 1), see `FILTERS`. padded_starts, padded_shapes: the
              same window with what of it lies outside of the image, in what was decoded, which the region then is in;
              shown: float32 (N, 2), the size to which the region is resized; ats: int32 (N, 2), where in that the
              output begins. Behind these, where the crop varies, its `outputs`.
    views:    the recipes for which.
    fetched:  what was read; read: when that was.
    sizes:    of the batch. others, followed: the columns that are no images, see `Beside.others`.
    frames:   so many images of each field are a row, one after the other.
    several:  what its rows are put together by, where it is a widened job: the job, and the crops of each part.
    hidden:   the rows in which DALI gets the placeholder: those that could not be read, and those of `declined`.
    """

    inputs: tuple[Any, ...]
    views: Views
    fetched: Fetched
    read: Span
    sizes: dict[str, tuple[Sizes, ...]]
    others: Columns
    followed: list[Part]
    frames: int = 1
    several: tuple[Job, FieldCrops] | None = None
    hidden: set[int] = field(default_factory=set)
    declined: list[Part] = field(default_factory=list)

    @property
    def job(self) -> Job:
        """What it is for."""
        return self.fetched.job

    def hide(self, rows: Collection[int]) -> None:
        """DALI gets the placeholder in these rows, in new inputs."""
        self.hidden.update(rows)
        images = [row * self.frames + frame for row in rows for frame in range(self.frames)]
        self.inputs = _blanked(self.inputs, images, self.views) if rows else self.inputs

    def batch(self, images: Columns, decode: Span) -> Batch:
        """The batch, with DALI's images, in which the declined rows are put: all that is beside them is waited for."""
        parts, self.declined = self.declined, []
        made = Batch(
            self.job,
            images | self.others,
            dict(self.fetched.failures),
            self.sizes,
            bytes_read=self.fetched.bytes_read,
            storage=self.fetched.storage,
            spans=(*self.fetched.spans(self.read), decode),
        )
        for part in parts:
            for name, views in _result(part, made).items():
                for whole, view in zip(images[name], views, strict=True):
                    put(whole, part.rows, view)
        if self.followed:
            made.columns |= assemble(len(self.job), [(part.rows, _result(part, made)) for part in self.followed])
        return made if self.several is None else self._put_together(made, *self.several)

    def _put_together(self, made: Batch, job: Job, crops: FieldCrops) -> Batch:
        planes = {name: made.columns[name][0] for name in self.fetched.source.fields.pixels}
        rest = {name: column for name, column in made.columns.items() if name not in planes}
        out: Columns = {name: (plane.new_empty((len(job), *plane.shape[1:])),) for name, plane in planes.items()}

        def parts(part: Fetched, own: FieldCrops, rows: slice) -> Columns:
            return {name: column[rows] for name, column in rest.items()} | {
                name: (plane[rows],) for name, plane in planes.items()
            }

        wide = replace(self.fetched, failures=made.failures)
        whole = put_together(wide, self.views, crops, job, parts, out)
        return replace(made, job=job, columns=whole.columns | out, failures=whole.failures)

    def drop(self) -> None:
        """The batch is not wanted any more."""
        for part in self.declined + self.followed:
            part.made.cancel()


def frames_of(schema: Schema) -> int:
    """How many images of each field are a row: frames of clips, else 1. Raises ConfigError where fields differ, as DALI
    takes as many of each."""
    counts = {name: one.count if isinstance(one := schema[name], Frames) else None for name in schema.images}
    if len(set(counts.values())) > 1:
        raise ConfigError(
            f"engine='dali': image fields have {counts} frames, and DALI takes as many of each; take 'torch'"
        )
    return next(iter(counts.values()), None) or 1


def _result(part: Part, batch: Batch) -> Columns:
    """The part's columns; its failures become the batch's."""
    columns, failures = part.made.result()
    for place, error in failures.items():
        batch.failures.setdefault(int(part.rows[place]), error)
    return columns


class Feeder:
    """Makes feeds."""

    def __init__(self, source: Source, views: Views, threads: int, pinned: bool, timeout: float) -> None:
        self._source = source
        self._views = views
        self._threads = Threads(threads, timeout)
        self._beside = Beside(source, views, self._threads, pinned)
        self.frames = frames_of(source.fields)
        self._refused: set[int] = set()  # by DALI, while it decoded them: their indices

    def __call__(self, job: Job) -> Feed:
        """The job's inputs; what the CPU makes of it has begun."""
        fields = self._source.fields
        with Stage("read") as read:
            wide = job if job.partners is None else job.widened()
            fetched = fetch(self._source, wide, self._threads.reading)
        crops = crops_of(fields, self._views, wide, fetched.columns)
        if job.partners is None:
            refuse_small(fetched, self._views, crops)
        inputs: list[Any] = []
        for name in fields.images:
            images = each_image(fetched.columns[name])
            assert images.sizes is not None
            sizes = upright(images.sizes) if self._views[0].exif_orientation else images.sizes[:, :2]
            inputs.append(list(images.data))
            each = [planned.repeat(self.frames) if self.frames > 1 else planned for planned in crops[name]]
            inputs += [array for planned in each for array in view_inputs(planned, sizes)]
        read_at, own = read.span("consumer"), sizes_of(self._views, crops)
        others = self._beside.others(fetched)
        feed = Feed(tuple(inputs), self._views, fetched, read_at, own, *others, frames=self.frames)
        feed.several = None if job.partners is None else (job, crops)
        self._decline(feed, self._unfit(feed))
        feed.hide(fetched.failures.keys())
        return feed

    def refuse(self, index: int, feeds: Iterable[Feed]) -> None:
        """DALI can't decode this sample: it gets it neither in the feeds, which are given to it again, nor later."""
        self._refused.add(index)
        for feed in feeds:
            self._decline(feed, set(np.flatnonzero(feed.job.indices == index).tolist()) - feed.hidden)

    def close(self) -> None:
        """End the threads."""
        self._threads.close()

    def _decline(self, feed: Feed, rows: set[int]) -> None:
        """The CPU makes these rows."""
        if rows:
            feed.hide(rows)
            feed.declined += self._beside.images(feed.fetched, sorted(rows))

    def _unfit(self, feed: Feed) -> set[int]:
        """Rows that could be read, and that DALI must not see: pixels, files unfit for it, and what it has refused; all
        where it can't pad them."""
        if any(recipe.crop.padding_mode != "constant" for recipe in self._views):
            return set(range(len(feed.job))) - feed.fetched.failures.keys()  # DALI has no such padding
        unfit = set(np.flatnonzero(np.isin(feed.job.indices, list(self._refused))).tolist()) if self._refused else set()
        fields = self._source.fields
        for name in fields.images:
            image = fields[name]
            assert isinstance(image, Image)
            images = each_image(feed.fetched.columns[name])
            assert images.sizes is not None
            exif = self._views[0].exif_orientation
            files = [row for row, data in enumerate(images.data) if data.ndim == 1]
            encoded = [images.data[row] for row in files]
            screened = unfit_rows(encoded, images.sizes[files], exif, image.background)
            places = set(range(len(images))).difference(files) | {files[place] for place in screened}
            unfit |= {place // self.frames for place in places}
        return unfit - feed.fetched.failures.keys()


def view_inputs(crops: Crops, sizes: NDArray[np.int32] | None = None) -> tuple[NDArray[Any], ...]:
    """What DALI is fed for one view of N images, see `Feed.inputs`; sizes: (N, 2), needed where the crops have a
    fill."""
    windows, roi_starts, roi_ends = visible_part(crops)
    flipped = crops.flips
    padding: tuple[NDArray[Any], ...] = ()
    if crops.fill is not None:
        assert sizes is not None
        windows, padding = _padding(crops, windows, np.maximum(sizes, 1))
    starts, shapes = np.ascontiguousarray(windows[:, :2]), np.ascontiguousarray(windows[:, 2:])
    roi_starts[flipped, 1], roi_ends[flipped, 1] = roi_ends[flipped, 1], roi_starts[flipped, 1]
    outputs = () if crops.outputs is None else (crops.outputs,)
    return starts, shapes, roi_starts, roi_ends, FILTERS[crops.bicubic.astype(np.intp)], *padding, *outputs


def _padding(
    crops: Crops, windows: NDArray[np.int32], sizes: NDArray[np.int32]
) -> tuple[NDArray[np.int32], tuple[NDArray[Any], ...]]:
    """The parts of the windows that lie in images of these sizes, at least a pixel, and the arrays for the rest."""
    first, last = _shown(crops)
    ats = crops.anchors - first
    ats[crops.flips, 1] = (last - first - ats - crops.sizes)[crops.flips, 1]
    starts = np.clip(windows[:, :2], 0, sizes - 1)
    ends = np.maximum(np.minimum(windows[:, :2] + windows[:, 2:], sizes), starts + 1)
    padded = windows[:, :2] - starts, np.ascontiguousarray(windows[:, 2:])
    shown = (last - first).astype(np.float32)
    return np.concatenate([starts, ends - starts], axis=1), (*padded, shown, ats.astype(np.int32))


def _shown(crops: Crops) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Where in the resized windows the outputs begin and end, int32 (N, 2) each; at least a pixel of each is shown."""
    first = np.clip(crops.anchors, 0, crops.resized - 1)
    return first, np.maximum(np.minimum(crops.anchors + crops.sizes, crops.resized), first + 1)


def visible_part(crops: Crops) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.float32]]:
    """The pixels that the output depends on, and where in them the output lies.

    Returns windows int32 (N, 4), each within the crops' windows, and the start and end, float32 (N, 2) as (y, x), of
    the region in that window which the output covers. For crops without an anchor that is the whole window.
    """
    window = crops.windows[:, 2:].astype(np.float64)
    scale = window / crops.resized
    start, end = (part * scale for part in _shown(crops))
    # A bilinear filter reaches `scale` pixels beyond, at least 1, a bicubic one twice that; one more for rounding.
    reach = np.where(crops.bicubic, 2, 1)[:, None] * np.maximum(scale, 1) + 1
    low, high = np.maximum(np.floor(start - reach), 0), np.minimum(np.ceil(end + reach), window)
    windows = np.concatenate([crops.windows[:, :2] + low, high - low], axis=1).astype(np.int32)
    return windows, (start - low).astype(np.float32), (end - low).astype(np.float32)


def _blanked(inputs: tuple[Any, ...], rows: list[int], views: Views) -> tuple[Any, ...]:
    """New inputs, with the placeholder in those rows."""
    sides = cycle([side for recipe in views for _, side in geometry(recipe)])
    blanked = []
    for given in inputs:
        given = given.copy()
        if isinstance(given, list):
            for row in rows:
                given[row] = placeholder()
        else:
            given[rows] = next(sides)
        blanked.append(given)
    return tuple(blanked)
