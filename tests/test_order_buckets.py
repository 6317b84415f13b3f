"""Orders that make their batches themselves, against plain listings."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from orders import everything

from gpupipe.errors import ConfigError
from gpupipe.order import Buckets, BudgetBatches, Future, Order, RankBatches, Repeated, Shuffled, VirtualEpochs, cut_by
from gpupipe.order.future import NEVER
from gpupipe.order.protocol import Indices

SHAPES = [(512, 512), (768, 512), (512, 768), (1024, 384), (384, 1024)]


def batches_of(order: Order, seed: int = 0, epoch: int = 0) -> list[list[int]]:
    starts = order.starts(seed, epoch).tolist()  # type: ignore[attr-defined]
    listed = everything(order, seed, epoch).tolist()
    return [listed[begin:end] for begin, end in itertools.pairwise(starts)]


@given(
    groups=st.lists(st.integers(0, 6), min_size=1, max_size=60),
    sizes=st.lists(st.integers(1, 9), min_size=7, max_size=7),
    drop_last=st.booleans(),
    epoch=st.integers(0, 2**32 - 1),
)
@settings(max_examples=100, deadline=None)
def test_batches_are_of_one_bucket(groups: list[int], sizes: list[int], drop_last: bool, epoch: int) -> None:
    order = Buckets(groups, sizes, drop_last)
    made = defaultdict(list)
    for batch in batches_of(order, 3, epoch):
        (group,) = {groups[sample] for sample in batch}
        made[group].append(batch)
    for group in set(groups):
        own, size = groups.count(group), sizes[group]
        expected = [size] * (own // size) + ([own % size] if own % size and not drop_last else [])
        assert sorted(map(len, made[group]), reverse=True) == expected
    listed = everything(order, 3, epoch).tolist()
    assert len(set(listed)) == len(listed) == len(order)
    assert order.samples == len(groups)
    places = order.positions(3, epoch, np.arange(len(groups) + 2)).tolist()
    stands = {sample: place for place, sample in enumerate(listed)}
    assert places == [stands.get(sample, -1) for sample in range(len(groups) + 2)]


def test_samples_and_batches_are_shuffled_in_each_epoch() -> None:
    order = Buckets(np.arange(300) % 3, 10)
    epochs = [batches_of(order, 1, epoch) for epoch in range(2)]
    turns = [[batch[0] % 3 for batch in batches] for batches in epochs]
    assert turns[0] != turns[1]
    assert sorted(turns[0]) == sorted(turns[1])
    assert {frozenset(batch) for batch in epochs[0]}.isdisjoint(frozenset(batch) for batch in epochs[1])
    dropped = [set(range(95)) - set(everything(Buckets([0] * 95, 10, True), 1, epoch).tolist()) for epoch in range(2)]
    assert [len(left) for left in dropped] == [5, 5]
    assert dropped[0] != dropped[1]


def test_pinned_batches() -> None:
    """A change here would change the order of every run that is resumed."""
    order = Buckets(np.arange(20) ** 2 % 3, [4, 3])
    assert batches_of(order, 7, 3) == PINNED


PINNED = [[1, 2, 7], [13, 17, 10], [19, 4, 14], [16], [8, 11, 5], [18, 12, 3], [9, 15, 6, 0]]


@pytest.mark.parametrize("most", [1, 3, 100])
def test_what_may_stand_in_is_of_the_same_bucket(most: int) -> None:
    groups = np.arange(50) % 4
    order = Buckets(groups, 5)
    for position, sample in enumerate(everything(order, 2, 1).tolist()):
        found = order.alike(2, 1, position, most).tolist()
        others = set(np.flatnonzero(groups == groups[sample]).tolist()) - {sample}
        assert len(set(found)) == len(found) == min(most, len(others))
        assert set(found) <= others


def test_those_that_follow_stand_in_for_a_buckets_only_sample() -> None:
    order = Buckets([0, 1, 0, 0], 2)
    listed = everything(order, 2, 1).tolist()
    at = listed.index(1)
    assert order.alike(2, 1, at, 100).tolist() == [*listed[at + 1 :], *listed[:at]]
    assert Buckets([0], 2).alike(2, 1, 0, 100).tolist() == []


def slow_buckets(sizes: list[tuple[int, ...]], count: int) -> list[list[int]]:
    """Divided where that saves the most, by going through all places."""

    def padded(part: list[int]) -> int:
        return len(part) * math.prod(max(sizes[at][side] for at in part) for side in range(len(sizes[0])))

    def cuts(part: list[int]) -> Iterator[tuple[int, list[int], list[int]]]:
        keys = [[Fraction(sizes[at][side]) for at in part] for side in range(len(sizes[0]))]
        keys += [[Fraction(*sizes[at]) for at in part]] if len(sizes[0]) == 2 else []
        for key in keys:
            for bound in sorted(set(key))[:-1]:
                low, high = (
                    [at for at, one in zip(part, key, strict=True) if (one <= bound) is side] for side in (True, False)
                )
                yield padded(part) - padded(low) - padded(high), low, high

    parts = [list(range(len(sizes)))]
    while len(parts) < count:
        best = [max(cuts(part), key=lambda cut: cut[0], default=(0, [], [])) for part in parts]
        at = max(range(len(parts)), key=lambda number: best[number][0])
        if best[at][0] <= 0:
            break
        parts = [*parts[:at], *parts[at + 1 :], *best[at][1:]]
    return parts


@given(
    sizes=st.one_of(
        st.lists(st.tuples(st.integers(1, 30)), min_size=1, max_size=25),
        st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=25),
    ),
    buckets=st.integers(1, 5),
    multiple=st.integers(1, 3),
    more=st.integers(0, 2000),
)
@settings(max_examples=100, deadline=None)
def test_padded_batches_stay_within_the_budget(
    sizes: list[tuple[int, ...]], buckets: int, multiple: int, more: int
) -> None:
    parts = slow_buckets(sizes, buckets)
    sides = np.array(sizes)
    budget = max(int(sides[part].max(axis=0).prod()) for part in parts) * multiple + more
    order = Buckets.by_size(sides[:, 0] if sides.shape[1] == 1 else sides, budget, buckets=buckets, multiple=multiple)
    groups = np.asarray(order.groups)
    assert [np.flatnonzero(groups == number).tolist() for number in range(len(parts))] == list(map(sorted, parts))
    batches = batches_of(order)
    assert all(len(batch) * sides[batch].max(axis=0).prod() <= budget for batch in batches)
    assert sorted(sample for batch in batches for sample in batch) == list(range(len(sizes)))
    assert sum(len(batch) % multiple > 0 for batch in batches) <= len(parts)


def test_buckets_of_images_save_what_lengths_do_not() -> None:
    """High and wide images of as many pixels are apart."""
    sizes = np.array([(10, 40), (40, 10)] * 50)
    order = Buckets.by_size(sizes, 4000, buckets=2, batch_size=7)
    assert order.largest == 7
    assert all(len({sample % 2 for sample in batch}) == 1 for batch in batches_of(order))
    assert Buckets.by_size(sizes.prod(axis=1), 4000).largest == 10


def slow_batches(order: Order, costs: list[int], budget: int, most: int, multiple: int, epoch: int) -> list[list[int]]:
    batches: list[list[int]] = []
    waiting = everything(order, 5, epoch).tolist()
    while waiting:
        count = 0
        while count < min(most, len(waiting)) and sum(costs[sample] for sample in waiting[: count + 1]) <= budget:
            count += 1
        if count < len(waiting):
            count -= count % multiple
        batches.append(waiting[:count])
        waiting = waiting[count:]
    return batches


@given(
    costs=st.lists(st.integers(1, 30), min_size=1, max_size=60),
    multiple=st.integers(1, 3),
    most=st.integers(3, 9),
    more=st.integers(0, 100),
    epoch=st.integers(0, 9),
)
@settings(max_examples=60, deadline=None)
def test_budgets_end_batches(costs: list[int], multiple: int, most: int, more: int, epoch: int) -> None:
    inner, budget = Shuffled(len(costs)), max(costs) * multiple + more
    order = BudgetBatches(inner, costs, budget, most, multiple)
    most -= most % multiple
    assert batches_of(order, 5, epoch) == slow_batches(inner, costs, budget, most, multiple, epoch)


def test_what_may_stand_in_costs_no_more_or_as_little_as_can_be() -> None:
    costs = np.arange(30)
    order = BudgetBatches(Shuffled(30), costs, 60, 8)
    for position in range(30):
        own = int(everything(order, 0, 2)[position])
        found = order.alike(0, 2, position, 30).tolist()
        assert sorted(found[:own]) == list(range(own))
        assert found[own:] == list(range(own + 1, 30))


def nearest(height: int, width: int) -> int:
    """By logarithms, one by one; of two that are as near the wider one."""
    own = np.log(max(height, 1) / max(width, 1))
    apart = [(round(abs(own - np.log(tall / wide)), 9), tall / wide, at) for at, (tall, wide) in enumerate(SHAPES)]
    return min(apart)[2]


def test_by_aspect_ratio() -> None:
    rng = np.random.default_rng(4)
    sizes = np.concatenate([rng.integers(1, 3000, (2000, 2)), [[0, 0], [1, 5000], [5000, 1]], np.array(SHAPES) * 3])
    order = Buckets.by_aspect(sizes, SHAPES, 16)
    assert order.groups.tolist() == [nearest(*size) for size in sizes.tolist()]  # type: ignore[union-attr]
    assert order.groups[-5:].tolist() == [0, 1, 2, 3, 4]  # type: ignore[index]


BAD = [
    (lambda: Buckets([0, -1], 4), "integers of 0 or more"),
    (lambda: Buckets([0.5], 4), "integers of 0 or more"),
    (lambda: Buckets([0, 2], [4, 4]), "has 2 numbers, but groups name 3 buckets"),
    (lambda: Buckets([0], 0), "batch_size=0"),
    (lambda: Buckets([0], 4, 1), "drop_last=1 must be True or False"),  # type: ignore[arg-type]
    (lambda: Buckets.by_aspect([[4, 5]], [(8, 8), (16, 16)], 4), "each of another aspect ratio"),
    (lambda: Buckets.by_aspect([[4, 5]], [(8, 0)], 4), "pairs of integers"),
    (lambda: Buckets.by_aspect([4, 5], [(8, 8)], 4), "sizes must be pairs"),
    (lambda: Buckets.by_size([3, 9], 8), "budget=8 is below 1 times 9, which sample 1 takes"),
    (lambda: Buckets.by_size([3, 9], 9, multiple=2), "below 2 times 9"),
    (lambda: Buckets.by_size([[3, 9, 1]], 9), "list of integers, or of pairs"),
    (lambda: Buckets.by_size([3.5], 9), "list of integers, or of pairs"),
    (lambda: BudgetBatches(Shuffled(1), [-1], 9, 4), "integers of 0 or more"),
    (lambda: BudgetBatches(Shuffled(3), [1, 2], 9, 4), "costs are of 2 samples, but the order is of 3"),
    (lambda: BudgetBatches(Shuffled(2), [1, 2], 9, 1, 2), "batch_size=1 is below multiple=2"),
    (lambda: BudgetBatches(Buckets([0], 1), [1], 9, 4), "makes its batches itself"),
    (lambda: Repeated(Buckets([0], 1), 2), r"Repeated: the order buckets-.* makes its batches itself"),
    (lambda: VirtualEpochs(BudgetBatches(Shuffled(2), [1, 2], 9, 4), 2), "makes its batches itself"),
]


@pytest.mark.parametrize(("make", "match"), BAD)
def test_refusals(make, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        make()


ORDERS = {
    "buckets": lambda: Buckets(np.arange(60) ** 2 % 7 % 3, [8, 5, 3]),
    "buckets-full": lambda: Buckets(np.arange(60) % 4, 6, drop_last=True),
    "length": lambda: Buckets.by_size(1 + np.arange(50) % 17, 60, buckets=3),
    "budget": lambda: BudgetBatches(Shuffled(40), 1 + np.arange(40) % 9, 31, 8),
}


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize("world", [1, 2, 3, 4, 8])
def test_ranks_share_each_batch(name: str, world: int) -> None:
    order = ORDERS[name]()
    for epoch in (0, 5):
        ranks = [RankBatches(len(order), 8, rank, world, cut=cut_by(order, 3)).at(epoch) for rank in range(world)]
        expected = batches_of(order, 3, epoch)
        assert len(ranks[0]) == len(expected)
        done = 0
        for step, batch in enumerate(expected):
            parts = [rank.positions(step) for rank in ranks]
            rows = np.concatenate(parts)
            assert {len(part) for part in parts} == {-(-len(batch) // world)}
            samples = order.indices(3, epoch, rows % len(order)).tolist()
            assert samples[: len(batch)] == batch
            assert [rank.padding(step) for rank in ranks] == [int((part >= len(order)).sum()) for part in parts]
            assert (rows >= len(order)).tolist() == [False] * len(batch) + [True] * (len(rows) - len(batch))
            again = itertools.islice(itertools.cycle(batch), len(rows) - len(batch))
            assert samples[len(batch) :] == list(again)
            assert ranks[0].samples(step) == len(batch)
            assert ranks[0].delivered(step) == done
            assert ranks[0].step_at(done) == step
            done += len(batch)
        assert ranks[0].rows() == sum(len(ranks[0].positions(step)) for step in range(len(expected)))
        assert (ranks[0].delivered(len(expected)), ranks[0].step_at(done)) == (done, len(expected))


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize(("world", "ranks"), [(1, range(1)), (3, range(1, 3)), (8, range(6, 8))])
def test_what_a_node_reads_next(name: str, world: int, ranks: range) -> None:
    order, begin, horizon = ORDERS[name](), 2, 3
    batches = RankBatches(len(order), 8, 0, world, cut=cut_by(order, 7)).at(begin)
    future = Future(order, 7, batches, ranks, begin)
    times: dict[int, list[int]] = defaultdict(list)
    for epoch in range(begin, begin + horizon + 2):
        cut = batches.at(epoch)
        for step in range(len(cut)):
            used = [order.indices(7, epoch, replace(cut, rank=rank).positions(step) % len(order)) for rank in ranks]
            assert future.uses(epoch, step).tolist() == np.concatenate(used).tolist()
            for sample in np.concatenate(used).tolist():
                times[sample].append(future.time(epoch, step))
    assert all(sorted(found) == found for found in times.values())
    for step in (0, 3, len(batches.at(begin + 1)) - 1) if future.is_known else ():
        found = future.next_use(np.arange(order.samples), begin + 1, step, horizon - 1)
        end = future.time(begin + 1 + horizon, 0)
        for sample, time in enumerate(found.tolist()):
            after = [one for one in times[sample] if future.time(begin + 1, step) < one < end]
            assert time == min(after, default=NEVER)


class Own:
    """A user's order of batches of 1, 2, 3, ... samples, with what `starts` gives otherwise."""

    fingerprint, largest = "own", 4

    def __init__(self, starts: list[int]) -> None:
        self._starts = np.array(starts, np.int64)

    def __len__(self) -> int:
        return 10

    def indices(self, seed: int, epoch: int, positions: Indices) -> Indices:
        return positions

    def starts(self, seed: int, epoch: int) -> Indices:
        return self._starts


