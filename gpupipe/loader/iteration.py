"""One iteration over a loader: the batches from where it stands to the end of the epoch.

    order ──► jobs ──► engine ──► repair ──► finish ──► next()
                       └── Repaired ──┘         └ in the consumer's thread, or for a GPU ahead in one of their own

An error takes the place of the batch that it kept from coming: `next` raises it, and the next `next` gives the batch
after that, as a DataLoader's iterator does. A Ctrl-C takes no place: the batch comes when it is asked for again.
"""

from __future__ import annotations

import atexit
import logging
import os
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from gpupipe.batch import Batch, Job
from gpupipe.decode.engine import Engine
from gpupipe.device.ahead import Ahead
from gpupipe.device.finishing import Finished
from gpupipe.errors import GpupipeError, WorkerError
from gpupipe.loader.accelerate import Announcement

if TYPE_CHECKING:
    from gpupipe.loader.loader import Loader

__all__ = ["Failed", "Finishing", "Iteration", "Jobs", "Repaired"]

log = logging.getLogger("gpupipe")

Made = TypeVar("Made")

DEPTH = 2  # finished batches that wait on a GPU; engines have queues of their own before them


@dataclass(frozen=True)
class Failed:
    """What comes in the place of the batch of `step`."""

    step: int
    error: Exception


class Jobs:
    """The jobs of some steps, each kept until its batch has come. One that can't be made ends them: see `failed`."""

    def __init__(self, make: Callable[[int], Job], steps: Iterable[int]) -> None:
        self._make: Callable[[int], Job] | None = make
        self._steps = steps
        self._open: deque[tuple[int, Job]] = deque()
        self.failed: Failed | None = None

    def __iter__(self) -> Iterator[Job]:
        for step in self._steps:
            if self._make is None:
                return
            try:
                job = self._make(step)
            except Exception as error:  # of the user's order or sampler; the batches before it are still to come
                self.failed = Failed(step, error)
                return
            self._open.append((step, job))
            yield job

    def step_of(self, samples: tuple[int, ...]) -> int | None:
        """The first step of those still open whose batch has these samples."""
        return next((step for step, job in list(self._open) if np.isin(samples, job.indices).all()), None)

    def next_open(self) -> tuple[int, Job]:
        """The step and the job whose batch has come."""
        return self._open.popleft()

    def close(self) -> None:
        """No more jobs; what made them is let go, as an engine may keep this for longer than its loader lives."""
        self._make = None


class Repaired:
    """The batches of an engine, in order, each with its step and job, made good by `repair`."""

    def __init__(self, engine: Engine, jobs: Jobs, repair: Callable[[Batch], Batch]) -> None:
        self._jobs = jobs
        self._repair = repair
        self._stream = engine.stream(jobs)

    def __iter__(self) -> Repaired:
        return self

    def __next__(self) -> Batch | Failed:
        batch = next(self._stream, None)
        if batch is not None:
            self._jobs.next_open()
            return attempt(self._repair, batch)
        failed, self._jobs.failed = self._jobs.failed, None
        if failed is None:
            raise StopIteration
        return failed

    def close(self) -> None:
        """End the engine's stream."""
        self._stream.close()
        self._jobs.close()


class Finishing:
    """Finished batches, for a thread of their own: everything begins with the first that is asked for."""

    def __init__(self, opened: Callable[[], Repaired], finish: Callable[[Batch], Finished]) -> None:
        self._opened: Callable[[], Repaired] | None = opened
        self._finish: Callable[[Batch], Finished] | None = finish
        self._batches: Repaired | None = None

    def __next__(self) -> Finished | Failed:
        if self._opened is None or self._finish is None:
            raise StopIteration
        if self._batches is None:
            self._batches = self._opened()
        made = next(self._batches)
        return made if isinstance(made, Failed) else attempt(self._finish, made)

    def close(self) -> None:
        """End the engine's stream, and let go of the loader, which holds the thread that holds this."""
        if self._batches is not None:
            self._batches.close()
        self._opened = self._finish = None


def attempt(step: Callable[[Batch], Made], batch: Batch) -> Made | Failed:
    """What the step makes of the batch, or why it can't."""
    try:
        return step(batch)
    except Exception as error:
        return Failed(batch.job.step, error)


