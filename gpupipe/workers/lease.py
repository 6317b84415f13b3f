"""Memory that is lent as a torch tensor, and comes back when the last view of it is gone.

owner's buffer <- numpy array <- torch storage <- the tensor and every view of it, wherever they are kept
                        |
                        weakref.finalize: runs when torch frees the storage
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np
import torch

__all__ = ["BufferPool", "Loan", "lend_cpu"]


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


class BufferPool:
    """CPU memory for finished batches, used again once the consumer has let go of a batch.

    New memory costs a page fault every 4 KiB: writing a float32 batch of 128 images of 224 x 224 takes 36 ms into new
    memory and 8 ms into memory used before (one core of an AMD EPYC). At most `keep` free buffers are kept.
    """

    def __init__(self, keep: int = 4) -> None:
        self._free: dict[int, deque[np.ndarray[Any, Any]]] = {}
        self._keep = keep

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """An uninitialized contiguous tensor."""
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if size == 0:  # torch refuses to view nothing as another dtype
            return torch.empty(shape, dtype=dtype)
        free = self._free.setdefault(size, deque(maxlen=self._keep))
        try:
            block = free.pop()
        except IndexError:
            block = np.empty(size, dtype=np.uint8)
        return lend_cpu(block, lambda: free.append(block)).view(dtype).view(shape)

    def clear(self) -> None:
        """Forget all free buffers; those that are lent are freed when they come back."""
        self._free.clear()
