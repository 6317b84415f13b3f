"""The engine on a standard `torch.utils.data.DataLoader`: its workers make batches, each from one job.

Processes, each with the C++ kernel on one thread (`python bench/workers.py`; uint8, 2 cores of an AMD EPYC):

    processes x threads   2 x 1   1 x 2   0 x 2   2 x 2   | on one core:   1 x 1   0 x 1
    images a second       1,573   1,458   1,472   1,608   |                  752     822
    memory, MB              724     660     607     731   |                  656     603

Threads within one process leave it idle while the next batch's files are read and its batch is handed over. Two threads
in each of as many processes as CPUs gain a little here, but twice as many threads as CPUs compete with the training
step.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import torch
import torch.utils.data

from gpupipe.batch import Batch, Job
from gpupipe.decode.engine import Batches
from gpupipe.host import system
from gpupipe.host.processes import Identity
from gpupipe.host.whereabouts import note
from gpupipe.workers.board import IDLE, Board
from gpupipe.workers.faults import death, hang
from gpupipe.workers.forks import guard_forks
from gpupipe.workers.pickling import check_picklable
from gpupipe.workers.pinning import pinned
from gpupipe.workers.slots import Message, Slots
from gpupipe.workers.watched import WatchedDataLoader, WorkersDied, WorkersHang, start_method
from gpupipe.workers.work import Work, new_planes
from gpupipe.workers.worker import WorkerInit, start_worker

__all__ = ["TorchEngine"]


Task = tuple["int | None", Job]
"""A job and the slot in which to make its batch; None for new memory, which only the consumer's process has."""


@dataclass
class _Made:
    """A batch on its way out of a worker: where it lies."""

    slots_id: int
    message: Message

    def batch(self) -> Batch:
        """In the consumer's process, and there only once."""
        return SLOTS[self.slots_id].take(self.message)

    def pin_memory(self) -> Batch:
        """`torch.utils.data.DataLoader` calls this, on a thread of its own."""
        return _pinned(self.batch())


@dataclass
class _MadeHere:
    """A batch that the consumer's own process has made."""

    made: Batch

    def batch(self) -> Batch:
        return self.made

    def pin_memory(self) -> Batch:
        return _pinned(self.made)


def _pinned(batch: Batch) -> Batch:
    batch.columns = pinned(batch.columns)
    return batch


def _received(made: _Made | _MadeHere | Batch) -> Batch:
    return made if isinstance(made, Batch) else made.batch()


# The slots of the engines of this process, for batches that come back from workers.
SLOTS: weakref.WeakValueDictionary[int, Slots] = weakref.WeakValueDictionary()


class _Dataset(torch.utils.data.Dataset["_Made | _MadeHere"]):
    """The dataset of the DataLoader underneath: what it is asked for is a task, what it gives the job's batch."""

    def __init__(self, work: Work, slots: Slots, board: Board) -> None:
        self.work = work
        self.slots = slots
        self.board = board
        self.slots_id = id(slots)

    def __getitem__(self, task: Task) -> _Made | _MadeHere:
        slot, job = task
        worker = torch.utils.data.get_worker_info()
        if worker is None:
            return _MadeHere(self._made_here(slot, job))
        self.board.begin(worker.id, job.indices)
        assert slot is not None
        message = self.slots.put(slot, self.work(job, self.slots.batch(slot, len(job))))
        note(IDLE)
        return _Made(self.slots_id, message)

    def _made_here(self, slot: int | None, job: Job) -> Batch:
        if slot is None:
            return self.work(job, new_planes(self.work.layout, len(job)))
        return self.work(job, self.slots.lend(slot, len(job)))


class _Tasks(torch.utils.data.Sampler[Task]):
    """The sampler of the DataLoader underneath: whatever jobs the current stream has, each with a slot."""

    def __init__(self, slots: Slots) -> None:
        self.jobs: Iterable[Job] = ()
        self._slots = slots

    def __iter__(self) -> Iterator[Task]:
        # Asked for the first task when the workers of older streams have ended, or have said that they are done.
        self._slots.take_back()
        for job in self.jobs:
            yield self._slots.give(job), job


def _as_is(batch: Any) -> Any:
    return batch


