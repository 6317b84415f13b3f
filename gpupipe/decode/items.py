"""Batches of a user's dataset as it is: what torch's DataLoader would make of these samples, in a worker or here."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from gpupipe.batch import Batch, Columns, Job
from gpupipe.decode.fetching import in_time
from gpupipe.decode.seeding import seeding
from gpupipe.decode.stacking import default_collate
from gpupipe.errors import SampleError
from gpupipe.host.readers import Readers
from gpupipe.host.tracing import Stage, who
from gpupipe.host.whereabouts import note
from gpupipe.sources import ItemSource
from gpupipe.sources.raised import collate_error, form_of
from gpupipe.workers.board import BATCH

__all__ = ["Items"]

log = logging.getLogger("gpupipe")

LISTED = 4  # samples that a message describes


class Items:
    """The work where there is no recipe: the items of a job, collated by torch's `default_collate` or `collate_fn`.

    A batch has one column, "items": what the items became or, where one could not be read, their list, with None in
    that one's place.
    """

    layout: tuple[()] = ()

    def __init__(
        self,
        source: ItemSource,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        readers: Readers | None = None,
    ) -> None:
        self.source = source
        self.readers = readers
        self.collate_fn = default_collate if collate_fn is None else collate_fn

    def here(self, readers: Readers) -> Items:
        """The same for the loader's own process: see `fetch`."""
        return Items(self.source, self.collate_fn, readers)

    def __call__(self, job: Job, out: Columns | None = None) -> Batch:
        """The batch of a job, collated where it is whole and no row of it failed.

        Each item's draws from the global random generators follow from its position; those of a `__getitems__` from
        that of the first, as it gives the items of a whole batch.
        """
        failures: dict[int, SampleError] = {}
        source = self.source
        with (
            Stage("read") as read,
            in_time(self.readers, source, job, here=True),
            seeding([source], job.seed, job.epoch, job.positions, 0) as seed,
        ):
            items = self._several(job, seed) if source.gives_several else None
            if items is None:
                items = self._one_by_one(job, seed, failures)
        batch = Batch(job, {"items": items}, failures, spans=(read.span(who()),))
        return self.collate(batch) if job.whole and not failures else batch

    def collate(self, batch: Batch) -> Batch:
        """The batch, collated. Raises CollateError, which says what the items are, for what `collate_fn` raises."""
        if batch.collated:
            return batch
        items = batch.columns["items"]
        with Stage("decode") as stage:
            note(BATCH)
            try:
                batch.columns["items"] = self.collate_fn(items)
            except Exception as error:  # code of the user's, or items that torch does not stack
                name = getattr(self.collate_fn, "__qualname__", type(self.collate_fn).__name__)
                raise collate_error(
                    error,
                    f"{name} raised {type(error).__name__}: {error}; the batch of {len(batch.job)} samples has "
                    f"{self._described(batch.job, items)}",
                ) from error
        batch.collated = True
        batch.spans += (stage.span(who()),)
        return batch

    def _several(self, job: Job, seed: Callable[[int], None]) -> list[Any] | None:
        """By the dataset's `__getitems__`; None where that fails: then the sample that it failed at is to be found."""
        seed(0)
        note(BATCH)
        try:
            return list(self.source.several(job.indices))
        except Exception as error:  # code of the user's
            log.warning(
                "gpupipe: %s.__getitems__ raised %s: %s; the samples of this batch are read one by one",
                type(self.source.dataset).__name__,
                type(error).__name__,
                error,
            )
            return None

    def _one_by_one(self, job: Job, seed: Callable[[int], None], failures: dict[int, SampleError]) -> list[Any]:
        items: list[Any] = [None] * len(job)
        for row, index in enumerate(job.indices.tolist()):
            seed(row)
            try:
                items[row] = self.source.item(index)
            except SampleError as error:
                failures[row] = error
        return items

    def _described(self, job: Job, items: list[Any]) -> str:
        """The first sample of each form that there is."""
        forms: dict[str, int] = {}
        for index, item in zip(job.indices.tolist(), items, strict=True):
            forms.setdefault(form_of(item), index)
        listed = [f"{self.source.location(index)}: {form}" for form, index in forms.items()]
        return "; ".join(listed[:LISTED] + [f"and {len(listed) - LISTED} more"] * (len(listed) > LISTED))
