"""Lent memory: it comes back once, when the last view is gone and, on a GPU, the consumer's work is done."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from gpupipe.decode.dali.draining import Draining
from gpupipe.workers.lease import BufferPool, Loan, _Block, lend_cpu


class Event:
    """A CUDA event whose time the test decides."""

    def __init__(self) -> None:
        self.passed = False
        self.waited_for = False

    def query(self) -> bool:
        return self.passed

    def synchronize(self) -> None:
        self.waited_for = not self.passed
        self.passed = True


class Consumer:
    """Records an event at each drop."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self) -> Event:
        self.events.append(Event())
        return self.events[-1]


def lent(draining: Draining, record: Callable[[], Event]) -> tuple[torch.Tensor, weakref.ref[Any]]:
    """A tensor over a buffer, and whether the buffer is still there."""
    buffer = np.zeros((4, 6), np.float32)
    tensor = torch.from_dlpack(buffer.copy())
    draining.watch(tensor, buffer, record)
    return tensor, weakref.ref(buffer)


def test_lent_memory_comes_back_when_the_last_view_is_gone():
    returned = []
    tensor = lend_cpu(np.zeros(10, np.uint8), lambda: returned.append(True))
    view = tensor[2:4].detach().view(1, 2)
    del tensor
    gc.collect()
    assert not returned
    del view
    assert returned == [True]


def test_blocks_that_are_lent_as_one_come_back_together():
    returned = []
    loan = Loan(lambda: returned.append(True))
    first, second = loan.lend(np.zeros(4, np.uint8)), loan.lend(np.zeros(4, np.uint8))
    loan.over()
    del first
    assert not returned
    del second
    assert returned == [True]
    Loan(lambda: returned.append(True)).over()  # of nothing
    assert returned == [True, True]


def test_a_dropped_gpu_buffer_waits_for_the_consumers_work():
    draining, consumer = Draining(), Consumer()
    tensor, buffer = lent(draining, consumer)
    view = tensor[1:].t()
    del tensor
    draining.sweep(keep=9)
    assert (len(consumer.events), len(draining)) == (0, 0)  # the consumer still holds a view: nothing to wait for yet
    del view
    assert (len(consumer.events), len(draining)) == (1, 1)
    draining.sweep(keep=9)
    assert buffer() is not None  # kernels that read it are still waiting in the stream
    consumer.events[0].passed = True
    draining.sweep(keep=9)
    assert buffer() is None
    assert not consumer.events[0].waited_for


def test_buffers_do_not_pile_up_behind_a_slow_consumer():
    draining, consumer = Draining(), Consumer()
    buffers = [lent(draining, consumer)[1] for _ in range(5)]
    draining.sweep(keep=3)
    assert [event.waited_for for event in consumer.events] == [True, True, False, False, False]
    assert [buffer() is None for buffer in buffers] == [True, True, False, False, False]


def test_finish_waits_for_everything():
    draining, consumer = Draining(), Consumer()
    buffers = [lent(draining, consumer)[1] for _ in range(3)]
    draining.sweep(keep=0)
    assert all(event.passed for event in consumer.events)
    assert [buffer() for buffer in buffers] == [None] * 3


def count_of_new(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list to which the size of each block comes that a pool allocates."""
    sizes: list[int] = []

    class Counted(_Block):
        def __init__(self, size: int) -> None:
            sizes.append(size)
            super().__init__(size)

    monkeypatch.setattr("gpupipe.workers.lease._Block", Counted)
    return sizes


def kept(pool: BufferPool) -> list[int]:
    """The sizes of its free blocks."""
    return [block.memory.nbytes for block in pool._free]


def test_the_pool_keeps_a_bounded_number_of_buffers():
    pool = BufferPool(keep=2)
    held = [pool.take((100,), torch.float32) for _ in range(5)]
    addresses = {tensor.data_ptr() for tensor in held}
    held.clear()
    assert kept(pool) == [400, 400]
    again = [pool.take((100,), torch.float32) for _ in range(5)]
    assert len(addresses & {tensor.data_ptr() for tensor in again}) >= 2
    assert kept(pool) == []


def test_batches_of_their_own_sizes_do_not_pile_up():
    pool, held = BufferPool(), None
    for size in range(1000, 1100):
        held = pool.take((size,), torch.uint8)
        assert len(kept(pool)) <= 4
    del held
    assert kept(pool) == [1096, 1097, 1098, 1099]  # the last ones


def test_no_more_is_kept_than_a_batch_and_the_last_of_an_epoch_need():
    pool = BufferPool(keep=64)
    for size in range(1000, 1100):
        assert pool.take((size,), torch.uint8) is not None  # and is gone
    assert kept(pool) == [1098, 1099]


@pytest.mark.parametrize("holding", [True, False])
@pytest.mark.parametrize("views", [1, 3])
def test_epochs_need_no_new_memory_after_the_first(monkeypatch, holding, views):
    sizes, pool, batch = count_of_new(monkeypatch), BufferPool(keep=4 * views), []
    for epoch in range(3):
        for rows in (8, 8, 8, 8, 1):
            batch = batch if holding else []
            batch = [pool.take((rows, 10 * 3**view), torch.uint8) for view in range(views)]
        if epoch == 0:
            sizes.clear()
    assert sizes == []
    assert len(batch) == views


def test_a_somewhat_larger_buffer_will_do_and_the_smallest_of_those(monkeypatch):
    sizes, pool = count_of_new(monkeypatch), BufferPool()
    held = {size: pool.take((size,), torch.uint8) for size in (100, 70, 50, 210)}
    addresses = {size: tensor.data_ptr() for size, tensor in held.items()}
    held.clear()
    tensor, further = pool.take((60,), torch.uint8), pool.take((101,), torch.uint8)
    assert tensor.data_ptr() == addresses[70]
    assert tensor.untyped_storage().nbytes() == 60
    assert further.data_ptr() not in addresses.values()  # 210 bytes are too many
    assert sizes == [100, 70, 50, 210, 101]


def test_what_was_lent_before_a_pool_was_cleared_is_freed():
    pool = BufferPool()
    before = pool.take((100,), torch.uint8)
    pool.clear()
    after = pool.take((100,), torch.uint8)
    del before
    assert kept(pool) == []
    del after
    assert kept(pool) == [100]


def test_the_pool_has_every_dtype():
    pool = BufferPool()
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        tensor = pool.take((2, 3), dtype)
        assert tensor.dtype == dtype
        assert tensor.shape == (2, 3)
