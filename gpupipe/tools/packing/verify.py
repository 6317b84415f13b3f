"""A file that was written, read back by its own source.

That takes 0.2 ms for an image of 110 KB, half of what copying it takes, and 5 % of what shrinking it takes (500
ImageNet images, one core of an Intel Xeon): so it is always done.
"""

from __future__ import annotations

from concurrent.futures import Executor
from itertools import islice
from pathlib import Path

import numpy as np

from gpupipe.errors import DataError, SampleError
from gpupipe.sources import Source, open_source
from gpupipe.sources.shards import scanned_shard
from gpupipe.tools.packing.layout import Layout, digest, stored

__all__ = ["verify"]

BATCH = 16  # samples that are read at once


def verify(path: Path, layout: Layout, digests: list[bytes], pool: Executor) -> None:
    """Raise DataError where the file, as its own source reads it, has other samples than were written."""
    if not digests:
        return
    source = _opened(path, layout)
    reason = f"it has {len(source)} samples where {len(digests)} were written" if len(source) != len(digests) else ""
    rows = iter(range(len(digests)))
    batches = iter(lambda: list(islice(rows, BATCH)), [])

    def read(batch: list[int]) -> list[bytes]:
        columns = source.fetch(np.array(batch))
        return [digest(stored(layout, columns, row)) for row in range(len(batch))]

    try:
        found = [] if reason else [one for batch in pool.map(read, batches) for one in batch]
        differ = [row for row, (now, then) in enumerate(zip(found, digests, strict=False)) if now != then]
        reason = reason or (f"its sample {differ[0]} is not what was written" if differ else "")
    except (SampleError, ValueError) as error:
        reason = str(error)
    if reason:
        raise DataError(f"{path} can't be read back: {reason}; check the disk, then run the same command again")


def _opened(path: Path, layout: Layout) -> Source:
    """That one file as a source, of which no index is kept."""
    if path.suffix == ".tar":
        return scanned_shard(path, layout.fields)
    return open_source(path, fields=layout.fields)
