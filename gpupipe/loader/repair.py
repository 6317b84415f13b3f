"""What becomes of rows that are bad: the policy for bad samples.

The substitute for a bad sample is a pure function of the epoch, so that every rank, and every resumed run, picks the
same one without talking: the sample at the next position of the epoch's order that can be read, drawn with the bad
position's own numbers. An order that makes its batches itself says which samples may stand in.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.batch import Batch, Job
from gpupipe.batch.fields import Field, Frames, Mask, Text
from gpupipe.errors import ConfigError, DataError, SampleError, SkippedSampleError, TooManyBadError
from gpupipe.kernels.transfer import to_device
from gpupipe.loader.tally import listed
from gpupipe.order import Order
from gpupipe.order.protocol import makes_batches, positions_of
from gpupipe.recipe import RandomCrop, Views
from gpupipe.sources import Source
from gpupipe.sources.parts import asks_users

__all__ = ["OnError", "Repair", "check_on_error", "may_fail_by_draws"]

log = logging.getLogger("gpupipe")

OnError = Literal["raise", "skip"]

MAX_SUBSTITUTES = 1000  # bad samples in a row before the dataset as a whole is called unusable
LOGGED = 20  # of 1.28 million samples one in a hundred may be bad: 12,800 lines on each rank


def check_on_error(on_error: str) -> None:
    """Raise ConfigError unless that is a policy."""
    if on_error not in ("raise", "skip"):
        raise ConfigError(f"on_error={on_error!r} must be 'raise' or 'skip'")


def may_fail_by_draws(source: Source, views: Views) -> bool:
    """Whether a sample may be bad by what is drawn for it at a position: by a dataset's code, by operations of the
    user's own, by its partners, of which frames a clip is, what size, or which text is made tokens of. What else is
    decoded fails whatever part of it is wanted."""
    if asks_users(source) or any(view.own or view.several for view in views):
        return True  # items as they are have no fields
    crops = [view.crop for view in views]
    if any(isinstance(crop, RandomCrop) and not crop.pad_if_needed and crop.resize is not None for crop in crops):
        return True
    return any(map(_is_drawn, source.fields.values()))


def _is_drawn(field: Field) -> bool:
    """Whether what is made of a field's value may fail by what is drawn: a mask's numbers by whether the crop has those
    that there are no boxes for."""
    if isinstance(field, Frames):
        return field.sampling == "random"
    if isinstance(field, Text):
        return field.choose and field.tokenizer is not None
    return isinstance(field, Mask) and field.numbers is not None


class Repair:
    """Fills the failed rows of a batch, and adds the bad samples that it meets to the batch's `bad` and `replaced`.

    rows: makes the rows of a part of a job on the CPU. most: bad samples that an epoch may have on all ranks together,
    1 or more. sure: positions that an epoch delivers in any case. by_draws: what is bad at one position may be good at
    another, see `may_fail_by_draws`. twice: who has made a batch has tried its failed rows twice, so that they are not
    tried again here.
    """

    def __init__(
        self,
        rows: Callable[[Job], Batch],
        order: Order,
        on_error: OnError,
        most: int,
        sure: int,
        by_draws: bool,
        twice: bool = False,
    ) -> None:
        self._rows = rows
        self._order = order
        self._on_error = on_error
        self._most = most
        self._sure = sure
        self._by_draws = by_draws
        self._twice = twice
        self._bad: dict[int, SampleError] = {}  # what need not be tried again; by_draws: at the same position
        self._logged: set[int] = set()

    def __call__(self, batch: Batch) -> Batch:
        """The batch with every failed row made good, in place; its job then names the samples that are in it.

        Raises SampleError under on_error="raise".
        """
        job = batch.job
        for row in sorted(batch.failures):
            self._fill(batch, row, self._remade(batch, job, row))
        batch.failures = {}
        return batch

    def _remade(self, batch: Batch, job: Job, row: int) -> Batch:
        """That row's samples once more, as storage may have been at fault; in the place of each that is bad the next
        good one. Raises the error of the first where none may stand in."""
        if self._by_draws:
            self._bad.clear()
        others: dict[int, int] = {}
        one, met = job.standing_in(row, others), len(batch.bad)
        made = self._noted(batch, batch.failures[row]) if self._twice else self._attempt(batch, one)
        if isinstance(made, SampleError) and not self._replaces(made):
            raise made
        candidates = self._candidates(job, row) if isinstance(made, SampleError) else []
        tried: list[int] = []
        for index in candidates:
            tried.append(index)
            others = dict.fromkeys(others, index)  # one for all that is bad in the row, whichever is met first
            while isinstance(made, SampleError):
                others[made.index] = index
                made = self._attempt(batch, job.standing_in(row, others))
                if isinstance(made, SampleError) and made.index in (index, *others):
                    break
            if isinstance(made, Batch) or self._too_many(job, row, tried, batch.bad[met:]):
                break
        if isinstance(made, Batch):
            own = (error for error in batch.bad[met:] if error.index == one.indices[0])
            batch.replaced += [error for error in own if not isinstance(error, SkippedSampleError)][:1]
            return made
        bad = list({error.index: error for error in batch.bad[met:]}.values())
        more = ", more than max_bad allows" if self._too_many(job, row, tried, bad) else ""
        raise (TooManyBadError if self._on_error == "skip" else DataError)(
            f"the {len(tried) + 1} samples from position {int(job.positions[row])} of epoch {job.epoch} on are all bad"
            f"{more}: {listed(bad)}; look at the storage, repair or remove them"
            f"{', or pass a larger max_bad' * bool(more)}"
        )

    def _too_many(self, job: Job, row: int, tried: list[int], bad: list[SampleError]) -> bool:
        """Whether these alone are more than an epoch may have; nobody waits for all of a storage that is gone."""
        counted = {error.index for error in bad if not isinstance(error, SkippedSampleError)}
        if job.given is not None or len(counted) <= self._most:
            return False
        return len(counted & {int(job.indices[row]), *self._to_come(job, row, tried)}) > self._most

    def _to_come(self, job: Job, row: int, tried: list[int]) -> list[int]:
        """Those of the row's first candidates that are surely samples of rows of this iteration themselves: not of what
        it drops at its end, and not of what lay before it, where it began within an epoch."""
        position = int(job.positions[row])
        if not makes_batches(self._order):
            return tried[: max(0, self._sure - position - 1)]
        if not hasattr(self._order, "alike"):
            return tried  # of the same batch
        places = positions_of(self._order, job.seed, job.epoch, np.array(tried, np.int64))
        return [] if places is None else [tried[at] for at in np.flatnonzero((places > position).any(axis=0))]

    def _replaces(self, error: SampleError) -> bool:
        return self._on_error == "skip" or isinstance(error, SkippedSampleError)

    def _candidates(self, job: Job, row: int) -> list[int]:
        """The samples at the positions that follow; where samples are given, of those that are there."""
        if job.given is not None:
            following = [] if job.given.following is None else job.given.following().indices.tolist()
            return [*job.indices[row + 1 :].tolist(), *following, *job.indices[:row].tolist()]
        size, position = len(self._order), int(job.positions[row])
        if makes_batches(self._order):
            return self._alike(job, position % size)
        following = (position + 1 + np.arange(min(MAX_SUBSTITUTES, size), dtype=np.int64)) % size
        return [int(index) for index in self._order.indices(job.seed, job.epoch, following)]

    def _alike(self, job: Job, position: int) -> list[int]:
        """Where the order makes the batches: samples that it says go with the others, else those of the batch."""
        order: Any = self._order
        if hasattr(order, "alike"):
            return list(map(int, order.alike(job.seed, job.epoch, position, MAX_SUBSTITUTES)))
        starts = order.starts(job.seed, job.epoch)
        batch = np.searchsorted(starts, position, side="right")
        begin, end = starts[batch - 1 : batch + 1].tolist()
        others = [*range(position + 1, end), *range(begin, position)]
        return list(map(int, order.indices(job.seed, job.epoch, np.array(others, np.int64))))

    def _attempt(self, batch: Batch, one: Job) -> Batch | SampleError:
        """The batch of a job of one row, or why a sample of it is bad, which is noted."""
        for index in one.coming.indices.tolist():
            known = self._bad.get(index) if one.given is None else None  # a stream's next pass may have another there
            if known is not None and self._replaces(known):
                batch.bad.append(known)
                return known
        made = self._rows(one)
        if not made.failures:
            return made
        return self._noted(batch, made.failures[0])

    def _noted(self, batch: Batch, error: SampleError) -> SampleError:
        """The same error, of which the batch and the log now tell."""
        self._bad[error.index] = error.bare()
        batch.bad.append(self._bad[error.index])
        if self._replaces(error):
            self._log(error)
        return error

    def _log(self, error: SampleError) -> None:
        """That it is replaced: of the first ones each, then that others are not told of."""
        if error.index in self._logged or len(self._logged) == LOGGED:
            return
        self._logged.add(error.index)
        log.warning("gpupipe: bad sample replaced: sample %d (%s): %s", error.index, error.location, error.reason)
        if len(self._logged) == LOGGED:
            log.warning("gpupipe: bad samples after these %d are not logged, but `bad_samples` lists all", LOGGED)

    def _fill(self, batch: Batch, row: int, one: Batch) -> None:
        for columns, own in ((batch.columns, one.columns), (batch.sizes, one.sizes)):
            for name, column in columns.items():
                columns[name] = _filled(column, row, own[name])
        indices = batch.job.indices.copy()
        indices[row] = one.job.indices[0]
        batch.job = replace(batch.job, indices=indices)


def _filled(column: Any, row: int, one: Any) -> Any:
    """The column with its row as in the column `one` of a single row."""
    if isinstance(column, tuple):  # of views
        return tuple(_filled(view, row, own) for view, own in zip(column, one, strict=True))
    if isinstance(column, torch.Tensor):
        column[row].copy_(to_device(one[0], column.device))
        return column
    if isinstance(column, np.ndarray) and not _is_alike(column, one):  # which NumPy would cast, or repeat
        column = list(column)
    column[row] = one[0]
    return column


def _is_alike(column: NDArray[Any], one: Any) -> bool:
    return isinstance(one, np.ndarray) and (column.dtype, column.shape[1:]) == (one.dtype, one.shape[1:])
