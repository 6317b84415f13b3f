"""What a loader's iterations take their batches from: one stream of the engine, which goes on from epoch to epoch.

    order ──► jobs ──► engine ──► repair ──► finish ──► Iteration
                       └── Repaired ──┘         └ in the consumer's thread, or for a GPU ahead in one of their own

The jobs of the next epoch follow those of this one, so that workers have them while its last batches are consumed:

    made:       | 0.5 | 0.6 | 1.0 | 1.1 | 1.2 | 1.3 |
    delivered:              | 0.5 | 0.6 | 1.0 | 1.1 |

Where an iteration begins somewhere else than at what comes next, all of it is dropped, and a new stream begins there.
"""

from __future__ import annotations

import atexit
import logging
import os
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from gpupipe.batch import Batch, Job
from gpupipe.decode.engine import Engine
from gpupipe.device.ahead import Ahead, Lane
from gpupipe.device.finishing import Finished
from gpupipe.errors import GpupipeError, SampleError, WorkerError
from gpupipe.loader.jobs import Jobs, looking_ahead
from gpupipe.loader.place import Point

if TYPE_CHECKING:
    from gpupipe.loader.stats import Meter

__all__ = ["Failed", "Supply"]

log = logging.getLogger("gpupipe")

Made = TypeVar("Made")
Repair = Callable[[Batch], Batch]
Finish = Callable[[Batch], Finished]

DEPTH = 2  # finished batches that wait on a GPU; engines have queues of their own before them


@dataclass
class Failed:
    """What comes in the place of a batch: why there is none, and the bad samples that were met in it."""

    error: Exception | None
    bad: list[SampleError] = field(default_factory=list)

    def taken(self) -> Exception:
        """The error, which is not kept here: it would hold the frame that raises it, and through others a batch."""
        error, self.error = self.error, None
        assert error is not None
        return error


