"""Lent memory: it comes back once, when the last view is gone and, on a GPU, the consumer's work is done."""

from __future__ import annotations

import gc

import numpy as np
import torch

from gpupipe.engines.lease import BufferPool, Draining, lend_cpu


class Event:
    """A CUDA event whose time the test decides."""

    def __init__(self) -> None:
        self.passed = False

    def query(self) -> bool:
        return self.passed


class Buffer:
    """Stands for DALI's memory."""


def lent(draining: Draining) -> tuple[torch.Tensor, Buffer]:
    buffer = Buffer()
    tensor = torch.from_dlpack(np.zeros((4, 6), np.float32))
    draining.watch(tensor, buffer)
    return tensor, buffer


def test_lent_memory_comes_back_when_the_last_view_is_gone():
    returned = []
    tensor = lend_cpu(np.zeros(10, np.uint8), lambda: returned.append(True))
    view = tensor[2:4].detach().view(1, 2)
    del tensor
    gc.collect()
    assert not returned
    del view
    assert returned == [True]


def test_a_dropped_gpu_buffer_waits_for_the_consumers_work():
    events: list[Event] = []
    draining = Draining(lambda: events.append(Event()) or events[-1])
    tensor, _ = lent(draining)
    view = tensor[1:].t()
    del tensor
    draining.sweep()
    assert (len(events), len(draining)) == (0, 0)  # the consumer still holds a view: nothing to wait for yet
    del view
    assert (len(events), len(draining)) == (1, 1)
    draining.sweep()
    assert len(draining) == 1  # kernels that read it are still waiting in the stream
    events[0].passed = True
    draining.sweep()
    assert len(draining) == 0


def test_buffers_are_let_go_in_the_order_of_their_events():
    events: list[Event] = []
    draining = Draining(lambda: events.append(Event()) or events[-1])
    for _ in range(3):
        lent(draining)
    assert len(draining) == 3
    events[1].passed = True
    draining.sweep()
    assert len(draining) == 3
    events[0].passed = True
    draining.sweep()
    assert len(draining) == 1


def test_the_pool_keeps_a_bounded_number_of_buffers():
    pool = BufferPool(keep=2)
    held = [pool.take((100,), torch.float32) for _ in range(5)]
    addresses = {tensor.data_ptr() for tensor in held}
    held.clear()
    again = [pool.take((100,), torch.float32) for _ in range(5)]
    assert len(addresses & {tensor.data_ptr() for tensor in again}) >= 2
    assert sum(len(free) for free in pool._free.values()) == 0


def test_the_pool_has_every_dtype():
    pool = BufferPool()
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        tensor = pool.take((2, 3), dtype)
        assert tensor.dtype == dtype
        assert tensor.shape == (2, 3)
