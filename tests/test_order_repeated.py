from __future__ import annotations

import numpy as np
import pytest
import torch
from orders import everything

from gpupipe.errors import ConfigError
from gpupipe.order import RankBatches, Repeated, Sequential, Shuffled


class Randperm:
    """The permutation that timm's and DeiT's samplers draw."""

    fingerprint = "randperm"

    def __len__(self) -> int:
        return 1000

    def indices(self, seed: int, epoch: int, positions: np.ndarray) -> np.ndarray:
        return torch.randperm(1000, generator=torch.Generator().manual_seed(epoch)).numpy()[positions]


@pytest.mark.trainers("timm")
@pytest.mark.parametrize("world", [1, 4])
@pytest.mark.parametrize("repeats", [1, 3])
def test_has_the_samples_of_timms_sampler_two_at_a_time(world: int, repeats: int) -> None:
    """timm gives rank r of w the positions r, r + w, r + 2w ... of one sequence, and rounds the epoch's length.

    Its copies are in a row; two samples' copies are the same 2 * repeats positions in both.
    """
    from timm.data.distributed_sampler import RepeatAugSampler

    order = Repeated(Randperm(), repeats)
    for epoch in (0, 5):
        theirs = []
        for rank in range(world):
            sampler = RepeatAugSampler(range(1000), num_replicas=world, rank=rank, num_repeats=repeats)
            sampler.set_epoch(epoch)
            theirs.append(list(sampler))
        interleaved = np.array(theirs).T.ravel()
        assert 1000 - 256 < len(interleaved) <= len(order) == 1000
        whole = len(interleaved) // (2 * repeats) * 2 * repeats
        groups = (
            np.sort(np.reshape(part[:whole], (-1, 2 * repeats))) for part in (everything(order, 0, epoch), interleaved)
        )
        np.testing.assert_array_equal(*groups)


def test_two_samples_in_turn() -> None:
    assert everything(Repeated(Sequential(4), 3, 12)).tolist() == [0, 1, 0, 1, 0, 1, 2, 3, 2, 3, 2, 3]
    assert everything(Repeated(Sequential(4), 2, 8)).tolist() == [0, 1, 0, 1, 2, 3, 2, 3]
    assert everything(Repeated(Sequential(4), 1)).tolist() == [0, 1, 2, 3]
    assert everything(Repeated(Sequential(4), 3, 10)).tolist() == [0, 1, 0, 1, 0, 1, 2, 3, 2, 3]


@pytest.mark.parametrize("batch_size", [12, 8])
def test_the_copies_come_in_one_batch_of_one_rank_but_for_those_at_its_ends(batch_size: int) -> None:
    order, cut = Repeated(Shuffled(1000), 3), 0
    for rank in range(4):
        batches = RankBatches(len(order), batch_size, rank, 4, drop_last=True)
        for step in range(len(batches)):
            samples = order.indices(0, 0, batches.positions(step))
            inside = samples[-batches.positions(step)[0] % 6 : batch_size - (batches.positions(step)[-1] + 1) % 6]
            assert set(np.unique(inside, return_counts=True)[1]) <= {3}
            cut += batch_size - len(inside)
    assert (cut == 0) == (batch_size == 12)


def test_the_last_of_an_odd_number_of_samples_is_alone() -> None:
    assert everything(Repeated(Sequential(3), 3, 9)).tolist() == [0, 1, 0, 1, 0, 1, 2, 2, 2]
    assert everything(Repeated(Sequential(1), 2, 2)).tolist() == [0, 0]


@pytest.mark.parametrize("size", [40, 41])
@pytest.mark.parametrize("repeats", [1, 2, 3, 4])
def test_each_sample_as_often_as_the_others_over_the_whole(size: int, repeats: int) -> None:
    _, counts = np.unique(everything(Repeated(Shuffled(size), repeats, size * repeats), 1, 2), return_counts=True)
    assert counts.tolist() == [repeats] * size


@pytest.mark.parametrize("repeats", [1, 2, 3, 4])
def test_mixing_position_p_with_p_xor_1_never_pairs_copies_of_a_sample(repeats: int) -> None:
    samples = everything(Repeated(Shuffled(40), repeats, 40 * repeats), 1, 2)
    assert (samples != samples[np.arange(len(samples)) ^ 1]).all()


def test_an_epoch_is_as_long_as_the_orders_unless_told() -> None:
    sample, counts = np.unique(everything(Repeated(Shuffled(40), 3)), return_counts=True)
    assert len(sample) == 14
    assert sorted(counts.tolist()) == [2, 2] + [3] * 12
    assert len(Repeated(Shuffled(40), 3, num_samples=0)) == 0


@pytest.mark.parametrize(
    ("repeats", "num_samples", "message"),
    [
        (0, None, "repeats=0"),
        (2.0, None, "repeats=2.0"),
        (2, -1, "num_samples=-1"),
        (2, 21, "num_samples=21 is more than 2 copies of 10"),
    ],
)
def test_refuses_bad_settings(repeats: int, num_samples: int | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Repeated(Sequential(10), repeats, num_samples)
