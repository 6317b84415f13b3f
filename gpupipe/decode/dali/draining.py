"""Memory of a GPU that comes back when nobody has it any more, and the work that may read it is done.

The kernels that read a tensor may still wait in their stream when it is dropped:

    host:    batch()   launch(batch)   del batch        batch()
    stream:  .......................... | kernel(batch) |            <- runs later than the host's `del`
                                        ^ the buffer must not be reused before this kernel has ended

so a returned buffer stays until an event has passed that is recorded at the time of the drop, on the stream on which
the batch came. What reads it on another stream has to make that one wait.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.dlpack

__all__ = ["Draining"]


class Draining:
    """Buffers that the consumer has dropped, kept until the work that may still read them is done."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[torch.cuda.Event, object]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def lent(self, output: Any, *inputs: object) -> torch.Tensor:
        """An output of DALI's as a tensor, for the current stream; on a GPU its buffer and the inputs are kept."""
        buffer = output.as_tensor()
        tensor = torch.utils.dlpack.from_dlpack(buffer)
        if tensor.is_cuda:
            self.watch(tensor, (buffer, *inputs), torch.cuda.current_stream(tensor.device).record_event)
        return tensor

    def watch(self, tensor: torch.Tensor, buffer: object, record: Callable[[], torch.cuda.Event]) -> None:
        """Keep `buffer`, over which `tensor` lies, until `tensor` and its views are gone and their work is done.

        `record` is called at the drop, on whatever thread that happens, and returns an event on the stream that reads
        it.
        """
        weakref.finalize(tensor.untyped_storage(), self._drop, buffer, record).atexit = False

    def _drop(self, buffer: object, record: Callable[[], torch.cuda.Event]) -> None:
        self._waiting.append((record(), buffer))

    def sweep(self, keep: int) -> None:
        """Let go of the buffers whose events have passed.

        Waits only where more than `keep` events are open, so that a consumer whose work lags far behind the host can't
        make the buffers pile up. With 0 it waits for all work, and lets go of everything.
        """
        while self._waiting and (len(self._waiting) > keep or self._waiting[0][0].query()):
            event, buffer = self._waiting.popleft()
            event.synchronize()
            del event, buffer
