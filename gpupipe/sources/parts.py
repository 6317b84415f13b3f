"""Samples of a source that another one, which is made of it, calls by numbers of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.batch import Columns
from gpupipe.errors import SampleError
from gpupipe.host.whereabouts import Renumbered
from gpupipe.sources.dataset import DatasetSource, ItemSource
from gpupipe.sources.source import Source

__all__ = ["Before", "asks_users", "datasets_of", "fetched", "is_users", "stored"]

Numbers = NDArray[np.int64]
Before = Callable[[int], None] | None
"""What a user's dataset calls with the row before each sample; None: nothing."""


def datasets_of(source: Source) -> list[DatasetSource]:
    """The users' datasets that are asked where this source is."""
    return [part for part in source.all_parts() if isinstance(part, DatasetSource)]


def is_users(source: Source) -> bool:
    """Whether code of a user's is asked where this source is: a dataset, or a source of his own."""
    parts = source.all_parts()
    return any(isinstance(part, DatasetSource) or not type(part).__module__.startswith("gpupipe.") for part in parts)


def asks_users(source: Source) -> bool:
    """Whether it is a user's code that gives samples, where a recipe is, or items as they are."""
    return isinstance(source, ItemSource) or is_users(source)


def stored(parts: Iterable[tuple[Source, Numbers, Numbers]], count: int) -> Numbers | None:
    """As `Source.stored_bytes` of `count` samples, of which sources have these rows, by indices of their own."""
    total: Numbers | None = None
    for source, rows, theirs in parts:
        sizes = source.stored_bytes(theirs)
        if sizes is not None:
            total = np.zeros(count, np.int64) if total is None else total
            total[rows] += sizes
    return total


def fetched(
    source: Source,
    theirs: NDArray[np.int64],
    ours: NDArray[np.int64],
    before: Before,
    rows: NDArray[np.int64] | None = None,
) -> Columns:
    """What the source has of the samples `theirs`; what is noted or raised meanwhile is about `ours`.

    rows: those of the batch, for `before`; None: all, in turn.
    """
    options: list[Any] = []
    if before is not None and datasets_of(source):
        options = [before if rows is None else lambda row: before(int(rows[row]))]
    numbers = dict(zip(theirs.tolist(), ours.tolist(), strict=True))
    try:
        with Renumbered(numbers):
            return source.fetch(theirs, *options)
    except SampleError as error:
        made = error.bare()  # of its type, which may be a user's, too
        made.index, made.args = numbers.get(error.index, error.index), error.args
        raise made from error.__cause__
