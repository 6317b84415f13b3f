"""Finished batches on their way from the CUDA stream on which they are made to the consumer's.

    thread's stream:    | copy, augment, finish 1 |e| copy, augment, finish 2 |e| ...
    consumer's stream:                             | work 1 |p|                  | work 2 |p|

The consumer's stream waits for event e; the host waits for nothing. torch's allocator takes a batch's memory back when
the consumer has dropped it and its stream has passed that point. Events p bound the memory: a consumer whose host runs
far ahead of its GPU gets no batch made while the GPU still works on one that lies BEHIND batches back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch

from gpupipe.batch.collation import move
from gpupipe.device.finishing import Finished

__all__ = ["HandOver"]

BEHIND = 4  # batches with the consumer whose work may be unfinished


class HandOver:
    """The lane of one loader's batches; for life, as torch keeps memory for each stream.

    `taken` is called in the consumer's thread, all else in the one that makes batches.
    """

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device)
        self._passed: deque[torch.cuda.Event] = deque()

    @contextmanager
    def entered(self) -> Iterator[None]:
        """All the thread's work goes to the stream."""
        with torch.cuda.device(self.stream.device), torch.cuda.stream(self.stream):
            yield

    def before(self) -> None:
        """Wait until the consumer's GPU has caught up."""
        while len(self._passed) > BEHIND:
            self._passed.popleft().synchronize()

    def made(self, item: Finished | object) -> None:
        """Note where in the stream a batch is whole; an error, which takes the place of one, needs nothing."""
        if isinstance(item, Finished):
            item.whole = self.stream.record_event()

    def taken(self, item: Finished | object) -> None:
        """Make the batch safe to use on the consumer's current stream."""
        if not isinstance(item, Finished):
            return
        consumer = torch.cuda.current_stream(self.stream.device)
        consumer.wait_event(item.whole)
        move(item.output, partial(_used_on, consumer))
        passed = torch.cuda.Event(blocking=True)  # the thread that waits for it leaves the CPU to others
        passed.record(consumer)
        self._passed.append(passed)


def _used_on(stream: torch.cuda.Stream, tensor: torch.Tensor) -> torch.Tensor:
    """Else its memory could be given to a later batch while it is still read there; a user's operation on whole batches
    may give tensors on the CPU, too."""
    if tensor.is_cuda:
        tensor.record_stream(stream)
    return tensor
