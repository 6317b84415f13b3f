"""Jobs with the samples of a stream: read in their order, shuffled in a buffer, shared out to ranks.

    stream ──► passes ──► buffers, each shuffled ──► global batches ──► this rank's rows

Where an epoch's end is not known a global batch is handed on when the one after it has been read, so that the last one
is known to be that.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from gpupipe.batch import Job
from gpupipe.batch.batch import Given
from gpupipe.decode.fetching import Failures, by_row
from gpupipe.errors import ConfigError, DataError, StateError
from gpupipe.order import RankBatches
from gpupipe.order.feistel import permute, round_keys, square, subkeys
from gpupipe.order.protocol import STREAM, Indices
from gpupipe.recipe import Recipe
from gpupipe.sources import StreamSource
from gpupipe.sources.raised import as_raised

__all__ = ["StreamReader", "refuse_choosing"]

log = logging.getLogger("gpupipe")

END: Any = object()
MARK = ("first", "total", "pass", "offset")
REMEDY = "what it raises ends it: catch that in the iterator, which then leaves the item out"
SPARE = 8  # samples that follow its own, which a rank keeps with each batch to stand in for bad ones, as all ranks do
RUN = 64  # samples that are not shuffled between two places at which the stream can be begun again


def refuse_choosing(order: Any, shuffle: bool, several: Recipe | None) -> None:
    """Raise ConfigError for what asks for samples by their number."""
    if several is not None:
        raise ConfigError(
            f"{type(several.several[0]).__name__} takes partners from all of the data, and a stream can't be asked for "
            "a sample by its number; open the data as files or a map-style dataset, or leave it out"
        )
    if shuffle or order is not None:
        raise ConfigError(
            f"{'shuffle=True' if shuffle else 'order'}: a stream gives its samples in its own order; pass "
            "Stream(data, buffer_size=10_000) to shuffle so many of them at a time"
        )


class Item(NamedTuple):
    """A sample, its number in the epoch, and the mark from which it can be read again."""

    value: Any
    number: int
    mark: dict[str, Any]


class StreamReader:
    """Gives jobs their samples. Where the jobs do not begin at what comes next, the stream is begun again from the
    nearest place that is known, and read up to there."""

    def __init__(self, source: StreamSource, seed: int) -> None:
        self._source = source
        self._stream = source.stream
        self._seed = seed
        self._beginning = self._stream.beginning()
        self._passes: _Passes | None = None
        self._loaded: dict[str, Any] | None = None
        self._failed: dict[int, int] = {}  # epoch -> the step from which on nothing comes, after an error

    @property
    def order(self) -> str:
        """What decides the samples' order, for a state."""
        return self._stream.order

    def load(self, mark: Mapping[str, Any] | None) -> None:
        """Go on from what a state has of the stream. Raises StateError where that is none."""
        self._passes, self._loaded = None, None
        self._failed.clear()
        if mark is None:
            return
        kept = [mark.get(name) for name in MARK]
        if mark.keys() != {*MARK, "data"} or any(type(value) is not int or value < 0 for value in kept):
            raise StateError(f"state_dict: stream is {mark!r}; the state was changed after it was saved")
        self._loaded = dict(mark)

    def __call__(self, jobs: Iterable[Job], batches: RankBatches) -> Iterator[Job]:
        """The jobs with their samples, up to the end of the epoch where that is met.

        batches: how the first one's epoch is cut. Raises what the stream raises, as a SampleError too.
        """
        epoch: int | None = None
        for job in jobs:
            if epoch != job.epoch:
                cut = batches if epoch is None else replace(batches, origin=0)
                epoch, cutting = job.epoch, _Cutting(cut, self._from(job.epoch))
            if job.step < self._failed.get(job.epoch, 0):  # it is read again, and may come this time
                del self._failed[job.epoch]
            if job.epoch in self._failed:
                return
            try:
                rows = cutting(job.step)
                if rows is None:
                    return
                yield self._given(job, rows)
            except Exception:
                self._failed[job.epoch] = job.step + 1
                raise

    def _given(self, job: Job, rows: _Rows) -> Job:
        """The job of these rows, with their samples."""
        numbers, given = self._read(rows.items)

        @cache
        def following() -> Job:  # read if it is needed: a PIL image costs milliseconds
            later, samples = self._read(rows.following)
            return replace(job, positions=later, indices=later, given=samples)

        given = replace(given, ends=rows.ends, mark=rows.items[0].mark, following=following)
        return replace(job, positions=rows.positions, indices=numbers, given=given)

    def _read(self, items: list[Item]) -> tuple[Indices, Given]:
        """Their numbers in the epoch, and what they hold."""
        numbers = np.array([item.number for item in items], np.int64)
        failures: Failures = {}

        def read(rows: Indices) -> dict[str, Any]:
            return self._source.columns(numbers[rows], [items[row].value for row in rows.tolist()])

        columns = by_row(read, len(items), self._source.fields, failures)
        return numbers, Given(columns, failures)

    def _from(self, epoch: int) -> Callable[[int], Iterator[Item]]:
        """The samples of an epoch from a position on."""
        whole = self._stream.epoch_samples
        first, base = (epoch, 0) if whole is None else (0, epoch * whole)

        def items(begin: int) -> Iterator[Item]:
            passes = self._passes
            if passes is None or passes.first != first:
                passes = self._passes = _Passes(self._source, first, self._beginning, self._loaded)
            size = self._stream.buffer_size or RUN
            for start in range(begin - begin % size, 2**62 if whole is None else whole, size):
                passes.go(base + start)
                mark = passes.mark()
                count = size if whole is None else min(size, whole - start)
                read = (Item(value, start + place, mark) for place, value in enumerate(islice(passes, count)))
                shuffled = self._shuffled(epoch, start // size, list(read)) if self._stream.buffer_size else read
                yield from islice(shuffled, max(0, begin - start), None)
                if passes.total < base + start + count:
                    return

        return items

    def _shuffled(self, epoch: int, buffer: int, items: list[Item]) -> Iterator[Item]:
        """The samples of a buffer by a keyed permutation."""
        keys = subkeys(round_keys(self._seed, epoch, STREAM), np.array([buffer]))
        places = permute(np.arange(len(items)), square(max(1, len(items))), keys)
        yield from map(items.__getitem__, places.tolist())


class _Rows(NamedTuple):
    """This rank's part of a global batch: its samples, their positions, and the samples that follow them in the epoch.
    ends: the epoch's samples, where the batch shows to be the last."""

    items: list[Item]
    positions: Indices
    following: list[Item]
    ends: int | None


class _Cutting:
    """Global batches of an epoch: this rank's rows of each. items: from a position on."""

    def __init__(self, batches: RankBatches, items: Callable[[int], Iterator[Item]]) -> None:
        self._batches = batches
        self._items = items
        self._feed: Iterator[Item] = iter(())
        self._at = -1  # the position of what comes next
        self._ahead: list[Item] = []
        self._error: Exception | None = None  # for the batch that it is in, not for those before

    def __call__(self, step: int) -> _Rows | None:
        """The rows of that step; None where the epoch is over."""
        batches = self._batches
        begin, count = batches.delivered(step), batches.samples(step)
        if self._at != begin:
            self._feed, self._at, self._ahead, self._error = self._items(begin), begin, [], None
        self._read(count + max(SPARE, batches.samples(step + 1) if batches.is_endless else 0))
        found, self._ahead = self._ahead[:count], self._ahead[count:]
        self._at, whole = begin + count, len(found) == count
        if self._error is not None and not whole:
            self._at = -1
            raise self._error
        if not found or (batches.drop_last and not whole):
            return None
        full = batches.samples(step + 1) if batches.drop_last else 1
        last = batches.is_endless and self._error is None and len(self._ahead) < full
        cut = batches if whole else replace(batches, size=begin + len(found))
        positions = cut.positions(step)
        rows = (positions - begin) % len(found)  # where it is short, the ranks are made equal by repeats
        following = [*found[positions[-1] - begin + 1 :], *self._ahead[:SPARE], *found[:SPARE]][:SPARE]
        return _Rows([found[row] for row in rows.tolist()], positions, following, begin + len(found) if last else None)

    def _read(self, count: int) -> None:
        """So many that come next, where there are so many."""
        try:
            for item in islice(self._feed, max(0, count - len(self._ahead))):
                self._ahead.append(item)
        except Exception as error:
            self._error = error


class _Passes:
    """The stream from the beginning of pass `first` on; where epochs have a length of their own, one pass after the
    other.

    total: so many samples have been read. sound: whether the iterator stands there; one that an error or a Ctrl-C has
    gone through may say that it is at its end. data: the data's own state at the beginning of a pass, if it has any.
    loaded: a mark that a state has.
    """

    def __init__(self, source: StreamSource, first: int, data: Any, loaded: dict[str, Any] | None) -> None:
        self._source = source
        self._stream = source.stream
        self._items: Iterator[Any] = iter(())
        self.total = self._pass = self._offset = 0
        self._sound = False
        self._begun: dict[str, Any] = {}
        self.first = first
        self._data = data
        beginning = {"first": first, "total": 0, "pass": first, "offset": 0, "data": None}
        self._marks = [beginning] + ([loaded] if loaded is not None and loaded["first"] == first else [])
        self._begin(self._marks[-1])

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        while True:
            self._sound = False
            try:
                value = next(self._items, END)
            except Exception as error:  # code of the user's
                reason = f"it raised {type(error).__name__}: {error} (item {self._offset} of pass {self._pass})"
                raise as_raised(error, self.total, self._source.location(self.total), reason, REMEDY) from error
            if value is not END:
                self.total, self._offset = self.total + 1, self._offset + 1
                self._sound = True
                return value
            if self._stream.epoch_samples is None:
                if not self.total:
                    log.warning("gpupipe: the stream %s gave nothing in pass %d", self._source.name, self._pass)
                self._sound = True
                raise StopIteration
            if not self._offset:
                raise DataError(f"the stream {self._source.name} gave nothing in pass {self._pass}, so it is empty")
            self._begin({"total": self.total, "pass": self._pass + 1, "offset": 0, "data": None})

    def mark(self) -> dict[str, Any]:
        """Where it stands."""
        if self.total == self._begun["total"]:  # the data may not say so before the first item: Hugging Face's does not
            return self._begun
        return self._mark(copy.deepcopy(self._stream.data.state_dict()) if self._stream.stateful else None)

    def _mark(self, state: Any) -> dict[str, Any]:
        return {"first": self.first, "total": self.total, "pass": self._pass, "offset": self._offset, "data": state}

    def go(self, total: int) -> None:
        """Read up to there; from a mark on where it stands beyond, or nowhere."""
        if total < self.total or not self._sound:
            self._begin(next(mark for mark in reversed(self._marks) if mark["total"] <= total))
        for _ in islice(self, total - self.total):
            pass

    def _begin(self, mark: Mapping[str, Any]) -> None:
        """Stand at a mark: by the data's own state, else by reading what comes before it in its pass."""
        self._sound = False
        state = mark["data"] if self._stream.stateful else None
        before = mark["offset"] if state is None else 0
        self.total, self._pass, self._offset = mark["total"] - before, mark["pass"], mark["offset"] - before
        self._items = self._stream.begin(self._pass, state, self._data)
        self._begun = self._mark(state)
        self._sound = True
        for _ in islice(self, before):
            pass
