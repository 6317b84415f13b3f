"""What every order promises, asked of each kind."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import numpy as np
import pytest
import torch
from orders import EVERY_ORDER, LABELS, SIZE, Users, everything

from gpupipe.errors import ConfigError
from gpupipe.order import (
    BlockShuffled,
    NodeBlocks,
    Order,
    Repeated,
    Sequential,
    Shuffled,
    Stratified,
    Subset,
    VirtualEpochs,
    Weighted,
)
from gpupipe.order.protocol import EpochCache, digest, is_invertible, positions_of, samples_of

SEED, EPOCH = 2**63 + 9, 4


@pytest.fixture(params=EVERY_ORDER.values(), ids=EVERY_ORDER)
def make(request: pytest.FixtureRequest) -> Callable[[], Order]:
    return request.param


def test_is_an_order(make: Callable[[], Order]) -> None:
    order = make()
    assert isinstance(order, Order)
    assert isinstance(order.fingerprint, str)
    assert len(order.fingerprint) < 80
    assert order.fingerprint == make().fingerprint


def test_gives_int64_samples_of_the_dataset(make: Callable[[], Order]) -> None:
    order = make()
    whole = everything(order, SEED, EPOCH)
    assert whole.dtype == np.int64
    assert whole.shape == (len(order),)
    assert whole.min() >= 0
    assert whole.max() < (samples_of(order) or SIZE) <= SIZE


def test_is_pure(make: Callable[[], Order]) -> None:
    """Whatever was asked before, and on a copy that went to another process."""
    order = make()
    whole = everything(order, SEED, EPOCH)
    everything(order, SEED + 1, EPOCH)
    everything(order, SEED, EPOCH + 1)
    assert np.array_equal(everything(order, SEED, EPOCH), whole)
    for other in (make(), copy.deepcopy(order), pickle.loads(pickle.dumps(order))):
        assert np.array_equal(everything(other, SEED, EPOCH), whole)


# Pinned: a change here would change the order of every run that is resumed. Of epochs 0, 3 and 40 of seed 7.
GOLDEN = {
    "sequential": "30eb5022",
    "shuffled": "bc85377e",
    "subset": "d7110c12",
    "subset-shuffled": "f31e243e",
    "weighted": "755436af",
    "balanced": "cf578b3a",
    "repeated": "102b71d2",
    "blocks": "df329868",
    "node-blocks": "49594ffd",
    "node-blocks-few": "473ee0ed",
    "stratified": "9ea94e16",
    "buckets": "56dbbcbb",
    "buckets-full": "245b11e6",
    "length": "83c2686d",
    "budget": "bc85377e",
    "virtual": "7bb8c6f4",
    "virtual-long": "cba41596",
    "mixture": "4cbf39ae",
    "mixture-schedule": "f8e3549a",
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_values(name: str) -> None:
    order = EVERY_ORDER[name]()
    assert digest(*(everything(order, 7, epoch).tobytes() for epoch in (0, 3, 40)))[:8] == GOLDEN[name]


def test_any_slice_agrees_with_the_whole(make: Callable[[], Order]) -> None:
    order = make()
    whole = everything(order, SEED, EPOCH)
    rng = np.random.default_rng(0)
    some = [np.arange(len(order))[::-2], np.arange(3, 11), np.array([len(order) - 1]), np.empty(0, np.int64)]
    for positions in [*some, rng.integers(0, len(order), 100)]:
        assert order.indices(SEED, EPOCH, positions).tolist() == whole[positions].tolist()


@pytest.mark.parametrize("name", [name for name in EVERY_ORDER if name not in ("sequential", "subset")])
def test_seeds_and_epochs_give_other_sequences(name: str) -> None:
    order = EVERY_ORDER[name]()
    sequences = [everything(order, seed, epoch).tolist() for seed, epoch in ((0, 0), (0, 1), (1, 0), (1, 1))]
    assert len({tuple(sequence) for sequence in sequences}) == len(sequences)


def test_fingerprints_differ() -> None:
    orders: list[Order] = [make() for make in EVERY_ORDER.values()]
    orders += [Sequential(4), Shuffled(4), Shuffled(5), Subset([0, 1]), Subset([1, 0]), Subset([0, 1], shuffle=True)]
    orders += [Weighted([1.0, 2.0]), Weighted([2.0, 1.0]), Weighted([1.0, 2.0], num_samples=5)]
    orders += [Weighted([1.0, 2.0], 2, replacement=False)]
    orders += [
        Repeated(Shuffled(9), 3),
        Repeated(Shuffled(9), 2),
        Repeated(Shuffled(9), 3, 8),
        Repeated(Sequential(9), 3),
    ]
    orders += [VirtualEpochs(Shuffled(9), 9), VirtualEpochs(Shuffled(9), 8), VirtualEpochs(Sequential(9), 9)]
    orders += [BlockShuffled([4, 5], 1), BlockShuffled([5, 4], 1), BlockShuffled([4, 5], 2)]
    orders += [NodeBlocks([4, 4], nodes, 8, every) for nodes in (1, 2) for every in (1, 2)]
    orders += [NodeBlocks([4, 4], 2, 4), NodeBlocks([5, 3], 2, 4)]
    orders += [Stratified([0, 1, 0, 1], 2), Stratified([0, 1, 0, 1], 4), Stratified([0, 0, 1, 1], 2)]
    assert len({order.fingerprint for order in orders}) == len(orders)


@pytest.mark.parametrize(
    "order",
    [
        Sequential(1),
        Shuffled(1),
        Subset([0], shuffle=True),
        Weighted([3.0]),
        Weighted.balanced([7]),
        Repeated(Shuffled(1), 1),
        Repeated(Shuffled(1), 3),
        BlockShuffled([1], 1),
        BlockShuffled([0, 1, 0], 2),
        NodeBlocks([1], 1, 1),
        NodeBlocks([0, 1, 0], 3, 6, 2),
        Stratified([7], 1),
        Stratified([7], 5),
        VirtualEpochs(Shuffled(1), 1),
        VirtualEpochs(Shuffled(1), 300),
    ],
    ids=lambda order: order.fingerprint,
)
def test_one_sample(order: Order) -> None:
    assert everything(order, 3, 2).tolist() == [0] * len(order)


@pytest.mark.parametrize("wrap", [lambda order: Repeated(order, 2), lambda order: VirtualEpochs(order, 5)])
def test_wrapping_orders_refuse_what_is_none(wrap: Callable[[object], Order]) -> None:
    assert len(everything(wrap(Users()))) == len(wrap(Users()))
    with pytest.raises(ConfigError, match=r"RandomSampler is no order.*SamplerOrder"):
        wrap(torch.utils.data.RandomSampler(range(4)))
    with pytest.raises(ConfigError, match=r"shuffled-.* is empty"):
        wrap(Shuffled(0))


@pytest.mark.parametrize("wrap", [lambda order: Repeated(order, 2), lambda order: VirtualEpochs(order, 5)])
def test_wrapping_orders_need_what_they_wrap_needs(wrap: Callable[[object], Order]) -> None:
    assert wrap(Subset([3, 90])).samples == 91  # type: ignore[attr-defined]
    assert wrap(Users()).samples == 0  # type: ignore[attr-defined]


def test_what_is_made_for_an_epoch_is_kept_of_the_latest() -> None:
    made: list[tuple[int, int]] = []

    def make(seed: int, epoch: int) -> int:
        made.append((seed, epoch))
        return seed + epoch

    cache = EpochCache(make, keeps=3)
    for epoch in (0, 1, 2, 0, 1, 2, 3, 1, 2, 3, 0):
        assert cache(7, epoch) == 7 + epoch
    assert made == [(7, 0), (7, 1), (7, 2), (7, 3), (7, 0)]
    assert cache(8, 0) == 8
    assert [EpochCache(make)(9, epoch) for epoch in (0, 0)] == [9, 9]


def test_a_users_inverse_is_taken() -> None:
    class Inverted(Users):
        def positions(self, seed: int, epoch: int, indices: np.ndarray) -> np.ndarray:
            return (indices - (epoch + 7 * seed) % SIZE) % SIZE

    for order in (Inverted(), Repeated(Inverted(), 2), VirtualEpochs(Inverted(), 50)):
        assert is_invertible(order)
        whole = everything(order, 3, 4)
        places = positions_of(order, 3, 4, np.arange(SIZE))
        assert places is not None
        for sample in range(SIZE):
            assert sorted(places[:, sample][places[:, sample] >= 0]) == np.flatnonzero(whole == sample).tolist()


def test_labels_are_those_the_other_tests_lean_on() -> None:
    assert np.bincount(LABELS).tolist() == [13, 24]