class TorchEngine:
    """Worker processes that do the work, or this one if there are none; other `options` are the DataLoader's.

    dataset: what the user's code finds in `torch.utils.data.get_worker_info()`. describe: where a sample lies, for
    messages. generator: where the workers' seeds come from.
    """

    name = "torch"

    def __init__(
        self,
        work: Work,
        device: torch.device,
        *,
        batch_size: int,
        num_workers: int,
        dataset: Any,
        describe: Callable[[int], str],
        generator: torch.Generator,
        worker_init_fn: WorkerInit | None = None,
        multiprocessing_context: Any = None,
        **options: Any,
    ) -> None:
        self.device = device
        self._dataset = dataset
        self._describe = describe
        count = system.batches_in_memory(num_workers, options.get("prefetch_factor", 1))
        self._slots = Slots(count, batch_size, work.layout, shared=num_workers > 0)
        SLOTS[id(self._slots)] = self._slots
        self._board = Board(num_workers, batch_size)
        self._tasks = _Tasks(self._slots)
        self._worker_init_fn = worker_init_fn
        self._iterator: Any = None
        self._loader = WatchedDataLoader(
            _Dataset(work, self._slots, self._board),
            batch_size=None,
            sampler=self._tasks,
            num_workers=num_workers,
            collate_fn=_as_is,
            generator=generator,
            multiprocessing_context=multiprocessing_context,
            received=_received,
            **options,
        )
        if num_workers > 0:
            guard_forks()
            if (method := start_method(self._loader.multiprocessing_context)) != "fork":
                check_picklable("dataset", dataset, method)
                check_picklable("work", work, method)
                check_picklable("worker_init_fn", worker_init_fn, method)

    def stream(self, jobs: Iterable[Job]) -> Batches:
        """A batch for each job, on the CPU, pinned if the options say so.

        Raises LoaderTimeoutError when the workers give nothing within the timeout, WorkerError when one has died. The
        workers are then ended, and the next stream starts new ones. A new stream ends an older one.
        """
        return _Batches(self, jobs)

    def begin(self, jobs: Iterable[Job]) -> Any:
        """The DataLoader's iterator over new jobs."""
        self._end_workers(keep_persistent=True)
        self._tasks.jobs = jobs
        if self._iterator is None:
            self._board.clear()
            # Of the process that iterates, which may be a fork of the one that built the loader.
            start = partial(start_worker, self._board, Identity.own(), self._dataset, self._worker_init_fn)
            self._loader.worker_init_fn = start
        self._iterator = iter(self._loader)
        return self._iterator

    def end(self, iterator: Any) -> None:
        """Nothing more is wanted of one that `begin` gave, which may be an older one."""
        if not self._loader.persistent_workers:
            _end(iterator)
            if self._iterator is iterator:
                self._iterator = None

    def failed(self, error: BaseException) -> BaseException:
        """What to raise where an iterator, or its start, raised `error`; the workers are ended."""
        if isinstance(error, WorkersDied | WorkersHang):
            shown = self._explained(error)
            self._end_workers(keep_persistent=False, at_once=True)
            return shown
        # A Ctrl-C, say: it may have come between the parts of a message from or to a worker.
        self._end_workers(keep_persistent=False)
        return error

    def _explained(self, fault: WorkersDied | WorkersHang) -> Exception:
        if isinstance(fault, WorkersDied):
            return death(fault, self._board, self._describe)
        return hang(fault, self._board, self._describe, self._loader.timeout)

    def _end_workers(self, keep_persistent: bool, at_once: bool = False) -> None:
        if not (keep_persistent and self._loader.persistent_workers):
            _end(self._iterator if self._iterator is not None else self._loader._iterator, at_once)
            self._iterator = self._loader._iterator = None

    def ready(self) -> int:
        """Batches in the workers' queue, and those taken from it that wait for an earlier one."""
        iterator = self._iterator
        if self._loader.num_workers == 0 or iterator is None:
            return 0
        # Inner parts of torch's iterator, which has no public word for it; a task of two entries holds its batch.
        waiting = sum(len(task) == 2 for task in list(iterator._task_info.values()))  # a logging thread may ask
        return int(iterator._data_queue.qsize()) + waiting

    def interrupt(self) -> None:
        """Ends the workers, and with them whoever waits for one."""
        interrupt = getattr(self._iterator, "interrupt", None)
        if interrupt is not None:
            interrupt()

    def close(self) -> None:
        """Ends the workers."""
        self._end_workers(keep_persistent=False)


class _Batches:
    """The batches of one stream."""

    def __init__(self, engine: TorchEngine, jobs: Iterable[Job]) -> None:
        self._engine = engine
        self._iterator: Any = None
        try:
            self._iterator = engine.begin(jobs)
        except BaseException as error:
            self._fail(error)

    def __iter__(self) -> _Batches:
        return self

    def __next__(self) -> Batch:
        if self._iterator is None:
            raise StopIteration
        try:
            return _received(next(self._iterator))
        except StopIteration:
            self.close()
            raise
        except BaseException as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> NoReturn:
        shown = self._engine.failed(error)
        try:
            if shown is error:
                raise error
            raise shown from None
        finally:
            del shown, error  # else they and this frame would hold each other

    def close(self) -> None:
        iterator, self._iterator = self._iterator, None
        if iterator is not None:
            self._engine.end(iterator)


def _end(iterator: Any, at_once: bool = False) -> None:
    """Ends the workers of a DataLoader's iterator, if it has any; torch does so only when the iterator is collected."""
    end = getattr(iterator, "end", None)
    if end is not None:
        end(at_once)
