"""A shuffle in two tiers, for data that no node can hold: shards are dealt to nodes, and samples shuffled within."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gpupipe.errors import ConfigError
from gpupipe.host.checks import whole
from gpupipe.kernels.feistel import lined, unlined
from gpupipe.order.blocks import Line, begins_of, lined_up, moves_back, regions, shard_sizes
from gpupipe.order.feistel import round_keys
from gpupipe.order.protocol import AHEAD, DEALS, LATEST, SHARES, EpochCache, Indices, OnceEach, digest

__all__ = ["NodeBlocks"]


@dataclass(frozen=True, eq=False)
class NodeBlocks(OnceEach):
    """Each node has a share of the shards, others after every `every` epochs, and shuffles its samples in each epoch.

    All shards are put in line, in a new order after every `every` epochs, and the line is cut into a share of one size
    for each node, which may begin and end within a shard. In each epoch a node goes through its share in a new order,
    and each global batch has as many samples of every share. So every sample comes once an epoch, and a node whose
    cache holds its share reads storage in one epoch of `every`. How well that mixes, bench/mixing.py measures.

    The order is that of `nodes` nodes for any number of ranks, and elastic as any other while the global batch stays:
    half as many nodes have two shares each. With another global batch, or as part of another order such as
    VirtualEpochs, nodes read of each other's shares. Of an epoch's last, short batch they may read a few, below
    one for each rank, where it is no multiple of the ranks.

    Memory: two numbers for each shard, of each dealing that is looked into.

    block_sizes: samples of each shard, 0 or more, shards being consecutive in the dataset.
    nodes:       shares; ranks 0 ... world_size / nodes - 1 have the first one, and so on.
    batch_size:  of the global batch, the loader's batch_size * world_size: a multiple of the nodes.
    every:       epochs until shards are dealt anew.
    """

    block_sizes: ArrayLike
    nodes: int
    batch_size: int
    every: int = 1
    _begins: Indices = field(init=False, repr=False)
    _line: EpochCache[Line] = field(init=False, repr=False)
    _moves: EpochCache[Indices] = field(init=False, repr=False)
    _shares: Indices = field(init=False, repr=False)

    def __post_init__(self) -> None:
        begins = begins_of("NodeBlocks", self.block_sizes)
        for name in ("nodes", "batch_size", "every"):
            whole(f"NodeBlocks: {name}", getattr(self, name), 1, 2**31)
        if self.batch_size % self.nodes:
            raise ConfigError(
                f"NodeBlocks: batch_size={self.batch_size} is no multiple of nodes={self.nodes}; give the global "
                "batch: the loader's batch_size * world_size"
            )
        object.__setattr__(self, "_begins", begins)
        object.__setattr__(self, "_line", EpochCache(partial(lined_up, begins, DEALS), keeps=LATEST))
        object.__setattr__(self, "_moves", EpochCache(self._moved, keeps=AHEAD))
        # Where each share begins in the line, and the last one ends.
        last = np.minimum(np.arange(self.nodes + 1) * self._last_rows, len(self) % self.batch_size)
        object.__setattr__(self, "_shares", np.arange(self.nodes + 1) * self._steps * self._rows + last)

    @classmethod
    def of_shards(cls, source: Any, nodes: int, batch_size: int, every: int = 1) -> NodeBlocks:
        """The order for a source of shards, as `BlockShuffled.of_shards`.

        Raises ConfigError for a source without `samples_per_shard`.
        """
        return cls(shard_sizes("NodeBlocks", source), nodes, batch_size, every)

    def __len__(self) -> int:
        return int(self._begins[-1])

    def indices(self, seed: int, epoch: int, positions: Indices) -> Indices:
        """Each position's share, its place there shuffled, and the sample that lies there."""
        steps, offsets = np.divmod(positions, self.batch_size)
        rows = np.where(steps < self._steps, self._rows, self._last_rows)
        shares = offsets // rows
        places = self._shares[shares] + steps * self._rows + offsets - shares * rows
        line, keys = self._line(seed, epoch // self.every), round_keys(seed, epoch, SHARES)
        return lined(places, regions(line.begins, line.moves, self._shares, keys))

    def _inverse(self, seed: int, epoch: int, indices: Indices) -> Indices:
        moves, keys = self._moves(seed, epoch // self.every), round_keys(seed, epoch, SHARES)
        shares, within = unlined(indices, regions(self._begins, moves, self._shares, keys))
        steps = np.minimum(within // self._rows, self._steps)
        rows = np.where(steps < self._steps, self._rows, self._last_rows)
        found: Indices = steps * (self.batch_size - self._rows) + shares * rows + within
        return found

    def _moved(self, seed: int, dealing: int) -> Indices:
        return moves_back(lined_up(self._begins, DEALS, seed, dealing))

    @property
    def _steps(self) -> int:
        """Full batches of an epoch."""
        return len(self) // self.batch_size

    @property
    def _rows(self) -> int:
        """Of each share in a full batch."""
        return self.batch_size // self.nodes

    @property
    def _last_rows(self) -> int:
        """Of each share in the last, short batch: of the last ones fewer or none."""
        return -(-(len(self) % self.batch_size) // self.nodes)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the block sizes, and how they are dealt."""
        return f"node-blocks-{self.nodes}-{self.batch_size}-{self.every}-{digest(self._begins.tobytes())}"
