from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from orders import everything
from scipy import stats
from tars import write_samples

import gpupipe
from gpupipe.errors import ConfigError
from gpupipe.order import NodeBlocks, RankBatches


def read(order: NodeBlocks, node: int, epoch: int, seed: int = 5, ranks: int = 1, drop_last: bool = False) -> list[int]:
    """The samples that the node's ranks read in an epoch, padding left out."""
    world = order.nodes * ranks
    batches = RankBatches(len(order), order.batch_size // world, 0, world, drop_last)
    found: list[int] = []
    for step, rank in itertools.product(range(len(batches)), range(node * ranks, (node + 1) * ranks)):
        positions = replace(batches, rank=rank).positions(step)
        found += order.indices(seed, epoch, positions[positions < len(order)]).tolist()
    return found


@given(
    sizes=st.lists(st.integers(0, 30), max_size=40),
    nodes=st.integers(1, 9),
    rows=st.integers(1, 12),
    every=st.integers(1, 4),
    seed=st.integers(0, 2**64 - 1),
    epoch=st.integers(0, 2**32 - 1),
)
@settings(max_examples=150, deadline=None)
def test_every_sample_once_and_as_many_for_each_node(
    sizes: list[int], nodes: int, rows: int, every: int, seed: int, epoch: int
) -> None:
    order = NodeBlocks(sizes, nodes, nodes * rows, every)
    samples = everything(order, seed, epoch)
    assert sorted(samples.tolist()) == list(range(sum(sizes)))
    assert order.positions(seed, epoch, samples).tolist() == list(range(sum(sizes)))
    first = epoch // every * every
    for node in range(nodes if sum(sizes) else 0):
        own = read(order, node, epoch, seed)
        assert abs(len(own) - sum(sizes) / nodes) < rows + 1
        assert sorted(own) == sorted(read(order, node, first, seed)), "its share changed within `every` epochs"


def test_a_share_is_a_run_of_shards() -> None:
    """Whole ones, but for those that two shares or more have a part of."""
    sizes = np.random.default_rng(0).integers(20, 40, 60)
    shard_of = np.repeat(np.arange(60), sizes)
    order = NodeBlocks(sizes, nodes=4, batch_size=24)
    shares = [Counter(shard_of[read(order, node, 3)].tolist()) for node in range(4)]
    assert sum(shares, Counter()) == dict(enumerate(sizes.tolist()))
    for share in shares:
        assert sum(count < sizes[shard] for shard, count in share.items()) <= 2
    assert sum(map(len, shares)) <= 60 + 3


def test_shards_are_dealt_anew_after_so_many_epochs() -> None:
    order = NodeBlocks([10] * 40, nodes=4, batch_size=40, every=3)
    shares = [set(read(order, 1, epoch)) for epoch in range(9)]
    assert [shares[epoch] == shares[0] for epoch in range(9)] == [True] * 3 + [False] * 6
    assert shares[3] == shares[4] == shares[5] != shares[6] == shares[7] == shares[8]
    assert len({tuple(read(order, 1, epoch)) for epoch in range(9)}) == 9, "a share comes in a new order in every epoch"


def test_a_shard_comes_to_every_node_as_often() -> None:
    order = NodeBlocks([3] * 8, nodes=4, batch_size=4)
    at = order.positions(0, 0, np.array([0]))
    nodes = [int(order.positions(0, epoch, np.array([0]))[0] % 4) for epoch in range(800)]
    assert at[0] % 4 == nodes[0]
    assert stats.chisquare(np.bincount(nodes, minlength=4)).pvalue > 1e-4


def test_all_orders_of_a_share_are_equally_likely_and_shares_independent() -> None:
    order = NodeBlocks([6], nodes=2, batch_size=2)
    epochs = [everything(order, seed, 7) for seed in range(1500)]
    table = np.zeros((6, 6))
    rank = {p: number for number, p in enumerate(itertools.permutations(range(3)))}
    for samples in epochs:
        table[rank[tuple(samples[::2])], rank[tuple(samples[1::2] - 3)]] += 1
    assert stats.chisquare(table.sum(axis=0)).pvalue > 1e-4
    assert stats.chisquare(table.sum(axis=1)).pvalue > 1e-4
    assert stats.chi2_contingency(table).pvalue > 1e-4


def test_a_share_is_that_of_its_node_for_any_ranks_while_the_last_batch_is_left_out() -> None:
    order = NodeBlocks([7, 0, 50, 13, 30], nodes=3, batch_size=18, every=2)
    for node in range(3):
        shares = [sorted(read(order, node, 4, ranks=ranks, drop_last=True)) for ranks in (1, 2, 3, 6)]
        assert all(share == shares[0] for share in shares)


def test_a_last_batch_takes_few_of_other_shares() -> None:
    sizes = [7, 50, 13, 31]  # 101: the last batch of 24 has 5
    order = NodeBlocks(sizes, nodes=4, batch_size=24)
    shares = [set(read(order, node, 0)) for node in range(4)]
    assert [len(share) for share in shares] == [26, 26, 25, 24]
    for node in range(4):
        foreign = set(read(order, node, 0, ranks=2)) - shares[node]
        assert len(foreign) < 8


def test_is_built_from_a_source_of_shards(tmp_path: Path) -> None:
    shards = [write_samples(tmp_path / f"{number}.tar", 10 * number, count) for number, count in enumerate((4, 2, 5))]
    order = NodeBlocks.of_shards(gpupipe.open_source(shards), nodes=2, batch_size=4, every=3)
    assert (len(order), order.samples) == (11, 11)
    assert order.fingerprint == NodeBlocks([4, 2, 5], 2, 4, 3).fingerprint


def test_a_source_without_shards_is_refused_with_a_remedy(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"NodeBlocks.of_shards: FolderSource has no shards.*give NodeBlocks"):
        NodeBlocks.of_shards(gpupipe.open_source(folder), nodes=2, batch_size=4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([3, -1], 1, 4), "integers of 0 or more"),
        (([3], 0, 4), "nodes=0"),
        (([3], 2, 0), "batch_size=0"),
        (([3], 2, 4, 0), "every=0"),
        (([3], 2, 4, 1.0), "every=1.0"),
        (([3], 3, 4), "batch_size=4 is no multiple of nodes=3; give the global batch"),
    ],
)
def test_refuses_bad_settings(arguments: tuple, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        NodeBlocks(*arguments)


def test_without_samples() -> None:
    for sizes in ([], [0, 0]):
        assert everything(NodeBlocks(sizes, 2, 4)).tolist() == []