@pytest.mark.parametrize("starts", [[], [0, 3], [1, 4, 7, 10], [0, 4, 4, 8, 10], [0, 5, 10], [0, 4, 8, 12]])
def test_batches_of_a_users_order_are_checked(starts: list[int]) -> None:
    with pytest.raises(ConfigError, match=r"order own: starts\(\) of epoch 0 must go from 0 to len\(\), 10, in steps"):
        len(RankBatches(10, 4, cut=cut_by(Own(starts), 0)))
    assert len(RankBatches(10, 4, cut=cut_by(Own([0, 1, 3, 6, 10]), 0))) == 4


def test_an_inverse_goes_with_as_many_batches_in_every_epoch() -> None:
    class Varied(Own):
        def starts(self, seed: int, epoch: int) -> Indices:
            return np.array([0, 3, 6, 10] if epoch < 2 else [0, 2, 5, 7, 10])

        def positions(self, seed: int, epoch: int, indices: Indices) -> Indices:
            return indices

    order = Varied([])
    future = Future(order, 0, RankBatches(10, 4, cut=cut_by(order, 0)), range(1))
    assert len(future.cut(1)) == 3
    with pytest.raises(ConfigError, match=r"order own: epoch 2 has 4 batches, epoch 0 3, but"):
        future.cut(2)