class Supply:
    """Batches for one iteration after the other, which must not overlap.

    It does not hold the loader, nor does what it gives to engines and threads: a loader that is dropped goes at once.

    finish:  the last step on a batch; told whether its samples are mixed, if the recipe does.
    lane:    where a thread makes batches ahead; None: nowhere.
    goes_on: whether the next epoch's batches are made before it begins.
    looks_ahead: 0, or how many jobs later the reader of a job has its next one, which the source is told of.
    """

    def __init__(
        self,
        engine: Engine,
        jobs: Jobs,
        repair: Repair,
        finish: Callable[[Batch, bool], Finished],
        meter: Meter,
        lane: Lane[Finished | Failed] | None,
        goes_on: bool,
        looks_ahead: int,
    ) -> None:
        self.engine: Engine | None = engine
        self.lane = lane
        self._jobs = jobs
        self._repair = repair
        self._finish = finish
        self._meter = meter
        self._goes_on = goes_on
        self._looks_ahead = looks_ahead
        self._at: Point | None = None  # what comes next
        self._mixes = False
        self._turn = 0  # the iteration that it works for
        self._ordered: _Ordered | None = None
        self._batches: _Repaired | Ahead[Finished | Failed] | None = None
        self._thread: Ahead[Finished | Failed] | None = None
        self._failing: dict[Point, Exception] = {}  # what is known to fail before it is due
        self.owner: int | None = None  # the process that has opened a stream

    def begin(self, turn: int, at: Point, mixes: bool) -> None:
        """An iteration begins there: workers start, if they are not at it already.

        mixes: whether samples are mixed, if the recipe does.
        """
        self._turn = turn
        if (at, mixes) != (self._at, self._mixes):
            self.drop()
            self._at, self._mixes = at, mixes
        if self._batches is None and at.step < len(at.batches):
            try:
                self._open(at)
            except Exception as error:
                if not (isinstance(error, WorkerError) and self._put_off(error, at)):
                    self._failing[at] = error

    def take(self, at: Point) -> Finished | Failed:
        """The batch of that step, or why there is none; a Ctrl-C leaves the step to come."""
        if at != self._at:  # a Ctrl-C came between two steps
            self.drop()
            self._at = at
        item: Finished | Failed | None = self._known_to_fail(at)
        while item is None:
            item = self._made(at)
        self._at = at.following
        return item

    def leave(self, turn: int, at_end: bool) -> None:
        """The iteration of that turn is over: at the end of its epoch, or before."""
        if turn == self._turn and not (at_end and self._goes_on):
            self.drop()

    def drop(self) -> None:
        """End the stream; what is ahead is lost."""
        self._at = None
        self._failing.clear()
        self._close_batches()

    def close(self) -> None:
        """End the stream and the engine. May be called twice."""
        self.drop()
        engine, self.engine = self.engine, None
        if engine is not None:
            engine.close()

    def check_open(self) -> Engine:
        """The engine. Raises GpupipeError where it was closed."""
        if self.engine is None:
            raise GpupipeError("this Loader was closed; build a new one to iterate again")
        return self.engine

    def ready(self) -> int | None:
        """Batches that are made and wait to be taken; None where the engine can't tell."""
        engine, thread = self.engine, self._thread  # a logging thread may ask
        if engine is None:
            return None
        return engine.ready() if self.lane is None else 0 if thread is None else len(thread)

    def _known_to_fail(self, at: Point) -> Failed | None:
        error = self._failing.pop(at, None)
        if error is None:
            return None
        self._close_batches()
        if isinstance(error, WorkerError):
            self.check_open().close()  # as after any death, no worker is left
        return Failed(error)

    def _made(self, at: Point) -> Finished | Failed | None:
        """What comes from the stream; None where another one has to begin."""
        try:
            batches = self._open(at) if self._batches is None else self._batches
            item = self._meter.waited(batches)
        except WorkerError as error:
            self._close_batches()
            return None if self._put_off(error, at) else Failed(error)
        except Exception as error:  # the engine's own
            self._close_batches()
            return Failed(error)
        except BaseException:  # a Ctrl-C
            self._close_batches()
            raise
        if item is None:  # an order has failed, so what comes after that has not been asked for
            self._close_batches()
        if not isinstance(item, Batch):
            return item
        try:
            return _attempt(self._finishes(at), item)
        except BaseException:
            self._close_batches()
            raise

    def _put_off(self, error: WorkerError, at: Point) -> bool:
        """Whether the error is not for the batch that is due: new workers make that.

        If it is for a later one it will take that one's place. Else chance would decide which batch it costs: workers
        are ahead, and die with what they have not sent. Nothing comes of it if it is for one that has been dropped.
        """
        ordered = self._ordered
        points = [point for samples in error.batches if ordered and (point := ordered.point_of(samples)) is not None]
        first = min(points, key=lambda point: (point.epoch, point.step), default=None)
        if first == at or not error.batches:
            return False
        log.warning("gpupipe: %s. New workers make the batches before the one at which that was", error)
        if first is not None:
            self._failing[first] = error.with_traceback(None)  # whose frames hold this
        return True

    def _open(self, at: Point) -> _Repaired | Ahead[Finished | Failed]:
        """A stream from there on."""
        self._end_thread()
        engine = self.check_open()
        self.owner = os.getpid()
        _LIVE.add(self)
        ordered = self._ordered = _Ordered(
            self._jobs, _points(at, frozenset(self._failing), self._goes_on), self._looks_ahead
        )
        if self.lane is None:
            self._batches = _Repaired(engine, ordered, self._repair)
            return self._batches
        with suppress(Exception):  # raised again where the batch is due
            self._jobs(at)  # a sampler lists here: it draws from the generators that threads share
        finishing = _Finishing(partial(_Repaired, engine, ordered, self._repair), self._finishes(at))
        thread = self._batches = self._thread = Ahead(finishing, DEPTH, self.lane, engine.interrupt)
        try:
            return iter(thread)
        except BaseException:
            self._close_batches()
            raise

    def _finishes(self, begun: Point) -> Finish:
        return partial(_finished, self._finish, self._mixes, begun)

    def _end_thread(self) -> None:
        """End the thread of an older stream. Raises GpupipeError if it can't end."""
        if self._thread is None:
            return
        self._thread.close()
        if not self._thread.ended:
            raise GpupipeError(
                "the thread of an earlier iteration still waits for a sample, so that none can begin; look at the "
                "storage, try again later, or build a new Loader"
            )
        self._thread = None

    def _close_batches(self) -> None:
        batches, self._batches = self._batches, None
        if batches is not None:
            batches.close()

    def end_at_exit(self) -> None:
        """Whoever waits for workers ends soon, and so does the stream."""
        if self.engine is not None:
            self.engine.interrupt()
        self.drop()


