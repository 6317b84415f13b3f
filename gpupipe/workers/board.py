"""What each worker process is at, in memory that they share with the loader's process."""

from __future__ import annotations

import math
import time

import numpy as np

from gpupipe.batch import Job
from gpupipe.batch.batch import listed
from gpupipe.host.whereabouts import note, note_in
from gpupipe.workers.memory import SharedMemory

__all__ = ["BATCH", "IDLE", "Board"]

STARTING, IDLE, BATCH = -1, -2, -3
"""What `note` is told where there is no one sample: before the first task, between tasks, at a whole batch."""

NOTE, SINCE, EPOCH, STEP, COUNT, SAMPLES = range(6)  # the columns; the samples of the task take the rest


class Board:
    """A row of int64 for each worker, and the number of the stream whose batches are wanted.

    Pickles only while a worker process is started, as its memory.
    """

    def __init__(self, workers: int, batch_size: int) -> None:
        shape = (workers, SAMPLES + batch_size)
        self.__setstate__((SharedMemory(8 * (1 + math.prod(shape))), shape))
        self.clear()

    def __getstate__(self) -> tuple[SharedMemory, tuple[int, int]]:
        return self._memory, self._shape

    def __setstate__(self, state: tuple[SharedMemory, tuple[int, int]]) -> None:
        self._memory, self._shape = state
        cells = self._memory.bytes.numpy().view(np.int64)  # a tensor of inference mode could not be written to outside
        self._turn, self._rows = cells[:1], cells[1:].reshape(self._shape)

    def clear(self) -> None:
        """New workers are to be started."""
        self._rows[:, NOTE] = STARTING
        self._rows[:, SINCE] = time.monotonic_ns()

    @property
    def turn(self) -> int:
        """The number of the current stream."""
        return int(self._turn[0])

    @turn.setter
    def turn(self, turn: int) -> None:
        self._turn[0] = turn

    # In a worker.

    def open_row(self, worker: int) -> None:
        """Notes of this process are those of `worker`."""
        note_in(self._rows[worker, : SINCE + 1].data)
        note(IDLE)

    def begin(self, worker: int, job: Job) -> None:
        """The worker has a task: the batch of that job, or some of its rows."""
        row = self._rows[worker]
        row[EPOCH], row[STEP], row[COUNT] = job.epoch, job.step, len(job)
        row[SAMPLES : SAMPLES + len(job)] = job.indices
        note(BATCH)

    # In the loader's process.

    def sample(self, worker: int) -> int | None:
        """The one sample that the worker is at."""
        index = int(self._rows[worker, NOTE])
        return index if index >= 0 else None

    def place(self, worker: int) -> tuple[int, int] | None:
        """Epoch and step of the batch that it makes; None between two batches."""
        if self.starting(worker) or self.idle(worker):
            return None
        return int(self._rows[worker, EPOCH]), int(self._rows[worker, STEP])

    def seconds(self, worker: int) -> float:
        """For how long it has been there."""
        return (time.monotonic_ns() - int(self._rows[worker, SINCE])) / 1e9

    def starting(self, worker: int) -> bool:
        """Whether it has not come to its first task."""
        return int(self._rows[worker, NOTE]) == STARTING

    def idle(self, worker: int) -> bool:
        """Whether it waits for a task."""
        return int(self._rows[worker, NOTE]) == IDLE

    def doing(self, worker: int) -> str:
        """What it is at, where that is not one sample."""
        if self.starting(worker):
            return "at its start"
        if self.idle(worker):
            return "between two batches"
        samples = self._rows[worker, SAMPLES : SAMPLES + int(self._rows[worker, COUNT])]
        return f"at a batch of {listed(samples)}"
