from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from orders import everything

from gpupipe.errors import ConfigError
from gpupipe.order import Sequential, Shuffled, Subset, VirtualEpochs


@given(inner=st.integers(1, 30), length=st.integers(1, 80), seed=st.integers(0, 2**64 - 1))
@settings(max_examples=60, deadline=None)
def test_is_the_stream_of_the_orders_epochs_cut_anew(inner: int, length: int, seed: int) -> None:
    stream = itertools.chain.from_iterable(everything(Shuffled(inner), seed, epoch) for epoch in itertools.count())
    for epoch in range(4):
        expected = [int(index) for index in itertools.islice(stream, length)]
        assert everything(VirtualEpochs(Shuffled(inner), length), seed, epoch).tolist() == expected


def test_far_along_a_large_stream() -> None:
    size, length = 2**61 - 1, 2**61 + 12345
    positions = np.array([0, 17, length // 2, length - 1])
    epoch = 2**31
    expected = [(epoch * length + int(position)) % size for position in positions]  # Python's integers don't overflow
    assert VirtualEpochs(Sequential(size), length).indices(0, epoch, positions).tolist() == expected


def test_the_orders_epoch_stays_below_32_bits() -> None:
    order = VirtualEpochs(Subset([0, 5], shuffle=True), 4)  # two epochs of two in each
    last = everything(order, 0, 2**31 - 1)
    assert sorted(last[:2].tolist()) == sorted(last[2:].tolist()) == [0, 5]
    with pytest.raises(
        ConfigError, match=r"position 8589934595 of the stream of subset-.* its epoch 4294967296, .* below 2\*\*32"
    ):
        everything(order, 0, 2**31)


@pytest.mark.parametrize("num_samples", [0, -3, 1.5, 2**62])
def test_refuses_bad_lengths(num_samples: float) -> None:
    with pytest.raises(ConfigError, match="num_samples"):
        VirtualEpochs(Shuffled(4), num_samples)
