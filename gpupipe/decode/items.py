"""Batches of a user's dataset as it is: what torch's DataLoader would make of these samples, in a worker or here."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpupipe.batch import Batch, Columns, Job
from gpupipe.decode.fetching import in_time
from gpupipe.decode.seeding import seeding
from gpupipe.decode.stacking import default_collate
from gpupipe.errors import DataError, SampleError
from gpupipe.host.readers import Readers
from gpupipe.host.tracing import Stage, who
from gpupipe.host.whereabouts import note
from gpupipe.sources import ItemSource
from gpupipe.sources.raised import collate_error, form_of
from gpupipe.workers.board import BATCH

__all__ = ["Alone", "Items"]

log = logging.getLogger("gpupipe")

LISTED = 4  # samples that a message describes


@dataclass(frozen=True)
class Alone:
    """A collate_fn for one sample, as DataLoader calls it without automatic batching."""

    collate: Callable[[Any], Any]

    def __call__(self, items: list[Any]) -> Any:
        (item,) = items
        return self.collate(item)


class Items:
    """The work where there is no recipe: the items of a job, collated by torch's `default_collate` or `collate_fn`.

    A batch has one column, "items": what the items became or, where one could not be read, their list, with None in
    that one's place. A `__getitems__` of the dataset gives a whole batch, as in torch: whatever it returns goes to
    `collate_fn`, but where it raises it is asked for one sample after the other, so that the bad one is known.
    """

    layout: tuple[()] = ()
    in_parts = False

    def __init__(
        self,
        source: ItemSource,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        readers: Readers | None = None,
    ) -> None:
        self.source = source
        self.readers = readers
        self.collate_fn = default_collate if collate_fn is None else collate_fn
        self._together = source.gives_several and not isinstance(self.collate_fn, Alone)

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
            if not self._together:
                items = self._one_by_one(job, seed, failures, source.item, tries=2)
            elif job.whole:
                items = self._several(job, seed, failures)
            else:  # a substitute
                items = self._of_one_each(job, self._one_by_one(job, seed, failures, source.alone), failures)
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

    def _several(self, job: Job, seed: Callable[[int], None], failures: dict[int, SampleError]) -> Any:
        """What the dataset's `__getitems__` returns or, where that raises at some samples, the list of the others."""
        seed(0)
        note(BATCH)
        try:
            return self.source.several(job.indices)
        except Exception as error:  # code of the user's
            raised = f"{type(self.source.dataset).__name__}.__getitems__ raised {type(error).__name__}: {error}"
            given = self._one_by_one(job, seed, failures, self.source.alone)
            if not failures:
                asked = f"it was asked for {job.told}, and gives each of them alone"
                raise collate_error(error, f"{raised}; {asked}") from error
        log.warning("gpupipe: %s; the samples of this batch are read one by one", raised)
        return self._of_one_each(job, given, failures)

    def _one_by_one(
        self,
        job: Job,
        seed: Callable[[int], None],
        failures: dict[int, SampleError],
        read: Callable[[int], Any],
        tries: int = 1,
    ) -> list[Any]:
        """tries: how often each is asked for, as storage may have been at fault."""
        items: list[Any] = [None] * len(job)
        for row, index in enumerate(job.indices.tolist()):
            for _ in range(tries):
                seed(row)
                try:
                    items[row] = read(index)
                except SampleError as error:
                    failures[row] = error
                else:
                    failures.pop(row, None)
                    break
        return items

    def _of_one_each(self, job: Job, given: list[Any], failures: dict[int, SampleError]) -> list[Any]:
        """The item of each sample out of what `__getitems__` returned for it alone.

        Raises the first of the failures, else DataError, where that is no list of one: then rows are nothing that one
        could replace.
        """
        items: list[Any] = [None] * len(job)
        for row, (index, one) in enumerate(zip(job.indices.tolist(), given, strict=True)):
            if row in failures:
                continue
            if not isinstance(one, list | tuple) or len(one) != 1:
                name = type(self.source.dataset).__name__
                reason = f"{name}.__getitems__([{index}]) gives no list of one item, but {form_of(one)}"
                raise _irreplaceable(failures, reason)
            items[row] = one[0]
        return items

    def _described(self, job: Job, items: Any) -> str:
        """The first sample of each form that there is; the form of what is no list of samples."""
        if not isinstance(items, list | tuple) or len(items) != len(job):
            return form_of(items)
        forms: dict[str, int] = {}
        for index, item in zip(job.indices.tolist(), items, strict=True):
            forms.setdefault(form_of(item), index)
        listed = [f"{self.source.location(index)}: {form}" for form, index in forms.items()]
        return "; ".join(listed[:LISTED] + [f"and {len(listed) - LISTED} more"] * (len(listed) > LISTED))


def _irreplaceable(failures: dict[int, SampleError], reason: str) -> DataError | SampleError:
    """What is raised where a bad sample can't be replaced: its own error, if that is at hand."""
    if not failures:
        return DataError(f"{reason}, so that it can't stand in for a bad sample; pass on_error='raise'")
    bad = failures[min(failures)]
    bad.remedy = f"repair or remove it: no other can stand in for it, as {reason}"
    return bad
