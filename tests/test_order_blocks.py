from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from orders import everything
from scipy import stats
from tars import write_samples

import gpupipe
from gpupipe.errors import ConfigError
from gpupipe.order import BlockShuffled


def blocks_of(sizes: list[int], samples: np.ndarray) -> np.ndarray:
    return np.repeat(np.arange(len(sizes)), sizes)[samples]


SETTINGS = {"window": st.integers(1, 45), "seed": st.integers(0, 2**64 - 1), "epoch": st.integers(0, 2**32 - 1)}


@given(sizes=st.lists(st.integers(0, 30), max_size=40), **SETTINGS)
@settings(max_examples=100, deadline=None)
def test_every_sample_once(sizes: list[int], window: int, seed: int, epoch: int) -> None:
    samples = everything(BlockShuffled(sizes, window), seed, epoch)
    assert sorted(samples.tolist()) == list(range(sum(sizes)))


@given(sizes=st.lists(st.integers(1, 30), min_size=1, max_size=40), **SETTINGS)
@settings(max_examples=100, deadline=None)
def test_windows_come_one_after_the_other(sizes: list[int], window: int, seed: int, epoch: int) -> None:
    samples = everything(BlockShuffled(sizes, window), seed, epoch)
    one_by_one = everything(BlockShuffled(sizes, 1), seed, epoch)
    order = list(dict.fromkeys(blocks_of(sizes, one_by_one).tolist()))
    ends = np.cumsum([sum(sizes[block] for block in order[at : at + window]) for at in range(0, len(order), window)])
    for part, same in zip(np.split(samples, ends), np.split(one_by_one, ends), strict=True):
        assert sorted(part.tolist()) == sorted(same.tolist())


def test_all_orders_of_blocks_are_equally_likely() -> None:
    sizes = [2, 5, 3]
    counts = Counter(
        tuple(dict.fromkeys(blocks_of(sizes, everything(BlockShuffled(sizes, 1), 0, epoch)).tolist()))
        for epoch in range(600)
    )
    assert stats.chisquare([counts[p] for p in itertools.permutations(range(3))]).pvalue > 1e-4


@pytest.mark.parametrize(("sizes", "window"), [([4, 4, 4], 1), ([2, 1, 1], 3), ([1, 3], 99)])
def test_all_orders_of_the_samples_of_a_window_are_equally_likely(sizes: list[int], window: int) -> None:
    firsts = [everything(BlockShuffled(sizes, window), seed, 7)[:4] % 4 for seed in range(1000)]
    counts = Counter(tuple(first.tolist()) for first in firsts)
    assert stats.chisquare([counts[p] for p in itertools.permutations(range(4))]).pvalue > 1e-4


def test_windows_are_shuffled_independently() -> None:
    """Equal windows: the place of the first sample in one says nothing of that in the next."""
    table = np.zeros((5, 5))
    for epoch in range(500):
        samples = everything(BlockShuffled([5, 5], 1), 0, epoch) % 5
        table[samples[0], samples[5]] += 1
    assert stats.chi2_contingency(table).pvalue > 1e-4


def test_is_built_from_a_source_of_shards(tmp_path: Path) -> None:
    shards = [write_samples(tmp_path / f"{number}.tar", 10 * number, count) for number, count in enumerate((4, 2, 5))]
    source = gpupipe.open_source(shards)
    assert source.samples_per_shard.tolist() == [4, 2, 5]  # type: ignore[attr-defined]
    order = BlockShuffled.of_shards(source, window=2)
    assert (len(order), order.samples) == (11, 11)
    assert order.fingerprint == BlockShuffled([4, 2, 5], 2).fingerprint
    # Keys tell where samples come from: those of one shard begin with the same number.
    shard = [source.key(int(index))[:-1] for index in everything(BlockShuffled.of_shards(source, window=1))]
    assert len(list(itertools.groupby(shard))) == 3


def test_a_source_without_shards_is_refused_with_a_remedy(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"FolderSource has no shards.*sizes of blocks yourself"):
        BlockShuffled.of_shards(gpupipe.open_source(folder), window=2)


@pytest.mark.parametrize(
    ("sizes", "window", "message"),
    [
        ([3, -1], 1, "integers of 0 or more"),
        ([[3]], 1, "one list"),
        ([2.5], 1, "integers"),
        ([3], 0, "window=0"),
        ([3], 1.0, "window=1.0"),
    ],
)
def test_refuses_bad_settings(sizes: list, window: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BlockShuffled(sizes, window)


def test_without_samples() -> None:
    for sizes in ([], [0, 0]):
        assert everything(BlockShuffled(sizes, 2)).tolist() == []
