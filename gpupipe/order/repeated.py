"""Orders made of another: repeated augmentation, and epochs of another length."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpupipe.errors import ConfigError
from gpupipe.host.checks import whole
from gpupipe.order.protocol import Indices, Order, check_order, digest, name_of, positions_of, samples_of

__all__ = ["Repeated", "VirtualEpochs", "stream", "stream_positions"]


@dataclass(frozen=True)
class Repeated:
    """Each sample of an order `repeats` times, two samples in turn, each copy with crops and flips of its own.

    Repeated augmentation: Hoffer et al., "Augment your batch", CVPR 2020; DeiT's `RASampler`, timm's
    `RepeatAugSampler`. These put the copies of a sample in a row (a a a b b b). Here two samples alternate in each
    group of 2 * repeats positions (a b a b a b), because mixing pairs position p with p XOR 1: in a row an image would
    be mixed with another crop of itself. Only if the order has an odd number of samples is the last one alone in its
    group, and then in a row.

    An epoch shows only a part of the samples: with 3 repeats, and as many positions as the order has, a third of them.

    The copies stand close together, and a rank reads its part of a global batch in a row. So the copies of a sample
    come in one batch of one rank; where that batch is no multiple of 2 * repeats, those of the samples at its ends are
    cut apart. DeiT's and timm's samplers deal the copies out to the ranks instead: their global batch has the same
    samples, but of each rank's samples more are different ones.

    order:       any order; its first samples are taken, so give it a shuffled one.
    repeats:     copies of each sample, 1 or more.
    num_samples: positions in an epoch, at most repeats * len(order). By default len(order), as in DeiT.
    """

    order: Order
    repeats: int
    num_samples: int | None = None

    def __post_init__(self) -> None:
        check_order("Repeated", self.order)
        whole("Repeated: repeats", self.repeats, 1, 2**62)
        if self.num_samples is None:
            return
        whole("Repeated: num_samples", self.num_samples, 0, 2**62)
        if self.num_samples > self.repeats * len(self.order):
            raise ConfigError(
                f"Repeated: num_samples={self.num_samples} is more than {self.repeats} copies of {len(self.order)} "
                "samples; lower it, or give more repeats"
            )

    def __len__(self) -> int:
        return len(self.order) if self.num_samples is None else self.num_samples

    @property
    def samples(self) -> int:
        """How many samples the dataset has to have."""
        return samples_of(self.order)

    def indices(self, seed: int, epoch: int, positions: Indices) -> Indices:
        """The order's samples 2 * g and 2 * g + 1 in turn, for g = position // (2 * repeats)."""
        alternating = positions // (2 * self.repeats) * 2 + positions % 2
        return self.order.indices(seed, epoch, np.minimum(alternating, len(self.order) - 1))

    def positions(self, seed: int, epoch: int, indices: Indices) -> Indices | None:
        """Where the copies of each sample stand, (times, N); -1 for those beyond the epoch's end."""
        places = positions_of(self.order, seed, epoch, indices)
        if places is None:
            return None
        groups, odd = np.divmod(places, 2)
        apart = np.where((places == len(self.order) - 1) & (odd == 0), 1, 2)  # the last one alone stands in a row
        firsts = groups * 2 * self.repeats + odd
        found = np.concatenate([firsts + copy * apart for copy in range(self.repeats)])
        return np.where((np.tile(places, (self.repeats, 1)) >= 0) & (found < len(self)), found, -1)

    @property
    def fingerprint(self) -> str:
        """Names the layout, the repeats and the length, with a hash of the order's fingerprint."""
        return f"repeated-in-turn-{self.repeats}-{len(self)}-{digest(self.order.fingerprint.encode())}"


@dataclass(frozen=True)
class VirtualEpochs:
    """Epochs of `num_samples` positions, cut from the endless stream of an order's own epochs.

    Position p of epoch e is position q = e * num_samples + p of that stream: position q % len(order) of the order's
    epoch q // len(order), which must stay below 2**32. So no sample is left out or favoured, however epochs are cut.
    """

    order: Order
    num_samples: int

    def __post_init__(self) -> None:
        check_order("VirtualEpochs", self.order)
        whole("VirtualEpochs: num_samples", self.num_samples, 1, 2**62)

    def __len__(self) -> int:
        return self.num_samples

    @property
    def samples(self) -> int:
        """How many samples the dataset has to have."""
        return samples_of(self.order)

    def indices(self, seed: int, epoch: int, positions: Indices) -> Indices:
        """The order's samples at these positions of its stream. Raises ConfigError past its epoch 2**32 - 1."""
        return stream(self.order, seed, epoch * int(self.num_samples), positions)

    def positions(self, seed: int, epoch: int, indices: Indices) -> Indices | None:
        """Where each sample stands, (times, N), one row or more for each epoch of the order that this is cut from."""
        return stream_positions(self.order, seed, epoch * int(self.num_samples), int(self.num_samples), indices)

    @property
    def fingerprint(self) -> str:
        """Names the length, with a hash of the order's fingerprint."""
        return f"virtual-{self.num_samples}-{digest(self.order.fingerprint.encode())}"


def stream(order: Order, seed: int, begin: int, positions: Indices) -> Indices:
    """The samples at `begin` + `positions` of the endless stream of an order's own epochs.

    Raises ConfigError past its epoch 2**32 - 1.
    """
    whole, first = divmod(begin, len(order))  # Python's integers: past 64 bits too
    later, at = np.divmod(positions + first, len(order))
    found = np.empty(len(positions), np.int64)
    for epochs_later in np.unique(later).tolist():
        if whole + epochs_later >= 2**32:
            raise ConfigError(
                f"position {begin + int(positions.max())} of the stream of {name_of(order)} lies in its epoch "
                f"{whole + epochs_later}, which must stay below 2**32; give fewer num_samples"
            )
        rows = later == epochs_later
        found[rows] = order.indices(seed, whole + epochs_later, at[rows])
    return found


def stream_positions(order: Order, seed: int, begin: int, count: int, indices: Indices) -> Indices | None:
    """Which of the `count` places of the stream from `begin` on have each of the samples, (times, N); -1: none."""
    found = []
    first, end = begin // len(order), -(-(begin + count) // len(order))
    for epoch in range(first, end if len(indices) else first + 1):  # of none only whether it can be said
        places = positions_of(order, seed, epoch, indices)
        if places is None:
            return None
        at = places + (epoch * len(order) - begin)
        found.append(np.where((places >= 0) & (at >= 0) & (at < count), at, -1))
    return np.concatenate(found) if found else np.full((1, len(indices)), -1)
