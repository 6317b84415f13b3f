from __future__ import annotations

import numpy as np
import pytest
import torch
from orders import everything

from gpupipe.errors import ConfigError
from gpupipe.order import Repeated, Sequential, Shuffled


class Randperm:
    """The permutation that timm's and DeiT's samplers draw."""

    fingerprint = "randperm"

    def __len__(self) -> int:
        return 1000

    def indices(self, seed: int, epoch: int, positions: np.ndarray) -> np.ndarray:
        return torch.randperm(1000, generator=torch.Generator().manual_seed(epoch)).numpy()[positions]


@pytest.mark.parametrize("world", [1, 4])
@pytest.mark.parametrize("repeats", [1, 3])
def test_is_the_sequence_of_timms_sampler(world: int, repeats: int) -> None:
    """timm gives rank r of w the positions r, r + w, r + 2w ... of the same sequence, and rounds the epoch's length."""
    timm = pytest.importorskip("timm.data.distributed_sampler")
    order = Repeated(Randperm(), repeats)
    for epoch in (0, 5):
        theirs = []
        for rank in range(world):
            sampler = timm.RepeatAugSampler(range(1000), num_replicas=world, rank=rank, num_repeats=repeats)
            sampler.set_epoch(epoch)
            theirs.append(list(sampler))
        interleaved = np.array(theirs).T.ravel()
        assert 1000 - 256 < len(interleaved) <= len(order) == 1000
        assert everything(order, 0, epoch)[: len(interleaved)].tolist() == interleaved.tolist()


def test_all_of_an_epoch_several_times() -> None:
    order = Repeated(Shuffled(40), 3, num_samples=120)
    assert everything(order, 1, 2).tolist() == np.repeat(everything(Shuffled(40), 1, 2), 3).tolist()


def test_an_epoch_is_as_long_as_the_orders_unless_told() -> None:
    sample, counts = np.unique(everything(Repeated(Shuffled(40), 3)), return_counts=True)
    assert len(sample) == 14
    assert sorted(counts.tolist()) == [1] + [3] * 13
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
