"""Memory in which the batches of a DataLoader's workers are made, used again and again.

    free ──► given to a job ──► the worker writes ──► lent to the consumer ──► free
                                                  └─► copied, if the consumer keeps some ──► free

    slot:  planes of the layout (mapped) ... and behind all slots:  the rest of each batch (written and read)

New shared memory costs a page fault every 4 KiB, in the worker and again in the consumer: 20 ms against 2 ms for a
uint8 batch of 128 images of 224 x 224 (one core of an AMD EPYC, a virtual machine), a sixth of the time to make it.
A consumer that keeps batches pays for a copy of each; so what lies in shared memory stays what it was at the start, and
no worker has to hand over memory of its own, for which the consumer would wait for ever if the worker were stopped.

All else that a worker has to say of its batch lies in the slot, too: a message of up to 4 KiB arrives whole or not at
all (pipe(7)), also if the worker dies.
"""

from __future__ import annotations

import errno
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gpupipe.batch import Batch, Columns, Job
from gpupipe.host.system import BATCHES_BESIDE_QUEUE
from gpupipe.workers.lease import lend_cpu
from gpupipe.workers.memory import SharedMemory
from gpupipe.workers.packing import pack, unpack
from gpupipe.workers.work import Plane

__all__ = ["Message", "Slots"]

ALIGNED = 64  # bytes, a cache line
PAGE = 4096
REST = 1 << 34  # bytes that the rest of a batch may have; none of them exists before it is written


@dataclass(frozen=True)
class Message:
    """Where a batch lies: its slot, and the sizes of the parts of its rest, which are `within` where there is no room
    for them beside the slots."""

    slot: int
    sizes: tuple[int, ...]
    within: tuple[bytes, ...] = ()


class Slots:
    """`count` batches of up to `batch_size` rows of a layout, in memory that is shared if `shared`.

    Pickles only while a worker process is started; the copy in a worker has `batch` and `put` alone.
    """

    def __init__(self, count: int, batch_size: int, layout: Sequence[Plane], shared: bool) -> None:
        self._layout = tuple(layout)
        self._places, end = [], 0
        for plane in self._layout:
            self._places.append(end)
            size = batch_size * math.prod(plane.shape) * plane.dtype.itemsize
            end += -(-size // ALIGNED) * ALIGNED
        # The planes of a batch lie one behind the other, so that they are lent, and come back, as one.
        self._stride = -(-end // PAGE) * PAGE
        size = count * self._stride
        self._shared = SharedMemory(size) if shared else None
        self._memory = torch.empty(size, dtype=torch.uint8) if self._shared is None else self._shared.bytes
        # The one used last is taken first: its pages are there, and those of a slot that is never needed cost nothing.
        self._free: deque[int] = deque(range(count))
        self._given: dict[int, Job] = {}
        self._count = count

    def __getstate__(self) -> dict[str, Any]:
        return {name: vars(self)[name] for name in ("_layout", "_places", "_stride", "_shared")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._memory = state["_shared"].bytes

    def give(self, job: Job) -> int | None:
        """A slot for a job; None where there is none."""
        try:
            slot = self._free.pop()
        except IndexError:
            return None
        self._given[slot] = job
        return slot

    # Where the work is done.

    def batch(self, slot: int, count: int) -> Columns:
        """The planes of a slot, by name those of all views, (count, *shape) each, to be written."""
        return self._planes(self._memory[slot * self._stride : (slot + 1) * self._stride], count)

    def put(self, slot: int, batch: Batch) -> Message:
        """Write what a batch has beside its planes; what is to be sent then."""
        assert self._shared is not None
        names = {plane.name for plane in self._layout}
        columns = {name: None if name in names else column for name, column in batch.columns.items()}
        parts = pack({**vars(batch), "columns": columns, "job": None})
        sizes = tuple(part.nbytes for part in parts)
        try:
            self._shared.append(slot * REST, parts)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EFBIG):
                raise
            return Message(slot, sizes, tuple(map(bytes, parts)))
        return Message(slot, sizes)

    # In the consumer's process.

    def take(self, message: Message) -> Batch:
        """The batch that a worker has put, with the job for which the slot was given."""
        assert self._shared is not None
        parts = [bytearray(part) for part in message.within] or self._shared.read(message.slot * REST, message.sizes)
        job = self._given[message.slot]
        batch = Batch(**{**unpack(parts), "job": job})
        batch.columns |= self.lend(message.slot, len(job))
        return batch

    def lend(self, slot: int, count: int) -> Columns:
        """The planes of a slot, for the consumer.

        The slot is free again once no view of them is left. Where the consumer has `BATCHES_BESIDE_QUEUE` already it
        gets a copy, so that there is always a slot for the next job.
        """
        lent = self._count - len(self._free) - len(self._given)
        del self._given[slot]
        if self._stride and lent < BATCHES_BESIDE_QUEUE:
            block = self._memory[slot * self._stride : (slot + 1) * self._stride].numpy()
            return self._planes(lend_cpu(block, lambda: self._free.append(slot)), count)
        copies = {name: tuple(view.clone() for view in views) for name, views in self.batch(slot, count).items()}
        self._free.append(slot)
        return copies

    def take_back(self) -> None:
        """Free what jobs hold whose batches will never come; their workers must have ended, or moved on."""
        self._free.extend(self._given)
        self._given.clear()

    def _planes(self, memory: torch.Tensor, count: int) -> Columns:
        planes: Columns = {}
        for plane, place in zip(self._layout, self._places, strict=True):
            size = count * math.prod(plane.shape) * plane.dtype.itemsize
            view = memory[place : place + size].view(plane.dtype).view(count, *plane.shape)
            planes[plane.name] = (*planes.get(plane.name, ()), view)
        return planes
