"""What workers are asked for, and how their answers become batches.

    job ──► tasks, each with a slot ──► workers ──► answers ──► batch with its job

A job is one task. Only the first of a stream, for which the consumer waits while no worker has anything to do, is
shared out among them all: each makes some of its rows.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch.utils.data

from gpupipe.batch import Batch, Columns, Job
from gpupipe.batch.collation import move
from gpupipe.batch.columns import assemble
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
        self._board.begin(worker.id, task.job.indices)
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
        batch = (self._work if task.parts == 1 else self._work.rows)(task.job, planes)
        columns = {name: None if name in planes else column for name, column in batch.columns.items()}
        return self._slots.put(task.slot, {**vars(batch), "columns": columns, "job": None}, task.part, task.parts)


@dataclass
class _Open:
    """A job whose tasks are under way; what has come of them, by part, each with its first row."""

    job: Job
    firsts: list[int]
    made: dict[int, Rest] = field(default_factory=dict)


class Tasks:
    """The sampler of the DataLoader underneath: the tasks for whatever jobs the current stream has.

    error: what the jobs' iterator has raised, after the last job that it gave.
    """

    def __init__(self, slots: Slots, board: Board, workers: int) -> None:
        self._slots = slots
        self._board = board
        self._workers = workers
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
        parts = self._workers if self._slots.layout else 1
        try:
            for job in self._jobs:
                yield from self._of(job, max(1, min(parts, len(job))))
                parts = 1
        except Exception as error:  # for whom takes the batch that did not come; those before it are under way
            self.error = error

    def _of(self, job: Job, parts: int) -> Iterator[Task]:
        turn, slot = self._board.turn, self._slots.give()
        shares = np.array_split(np.arange(len(job)), parts)
        firsts = [int(share[0]) if parts > 1 else 0 for share in shares]
        if slot is not None and self._workers:
            self._open[slot] = _Open(job, firsts)
        for part, share in enumerate(shares):
            yield Task(turn, slot, job if parts == 1 else job.take(share), firsts[part], part, parts)

    def _received(self, answer: Answer) -> Batch | None:
        assert answer.slot is not None
        assert answer.rest is not None
        open_ = self._open[answer.slot]
        open_.made[answer.part] = answer.rest
        if len(open_.made) < len(open_.firsts):
            return None
        del self._open[answer.slot]
        rests = [open_.made[part] for part in range(len(open_.firsts))]
        taken, planes = self._slots.take(answer.slot, rests, len(open_.job))
        made = [Batch(**{**one, "job": open_.job}) for one in taken]
        batch = made[0] if len(made) == 1 else _joined(open_.job, open_.firsts, made)
        batch.columns |= planes
        return batch


# The tasks of the engines of this process, for answers that come from workers.
TASKS: weakref.WeakValueDictionary[int, Tasks] = weakref.WeakValueDictionary()


def _joined(job: Job, firsts: list[int], made: list[Batch]) -> Batch:
    """One batch of parts that are not collated, without its planes."""
    ends = [*firsts[1:], len(job)]
    rows = [np.arange(first, end) for first, end in zip(firsts, ends, strict=True)]
    columns = {name: _column([batch.columns[name] for batch in made], rows, len(job)) for name in made[0].columns}
    joined = Batch(job, columns, augmented=made[0].augmented)
    for first, batch in zip(firsts, made, strict=True):
        joined.failures |= {first + row: error for row, error in batch.failures.items()}
        joined.bytes_read += batch.bytes_read
        joined.spans += batch.spans
    return joined


def _column(parts: list[Any], rows: list[Any], count: int) -> Any:
    if parts[0] is None:  # planes
        return None
    if isinstance(parts[0], tuple):  # of views
        return tuple(_column(list(views), rows, count) for views in zip(*parts, strict=True))
    return assemble(count, [(share, {"": part}) for share, part in zip(rows, parts, strict=True)])[""]
