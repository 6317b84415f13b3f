"""What a cache holds: against a slow Belady that has the whole future in lists, and rules that every plan keeps."""

from __future__ import annotations

import bisect
import itertools
from collections import OrderedDict, defaultdict

import numpy as np
import pytest

from gpupipe.kernels import native
from gpupipe.kernels.furthest import FurthestReference
from gpupipe.order import (
    BlockShuffled,
    Buckets,
    NodeBlocks,
    Repeated,
    Sequential,
    Shuffled,
    Stratified,
    Subset,
    VirtualEpochs,
    Weighted,
    cut_by,
)
from gpupipe.order.future import NEVER, Future
from gpupipe.order.ranks import RankBatches
from gpupipe.order.retention import Retention


def future_of(order, batch=4, world=4, ranks=range(1), drop_last=False, seed=3, **more):
    return Future(
        order, seed, RankBatches(len(order), batch, 0, world, drop_last, cut=cut_by(order, seed), **more), ranks
    )


def steps_of(future, epochs):
    return [(epoch, step) for epoch in range(epochs) for step in range(len(future.cut(epoch)))]


def walked(plan, future, epochs):
    """Each step of the plan, which then stands there."""
    return (plan.at(*point) for point in steps_of(future, epochs))


def slow(future, sizes, capacity, epochs, beyond=24):
    """The hits of each step, as sets: of all that was met those are held that are listed next, however far ahead."""
    lists = [sorted({*future.uses(*point).tolist()}) for point in steps_of(future, epochs + beyond)]
    when = defaultdict(list)
    for number, samples in enumerate(lists):
        for sample in samples:
            when[sample].append(number)
    held, hits = set(), []
    for number in range(len(steps_of(future, epochs))):

        def coming(sample, number=number):
            after = when[sample][bisect.bisect_right(when[sample], number) :]
            return after[0] if after else NEVER

        hits.append(held & {*lists[number]})
        held |= {sample for sample in lists[number] if sizes[sample] <= capacity}
        room = capacity - sum(int(sizes[sample]) for sample in held)
        for sample in sorted(held, key=lambda sample: (-coming(sample), sample in hits[-1], sample)):
            if room >= 0:
                break
            held.discard(sample)
            room += int(sizes[sample])
    return hits


def hits_of(step):
    return {*step.indices[step.hits].tolist()}


ORDERS = {
    "shuffled": (Shuffled(120), {}),
    "one node": (Shuffled(60), {"world": 1}),
    "two ranks a node": (Shuffled(150), {"ranks": range(2, 4)}),
    "padded": (Shuffled(77), {"world": 3, "ranks": range(1, 3)}),
    "dropped": (Shuffled(77), {"world": 3, "drop_last": True}),
    "sequential": (Sequential(90), {}),
    "subset": (Subset(range(20, 140), shuffle=True), {}),
    "repeated": (Repeated(Shuffled(90), 3), {"ranks": range(2)}),
    "virtual": (VirtualEpochs(Shuffled(100), 64), {}),
    "virtual, of a small one": (VirtualEpochs(Shuffled(30), 100), {}),
    "stratified": (Stratified(np.arange(128) % 4, 16), {}),
    "buckets": (Buckets(np.arange(120) % 7, [16, 11, 4, 8, 8, 8, 5]), {"ranks": range(1, 3)}),
}


@pytest.mark.parametrize("share", [0.1, 0.4, 1.0])
@pytest.mark.parametrize("name", ORDERS)
def test_samples_of_one_size_hit_as_often_as_in_the_slow_reference(name, share):
    order, options = ORDERS[name]
    future = future_of(order, **options)
    sizes = np.full(150, 100)
    capacity = int(len(order) * share) * 100
    plan = Retention(future, lambda indices: sizes[indices], capacity)
    ours = [hits_of(step) for step in walked(plan, future, 6)]
    theirs = slow(future, sizes, capacity, 6)
    assert sum(map(len, theirs)) > 0
    assert [*map(len, ours)] == [*map(len, theirs)]


