"""What the CPU makes of a job while DALI decodes: samples that DALI must not see, and all columns that are no images.

    job ──► fetched ─┬► DALI: pixels ────────────────────────────────────────┬► one batch
                     └► threads: declined samples, masks, boxes, points ... ─┘

The code is that of worker processes. A pool of threads runs it ahead of time, from when the job is fed to DALI.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpupipe.batch import Boxes, Columns, Images, Mask, Points
from gpupipe.decode.fetching import Failures, Fetched
from gpupipe.decode.rendering import FieldCrops, crops_of, decode_images, follow, planes
from gpupipe.host.readers import Readers
from gpupipe.recipe import Views
from gpupipe.sources import Source
from gpupipe.workers.work import new_planes

__all__ = ["Beside", "Part", "Threads"]

Rows = NDArray[np.int64]
Made = tuple[Columns, Failures]
Make = Callable[[Fetched, FieldCrops, Rows], Columns]


@dataclass(frozen=True)
class Part:
    """Some rows of a job in the making: their columns, and an error for each that can't be made, by its place here."""

    rows: Rows
    made: Future[Made]


class Threads:
    """Up to `count` threads that read, within `timeout`, and as many that make rows; they start when there is work for
    them.

    DALI waits for what is read, so that has a pool of its own: 500 ImageNet JPEGs in shards outside of the page cache
    take 112 to 196 us each by 4 threads, 399 to 483 by one (a virtual disk, 2 cores of an Intel Xeon).
    """

    def __init__(self, count: int, timeout: float) -> None:
        self.count = count
        self.reading = Readers(count, timeout)
        self._open()

    def _open(self) -> None:
        self.making = ThreadPoolExecutor(self.count, "gpupipe-make")

    def close(self) -> None:
        """End them; what they have not begun is dropped. The next work starts new ones."""
        self.reading.close()
        self.making.shutdown(cancel_futures=True)
        self._open()


class Beside:
    """Makes parts of jobs. pinned: whether in page-locked memory, for their way to a GPU."""

    def __init__(self, source: Source, views: Views, threads: Threads, pinned: bool) -> None:
        self._views = views
        self._threads = threads
        self._pinned = pinned
        schema = source.fields
        self._follows = any(isinstance(field, Mask | Boxes | Points) for field in schema.values())
        layout = planes(schema, views)
        self._images = [plane for plane in layout if plane.name in schema.images]
        self._masks = [plane for plane in layout if plane.name not in schema.images]

    def images(self, fetched: Fetched, rows: Sequence[int]) -> list[Part]:
        """The images of those rows."""
        count = min(self._threads.count, len(rows))
        return [self._part(self._decoded, fetched, np.array(rows[first::count], np.int64)) for first in range(count)]

    def others(self, fetched: Fetched) -> tuple[Columns, list[Part]]:
        """The columns that are no images: those that are there, masks as they are being written, and the rest."""
        if not self._follows:
            return {name: column for name, column in fetched.columns.items() if not isinstance(column, Images)}, []
        count = len(fetched.job)
        masks = new_planes(self._masks, count, self._pinned)

        def followed(part: Fetched, crops: FieldCrops, rows: Rows) -> Columns:
            here = slice(rows[0], rows[-1] + 1)
            out = {name: tuple(view[here] for view in views) for name, views in masks.items()}
            return follow(part, self._views, crops, out)

        shares = np.array_split(np.arange(count), min(self._threads.count, count))
        return masks, [self._part(followed, fetched, share) for share in shares]

    def _part(self, make: Make, fetched: Fetched, rows: Rows) -> Part:
        return Part(rows, self._threads.making.submit(self._made, make, fetched, rows))

    # In a thread of the pool.

    def _made(self, make: Make, fetched: Fetched, rows: Rows) -> Made:
        bad = {place: fetched.failures[row] for place, row in enumerate(rows.tolist()) if row in fetched.failures}
        part = fetched.part(rows, dict(bad))
        columns = make(part, crops_of(part.source.fields, self._views, part.job, part.columns), rows)
        return columns, {place: error for place, error in part.failures.items() if place not in bad}

    def _decoded(self, part: Fetched, crops: FieldCrops, rows: Rows) -> Columns:
        out = new_planes(self._images, len(rows), self._pinned)
        decode_images(part, self._views, crops, out)
        return out
