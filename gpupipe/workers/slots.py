"""Memory in which the batches of a DataLoader's workers are made, used again and again.

    free ──► given to a job ──► the worker writes ──► lent to the consumer ──► free
                                                  └─► copied, if the consumer keeps some ──► free

New shared memory costs a page fault every 4 KiB, in the worker and again in the consumer: 20 ms against 2 ms for a
uint8 batch of 128 images of 224 x 224 (one core of an AMD EPYC, a virtual machine), a sixth of the time to make it.
A consumer that keeps batches pays for a copy of each; so what lies in shared memory stays what it was at the start, and
no worker has to hand over memory of its own, for which the consumer would wait for ever if the worker were stopped.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

import torch

from gpupipe.host.system import BATCHES_BESIDE_QUEUE
from gpupipe.workers.lease import lend_cpu

__all__ = ["Slots"]


Images = tuple[torch.Tensor, ...]
"""Of each view."""


class Slots:
    """`count` batches of uint8 images, and their labels, in memory that is shared if `shared`.

    batch_size: images of each view in a batch. shapes: of one image, for each view.

    Pickles only while a worker process is started, as any torch tensor in shared memory; the copy in a worker has
    `batch` and `labels` alone.
    """

    def __init__(self, count: int, batch_size: int, shapes: Sequence[tuple[int, ...]], shared: bool) -> None:
        self._shapes = tuple((batch_size, *shape) for shape in shapes)
        # The views of a batch lie one behind the other, so that they are lent, and come back, as one.
        self._memory = _allocate((count, sum(map(math.prod, self._shapes))), torch.uint8, shared)
        # Here rather than in the worker's message: one of up to 4 KiB arrives whole or not at all (pipe(7)), also if
        # the worker dies.
        self._labels = _allocate((count, batch_size), torch.int64, shared)
        # The one used last is taken first: its pages are there, and those of a slot that is never needed cost nothing.
        self._free: deque[int] = deque(range(count))
        self._given: set[int] = set()

    def __getstate__(self) -> tuple[tuple[tuple[int, ...], ...], torch.Tensor, torch.Tensor]:
        return self._shapes, self._memory, self._labels

    def __setstate__(self, state: tuple[tuple[tuple[int, ...], ...], torch.Tensor, torch.Tensor]) -> None:
        self._shapes, self._memory, self._labels = state

    def give(self) -> int | None:
        """A slot for a job; None where there is none."""
        try:
            slot = self._free.pop()
        except IndexError:
            return None
        self._given.add(slot)
        return slot

    def batch(self, slot: int, count: int) -> Images:
        """The first `count` rows of each view of a slot, to be written."""
        return self._views(self._memory[slot], count)

    def labels(self, slot: int, count: int) -> torch.Tensor:
        """Their labels, to be written."""
        return self._labels[slot, :count]

    def lend(self, slot: int, count: int) -> tuple[Images, torch.Tensor]:
        """The images and labels that a worker has written, for the consumer.

        The slot is free again once no view of the images is left. Where the consumer has `BATCHES_BESIDE_QUEUE` already
        it gets a copy, so that there is always a slot for the next job.
        """
        lent = len(self._memory) - len(self._free) - len(self._given)
        self._given.discard(slot)
        labels = self.labels(slot, count).clone()
        if lent < BATCHES_BESIDE_QUEUE:
            whole = lend_cpu(self._memory[slot].numpy(), lambda: self._free.append(slot))
            return self._views(whole, count), labels
        copies = tuple(images.clone() for images in self.batch(slot, count))
        self._free.append(slot)
        return copies, labels

    def take_back(self) -> None:
        """Free what jobs hold whose batches will never come; their workers must have ended, or moved on."""
        self._free.extend(self._given)
        self._given.clear()

    def _views(self, memory: torch.Tensor, count: int) -> Images:
        parts = memory.split([math.prod(shape) for shape in self._shapes])
        return tuple(part.view(shape)[:count] for part, shape in zip(parts, self._shapes, strict=True))


def _allocate(shape: Sequence[int], dtype: torch.dtype, shared: bool) -> torch.Tensor:
    """Uninitialized memory; its pages come into being when they are written."""
    size = dtype.itemsize
    for length in shape:
        size *= length
    storage = torch.UntypedStorage._new_shared(size) if shared else torch.UntypedStorage(size)
    return torch.empty(0, dtype=dtype).set_(storage, 0, shape)  # type: ignore[call-overload, no-any-return]
