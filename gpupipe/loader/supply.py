"""What a loader's iterations take their batches from: one stream of the engine, which goes on from epoch to epoch.

    order ──► jobs ──► engine ──► repair ──► finish ──► Iteration
                                                └ in the consumer's thread, or for a GPU ahead in one of their own

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
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from gpupipe.batch import Batch, Job
from gpupipe.decode.engine import Batches, Engine
from gpupipe.device.ahead import Ahead
from gpupipe.device.finishing import Finished
from gpupipe.device.handover import HandOver
from gpupipe.errors import GpupipeError, LoaderTimeoutError, SampleError, WorkerError
from gpupipe.loader.jobs import Jobs
from gpupipe.loader.place import Point

if TYPE_CHECKING:
    from gpupipe.loader.keeping import Keeping
    from gpupipe.loader.stats import Meter
    from gpupipe.loader.streaming import StreamReader

__all__ = ["Ended", "Failed", "Supply"]

log = logging.getLogger("gpupipe")

Made = TypeVar("Made")
WorkerFault = WorkerError | LoaderTimeoutError

DEPTH = 2  # finished batches that wait on a GPU; engines have queues of their own before them


class Ended:
    """What comes where a stream has no more batches for the epoch."""


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

    repair, finish: the steps on an engine's batch; the last is told whether samples are mixed, if the recipe does.
    lane:    where a thread makes batches ahead; None: nowhere.
    goes_on: whether the next epoch's batches are made before it begins.
    reader:  gives the jobs the samples of a stream, and ends them where that ends; None: samples are asked for.
    keeping: tells jobs what of their samples a cache is to keep; None: there is none.
    """

    def __init__(
        self,
        engine: Engine,
        jobs: Jobs,
        repair: Callable[[Batch], Batch],
        finish: Callable[[Batch, bool], Finished],
        meter: Meter,
        lane: HandOver | None,
        goes_on: bool,
        reader: StreamReader | None = None,
        keeping: Keeping | None = None,
    ) -> None:
        self.engine: Engine | None = engine
        self.lane = lane
        self._jobs = jobs
        self._repair = repair
        self._finish = finish
        self._meter = meter
        self._goes_on = goes_on
        self._reader = reader
        self._keeping = keeping
        self._at: Point | None = None  # what comes next
        self._mixes = False
        self._turn = 0  # the iteration that it works for
        self._batches: _Stream[Batch] | Ahead[Finished | Failed] | None = None
        self._thread: Ahead[Finished | Failed] | None = None
        self._failing: dict[tuple[int, int], Exception] = {}  # what is known to fail before it is due
        self._exits = False
        self.owner: int | None = None  # the process that has opened a stream, until it is closed

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
                if not self._put_off(error, at):
                    self._failing[at.key] = error

    def take(self, at: Point) -> Finished | Failed | Ended:
        """The batch of that step, or why there is none; a Ctrl-C leaves the step to come."""
        if at != self._at:  # a Ctrl-C came between two steps
            self.drop()
            self._at = at
        item: Finished | Failed | Ended | None = self._known_to_fail(at)
        while item is None:
            item = self._made(at)
        following = at.following
        self._at = following if self._goes_on or following.epoch == at.epoch else None
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
        engine, is_inherited = self.engine, self._is_inherited
        self.engine = self.owner = None
        if self._keeping is not None:
            self._keeping.close()
        if engine is not None and not is_inherited:
            engine.close()

    def check_open(self) -> Engine:
        """The engine. Raises GpupipeError where it was closed, or is at work for another process."""
        self._end_daemon()
        if self.engine is None:
            raise GpupipeError("this Loader was closed; build a new one to iterate again")
        if self._batches is not None and self._is_inherited:
            raise GpupipeError(
                f"this Loader's batches are made for process {self.owner}, of which process {os.getpid()} is a fork; "
                "build another Loader here, or pass persistent_workers=False and fork between two epochs"
            )
        return self.engine

    @property
    def _is_inherited(self) -> bool:
        """Whether this process is a fork of the one that has opened a stream, which is not for it to end."""
        return self.owner not in (None, os.getpid())

    def ready(self) -> int | None:
        """Batches that are made and wait to be taken; None where the engine can't tell."""
        engine, thread = self.engine, self._thread  # a logging thread may ask
        if engine is None:
            return None
        return engine.ready() if self.lane is None else 0 if thread is None else len(thread)

    def _known_to_fail(self, at: Point) -> Failed | None:
        error = self._failing.pop(at.key, None)
        if error is None:
            return None
        self._close_batches()
        if isinstance(error, WorkerFault):
            self.check_open().close()  # as after any such error, no worker is left
        return Failed(error)

    def _made(self, at: Point) -> Finished | Failed | Ended | None:
        """What comes from the stream; None where another one has to begin."""
        try:
            item = self._meter.waited(self._open(at) if self._batches is None else self._batches)
            if item is None:
                self.check_open()
                if self._reader is not None:
                    self._close_batches()  # else the next epoch, which may begin at this point, would have none
                    return Ended()
                raise GpupipeError("the engine has ended its batches before the epoch; iterate again, or report this")
            return _attempt(self._finishing(at), item) if isinstance(item, Batch) else item
        except BaseException as error:
            self._close_batches()
            self._end_daemon()
            if not isinstance(error, Exception):  # a Ctrl-C
                raise
            return None if self._put_off(error, at) else Failed(error)

    def _put_off(self, error: Exception, at: Point) -> bool:
        """Whether the error is not for the batch that is due: new workers make that.

        If it is for a later one it will take that one's place. Else chance would decide which batch it costs: workers
        are ahead, and die or stop with what they have not sent. Nothing comes of it if it is for one that has been
        dropped.
        """
        due = at.key
        first = min(error.batches, default=due) if isinstance(error, WorkerFault) else due
        if first == due:
            return False
        log.warning("gpupipe: %s. New workers make the batches before the one at which that was", error)
        if first > due:
            self._failing[first] = error.with_traceback(None)  # whose frames hold this
        return True

    def _open(self, at: Point) -> _Stream[Batch] | Ahead[Finished | Failed]:
        """A stream from there on."""
        self._end_thread()
        engine = self.check_open()
        self.owner = os.getpid()
        _LIVE.add(self)
        jobs = _following(self._jobs, at, frozenset(self._failing), self._goes_on)
        if self._reader is not None:
            jobs = self._reader(jobs, at.batches)
        if self._keeping is not None:
            jobs = self._keeping(jobs, at.batches)
        stream = partial(engine.stream, jobs)
        if self.lane is None:
            self._batches = _Stream(stream, self._repair).begun()
            return self._batches
        with suppress(Exception):  # raised again where the batch is due
            self._jobs(at)  # a sampler lists here: it draws from the generators that threads share
        finished = _Stream(stream, partial(_both, self._repair, self._finishing(at)))
        thread = self._batches = self._thread = Ahead(finished, DEPTH, self.lane, engine.interrupt)
        try:
            return iter(thread)
        except BaseException:
            self._close_batches()
            raise

    def _finishing(self, begun: Point) -> Callable[[Batch], Finished]:
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
        if batches is not None and not self._is_inherited:
            batches.close()

    def end_at_exit(self) -> None:
        """As `close`, and a daemon thread that still takes batches ends soon."""
        self._exits = True
        if self.engine is not None:
            self.engine.interrupt()
        self.close()

    def _end_daemon(self) -> None:
        if self._exits:
            raise SystemExit  # a thread ends by it without a word


