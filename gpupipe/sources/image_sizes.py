"""The sizes of all images of a source, of headers that are read once where no index has them."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.batch import MISSING, Frames
from gpupipe.errors import DataError, SampleError
from gpupipe.host.cache import cache_folder, digest
from gpupipe.host.files import private
from gpupipe.sources.building import Advance, scan_in_threads
from gpupipe.sources.headers import DAMAGED, header_of
from gpupipe.sources.parts import datasets_of
from gpupipe.sources.source import Source
from gpupipe.sources.storage import BadIndexError, open_index, write_index

__all__ = ["image_shapes"]

log = logging.getLogger("gpupipe")

Shapes = NDArray[np.int32]

CHUNK = 64  # samples that are fetched at once


def image_shapes(source: Source) -> Shapes:
    """Height and width as stored, and orientation, (len(source), 3): see `Source.image_sizes`."""
    names = source.fields.images
    if not names or isinstance(source.fields[names[0]], Frames):
        what = "no images" if not names else f"clips in {names[0]!r}, of which each has a size when it is read"
        raise DataError(f"{source!r} has {what}, so that sizes of images can't be told")
    shapes = source.shapes(np.arange(len(source)))
    return _kept(source) if shapes is None else shapes


def _kept(source: Source) -> Shapes:
    """As the cache folder has them, or as they are read now and kept there: by what its parts say of their images, and
    since one of them was opened to be indexed again, if it was. A user's dataset that has no fingerprint of its own may
    have changed since, so that nothing is kept of it."""
    datasets, name = datasets_of(source), source.fields.images[0]
    if not all(hasattr(one.dataset, "fingerprint") for one in datasets):
        return _read(source, name, threads=1)
    now, parts = time.time(), list(source.all_parts())
    states = [part.state_of_images(name) for part in parts if name in part.fields]
    path = cache_folder() / f"sizes-{digest([source.fingerprint, name, states])}.index"
    found = _found(path, max(part.rebuilt for part in parts))
    if found is not None:
        return found
    shapes = _read(source, name, threads=1 if datasets else None)
    try:
        private(path.parent)
        write_index(path, source.fingerprint, {"read": now}, {"shapes": shapes})
    except OSError as error:
        log.info("sizes of images are not kept: %s can't be written (%s)", path, error.strerror)
    return shapes


def _found(path: Path, since: float) -> Shapes | None:
    """What is kept there, if it was read since then, in seconds since 1970."""
    with suppress(OSError, BadIndexError, KeyError, TypeError):
        index = open_index(path)
        return index.arrays["shapes"] if index.info["read"] >= since else None
    return None


def _read(source: Source, name: str, threads: int | None) -> Shapes:
    def chunk(begin: int, advance: Advance) -> list[tuple[int, int, int]]:
        indices = np.arange(begin, min(begin + CHUNK, len(source)))
        try:
            found = _headers(source, name, indices)
        except SampleError:  # one by one, so that the others are told
            found = [header for index in indices for header in _alone(source, name, int(index))]
        advance(len(indices))
        return found

    parts = scan_in_threads("reading sizes", len(source), chunk, range(0, len(source), CHUNK), threads)
    return np.array([header for part in parts for header in part], np.int32).reshape(-1, 3)


def _alone(source: Source, name: str, index: int) -> list[tuple[int, int, int]]:
    try:
        return _headers(source, name, np.array([index]))
    except SampleError:
        return [DAMAGED]


def _headers(source: Source, name: str, indices: NDArray[np.int64]) -> list[tuple[int, int, int]]:
    column: Any = source.fetch(indices)[name]
    if column.sizes is not None:
        return [tuple(row) for row in column.sizes.tolist()]
    return [DAMAGED if data is None or data is MISSING else header_of(data) for data in column.data]
