"""Several orders in one, by weight."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np

from gpupipe.errors import ConfigError
from gpupipe.host.checks import whole
from gpupipe.order.feistel import Domain, Words, permute, round_keys, square, subkeys, unpermute
from gpupipe.order.protocol import AHEAD, MIXTURE, EpochCache, Indices, Order, digest, name_of, words
from gpupipe.order.repeated import stream, stream_positions

__all__ = ["Interleaved", "Weight", "check_weight"]

Weight: TypeAlias = float | Sequence[float] | Callable[[int], float]
"""A number of 0 or more; one for each epoch from 0 on, of which the last stays; or a function of the epoch, which must
give the same whenever it is asked. Only the weights' proportions count."""

BLOCK = 64
COMPARED = 1024
"""Epochs of which a fingerprint has the counts, where weights are functions."""
MOST_SUMMED = 1 << 20


class _Layout(NamedTuple):
    """Of one epoch: how its positions are dealt out, how many samples each order has given before it, and its seed."""

    tree: _Tree
    before: list[int]
    seeds: list[int]


@dataclass(frozen=True, eq=False)
class Interleaved:
    """Orders of several datasets, which are numbered one behind the other, each with its share of every epoch.

    An epoch's positions are shared out by largest remainder: exact to less than one. The shares are spread evenly: of
    the positions before any multiple of 64 each order has its share to within 1 (of up to three orders; to within 1.7
    of any number). Which of the 64 it has is drawn, so that neighbours, which mixing pairs, may be of any two.

    Each order goes through epochs of its own, over the ends of these: its n-th sample is at position n % len(order) of
    its epoch n // len(order), in whichever epoch of the mixture. So a small one comes again and again, shuffled anew
    each time, and a large one goes on where it stopped. Each has a seed of its own.

    How: positions are handed down a tree of splits in two, Huffman's of the shares, and each split is as even as the
    steps of a line of pixels (Bresenham's). So any position is found without those before it, and memory is a few
    numbers for each order.

    sizes:       samples of each one's dataset.
    num_samples: positions in an epoch, below 2**31; None: as many as all orders have.
    names:       what messages call each one; none: its place.
    """

    orders: Sequence[Order]
    sizes: Sequence[int]
    weights: Sequence[Weight]
    num_samples: int | None = None
    names: Sequence[str] = ()
    _size: int = field(init=False, repr=False)
    _sums: list[Indices] = field(init=False, repr=False)
    _layout: EpochCache[_Layout] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        assert len(self.orders) == len(self.sizes) == len(self.weights) > 0
        size = sum(map(len, self.orders)) if self.num_samples is None else self.num_samples
        object.__setattr__(self, "_size", whole("Mixture: num_samples", size, 1, 2**31))
        object.__setattr__(self, "_sums", [np.zeros(len(self.orders), np.int64)])
        object.__setattr__(self, "_layout", EpochCache(self._laid_out, keeps=AHEAD))
        for epoch in range(self._settled or 1):
            self.counts(epoch)

    def __len__(self) -> int:
        return self._size

    @property
    def samples(self) -> int:
        """How many samples the datasets have to have together."""
        return sum(self.sizes)

    def counts(self, epoch: int) -> Indices:
        """How many positions of an epoch each order has, (orders,) int64. Raises ConfigError where all weigh 0."""
        weights = np.array([_at(weight, epoch) for weight in self.weights])
        if not (np.isfinite(weights).all() and (weights >= 0).all() and weights.any()):
            raise ConfigError(
                f"Mixture: the weights of epoch {epoch} are {weights.tolist()}; they must be finite numbers of 0 or "
                "more, and not all 0"
            )
        shares = weights / weights.max()  # whose sum is finite
        exact = shares / shares.sum() * len(self)
        counts: Indices = np.floor(exact).astype(np.int64)
        counts[np.argsort(counts - exact, kind="stable")[: len(self) - counts.sum()]] += 1
        return counts

    def drawn(self, seed: int, epoch: int, position: int) -> list[int]:
        """How many samples each order has given before a position of an epoch, since epoch 0."""
        layout, begin = self._layout(seed, epoch), position - position % BLOCK
        parts, _ = _dealt(layout.tree, self._shuffled(seed, epoch, np.arange(begin, position)))
        counts, earlier = np.bincount(parts, minlength=len(self.orders)).tolist(), _counted(layout.tree, begin)
        return [before + counts[one] + earlier.get(one, 0) for one, before in enumerate(layout.before)]

    def indices(self, seed: int, epoch: int, positions: Indices) -> Indices:
        """At each position the next sample of the order that it is dealt to."""
        layout = self._layout(seed, epoch)
        parts, numbers = _dealt(layout.tree, self._shuffled(seed, epoch, positions))
        found = np.empty(len(positions), np.int64)
        for one in np.unique(parts).tolist():
            rows = parts == one
            own = stream(self.orders[one], layout.seeds[one], layout.before[one], numbers[rows])
            found[rows] = self._checked(one, own) + sum(self.sizes[:one])
        return found

    def positions(self, seed: int, epoch: int, indices: Indices) -> Indices | None:
        """Where each sample stands, (times, N), as often as an order's samples can come; None: one has no inverse."""
        layout, counts = self._layout(seed, epoch), self.counts(epoch).tolist()
        begins = np.cumsum([0, *self.sizes])
        found = []
        for one, count in enumerate(counts):
            own = np.flatnonzero((indices >= begins[one]) & (indices < begins[one + 1]))
            numbers = stream_positions(
                self.orders[one], layout.seeds[one], layout.before[one], count, indices[own] - begins[one]
            )
            if numbers is None:
                return None
            dealt = np.where(numbers < 0, -1, _undealt(layout.tree, one, numbers))
            found.append(np.full((len(numbers), len(indices)), -1))
            found[-1][:, own] = dealt
        places: Indices = np.concatenate(found)
        comes = places >= 0
        places[comes] = self._unshuffled(seed, epoch, places[comes])
        return places

    @property
    def fingerprint(self) -> str:
        """The length, with a hash of orders, sizes and shares; of weights that are functions, in 1,024 epochs."""
        orders = [order.fingerprint.encode() for order in self.orders]  # each time: a torch sampler's may be another
        return f"mixture-{len(self)}-{digest(*orders, str(list(self.sizes)).encode(), self._compared)}"

    @cached_property
    def _compared(self) -> bytes:
        """What a fingerprint has of the weights."""
        return np.array([self.counts(epoch) for epoch in range(self._settled or COMPARED)]).tobytes()

    @property
    def _settled(self) -> int | None:
        """Weights stay from the epoch before this one on; None: that is not known."""
        if any(callable(weight) for weight in self.weights):
            return None
        return max(len(weight) if isinstance(weight, Sequence) else 1 for weight in self.weights)

    def _checked(self, one: int, own: Indices) -> Indices:
        """What an order gave, which beyond its dataset would be another one's samples. Raises ConfigError."""
        outside = own[(own < 0) | (own >= self.sizes[one])]
        if len(outside):
            order, name = self.orders[one], self.names[one] if self.names else one
            raise ConfigError(
                f"Mixture: the order of {name!r}, {name_of(order)}, gave sample {outside[0]}, but it has "
                f"{self.sizes[one]} samples; build the order for it"
            )
        return own

    def _laid_out(self, seed: int, epoch: int) -> _Layout:
        counts = self.counts(epoch).tolist()
        drawn = words(seed, 0, MIXTURE, np.arange(len(counts))).tolist()
        seeds = [high << 32 | low for high, low in zip(drawn[0], drawn[1], strict=True)]
        return _Layout(_tree(counts), self._before(epoch, counts), seeds)

    def _before(self, epoch: int, counts: list[int]) -> list[int]:
        """How many samples each order has given before an epoch with these counts."""
        last = epoch if self._settled is None else min(epoch, self._settled - 1)
        if last > MOST_SUMMED:
            raise ConfigError(f"Mixture: weights that are functions are summed up to epoch {MOST_SUMMED}, not {epoch}")
        sums = self._sums
        if len(sums) <= last:
            sums = [*sums, *(sums[-1] + np.cumsum([self.counts(at) for at in range(len(sums) - 1, last)], axis=0))]
            object.__setattr__(self, "_sums", sums)  # at once, as another thread may ask
        return [before + (epoch - last) * count for before, count in zip(sums[last].tolist(), counts, strict=True)]

    def _shuffled(self, seed: int, epoch: int, positions: Indices) -> Indices:
        """The positions, in each block of 64 in another order."""
        within = positions % BLOCK
        return positions - within + permute(within, *self._blocks(seed, epoch, positions))

    def _unshuffled(self, seed: int, epoch: int, places: Indices) -> Indices:
        within = places % BLOCK
        return places - within + unpermute(within, *self._blocks(seed, epoch, places))

    def _blocks(self, seed: int, epoch: int, positions: Indices) -> tuple[Domain, Words]:
        """The permutation of each position's block."""
        blocks = positions // BLOCK
        sizes = square([BLOCK, max(1, len(self) % BLOCK)]).at((blocks == len(self) // BLOCK).astype(np.int64))
        return sizes, subkeys(round_keys(seed, epoch, MIXTURE), blocks)


def check_weight(where: str, weight: Weight) -> None:
    """Raise ConfigError, whose message begins with `where`, unless it is one; what a function gives is not known."""
    listed = weight if isinstance(weight, Sequence) else [weight]
    fits = (isinstance(one, int | float | np.number) and math.isfinite(one) and one >= 0 for one in listed)
    if not callable(weight) and not (len(listed) and all(fits)):
        raise ConfigError(
            f"{where} is {weight!r}; it must be a finite number of 0 or more, a list of such for the epochs, the last "
            "of which stays, or a function of the epoch"
        )


def _at(weight: Weight, epoch: int) -> float:
    if callable(weight):
        return float(weight(epoch))
    return float(weight[min(epoch, len(weight) - 1)] if isinstance(weight, Sequence) else weight)


class _Split(NamedTuple):
    """`size` positions, of which `lefts` go to the left."""

    size: int
    lefts: int
    left: _Tree
    right: _Tree

    def before(self, numbers: Indices) -> Indices:
        """How many of the first `numbers` go to the left: their share, rounded. The product is below 2**62."""
        return (numbers * self.lefts + self.size // 2) // self.size


_Tree: TypeAlias = _Split | int


def _tree(counts: list[int]) -> _Tree:
    """Huffman's. What a share may be off is 1/2, and 1/2 more for each split above but the first, times the part that
    the share is of what was split there: 1, 1/2, 1/3, 1/5, 1/8 ... at most, as at least Fibonacci's numbers grow."""
    ties = itertools.count()
    heap: list[tuple[int, int, _Tree]] = [(count, next(ties), one) for one, count in enumerate(counts) if count]
    heapq.heapify(heap)
    while len(heap) > 1:
        (lefts, _, left), (rights, _, right) = heapq.heappop(heap), heapq.heappop(heap)
        heapq.heappush(heap, (lefts + rights, next(ties), _Split(lefts + rights, lefts, left, right)))
    return heap[0][2]


def _dealt(tree: _Tree, numbers: Indices) -> tuple[Indices, Indices]:
    """The order that each position goes to, and how many positions before it do."""
    if isinstance(tree, int):
        return np.full(len(numbers), tree), numbers
    lefts = tree.before(numbers)
    is_left = tree.before(numbers + 1) > lefts
    parts, places = np.empty_like(numbers), np.empty_like(numbers)
    for child, rows, below in ((tree.left, is_left, lefts), (tree.right, ~is_left, numbers - lefts)):
        parts[rows], places[rows] = _dealt(child, below[rows])
    return parts, places


def _undealt(tree: _Tree, one: int, numbers: Indices) -> Indices:
    """The positions that go to an order, as its so manieth: back from `_dealt`. Products are below 2**62."""
    if isinstance(tree, int):
        return numbers
    if one in _counted(tree.left, 0):
        numbers = _undealt(tree.left, one, numbers)
        return -((tree.size // 2 - (numbers + 1) * tree.size) // tree.lefts) - 1
    numbers = _undealt(tree.right, one, numbers)
    return (tree.size // 2 + numbers * tree.size) // (tree.size - tree.lefts)


def _counted(tree: _Tree, number: int) -> dict[int, int]:
    """How many of the first `number` positions go to each order."""
    if isinstance(tree, int):
        return {tree: number}
    lefts = int(tree.before(np.array(number)))
    return _counted(tree.left, lefts) | _counted(tree.right, number - lefts)