@pytest.mark.parametrize("seed", range(4))
def test_samples_of_several_sizes_hit_within_a_hundredth_of_the_slow_reference(seed):
    rng = np.random.default_rng(seed)
    size = int(rng.integers(300, 700))
    world = int(rng.integers(2, 7))
    ranks = int(rng.integers(1, world))
    future = future_of(Shuffled(size), batch=int(rng.integers(1, 9)), world=world, ranks=range(ranks), seed=seed)
    sizes = rng.integers(50, 400, size)
    capacity = int(sizes.sum() * rng.uniform(0.1, 0.5) * ranks / world)
    plan = Retention(future, lambda indices: sizes[indices], capacity)
    ours = [hits_of(step) for step in walked(plan, future, 6)]
    theirs = slow(future, sizes, capacity, 6)
    counted, wanted = sum(map(len, ours)), sum(map(len, theirs))
    ours_bytes, theirs_bytes = (sum(int(sizes[list(hits)].sum()) for hits in each) for each in (ours, theirs))
    assert wanted > 20
    assert counted == pytest.approx(wanted, rel=0.01, abs=1)
    assert ours_bytes == pytest.approx(theirs_bytes, rel=0.01, abs=400)


@pytest.mark.skipif(native.library() is None, reason="without the C++ kernels")
@pytest.mark.parametrize("share", [0.02, 0.2, 0.9])
@pytest.mark.parametrize(
    "order",
    [
        Shuffled(2500),
        BlockShuffled(np.arange(37), 5),
        NodeBlocks(np.arange(37), 4, 32, 3),
        Repeated(Shuffled(300), 3),
        VirtualEpochs(Shuffled(900), 300),
    ],
)
def test_the_kernel_plans_as_the_definition(order, share, monkeypatch):
    """Sizes of 0 and beyond the capacity, lists longer than a slice, what is not found within the horizon."""
    sizes = np.random.default_rng(0).integers(0, 400, 2500) ** 2 // 400
    future = future_of(order, batch=8, world=4, ranks=range(1, 3))
    capacity = int(sizes.sum() * share)
    ours = Retention(future, lambda indices: sizes[indices], capacity, lag=2, horizon=1)
    monkeypatch.setattr("gpupipe.order.retention.furthest", FurthestReference)
    theirs = Retention(future, lambda indices: sizes[indices], capacity, lag=2, horizon=1)
    for point in steps_of(future, 6):
        for one, other in zip(ours.at(*point), theirs.at(*point), strict=True):
            np.testing.assert_array_equal(one, other)
        assert sorted(ours.held()) == sorted(theirs.held())