class Iteration:
    """The iterator of a Loader.

    It begins, and its workers start, when it is made; but if another iteration of the loader is under way, only when
    its first batch is asked for. Until then `set_epoch`, `load_state_dict` and other iterations leave it as it is.
    """

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._owner = os.getpid()
        self._turn: int | None = None
        self._batches: Repaired | Ahead[Finished | Failed] | None = None
        self._jobs: Jobs | None = None
        self._next = 0  # the step of the next batch
        self._failing: dict[int, Exception] = {}  # steps whose batch has ended a worker before it was due
        self._given = self._over = False
        self._announcement: Announcement | None = None
        _LIVE.add(self)
        self._failure: Exception | None = None  # why the start failed; for whom asks for the first batch
        if loader._running is None:
            try:
                self._begin()
            except Exception as error:
                self._failure = error

    def __iter__(self) -> Iteration:
        return self

    def __next__(self) -> Any:
        if self._over:
            raise StopIteration
        self._check()
        failure, self._failure = self._failure, None
        if self._turn != self._loader._place.turn:
            self._begin()
        elif failure is not None:
            try:
                raise failure
            finally:
                del failure  # else the error and this frame would hold each other
        while self._next < len(self._loader):
            if self._next in self._failing:
                self._close_batches()
                self._loader._opened_engine().close()  # as after any death, no worker is left
                return self._handed_out(Failed(self._next, self._failing.pop(self._next)))
            # Not `or`: a thread's queue that is empty counts as false.
            item = self._taken(self._open() if self._batches is None else self._batches)
            if item is not None:
                return self._handed_out(item)
            self._close_batches()  # the order failed, so what comes after that has not been asked for
        self._end()
        raise StopIteration

    def close(self) -> None:
        """End what is under way. May be called twice."""
        self._over = True
        self._close_batches()
        if self._announcement is not None:
            self._announcement.end()
            self._announcement = None

    def __del__(self) -> None:
        try:
            raise GeneratorExit  # for `interrupts_held`: a KeyboardInterrupt that is raised here reaches nobody
        except GeneratorExit:
            if hasattr(self, "_announcement"):
                self.close()

    @property
    def under_way(self) -> bool:
        """Whether it has given a batch and may give more."""
        return self._given and not self._over and self._turn == self._loader._place.turn

    def _check(self) -> None:
        self._loader._opened_engine()
        if self._given and self._turn != self._loader._place.turn:
            raise GpupipeError(
                "this iterator has ended, because a newer one, set_epoch() or load_state_dict() on the same Loader "
                "took over; build a second Loader to read two epochs at the same time"
            )

    def _begin(self) -> None:
        self._check()
        loader = self._loader
        loader._check_world()
        self._close_batches()
        self._failing.clear()
        self._turn = loader._place.begin()
        self._next = loader._place.step
        loader._begun(self)
        self._mixes = loader.mixup_enabled
        if self._next < len(loader):
            self._open()

    def _open(self) -> Repaired | Ahead[Finished | Failed]:
        """Batches from the next step on, or an error in the place of the first of them."""
        try:
            self._batches = opened = self._opened()
            return opened
        except Exception:
            self._next += 1
            raise

    def _opened(self) -> Repaired | Ahead[Finished | Failed]:
        loader, engine = self._loader, self._loader._opened_engine()
        loader._end_thread()  # of an older iteration, which may be held somewhere
        failing = frozenset(self._failing)  # not self, which an engine would hold with the jobs
        steps = (step for step in range(self._next, len(loader)) if step not in failing)
        jobs = self._jobs = Jobs(loader._job, steps)
        if loader._lane is None:
            return Repaired(engine, jobs, loader._repaired)
        with suppress(Exception):  # raised again where the batch is due
            loader._job(self._next)  # a sampler lists here: it draws from the generators that threads share
        # Without this iterator in it, so that one that nobody holds any more ends the thread.
        finish = partial(loader._finished, mixes=self._mixes)
        finishing = Finishing(lambda: Repaired(engine, jobs, loader._repaired), finish)
        ahead = loader._ahead = Ahead(finishing, DEPTH, loader._lane, engine.interrupt)
        try:
            return iter(ahead)
        except BaseException:
            ahead.close()
            raise

    def _taken(self, batches: Repaired | Ahead[Finished | Failed]) -> Finished | Failed | None:
        """What comes next, finished; None if nothing does."""
        try:
            item = self._loader.meter.waited(batches)
            return attempt(self._finish, item) if isinstance(item, Batch) else item
        except WorkerError as error:
            self._close_batches()
            if not self._put_off(error):
                self._next += 1
                raise
        except Exception:  # the engine's own
            self._close_batches()
            self._next += 1
            raise
        except BaseException:  # a Ctrl-C
            self._close_batches()
            raise
        return self._taken(self._open())

    def _put_off(self, error: WorkerError) -> bool:
        """Whether the error is for a batch that is not due yet. It will take that one's place; those before are made.

        Else chance would decide which batch it costs: workers are ahead, and die with what they have not sent.
        """
        jobs = self._jobs
        steps = [step for samples in error.batches if jobs and (step := jobs.step_of(samples)) is not None]
        if not steps or min(steps) == self._next:
            return False
        log.warning("gpupipe: %s. New workers make the batches before the one at which that was", error)
        self._failing[min(steps)] = error.with_traceback(None)  # whose frames hold this iterator
        return True

    def _finish(self, batch: Batch) -> Finished:
        return self._loader._finished(batch, self._mixes)

    def _handed_out(self, item: Finished | Failed) -> Any:
        loader = self._loader
        if self._announcement is None:
            self._announcement = Announcement(loader._remainder)
        if isinstance(item, Failed):
            self._next = item.step + 1
            try:
                raise item.error
            finally:
                del item  # else the error and this frame would hold each other, and a batch in another of its frames
        batch = loader._handed_out(item)
        # Last: a batch that a Ctrl-C keeps from being finished has not been delivered.
        self._next = item.batch.job.step + 1
        self._given = True
        self._announcement.delivered(is_last=self._next == len(loader))
        return batch

    def _end(self) -> None:
        self.close()
        self._loader._place.ended()

    def _close_batches(self) -> None:
        batches, self._batches = self._batches, None
        if batches is not None:
            batches.close()


_LIVE: weakref.WeakSet[Iteration] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """At exit, before the interpreter takes itself apart, in whatever module an iterator is held."""
    for iteration in list(_LIVE):
        if iteration._owner == os.getpid():  # a fork ends none of its parent's workers
            iteration._loader._interrupt()
            iteration.close()
