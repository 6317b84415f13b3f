"""Memory that is lent as a torch tensor, and comes back when the last view of it is gone.

owner's buffer <- numpy array <- torch storage <- the tensor and every view of it, wherever they are kept
                        |
                        weakref.finalize: runs when torch frees the storage
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import torch

__all__ = ["BufferPool", "Loan", "lend_cpu"]

LARGER = 2  # times what is asked for: a buffer may be so large


def lend_cpu(block: np.ndarray[Any, Any], on_return: Callable[[], object]) -> torch.Tensor:
    """A torch tensor over `block`; `on_return` is called once when the tensor and all its views are gone."""
    lent = block.view()
    # Not at exit: the interpreter is then taking itself apart.
    weakref.finalize(lent, on_return).atexit = False
    return torch.from_numpy(lent)


class Loan:
    """Several blocks that are lent as one: `on_return` is called once when it is over and none is left with anybody."""

    def __init__(self, on_return: Callable[[], object]) -> None:
        self._on_return = on_return
        self._lent = 1  # itself
        self._back = count(1)  # whose next number is atomic, as blocks come back on any thread

    def lend(self, block: np.ndarray[Any, Any]) -> torch.Tensor:
        """A tensor over `block`."""
        self._lent += 1
        return lend_cpu(block, self.over)

    def over(self) -> None:
        """Nothing more is lent."""
        if next(self._back) == self._lent:
            self._on_return()


class _Block:
    """Memory of a pool; equal to nothing but itself, as arrays are not."""

    def __init__(self, size: int) -> None:
        self.memory = np.empty(size, dtype=np.uint8)


class BufferPool:
    """CPU memory for finished batches, used again once the consumer has let go of a batch.

    New memory costs a page fault every 4 KiB: writing a float32 batch of 128 images of 224 x 224 takes 36 ms into new
    memory and 8 ms into memory used before (one core of an AMD EPYC).

    Free buffers of all sizes are kept up to twice as many as have been lent at once, for the full batches of an epoch
    and its last, and at most `keep`; what came back first is dropped. So the memory of a few batches is enough also
    where each has a size of its own.
    """

    def __init__(self, keep: int = 4) -> None:
        self._keep = keep
        self._kept = 0  # free ones to be kept
        self._free: deque[_Block] = deque()  # in the order in which they came back
        self._lent: set[_Block] = set()

    # Buffers come back on any thread, and wherever garbage is collected, in the midst of `take`, too. So there is no
    # lock: each step on a set or a deque is a whole.

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """An uninitialized contiguous tensor."""
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if size == 0:  # torch refuses to view nothing as another dtype
            return torch.empty(shape, dtype=dtype, device="cpu")
        block = self._free_one(size) or _Block(size)
        self._lent.add(block)
        self._kept = min(max(self._kept, 2 * len(self._lent)), self._keep)
        return lend_cpu(block.memory[:size], partial(self._come_back, block)).view(dtype).view(shape)

    def clear(self) -> None:
        """Forget all free buffers; those that are lent are freed when they come back."""
        self._free, self._lent, self._kept = deque(), set(), 0

    def _free_one(self, size: int) -> _Block | None:
        """The smallest that has so many bytes, and no more than LARGER times as many; the last to come back of several,
        as its pages are in the caches."""
        latest = reversed(self._free.copy())
        fitting = [block for block in latest if size <= block.memory.nbytes <= LARGER * size]
        for block in sorted(fitting, key=lambda block: block.memory.nbytes):
            with suppress(ValueError):  # it is gone meanwhile
                self._free.remove(block)
                return block
        return None

    def _come_back(self, block: _Block) -> None:
        if block not in self._lent:  # before `clear`
            return
        self._lent.discard(block)
        self._free.append(block)
        with suppress(IndexError):  # another thread dropped it
            while len(self._free) > self._kept:
                self._free.popleft()
