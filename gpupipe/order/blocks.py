"""A shuffle that reads storage in large pieces, and how blocks are put in line."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from gpupipe.errors import ConfigError
from gpupipe.host.checks import whole
from gpupipe.kernels.feistel import Regions, lined, unlined
from gpupipe.order.feistel import Words, permute, round_keys, square
from gpupipe.order.protocol import AHEAD, BLOCKS, LATEST, WINDOWS, EpochCache, Indices, OnceEach, as_array, digest

__all__ = ["BlockShuffled", "Line", "begins_of", "lined_up", "moves_back", "regions", "shard_sizes"]


class Line(NamedTuple):
    """Blocks in the order in which they come: `blocks` (B,) which of them come first, second and so on; `begins`
    (B + 1,) where these begin in the line, and where the last ends; `moves` (B,) from a place in each to its sample."""

    blocks: Indices
    begins: Indices
    moves: Indices


def lined_up(begins: Indices, operation: int, seed: int, epoch: int) -> Line:
    """All blocks, which begin there in the dataset, shuffled by (seed, epoch, operation)."""
    count = len(begins) - 1
    blocks = permute(np.arange(count), square(max(1, count)), round_keys(seed, epoch, operation))
    line = _summed(np.diff(begins)[blocks])
    return Line(blocks, line, begins[blocks] - line[:-1])


def moves_back(line: Line) -> Indices:
    """From a sample of each block of the dataset to its place in the line, (B,)."""
    found = np.empty_like(line.moves)
    found[line.blocks] = -line.moves
    return found


def regions(begins: Indices, moves: Indices, ends: Indices, keys: Words) -> Regions:
    """What goes through a line and the permutations of its regions, there or back."""
    _, a, b = square(np.maximum(1, np.diff(ends)))
    return Regions(begins, moves, ends, a, b, keys)


def begins_of(where: str, block_sizes: ArrayLike) -> Indices:
    """Where each block begins in the dataset, and where the last ends. Raises ConfigError."""
    sizes = as_array(f"{where}: block_sizes", block_sizes)
    if sizes.ndim != 1 or not np.issubdtype(sizes.dtype, np.integer) or (sizes < 0).any():
        raise ConfigError(f"{where}: block_sizes must be one list of integers of 0 or more")
    return _summed(sizes.astype(np.int64))


def shard_sizes(where: str, source: Any) -> Indices:
    """Samples of each of a source's shards. Raises ConfigError for a source without `samples_per_shard`."""
    sizes: Indices | None = getattr(source, "samples_per_shard", None)
    if sizes is None:
        raise ConfigError(
            f"{where}.of_shards: {type(source).__name__} has no shards (no samples_per_shard); open shards, or give "
            f"{where} the sizes of blocks yourself: runs of samples that lie together in storage"
        )
    return sizes


def _summed(sizes: Indices) -> Indices:
    sums = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=sums[1:])
    return sums


@dataclass(frozen=True, eq=False)
class BlockShuffled(OnceEach):
    """Blocks (shards) in a new order in every epoch, and samples shuffled among `window` blocks that come together.

    For storage that dislikes random reads: only the blocks of one window are read at a time (of two, in a batch across
    their border). Every sample comes once an epoch. A window of all blocks is a full shuffle; how well others mix,
    bench/mixing.py measures. Memory: two numbers for each block, and one of each epoch that is looked into.

    block_sizes: samples of each block, 0 or more, blocks being consecutive in the dataset.
    window:      blocks shuffled together, 1 or more.
    """

    block_sizes: ArrayLike
    window: int
    _begins: Indices = field(init=False, repr=False)
    _there: EpochCache[Regions] = field(init=False, repr=False)
    _back: EpochCache[Regions] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        begins = begins_of("BlockShuffled", self.block_sizes)
        whole("BlockShuffled: window", self.window, 1, 2**62)
        object.__setattr__(self, "_begins", begins)
        object.__setattr__(self, "_there", EpochCache(partial(self._windows, False), keeps=LATEST))
        object.__setattr__(self, "_back", EpochCache(partial(self._windows, True), keeps=AHEAD))

    @classmethod
    def of_shards(cls, source: Any, window: int) -> BlockShuffled:
        """The order for a source of shards, such as `gpupipe.open_source("train-{000..099}.tar")`, or of Parquet files,
        whose blocks are row groups.

        Raises ConfigError for a source without `samples_per_shard`.
        """
        return cls(shard_sizes("BlockShuffled", source), window)

    def __len__(self) -> int:
        return int(self._begins[-1])

    def indices(self, seed: int, epoch: int, positions: Indices) -> Indices:
        """Each position's window, its place there shuffled, and the sample that lies there."""
        return lined(positions, self._there(seed, epoch))

    def _inverse(self, seed: int, epoch: int, indices: Indices) -> Indices:
        windows = self._back(seed, epoch)
        at, within = unlined(indices, windows)
        found: Indices = windows.ends[at] + within
        return found

    def _windows(self, back: bool, seed: int, epoch: int) -> Regions:
        line = lined_up(self._begins, BLOCKS, seed, epoch)
        count = len(line.blocks)
        ends = line.begins[np.append(np.arange(0, count, min(self.window, max(1, count))), count)]
        keys = round_keys(seed, epoch, WINDOWS)
        return regions(*((self._begins, moves_back(line)) if back else line[1:]), ends, keys)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the block sizes, and the window."""
        return f"blocks-{self.window}-{digest(self._begins.tobytes())}"
