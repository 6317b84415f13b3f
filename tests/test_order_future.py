"""Inverses and what a node reads next, against a plain listing of the epochs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from orders import EVERY_ORDER, SIZE, everything

from gpupipe.order import Order, RankBatches, Sequential, Shuffled, VirtualEpochs
from gpupipe.order.future import NEVER, Future
from gpupipe.order.protocol import is_invertible, positions_of

WITHOUT = {
    "weighted",
    "weighted-once",
    "balanced",
    "sampler",
    "users",
    "repeated-all",
    "virtual-of-repeated-users",
    "budget",
}


@pytest.mark.parametrize("name", EVERY_ORDER)
def test_which_orders_have_an_inverse(name: str) -> None:
    assert is_invertible(EVERY_ORDER[name]()) == (name not in WITHOUT)


def test_an_order_cut_into_an_epoch_without_end_is_asked_once_for_its_inverse() -> None:
    asked: list[int] = []

    class Asked(Sequential):
        def positions(self, seed: int, epoch: int, indices: np.ndarray) -> np.ndarray:
            asked.append(epoch)
            return super().positions(seed, epoch, indices)

    assert is_invertible(VirtualEpochs(Asked(SIZE), 2**61))
    assert asked == [0]


@pytest.mark.parametrize("name", [name for name in EVERY_ORDER if name not in WITHOUT])
@pytest.mark.parametrize(("seed", "epoch"), [(0, 0), (3, 1), (2**63 + 9, 40)])
def test_positions_are_those_of_a_listing(name: str, seed: int, epoch: int) -> None:
    order = EVERY_ORDER[name]()
    listed = everything(order, seed, epoch)
    asked = np.random.default_rng(epoch).permutation(np.arange(SIZE + 3).repeat(2))
    found = positions_of(order, seed, epoch, asked)
    assert found is not None
    assert found.dtype == np.int64
    for sample, places in zip(asked.tolist(), found.T.tolist(), strict=True):
        stands = [place for place in places if place >= 0]
        assert sorted(stands) == np.flatnonzero(listed == sample).tolist()
        assert set(places) - {-1} == set(stands)


def times_of(future: Future, epochs: range) -> dict[int, list[int]]:
    """Sample -> all times at which the node reads it, by listing every step of the epochs."""
    times: dict[int, list[int]] = {}
    for epoch in epochs:
        batches = future.batches if epoch == future.begin else replace(future.batches, origin=0)
        for step in range(batches.origin > 0, len(batches)):
            for rank in future.ranks:
                positions = replace(batches, rank=rank).positions(step) % batches.size
                for sample in future.order.indices(future.seed, epoch, positions).tolist():
                    times.setdefault(sample, []).append(future.time(epoch, step))
    return times


ORDERS: dict[str, Callable[[int], Order]] = {
    "sequential": Sequential,
    "shuffled": Shuffled,
    "virtual-short": lambda size: VirtualEpochs(Shuffled(size), max(1, size // 3)),
    "virtual-long": lambda size: VirtualEpochs(Shuffled(size), size * 2 + 3),
    "virtual-of-virtual": lambda size: VirtualEpochs(VirtualEpochs(Shuffled(size), size + 1), size // 2 + 1),
    **{name: lambda size, made=made: made() for name, made in EVERY_ORDER.items() if name not in WITHOUT},
}


@given(
    make=st.sampled_from(sorted(ORDERS)),
    size=st.integers(1, 60),
    batch=st.integers(1, 9),
    world=st.integers(1, 6),
    drop_last=st.booleans(),
    data=st.data(),
)
@settings(max_examples=100, deadline=None)
def test_next_use_is_that_of_a_listing(
    make: str, size: int, batch: int, world: int, drop_last: bool, data: st.DataObject
) -> None:
    order = ORDERS[make](size)
    begin, horizon = data.draw(st.integers(0, 5)), data.draw(st.integers(0, 3))
    origin = data.draw(st.integers(0, min(batch * world, len(order)) - 1))
    first = data.draw(st.integers(0, world - 1))
    ranks = range(first, data.draw(st.integers(first + 1, world)))
    batches = RankBatches(len(order), batch, 0, world, drop_last, origin)
    future = Future(order, 7, batches, ranks, begin)
    epoch = begin + data.draw(st.integers(0, 2))
    cut = batches if epoch == begin else replace(batches, origin=0)
    step = data.draw(st.integers(int(cut.origin > 0), max(cut.origin > 0, len(cut) - 1)))
    found = future.next_use(np.arange(max(size, SIZE)), epoch, step, horizon)
    inner = order
    while isinstance(inner, VirtualEpochs):
        inner = inner.order
    # From the epoch of the order within that the step lies in.
    passes = (epoch * len(order) + cut.delivered(step)) // len(inner) + horizon + 1
    end = passes * len(inner)  # of the stream: what begins behind it is not looked for
    times = times_of(future, range(begin, end // len(order) + 2))
    for sample, time in enumerate(found.tolist()):
        after = [one for one in times.get(sample, []) if one > future.time(epoch, step)]
        if time < NEVER:
            assert time == min(after)
        elif after:
            assert min(after) >= future.time(end // len(order), 0), "within the horizon"


def test_each_may_have_a_step_of_its_own() -> None:
    future = Future(Shuffled(40), 1, RankBatches(40, 2, 0, 4), range(2, 4))
    samples = np.concatenate([future.uses(2, step) for step in range(5)])
    steps = np.repeat(np.arange(5), 4)
    one_by_one = [future.next_use(samples[at : at + 1], 2, int(steps[at]), 5)[0] for at in range(20)]
    assert future.next_use(samples, 2, steps, 5).tolist() == one_by_one
    assert future.next_use(samples[:0], 2, 0, 5).tolist() == []


@pytest.mark.parametrize("origin", [0, 3])
def test_uses_are_those_of_its_ranks(origin: int) -> None:
    batches = RankBatches(31, 2, 0, 4, origin=origin)
    future = Future(Shuffled(31), 1, batches, range(1, 3), begin=4)
    for epoch in (4, 5):
        cut = batches if epoch == 4 else replace(batches, origin=0)
        for step in range(origin > 0, len(cut)):
            ranks = [replace(cut, rank=rank).positions(step) % 31 for rank in (1, 2)]
            expected = Shuffled(31).indices(1, epoch, np.concatenate(ranks))
            assert future.uses(epoch, step).tolist() == expected.tolist()