def _following(jobs: Jobs, at: Point, failing: frozenset[tuple[int, int]], goes_on: bool) -> Iterator[Job]:
    """The jobs from there on but those that are known to fail: of that epoch, or of all that follow, too."""
    epoch = at.epoch
    while (goes_on or at.epoch == epoch) and at.step < len(at.batches):
        if at.key not in failing:
            yield jobs(at)
        at = at.following


class _Stream(Generic[Made]):
    """What `step` makes of the batches of an engine's stream, which begins with the first that is asked for."""

    def __init__(self, opened: Callable[[], Batches], step: Callable[[Batch], Made]) -> None:
        self._opened = opened
        self._step = step
        self._batches: Batches | None = None

    def begun(self) -> _Stream[Made]:
        """The same; workers are at it."""
        self._batches = self._opened()
        return self

    def __iter__(self) -> _Stream[Made]:
        return self

    def __next__(self) -> Made | Failed:
        if self._batches is None:
            self._batches = self._opened()
        return _attempt(self._step, next(self._batches))

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


def _both(repair: Callable[[Batch], Batch], finish: Callable[[Batch], Finished], batch: Batch) -> Finished:
    return finish(repair(batch))


def _finished(finish: Callable[[Batch, bool], Finished], mixes: bool, begun: Point, batch: Batch) -> Finished:
    """The batch for the consumer; mixed across all ranks, so that every rank mixes, or none."""
    return finish(batch, mixes and begun.later(batch.job.epoch, batch.job.step).ending(batch.job.ends).is_full)


_LIVE: weakref.WeakSet[Supply] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """At exit, before the interpreter takes itself apart, in whatever module a loader or an iterator is held."""
    for supply in list(_LIVE):
        if supply.owner == os.getpid():  # a fork ends none of its parent's workers
            supply.end_at_exit()
