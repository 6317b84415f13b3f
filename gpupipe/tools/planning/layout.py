"""Where samples lie in the objects of a storage, as arrays; of local data, as if its files lay in one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpupipe.errors import DataError
from gpupipe.order.protocol import Indices
from gpupipe.sources import Source
from gpupipe.sources.remote.cache import on_disk
from gpupipe.sources.remote.coalescing import GAP, MOST, coalesce, pieces
from gpupipe.sources.remote.objects import Extent, Object
from gpupipe.sources.remote.source import RemoteSource
from gpupipe.sources.shards import ShardSource

__all__ = ["Layout", "layout_of"]

MOST_LOOKED_AT = 1 << 23
"""Samples of which all extents are listed, at some 3 us each; of more, each missed sample is taken for one request."""


@dataclass(frozen=True)
class Layout:
    """sizes: bytes of each sample (N,). objects, offsets: where it lies (N,); None: not known, each by itself."""

    sizes: Indices
    objects: Indices | None
    offsets: Indices | None

    def space(self, indices: Indices) -> Indices:
        """What they take of a cache."""
        return on_disk(self.sizes[indices])

    def asked(self, jobs: list[Indices]) -> tuple[int, int]:
        """Requests, and their bytes, for what each of several jobs has to fetch, as they are put together."""
        wanted = np.concatenate(jobs)
        sizes = self.sizes[wanted]
        if self.objects is None or self.offsets is None:
            return int((-(-sizes // MOST)).sum()), int(sizes.sum())
        job = np.repeat(np.arange(len(jobs)), [len(one) for one in jobs])
        objects, offsets = self.objects[wanted], self.offsets[wanted]
        order = np.lexsort((offsets, objects, job))
        near = np.diff(objects[order]) == 0
        near &= np.diff(job[order]) == 0
        near &= offsets[order][1:] - (offsets + sizes)[order][:-1] <= GAP
        shared = np.zeros(len(jobs), np.bool_)  # jobs in which a request may be for several samples
        shared[job[order][1:][near]] = True
        alone = ~shared[job]
        requests, fetched = int((-(-sizes[alone] // MOST)).sum()), int(sizes[alone].sum())
        for one in np.flatnonzero(shared).tolist():
            spans = coalesce([self._extent(int(index)) for index in jobs[one]])
            requests += sum(len(pieces(span)) for span in spans)
            fetched += sum(span.size for span in spans)
        return requests, fetched

    def _extent(self, index: int) -> Extent:
        assert self.objects is not None
        assert self.offsets is not None
        return Extent(Object(str(self.objects[index]), 0, ""), int(self.offsets[index]), int(self.sizes[index]))


def layout_of(source: Source) -> Layout:
    """Of all samples. Raises DataError where it is not known without reading them."""
    every = np.arange(len(source))
    sizes = source.stored_bytes(every)
    if sizes is None:
        sizes = getattr(source, "sizes", None)
    if sizes is None:
        raise DataError(
            f"how many bytes a sample of {source!r} has is not known without reading it; a plan can be made for image "
            "folders, shards, tables that list files, and tables at a URL"
        )
    sizes = np.asarray(sizes, np.int64).clip(0)
    if len(source) > MOST_LOOKED_AT:
        return Layout(sizes, None, None)
    return Layout(sizes, *_places(source, every))


def _places(source: Source, every: Indices) -> tuple[Indices, Indices]:
    """The object of each sample and where in it that begins; of one in several parts, where the first does."""
    if isinstance(source, RemoteSource):
        parts = [source.extents(index)[:1] for index in every.tolist()]
        numbers: dict[Object, int] = {}
        objects = [numbers.setdefault(part[0].object, len(numbers)) if part else -1 for part in parts]
        return np.array(objects), np.array([part[0].offset if part else 0 for part in parts])
    if isinstance(source, ShardSource):
        objects = np.repeat(np.arange(len(source.shards)), source.samples_per_shard).tolist()
        return np.array(objects), source._offsets.max(axis=1)
    return every, np.zeros_like(every)
