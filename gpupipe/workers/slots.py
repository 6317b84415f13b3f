"""Memory in which the batches of a DataLoader's workers are made, used again and again.

    free ──► given to a job ──► the worker writes ──► lent to the consumer ──► free
                                                  └─► copied, if the consumer keeps some ──► free

    file:  | planes of slot 0 | planes of slot 1 | ...  (mapped) | rest of slot 0 ... | rest of slot 1 ... (not mapped)

New shared memory costs a page fault every 4 KiB, in the worker and again in the consumer: 20 ms against 2 ms for a
uint8 batch of 128 images of 224 x 224 (one core of an AMD EPYC, a virtual machine), a sixth of the time to make it.
A consumer that keeps batches pays for a copy of each; so what lies in shared memory stays what it was at the start, and
no worker has to hand over memory of its own, for which the consumer would wait for ever if the worker were stopped.

All else that a worker has to say of its batch, the rest, is in the slot, too: a message of up to 4 KiB arrives whole or
not at all (pipe(7)), also if the worker dies.
"""

from __future__ import annotations

import errno
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
import torch

from gpupipe.batch import Columns
from gpupipe.host.system import BATCHES_BESIDE_QUEUE
from gpupipe.workers.lease import Loan
from gpupipe.workers.memory import PAGE, SharedMemory
from gpupipe.workers.packing import pack, unpack
from gpupipe.workers.work import Plane

__all__ = ["Rest", "Slots"]

ALIGNED = 64  # bytes, a cache line
ROOM = 1 << 34  # bytes for the rest of a batch; none of them exists before it is written


@dataclass(frozen=True)
class Rest:
    """Where the rest of a batch lies: a pickle at `place`, and the large arrays of it behind that; of each its bytes.

    `within` are they themselves, where there was no room.
    """

    place: int
    sizes: tuple[int, ...]
    within: tuple[bytes, ...] = ()

    @property
    def places(self) -> list[int]:
        """Of the large arrays."""
        ends = accumulate(self.sizes[:-1], lambda place, size: _up(place + size, PAGE), initial=self.place)
        return list(ends)[1:]

    @property
    def end(self) -> int:
        """Where it ends."""
        return [self.place, *self.places][-1] + self.sizes[-1]


class Slots:
    """`count` batches of up to `batch_size` rows of a layout, in memory that is shared if `shared`.

    Pickles only while a worker process is started; the copy in a worker has `planes` and `put` alone.
    """

    def __init__(self, count: int, batch_size: int, layout: Sequence[Plane], shared: bool) -> None:
        self.layout = tuple(layout)
        self._places, end = [], 0
        for plane in self.layout:
            self._places.append(end)
            end += _up(batch_size * _row(plane), ALIGNED)
        # The planes of a batch lie one behind the other, so that they are lent, and come back, as one.
        self._stride = _up(end, PAGE)
        size = count * self._stride
        self._shared = SharedMemory(size) if shared else None
        self._memory = self._shared.bytes if self._shared else torch.empty(size, dtype=torch.uint8, device="cpu")
        self._count = count
        # The one used last is taken first: its pages are in the caches.
        self._free: deque[int] = deque(range(count))
        self._given: set[int] = set()

    def __getstate__(self) -> dict[str, Any]:
        return {name: vars(self)[name] for name in ("layout", "_places", "_stride", "_shared")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._memory = state["_shared"].bytes

    # Where batches are made.

    def planes(self, slot: int, rows: slice) -> Columns:
        """Those rows of the planes of a slot, by name of all views, (N, *shape) each, to be written."""
        return self._planes(self._block(slot), rows)

    def put(self, slot: int, rest: Any, part: int = 0, parts: int = 1) -> Rest:
        """Write what a batch has beside its planes, which is one of so many parts; what `take` has to be told."""
        assert self._shared is not None
        packed = pack(rest)
        put = Rest(_up(self._memory.nbytes + slot * ROOM + part * (ROOM // parts), PAGE), tuple(map(len, packed)))
        try:
            if put.end - put.place > ROOM // parts - PAGE:
                raise OSError(errno.EFBIG, "no room")
            self._shared.write(put.place, packed[0])
            for place, data in zip(put.places, packed[1:], strict=True):
                self._shared.reserve(place, len(data))
                np.copyto(self._shared.map(place, len(data)), data)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EFBIG):
                raise
            return replace(put, within=tuple(map(bytes, packed)))
        return put

    # In the consumer's process.

    def give(self) -> int | None:
        """A slot for a job; None where there is none."""
        try:
            slot = self._free.pop()
        except IndexError:
            return None
        self._given.add(slot)
        return slot

    def take(self, slot: int, rests: Sequence[Rest], count: int) -> tuple[list[Any], Columns]:
        """What was put, and the planes of a slot, for the consumer.

        The slot is free again once no view of its memory is left. Where the consumer has `BATCHES_BESIDE_QUEUE` already
        it gets copies, so that there is always a slot for the next job.
        """
        copied = self._count - len(self._free) - len(self._given) >= BATCHES_BESIDE_QUEUE
        loan = Loan(lambda: self._free.append(slot))
        taken = [unpack(self._parts(rest, loan, copied)) for rest in rests]
        planes = self.planes(slot, slice(0, count))
        if copied:
            planes = {name: tuple(view.clone() for view in views) for name, views in planes.items()}
        elif self.layout:
            planes = self._planes(loan.lend(self._block(slot).numpy()), slice(0, count))
        self._given.discard(slot)
        loan.over()
        return taken, planes

    def _parts(self, rest: Rest, loan: Loan, copied: bool) -> list[Any]:
        if rest.within:
            return [bytearray(part) for part in rest.within]
        assert self._shared is not None
        parts: list[Any] = [self._shared.read(rest.place, rest.sizes[0])]
        for place, size in zip(rest.places, rest.sizes[1:], strict=True):
            block = self._shared.map(place, size)
            parts.append(block.copy() if copied else loan.lend(block).numpy())
        return parts

    def take_back(self) -> None:
        """Free what jobs hold whose batches will never come; their workers must have ended, or moved on."""
        self._free.extend(self._given)
        self._given.clear()

    def _block(self, slot: int) -> torch.Tensor:
        return self._memory[slot * self._stride : (slot + 1) * self._stride]

    def _planes(self, block: torch.Tensor, rows: slice) -> Columns:
        planes: Columns = {}
        for plane, place in zip(self.layout, self._places, strict=True):
            size = _row(plane)
            view = block[place + rows.start * size : place + rows.stop * size].view(plane.dtype)
            planes[plane.name] = (*planes.get(plane.name, ()), view.view(-1, *plane.shape))
        return planes


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def _row(plane: Plane) -> int:
    """Bytes of one row."""
    return math.prod(plane.shape) * plane.dtype.itemsize
