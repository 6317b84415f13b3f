import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from orders import everything
from scipy import stats
from torch.utils.data import DistributedSampler, RandomSampler, SequentialSampler, WeightedRandomSampler

from gpupipe.errors import ConfigError
from gpupipe.order import RankBatches, SamplerOrder, Shuffled, Subset, Weighted


class TestShuffled:
    @given(size=st.integers(1, 5000), seed=st.integers(0, 2**64 - 1), epoch=st.integers(0, 2**32 - 1))
    @settings(max_examples=150, deadline=None)
    def test_is_a_permutation(self, size, seed, epoch):
        assert np.array_equal(np.sort(everything(Shuffled(size), seed, epoch)), np.arange(size))

    @pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 255, 256, 257, 65536, 65537, 99_999, 1_281_167])
    def test_is_a_permutation_at_edges(self, size):
        assert np.array_equal(np.sort(everything(Shuffled(size), 3, 1)), np.arange(size))

    @pytest.mark.parametrize("size", [3, 4])  # 5: test_order_feistel.py, in one call
    def test_all_permutations_of_few_are_equally_likely(self, size):
        draws = 100 * math.factorial(size)
        counts = Counter(tuple(everything(Shuffled(size), seed)) for seed in range(draws))
        observed = [counts[p] for p in itertools.permutations(range(size))]
        assert stats.chisquare(observed).pvalue > 1e-4

    @pytest.mark.parametrize("size", [97, 1000])
    def test_every_sample_is_equally_likely_at_every_position(self, size):
        positions = np.arange(size)
        table = np.zeros((8, 8))
        for epoch in range(400):
            at = Shuffled(size).indices(11, epoch, positions)
            np.add.at(table, (positions * 8 // size, at * 8 // size), 1)
        share = np.bincount(positions * 8 // size) / size
        expected = 400 * size * np.outer(share, share)
        assert stats.chi2.sf(((table - expected) ** 2 / expected).sum(), 49) > 1e-4

    def test_neighbours_are_unrelated(self):
        at = everything(Shuffled(20_000), 5).astype(float)
        assert abs(np.corrcoef(at[:-1], at[1:])[0, 1]) < 0.03
        assert abs(np.corrcoef(at, np.arange(len(at)))[0, 1]) < 0.03

    def test_seeds_and_epochs_do_not_add_up(self):
        assert everything(Shuffled(1000), 0, 1).tolist() != everything(Shuffled(1000), 1, 0).tolist()

    def test_golden_values(self):
        # Pinned: a change here would change the order of every run that is resumed.
        assert Shuffled(1000).indices(7, 3, np.arange(8)).tolist() == GOLDEN_SMALL
        assert Shuffled(2 * 10**9).indices(7, 3, np.arange(10**9, 10**9 + 3)).tolist() == GOLDEN_LARGE

    def test_a_slice_is_the_slice_of_the_whole(self):
        whole = everything(Shuffled(12_345), 1, 2)
        assert Shuffled(12_345).indices(1, 2, np.array([77, 3, 12_344])).tolist() == whole[[77, 3, 12_344]].tolist()

    @pytest.mark.parametrize("size", [-1, 2**62])
    def test_refuses_sizes_it_cannot_permute(self, size):
        with pytest.raises(ConfigError, match=str(size)):
            Shuffled(size)


GOLDEN_SMALL = [29, 927, 805, 356, 7, 230, 834, 525]
GOLDEN_LARGE = [225168408, 1176709774, 1410028854]


class TestWeighted:
    weights = np.array([0.0, 1.0, 2.0, 5.0, 0.0, 2.0])

    def test_draws_by_weight_as_torch_does(self):
        ours = everything(Weighted(self.weights, num_samples=60_000), seed=4)
        torch.manual_seed(0)
        theirs = list(WeightedRandomSampler(self.weights.tolist(), 60_000))
        table = np.stack([np.bincount(ours, minlength=6), np.bincount(theirs, minlength=6)])
        assert not table[:, [0, 4]].any()
        assert stats.chi2_contingency(table[:, [1, 2, 3, 5]]).pvalue > 1e-4

    def test_without_replacement_each_comes_at_most_once(self):
        drawn = everything(Weighted(self.weights, num_samples=3, replacement=False), seed=1)
        assert len(set(drawn.tolist())) == 3
        assert not {0, 4} & set(drawn.tolist())

    def test_without_replacement_follows_torchs_law(self):
        order = Weighted(self.weights, num_samples=2, replacement=False)
        ours = Counter(tuple(everything(order, 0, epoch).tolist()) for epoch in range(4000))
        torch.manual_seed(1)
        theirs = Counter(tuple(WeightedRandomSampler(self.weights.tolist(), 2, replacement=False)) for _ in range(4000))
        pairs = sorted(set(ours) | set(theirs))
        assert stats.chi2_contingency([[ours[p] for p in pairs], [theirs[p] for p in pairs]]).pvalue > 1e-4

    def test_a_sample_that_weighs_nothing_never_comes_however_little_others_weigh(self):
        order = Weighted([0.0, 1e-320, 1.0, 0.0, 1e-320], num_samples=3, replacement=False)
        assert {tuple(sorted(everything(order, 0, epoch).tolist())) for epoch in range(50)} == {(1, 2, 4)}

    @pytest.mark.parametrize("replacement", [True, False])
    def test_fingerprints_are_those_of_the_draws(self, replacement):
        """A weight that is lost in the sum of those before it counts where nothing comes twice."""
        orders = [Weighted(weights, replacement=replacement) for weights in ([1, 1e-17, 2e-17], [1, 2e-17, 1e-17])]
        draws = [[everything(order, 0, epoch).tolist() for epoch in range(50)] for order in orders]
        prints = {order.fingerprint for order in orders}
        assert (draws[0] == draws[1], len(prints)) == ((True, 1) if replacement else (False, 2))

    def test_default_length_is_that_of_the_weights(self):
        assert len(Weighted(self.weights)) == 6

    @pytest.mark.parametrize(
        ("weights", "options", "message"),
        [
            ([], {}, "weights"),
            ([1.0, -1.0], {}, "0 or more"),
            ([1.0, float("nan")], {}, "finite"),
            ([0.0, 0.0], {}, "all weights are 0"),
            ([1e308] * 4, {}, "sum is not finite"),
            ([1.0, 0.0], {"replacement": False}, "num_samples=2"),
            ([1.0], {"num_samples": -1}, "num_samples=-1"),
        ],
    )
    def test_refuses_what_cannot_be_drawn(self, weights, options, message):
        with pytest.raises(ConfigError, match=message):
            Weighted(weights, **options)


class TestSubset:
    def test_keeps_the_given_order(self):
        assert everything(Subset([5, 2, 9])).tolist() == [5, 2, 9]

    def test_shuffles_within(self):
        epochs = [everything(Subset(range(100, 150), shuffle=True), 0, epoch).tolist() for epoch in (0, 1)]
        assert epochs[0] != epochs[1]
        assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(100, 150))

    def test_refuses_negative_indices(self):
        with pytest.raises(ConfigError, match="got -2"):
            Subset([1, -2])

    def test_refuses_indices_beyond_int64(self):
        with pytest.raises(ConfigError, match=r"from 0 to 2\*\*63 - 1, got 18446744073709551615"):
            Subset(np.array([1, 2**64 - 1], np.uint64))


class TestSamplerOrder:
    def test_takes_the_samplers_sequence(self):
        assert everything(SamplerOrder(SequentialSampler(range(7)))).tolist() == list(range(7))

    @pytest.mark.parametrize("generator", [None, torch.Generator()])
    def test_random_samplers_become_pure(self, generator):
        order = SamplerOrder(RandomSampler(range(50), generator=generator))
        again = SamplerOrder(RandomSampler(range(50), generator=generator))
        first = everything(order, 3, 1).tolist()
        assert sorted(first) == list(range(50))
        assert everything(order, 3, 2).tolist() != first
        assert everything(again, 3, 1).tolist() == first

    def test_leaves_torchs_generator_alone(self):
        torch.manual_seed(5)
        before = torch.get_rng_state()
        everything(SamplerOrder(RandomSampler(range(50))))
        assert torch.equal(torch.get_rng_state(), before)

    def test_leaves_the_samplers_own_generator_alone(self):
        generator = torch.Generator().manual_seed(9)
        before = generator.get_state()
        everything(SamplerOrder(RandomSampler(range(50), generator=generator)))
        assert torch.equal(generator.get_state(), before)

    def test_calls_set_epoch(self):
        sampler = DistributedSampler(range(20), num_replicas=1, rank=0, seed=3)
        taken = everything(SamplerOrder(sampler), 0, 4).tolist()
        sampler.set_epoch(4)
        assert taken == list(sampler)

    def test_refuses_a_sampler_that_already_cuts_the_epoch(self):
        with pytest.raises(ConfigError, match="num_replicas=2"):
            SamplerOrder(DistributedSampler(range(20), num_replicas=2, rank=0))

    def test_refuses_a_wrong_length(self):
        class Liar(torch.utils.data.Sampler):
            def __len__(self):
                return 3

            def __iter__(self):
                return iter([0, 1])

        with pytest.raises(ConfigError, match="Liar yielded 2 indices, its len"):
            everything(SamplerOrder(Liar()))


class TestRankBatches:
    @given(
        size=st.integers(0, 400),
        batch=st.integers(1, 9),
        world=st.integers(1, 8),
        drop_last=st.booleans(),
    )
    @settings(max_examples=300, deadline=None)
    def test_ranks_share_an_epoch_exactly(self, size, batch, world, drop_last):
        ranks = [RankBatches(size, batch, rank, world, drop_last) for rank in range(world)]
        seen: list[int] = []
        for step in range(len(ranks[0])):
            rows = [r.positions(step) for r in ranks]
            assert len({len(r) for r in rows}) == 1
            seen += np.concatenate(rows).tolist()
        padding = sum(r.padding(len(r) - 1) for r in ranks) if len(ranks[0]) else 0
        whole = size - size % (batch * world) if drop_last else size
        assert seen == list(range(whole + padding))
        assert padding < world
        assert not (drop_last and padding)

    @pytest.mark.parametrize("world", [1, 2, 4])
    def test_the_global_batch_does_not_depend_on_the_world_size(self, world):
        steps = [
            [RankBatches(100, 16 // world, rank, world).positions(step) for rank in range(world)] for step in range(6)
        ]
        assert [np.concatenate(ranks).tolist() for ranks in steps] == [
            list(range(k * 16, k * 16 + 16)) for k in range(6)
        ]

    def test_counts_what_was_delivered(self):
        batches = RankBatches(10, 4)
        assert [batches.delivered(step) for step in range(4)] == [0, 4, 8, 10]

    @pytest.mark.parametrize("options", [{"batch_size": 0}, {"batch_size": 2.5}, {"batch_size": 1, "rank": 1}])
    def test_refuses_bad_settings(self, options):
        with pytest.raises(ConfigError):
            RankBatches(10, **options)