@pytest.mark.parametrize("lag", [0, 3])
@pytest.mark.parametrize("order", [Shuffled(200), Weighted(np.arange(1, 201)), Repeated(Shuffled(200), 2)])
def test_a_plan_is_true_to_itself(order, lag):
    """What is kept and not dropped since is there, never more than fits beyond what waits to be dropped, and what is
    dropped has not been asked for in the steps before."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(50, 400, 200)
    future = future_of(order, batch=5, world=4, ranks=range(2))
    capacity = int(sizes.sum() * 0.2)
    plan = Retention(future, lambda indices: sizes[indices], capacity, lag=lag)
    there, leaving, last = set(), [], {}
    for number, step in enumerate(walked(plan, future, 12)):
        assert hits_of(step) <= there
        for sample in step.indices.tolist():
            last[sample] = number
        before = {*there}
        there |= {*step.indices[step.keep].tolist()}
        leaving.append(len(there) - len(before))
        for sample in step.drop.tolist():
            assert sample in there
            assert last[sample] <= number - lag
        there -= {*step.drop.tolist()}
        assert {*plan.held().tolist()} <= there
        assert sizes[plan.held()].sum() <= capacity
        if lag == 0:
            assert {*plan.held().tolist()} == there
            assert hits_of(step) == before & {*step.indices.tolist()}
    waiting = sum(sizes[list(there - {*plan.held().tolist()})])
    assert waiting <= 2 * lag * 10 * 400


def test_the_last_used_stay_where_an_order_does_not_say_what_comes():
    future = future_of(Weighted(np.arange(1, 101)), batch=5, world=2)
    sizes = np.full(100, 10)
    plan = Retention(future, lambda indices: sizes[indices], 300)
    held = OrderedDict()
    for step in walked(plan, future, 10):
        assert hits_of(step) == {*held} & {*step.indices.tolist()}
        for sample in np.unique(step.indices).tolist() if len({*step.indices.tolist()}) < 5 else step.indices.tolist():
            held[sample] = True
            held.move_to_end(sample)
        while len(held) > 30:
            held.popitem(last=False)
        assert {*plan.held().tolist()} == {*held}
        assert not step.drop.size or not {*step.drop.tolist()} & {*held}


@pytest.mark.parametrize("begin", [(0, 7), (1, 0), (3, 5)])
@pytest.mark.parametrize("lag", [0, 2])
def test_a_plan_goes_on_where_a_run_is_resumed(begin, lag):
    future = future_of(Shuffled(200), batch=5)
    sizes = np.random.default_rng(1).integers(1, 100, 200)
    whole = Retention(future, lambda indices: sizes[indices], 2000, lag)
    resumed = Retention(future, lambda indices: sizes[indices], 2000, lag, begin)
    for point in steps_of(future, 6):
        step = whole.at(*point)
        if point >= begin:
            for one, other in zip(step, resumed.at(*point), strict=True):
                np.testing.assert_array_equal(one, other)


def test_a_late_resume_goes_through_no_more_than_what_can_still_be_held(monkeypatch):
    future = future_of(Shuffled(200), batch=5)
    plan = Retention(future, lambda indices: np.full(len(indices), 1), 20, begin=(1000, 0))
    seen = []
    monkeypatch.setattr(Future, "places", lambda self, *at, places=Future.places: seen.append(at) or places(self, *at))
    step = plan.at(1000, 0)
    assert 985 < min(seen)[0] <= 996
    early = Retention(future, lambda indices: np.full(len(indices), 1), 20, begin=(980, 0))
    for point in itertools.product(range(980, 1000), range(10)):
        early.at(*point)
    assert hits_of(step) == hits_of(early.at(1000, 0))


def test_steps_that_are_left_out_are_taken_to_be_read():
    future = future_of(Shuffled(200), batch=5)
    plans = [Retention(future, lambda indices: np.full(len(indices), 1), 20) for _ in range(2)]
    steps = [*walked(plans[0], future, 3)]
    np.testing.assert_array_equal(plans[1].at(2, 9).hits, steps[-1].hits)
    assert plans[1].has_passed(2, 9)
    assert not plans[1].has_passed(3, 0)


def test_what_an_earlier_plan_held_is_dropped():
    future = future_of(Shuffled(200), batch=5)
    old, new = (Retention(future, lambda indices: np.full(len(indices), 1), 20) for _ in range(2))
    assert len([*walked(old, future, 3)]) == 30
    new.release(old.held())
    assert {*new.at(0, 0).drop.tolist()} == {*old.held().tolist()} - {*new.held().tolist()}


def test_a_sample_larger_than_the_cache_pushes_nothing_out():
    future = future_of(Shuffled(40), batch=5, world=2)
    sizes = np.where(np.arange(40) == 7, 10**6, 10)
    plan = Retention(future, lambda indices: sizes[indices], 400)
    without = Retention(future, lambda indices: np.where(indices == 7, 0, 10), 400)
    for point in steps_of(future, 6):
        assert hits_of(plan.at(*point)) - {7} == hits_of(without.at(*point)) - {7}
        assert 7 not in plan.held()
