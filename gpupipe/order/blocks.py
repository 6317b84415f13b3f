"""A shuffle that reads storage in large pieces."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from gpupipe.errors import ConfigError
from gpupipe.host.checks import whole
from gpupipe.order.feistel import permute, round_keys, square, subkeys, unpermute
from gpupipe.order.protocol import BLOCKS, WINDOWS, EpochCache, Indices, OnceEach, as_array, digest

__all__ = ["BlockShuffled"]


class Layout(NamedTuple):
    """The blocks of one epoch: `blocks` (B,) in the order in which they come, `ends` (B + 1,) where each begins and
    the last ends, in positions, `windows` likewise for the windows."""

    blocks: Indices
    ends: Indices
    windows: Indices


@dataclass(frozen=True, eq=False)
class BlockShuffled(OnceEach):
    """Blocks (shards) in a new order in every epoch, and samples shuffled among `window` blocks that come together.

    For storage that dislikes random reads: only the blocks of one window are read at a time (of two, in a batch across
    their border). Every sample comes once an epoch. A window of all blocks is a full shuffle; how well others mix,
    bench/mixing.py measures. Memory: a few numbers for each block.

    block_sizes: samples of each block, 0 or more, blocks being consecutive in the dataset.
    window:      blocks shuffled together, 1 or more.
    """

    block_sizes: ArrayLike
    window: int
    _begins: Indices = field(init=False, repr=False)
    _layout: EpochCache[Layout] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        sizes = as_array("BlockShuffled: block_sizes", self.block_sizes)
        if sizes.ndim != 1 or not np.issubdtype(sizes.dtype, np.integer) or (sizes < 0).any():
            raise ConfigError("BlockShuffled: block_sizes must be one list of integers of 0 or more")
        whole("BlockShuffled: window", self.window, 1, 2**62)
        begins = _begins(sizes.astype(np.int64))
        object.__setattr__(self, "_begins", begins)
        object.__setattr__(
            self, "_layout", EpochCache(partial(_layout, begins, min(int(self.window), max(1, len(sizes)))))
        )

    @classmethod
    def of_shards(cls, source: Any, window: int) -> BlockShuffled:
        """The order for a source of shards, such as `gpupipe.open_source("train-{000..099}.tar")`, or of Parquet files,
        whose blocks are row groups.

        Raises ConfigError for a source without `samples_per_shard`.
        """
        sizes = getattr(source, "samples_per_shard", None)
        if sizes is None:
            raise ConfigError(
                f"BlockShuffled.of_shards: {type(source).__name__} has no shards (no samples_per_shard); open shards, "
                "or give BlockShuffled the sizes of blocks yourself: runs of samples that lie together in storage"
            )
        return cls(sizes, window)

    def __len__(self) -> int:
        return int(self._begins[-1])

    def indices(self, seed: int, epoch: int, positions: Indices) -> Indices:
        """Each position's window, its place there shuffled, and the sample that lies there."""
        layout = self._layout(seed, epoch)
        windows = np.searchsorted(layout.windows, positions, side="right") - 1
        begins = layout.windows[windows]
        keys = subkeys(round_keys(seed, epoch, WINDOWS), windows)
        shuffled = begins + permute(positions - begins, square(layout.windows[windows + 1] - begins), keys)
        places = np.searchsorted(layout.ends, shuffled, side="right") - 1
        found: Indices = self._begins[layout.blocks[places]] + shuffled - layout.ends[places]
        return found

    def _inverse(self, seed: int, epoch: int, indices: Indices) -> Indices:
        layout, count = self._layout(seed, epoch), len(self._begins) - 1
        blocks = np.searchsorted(self._begins, indices, side="right") - 1
        places = unpermute(blocks, square(max(1, count)), round_keys(seed, epoch, BLOCKS))
        shuffled = layout.ends[places] + indices - self._begins[blocks]
        windows = places // min(int(self.window), max(1, count))
        begins = layout.windows[windows]
        keys = subkeys(round_keys(seed, epoch, WINDOWS), windows)
        found: Indices = begins + unpermute(shuffled - begins, square(layout.windows[windows + 1] - begins), keys)
        return found

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the block sizes, and the window."""
        return f"blocks-{self.window}-{digest(self._begins.tobytes())}"


def _begins(sizes: Indices) -> Indices:
    """Where each block begins, and where the last ends."""
    begins = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=begins[1:])
    return begins


def _layout(begins: Indices, window: int, seed: int, epoch: int) -> Layout:
    count = len(begins) - 1
    blocks = permute(np.arange(count), square(max(1, count)), round_keys(seed, epoch, BLOCKS))
    ends = _begins(np.diff(begins)[blocks])
    return Layout(blocks, ends, np.append(ends[:-1:window], ends[-1]))
