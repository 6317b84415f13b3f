"""Several orders in one by weight, against slow counting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st
from orders import everything
from scipy import stats

from gpupipe.errors import ConfigError
from gpupipe.order import Interleaved, Sequential, Shuffled, mixture
from gpupipe.order.mixture import check_weight


def of(sizes: Iterable[int], weights: Any, num_samples: int | None = None) -> Interleaved:
    sizes = list(sizes)
    return Interleaved([Shuffled(size) for size in sizes], sizes, list(weights), num_samples)


def parts(order: Interleaved, seed: int = 0, epoch: int = 0) -> np.ndarray:
    """The order that each position of an epoch is of."""
    return np.searchsorted(np.cumsum(order.sizes), everything(order, seed, epoch), side="right")


def shares(weights: list[float], total: int) -> list[int]:
    """By largest remainder, with fractions; of equal ones the first."""
    exact = [Fraction(weight) / sum(map(Fraction, weights)) * total for weight in weights]
    counts = [int(share) for share in exact]
    remainders = sorted(range(len(exact)), key=lambda one: counts[one] - exact[one])
    for one in remainders[: total - sum(counts)]:
        counts[one] += 1
    return counts


@pytest.mark.parametrize(
    ("weights", "total", "expected"),
    [
        ([0.7, 0.3], 10, [7, 3]),
        ([7, 3], 10, [7, 3]),
        ([1, 1, 1], 100, [34, 33, 33]),
        ([0.5, 0, 0.5], 7, [4, 0, 3]),
        ([1e-9, 1], 100, [0, 100]),
        ([1e308, 1e308], 4, [2, 2]),
        ([3, 5, 0.25, 11], 1_281_167, None),
    ],
)
def test_an_epoch_has_each_ones_share(weights: list[float], total: int, expected: list[int] | None) -> None:
    expected = expected or shares(weights, total)
    order = of([50] * len(weights), weights, total)
    assert order.counts(0).tolist() == expected == shares(weights, total)
    if total <= 100:
        assert np.bincount(parts(order), minlength=len(weights)).tolist() == expected


WEIGHTS = st.lists(st.integers(0, 400), min_size=1, max_size=12).filter(any)


@given(weights=WEIGHTS, total=st.integers(1, 700), epoch=st.integers(0, 3))
@example(weights=[1, 1, 2, 3, 5, 8, 13, 21, 34, 55], total=143, epoch=0)
@example(weights=[50, 1, 1, 1, 1, 1, 1, 1, 1, 1], total=59, epoch=0)
@settings(max_examples=80, deadline=None)
def test_of_all_first_positions_each_has_its_share(weights: list[int], total: int, epoch: int) -> None:
    order = of([9] * len(weights), weights, total)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mixture, "BLOCK", 1)  # nothing is shuffled among others
        dealt = parts(order, epoch=epoch)
    counted = np.cumsum(dealt[:, None] == np.arange(len(weights)), axis=0)
    exact = np.arange(1, total + 1)[:, None] * order.counts(epoch) / total
    assert np.abs(counted - exact).max() <= (1 if np.count_nonzero(weights) <= 3 else 1.7)
    blocks = slice(63, None, 64)  # the same ones, in another order, where blocks are shuffled
    really = np.cumsum(parts(order, epoch=epoch)[:, None] == np.arange(len(weights)), axis=0)
    assert np.array_equal(really[blocks], counted[blocks])
    assert really[-1].tolist() == counted[-1].tolist() == order.counts(epoch).tolist()


class Noted(Sequential):
    """Remembers which positions of which of its epochs were asked for."""

    def indices(self, seed: int, epoch: int, positions: np.ndarray) -> np.ndarray:
        vars(self).setdefault("asked", []).extend((epoch, position) for position in positions.tolist())
        return positions


@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    weights=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=3), min_size=4, max_size=4),
    total=st.integers(1, 150),
)
@settings(max_examples=60, deadline=None)
def test_each_goes_through_its_own_epochs_one_after_the_other(
    sizes: list[int], weights: list[list[int]], total: int
) -> None:
    weights = [[1, *rest] for rest in weights]  # of epoch 0, so that not all are 0
    weights[0] = [one + 1 for one in weights[0]]
    orders = [Noted(size) for size in sizes]
    order = Interleaved(orders, sizes, weights[: len(sizes)], total)
    for epoch in range(5):
        everything(order, 3, epoch)
    for one, noted in enumerate(orders):
        given_in_all = sum(int(order.counts(epoch)[one]) for epoch in range(5))
        stream = [divmod(number, sizes[one]) for number in range(given_in_all)]
        assert sorted(vars(noted).get("asked", [])) == stream


def test_a_small_one_comes_again_shuffled_anew_and_a_large_one_goes_on() -> None:
    small, large = 10, 1000
    order = of([small, large], [1, 3], 100)
    epochs = [everything(order, 7, epoch) for epoch in range(8)]
    for epoch in epochs:
        assert Counter(Counter(epoch[epoch < small].tolist()).values()) in ({2: 5, 3: 5}, {3: 5, 2: 5})
    passed = np.concatenate([epoch[epoch < small] for epoch in epochs])
    assert Counter(passed.tolist()) == dict.fromkeys(range(small), 20)
    assert len({tuple(epoch[epoch < small].tolist()) for epoch in epochs}) == 8
    seen = np.concatenate([epoch[epoch >= small] for epoch in epochs])
    assert len(np.unique(seen)) == len(seen) == 600


def test_permutations_of_orders_of_one_size_are_others() -> None:
    order = of([40, 40], [1, 1], 80)
    one, other = (everything(order, 5)[parts(order, 5) == part] % 40 for part in (0, 1))
    assert sorted(one.tolist()) == sorted(other.tolist()) == list(range(40))
    assert stats.spearmanr(one, other).pvalue > 1e-3


@pytest.mark.parametrize("position", [*range(0, 140, 9), 63, 64, 65, 128, 139, 140])
def test_what_has_been_drawn_before_a_position_is_counted(position: int) -> None:
    order = of([5, 30, 11, 7], [[4, 1], 3, 2.5, lambda epoch: epoch % 2], 140)
    counted = np.zeros(4, np.int64)
    for epoch in range(3):
        counted += np.bincount(parts(order, 2, epoch), minlength=4)
    counted += np.bincount(parts(order, 2, 3)[:position], minlength=4)
    assert order.drawn(2, 3, position) == counted.tolist()


def test_schedules_may_be_lists_or_functions() -> None:
    listed = of([20, 30], [[0.9, 0.5, 0], 0.5], 100)
    called = of([20, 30], [lambda epoch: [0.9, 0.5, 0][min(epoch, 2)], 0.5], 100)
    assert [listed.counts(epoch).tolist() for epoch in range(4)] == [[64, 36], [50, 50], [0, 100], [0, 100]]
    for epoch in (3, 1, 0, 2, 7):
        assert np.array_equal(everything(listed, 1, epoch), everything(called, 1, epoch))
    assert parts(listed, epoch=2).tolist() == [1] * 100
    far = 2**31
    assert listed.drawn(0, far, 0) == [114, 36 + 50 + 100 * (far - 2)]
    assert called.drawn(0, 9, 0) == [114, 36 + 50 + 700]
    with pytest.raises(ConfigError, match="weights that are functions are summed up to epoch 1048576, not 2147483648"):
        called.indices(0, far, np.arange(3))


def test_far_along_each_is_at_its_own_place() -> None:
    orders = [Noted(7), Noted(2**40)]
    order = Interleaved(orders, [7, 2**40], [1, 2], 300)
    epoch = 2**28 + 5
    everything(order, 0, epoch)
    for one, (noted, count) in enumerate(zip(orders, (100, 200), strict=True)):
        stream = [divmod(epoch * count + number, [7, 2**40][one]) for number in range(count)]
        assert sorted(vars(noted)["asked"]) == stream


def test_places_within_a_block_are_drawn() -> None:
    """Any of the 64, and neighbours, which mixing pairs, of any two orders."""
    order = of([100, 300], [1, 3], 64 * 50)
    drawn = np.concatenate([parts(order, seed, epoch) for seed in range(4) for epoch in range(5)]).reshape(-1, 64)
    assert set(drawn.sum(axis=1).tolist()) == {48}  # 16 and 48 of 64 in each
    firsts = (drawn == 0).sum(axis=0)
    # Without replacement within a block: a place's variance is that of a draw, less what the others have had.
    assert stats.chisquare(firsts).pvalue > 1e-4
    pairs = Counter((drawn[:, ::2] + drawn[:, 1::2]).ravel().tolist())
    expected = np.array([16 * 15, 2 * 16 * 48, 48 * 47]) / (64 * 63) * drawn.size / 2
    assert stats.chisquare([pairs[kind] for kind in range(3)], expected).pvalue > 1e-4


class Shifted(Sequential):
    """One of another dataset."""

    def indices(self, seed: int, epoch: int, positions: np.ndarray) -> np.ndarray:
        return positions + (5 if self.size > 10 else -1)


@pytest.mark.parametrize(("size", "outside"), [(11, "1[2-5]"), (10, "-1")])
def test_what_is_no_sample_of_a_dataset_is_refused_and_not_another_ones(size: int, outside: str) -> None:
    orders = [Shuffled(10), Shifted(size), Shuffled(20)]
    for names, name in (((), "1"), (("a", "b", "c"), "'b'")):
        order = Interleaved(orders, [10, 12, 20], [0, 1, 0], size, names)
        with pytest.raises(
            ConfigError, match=f"of {name}, sequential-{size}, gave sample {outside}, but it has 12 samples"
        ):
            everything(order)


def test_fingerprints_are_those_of_the_sequence() -> None:
    assert of([20, 30], [0.7, 0.3]).fingerprint == of([20, 30], [7, 3]).fingerprint
    assert of([20, 30], [[1, 2], 1]).fingerprint == of([20, 30], [[1, 2], [1, 1]]).fingerprint
    others = [
        of([20, 30], [0.7, 0.3]),
        of([20, 30], [0.6, 0.4]),
        of([20, 30], [0.7, 0.3], 40),
        of([20, 31], [0.7, 0.3], 50),
        of([20, 30], [[0.7, 1], 0.3]),
        of([20, 30], [lambda epoch: 0.7 if epoch < 9 else 0, 0.3]),
        of([20, 30], [lambda epoch: 0.7 if epoch < 10 else 0, 0.3]),
        Interleaved([Shuffled(20), Sequential(30)], [20, 30], [0.7, 0.3]),
        Interleaved([Shuffled(20), Shuffled(30)], [20, 40], [0.7, 0.3]),
    ]
    assert len({order.fingerprint for order in others}) == len(others)


@pytest.mark.parametrize("weight", [-1, float("nan"), float("inf"), [], [1, -1], "1", None, [[1]]])
def test_refuses_what_is_no_weight(weight: Any) -> None:
    with pytest.raises(ConfigError, match=r"the weight of 'a' is .*; it must be a finite number of 0 or more"):
        check_weight("the weight of 'a'", weight)


def test_refuses_epochs_without_weights_and_of_bad_lengths() -> None:
    with pytest.raises(ConfigError, match=r"the weights of epoch 1 are \[0.0, 0.0\]"):
        of([3, 4], [[1, 0], 0])
    with pytest.raises(ConfigError, match=r"the weights of epoch 4 are \[nan, 1.0\]"):
        of([3, 4], [lambda epoch: 1.0 if epoch < 4 else float("nan"), 1]).indices(0, 4, np.arange(2))
    for length in (0, 2**31, 1.5):
        with pytest.raises(ConfigError, match="num_samples"):
            of([3, 4], [1, 1], length)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="num_samples=4294967296"):
        of([2**31, 2**31], [1, 1])
