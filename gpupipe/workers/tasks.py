"""What workers are asked for, and how their answers become batches.

    job ──► tasks, each with a slot ──► workers ──► answers ──► batch with its job

A job is one task. Only the first of a stream, for which the consumer waits while no worker has anything to do, is
shared out among them all, if the work allows it: each makes some of its rows.
"""

from __future__ import annotations

import traceback
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch.utils.data
from numpy.typing import NDArray

from gpupipe.batch import Batch, Columns, Coming, Job
from gpupipe.batch.batch import join
from gpupipe.batch.collation import move
from gpupipe.batch.coming import looking_ahead
from gpupipe.errors import GpupipeError
from gpupipe.host.whereabouts import note
from gpupipe.workers.board import IDLE, Board
from gpupipe.workers.slots import Rest, Slots
from gpupipe.workers.work import Work, new_planes

__all__ = ["Answer", "Tasks", "Workshop", "received"]


@dataclass(frozen=True)
class Task:
    """Rows of a job from `first` on, which are one of so many parts, to be made in a slot; None for new memory, which
    only the consumer's process has. `turn`: of the stream."""

    turn: int
    slot: int | None
    job: Job
    first: int = 0
    part: int = 0
    parts: int = 1


@dataclass(frozen=True)
class Answer:
    """What came of a task: where the rest of the batch lies, or the batch itself where the consumer's process made it;
    neither if nobody wants it any more."""

    tasks: int
    slot: int | None = None
    part: int = 0
    rest: Rest | None = None
    batch: Batch | None = None

    def pin_memory(self) -> Batch | None:
        """`torch.utils.data.DataLoader` calls this, on a thread of its own."""
        batch: Batch | None = received(self)
        if batch is not None:
            batch.columns = move(batch.columns, torch.Tensor.pin_memory, "pin_memory")
        return batch


def received(answer: Any) -> Any:
    """The batch that is whole with this answer, or None; anything else as it is. In the consumer's process, once."""
    if not isinstance(answer, Answer):
        return answer
    if answer.rest is None:
        return answer.batch
    return TASKS[answer.tasks]._received(answer)


class Workshop(torch.utils.data.Dataset[Answer]):
    """The dataset of the DataLoader underneath: what it is asked for is a task."""

    def __init__(self, work: Work, slots: Slots, board: Board, tasks: int) -> None:
        self._work = work
        self._slots = slots
        self._board = board
        self._tasks = tasks

    def __getitem__(self, task: Task) -> Answer:
        worker = torch.utils.data.get_worker_info()
        if worker is None:
            return Answer(self._tasks, batch=self._work(task.job, self._planes(task)))
        if task.turn != self._board.turn:  # left, and workers are wanted for another
            return Answer(self._tasks)
        self._board.begin(worker.id, task.job)
        rest = self._made(task)
        note(IDLE)
        return Answer(self._tasks, task.slot, task.part, rest)

    def _planes(self, task: Task) -> Columns:
        if task.slot is None:
            return new_planes(self._work.layout, len(task.job))
        return self._slots.take(task.slot, (), len(task.job))[1]

    def _made(self, task: Task) -> Rest:
        assert task.slot is not None
        planes = self._slots.planes(task.slot, slice(task.first, task.first + len(task.job)))
        try:
            batch = self._work(task.job, planes)
        except GpupipeError as error:  # torch would make its traceback a part of the message
            batch = Batch(task.job, {}, error=(error, traceback.format_exc()))
        rest = vars(batch) | {"columns": {name: batch.columns[name] for name in batch.columns if name not in planes}}
        del rest["job"]  # which the consumer's process has
        return self._slots.put(task.slot, rest, task.part, task.parts)


@dataclass
class _Open:
    """A job whose tasks are under way: the rows of each part, its slot, and what has come of them by part."""

    job: Job
    shares: list[NDArray[np.int64]]
    slot: int | None = None
    made: dict[int, Rest] = field(default_factory=dict)

    def part(self, part: int) -> Job:
        """What a worker is asked for."""
        return self.job if len(self.shares) == 1 else self.job.take(self.shares[part])


class Tasks:
    """The sampler of the DataLoader underneath: the tasks for whatever jobs the current stream has.

    ahead: how many tasks later a worker is told of one; the DataLoader gives tasks to its workers in turn. in_parts:
    whether a job may be more than one task. error: what the jobs' iterator has raised, after the last job that it gave.
    """

    def __init__(self, slots: Slots, board: Board, workers: int, ahead: int = 0, in_parts: bool = True) -> None:
        self._slots = slots
        self._board = board
        self._workers = workers
        self._ahead = ahead
        self._in_parts = in_parts and bool(slots.layout)
        self._open: dict[int, _Open] = {}
        self._jobs: Iterable[Job] = ()
        self.error: Exception | None = None
        TASKS[id(self)] = self

    def begin(self, jobs: Iterable[Job]) -> int:
        """A new stream in the place of the current one; its turn."""
        self._board.turn += 1
        self._jobs = jobs
        self.error = None
        return self._board.turn

    def runs(self, turn: int) -> bool:
        """Whether that is the current stream."""
        return self._board.turn == turn

    def leave(self, turn: int) -> None:
        """Workers are not to begin what is left of that stream."""
        if self.runs(turn):
            self.begin(())

    def __iter__(self) -> Iterator[Task]:
        # Asked for the first task when the workers of older streams have ended, or have said that they are done.
        self._slots.take_back()
        self._open.clear()
        parts = looking_ahead(self._parts(), lambda of: of[0].part(of[1]).coming, max(1, self._workers), self._ahead)
        try:
            for (opened, part), ahead in parts:
                yield self._task(opened, part, ahead)
        except Exception as error:  # for whom takes the batch that did not come; those before it are under way
            self.error = error

    def _parts(self) -> Iterator[tuple[_Open, int]]:
        """What workers are asked for: each job, and the first in several parts, where it may be."""
        parts = self._workers if self._in_parts else 1
        for job in self._jobs:
            opened = _Open(job, np.array_split(np.arange(len(job)), max(1, min(parts, len(job)))))
            for part in range(len(opened.shares)):
                yield opened, part
            parts = 1

    def _task(self, opened: _Open, part: int, ahead: tuple[Coming, ...]) -> Task:
        if not part:
            opened.slot = self._slots.give()
            if opened.slot is not None and self._workers:
                self._open[opened.slot] = opened
        first = sum(map(len, opened.shares[:part]))
        job = opened.part(part).telling(ahead)
        return Task(self._board.turn, opened.slot, job, first, part, len(opened.shares))

    def _received(self, answer: Answer) -> Batch | None:
        assert answer.slot is not None
        assert answer.rest is not None
        asked = self._open[answer.slot]
        asked.made[answer.part] = answer.rest
        if len(asked.made) < len(asked.shares):
            return None
        del self._open[answer.slot]
        rests = [asked.made[part] for part in range(len(asked.shares))]
        taken, planes = self._slots.take(answer.slot, rests, len(asked.job))
        parts = [(rows, Batch(job=asked.job, **made)) for rows, made in zip(asked.shares, taken, strict=True)]
        batch = join(asked.job, parts)
        batch.columns |= planes
        return batch


# The tasks of the engines of this process, for answers that come from workers.
TASKS: weakref.WeakValueDictionary[int, Tasks] = weakref.WeakValueDictionary()
