from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from orders import everything
from scipy import stats

from gpupipe.errors import ConfigError
from gpupipe.order import Stratified


def made_labels(counts: list[int], seed: int = 0) -> np.ndarray:
    """So many samples of each class, in a random order."""
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))


def batches(samples: np.ndarray, batch_size: int) -> list[np.ndarray]:
    return np.split(samples, range(batch_size, len(samples), batch_size))


def counts_by_batch(order: Stratified, labels: np.ndarray, epoch: int = 0) -> np.ndarray:
    """(batches, classes)."""
    cut = batches(labels[everything(order, 1, epoch)], order.batch_size)
    return np.array([np.bincount(part, minlength=labels.max() + 1) for part in cut])


@given(
    counts=st.lists(st.integers(1, 60), min_size=1, max_size=12),
    batch_size=st.integers(1, 90),
    seed=st.integers(0, 2**64 - 1),
    epoch=st.integers(0, 2**32 - 1),
)
@settings(max_examples=300, deadline=None)
def test_every_sample_once_and_every_class_in_proportion(
    counts: list[int], batch_size: int, seed: int, epoch: int
) -> None:
    labels, size = made_labels(counts), sum(counts)
    if size >= batch_size > 0 and min(counts) * batch_size < size:
        with pytest.raises(ConfigError, match="too few for one in each"):
            Stratified(labels, batch_size)
        return
    samples = everything(Stratified(labels, batch_size), seed, epoch)
    assert sorted(samples.tolist()) == list(range(size))
    for part in batches(samples, batch_size):
        for label, count in enumerate(counts):
            low, rest = divmod(len(part) * count, size)
            assert low <= np.count_nonzero(labels[part] == label) <= low + (rest > 0)


def test_larger_batches_are_spread_evenly_and_others_in_every_epoch() -> None:
    counts = [700, 433, 1201, 150, 99, 417]  # 3,000: 50 batches of 60
    labels = made_labels(counts)
    tables = [counts_by_batch(Stratified(labels, 60), labels, epoch) for epoch in range(3)]
    for table in tables:
        assert table.shape == (50, 6)
        for label, count in enumerate(counts):
            for window in (10, 25):
                sums = np.convolve(table[:, label], np.ones(window, int), mode="valid")
                assert np.abs(sums - window * count / 50).max() <= 3
    assert not np.array_equal(tables[0], tables[1])
    assert not np.array_equal(tables[1], tables[2])


def test_a_classs_samples_are_equally_likely_everywhere() -> None:
    labels = made_labels([30, 60])
    table = np.zeros((30, 9))
    for epoch in range(400):
        samples = everything(Stratified(labels, 10), 3, epoch)
        for batch, part in enumerate(batches(samples, 10)):
            of_class = part[labels[part] == 0]
            table[np.searchsorted(np.flatnonzero(labels == 0), of_class), batch] += 1
    expected = np.broadcast_to(table.sum(axis=0) / 30, table.shape)
    assert stats.chi2.sf(((table - expected) ** 2 / expected).sum(), 29 * 8) > 1e-4


def test_the_classes_of_neighbours_are_drawn_independently() -> None:
    """One permutation a class, not the same one for all."""
    labels = np.repeat([0, 1], 4)
    table = np.zeros((4, 4))
    for epoch in range(500):
        samples = everything(Stratified(labels, 2), 0, epoch)[:2]
        table[samples.min(), samples.max() - 4] += 1
    assert stats.chi2_contingency(table).pvalue > 1e-4


def test_what_a_rank_gets_of_a_batch_follows_the_hypergeometric_law() -> None:
    labels = made_labels([300, 600])
    observed = np.zeros(5, int)
    for epoch in range(40):
        samples = everything(Stratified(labels, 12), 5, epoch)  # 4 of class 0 in each batch of 12
        for part in batches(samples, 12):
            observed[np.count_nonzero(labels[part[:6]] == 0)] += 1
    expected = stats.hypergeom(12, 4, 6).pmf(np.arange(5)) * observed.sum()
    assert stats.chisquare(observed, expected).pvalue > 1e-4


def test_labels_may_be_any_integers() -> None:
    labels = np.array([-5, 1000, -5, 1000, -5, 1000], np.int32)
    for part in batches(everything(Stratified(labels, 2)), 2):
        assert sorted(labels[part].tolist()) == [-5, 1000]


def test_a_rare_class_is_refused_by_name_with_a_remedy_that_works() -> None:
    labels = np.array([7] * 90 + [3] * 9)
    with pytest.raises(ConfigError, match=r"class 3 has 9 of 99 samples.*batches of 10.*batch of 11 or more") as caught:
        Stratified(labels, 10)
    assert "Weighted.balanced" in str(caught.value)
    assert len(Stratified(labels, 11)) == 99


@pytest.mark.parametrize("batch_size", [0, -8, 4.0])
def test_refuses_bad_batch_sizes(batch_size: float) -> None:
    with pytest.raises(ConfigError, match="Stratified: batch_size="):
        Stratified([0, 1], batch_size)


def test_refuses_what_are_no_labels() -> None:
    with pytest.raises(ConfigError, match="Stratified: labels must be one list of integers"):
        Stratified([], 4)