def _points(at: Point, failing: frozenset[Point], goes_on: bool) -> Iterator[Point]:
    """The steps from there on without those that are known to fail: of that epoch, or of all that follow, too."""
    epoch = at.epoch
    while at.step < len(at.batches) and (goes_on or at.epoch == epoch):
        if at not in failing:
            yield at
        at = at.following


class _Ordered:
    """The jobs of some steps, each kept until its batch has come. One that can't be made ends them: see `failed`."""

    def __init__(self, jobs: Jobs, points: Iterator[Point], looks_ahead: int) -> None:
        self._jobs = jobs
        self._points = points
        self._looks_ahead = looks_ahead
        self._open: deque[tuple[Point, Job]] = deque()
        self.failed: Failed | None = None

    def __iter__(self) -> Iterator[Job]:
        return looking_ahead(self._made(), self._looks_ahead) if self._looks_ahead else self._made()

    def _made(self) -> Iterator[Job]:
        for point in self._points:
            try:
                job = self._jobs(point)
            except Exception as error:  # of the user's order or sampler; the batches before it are still to come
                self.failed = Failed(error)
                return
            self._open.append((point, job))
            yield job

    def point_of(self, samples: tuple[int, ...]) -> Point | None:
        """The first of those still open whose batch has these samples."""
        return next((point for point, job in list(self._open) if np.isin(samples, job.indices).all()), None)

    def next_open(self) -> tuple[Point, Job]:
        """What the batch that has come was asked for."""
        return self._open.popleft()


class _Repaired:
    """The batches of an engine, in order, each with its job, made good by `repair`."""

    def __init__(self, engine: Engine, ordered: _Ordered, repair: Repair) -> None:
        self._ordered = ordered
        self._repair = repair
        self._stream = engine.stream(ordered)

    def __iter__(self) -> _Repaired:
        return self

    def __next__(self) -> Batch | Failed:
        batch = next(self._stream, None)
        if batch is not None:
            self._ordered.next_open()
            return _attempt(self._repair, batch)
        failed, self._ordered.failed = self._ordered.failed, None
        if failed is None:
            raise StopIteration
        return failed

    def close(self) -> None:
        """End the engine's stream."""
        self._stream.close()


class _Finishing:
    """Finished batches, for a thread of their own: everything begins with the first that is asked for."""

    def __init__(self, opened: Callable[[], _Repaired], finish: Finish) -> None:
        self._opened = opened
        self._finish = finish
        self._batches: _Repaired | None = None

    def __next__(self) -> Finished | Failed:
        if self._batches is None:
            self._batches = self._opened()
        made = next(self._batches)
        return made if isinstance(made, Failed) else _attempt(self._finish, made)

    def close(self) -> None:
        """End the engine's stream."""
        if self._batches is not None:
            self._batches.close()


def _attempt(step: Callable[[Batch], Made], batch: Batch) -> Made | Failed:
    """What the step makes of the batch, or why it can't."""
    try:
        return step(batch)
    except Exception as error:
        return Failed(error, batch.bad)


def _finished(finish: Callable[[Batch, bool], Finished], mixes: bool, begun: Point, batch: Batch) -> Finished:
    """The batch for the consumer; mixed across all ranks, so that every rank mixes, or none."""
    return finish(batch, mixes and begun.later(batch.job.epoch, batch.job.step).is_full)


_LIVE: weakref.WeakSet[Supply] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """At exit, before the interpreter takes itself apart, in whatever module a loader or an iterator is held."""
    for supply in list(_LIVE):
        if supply.owner == os.getpid():  # a fork ends none of its parent's workers
            supply.end_at_exit()
