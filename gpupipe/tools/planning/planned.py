"""From data and settings to a plan."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpupipe.decode.choose import PREFETCH
from gpupipe.errors import ConfigError
from gpupipe.host.checks import at_least
from gpupipe.host.progress import progress
from gpupipe.loader.keeping import outstanding, room_for, size_for
from gpupipe.order import NodeBlocks, Order, RankBatches
from gpupipe.sources import Source
from gpupipe.sources.remote.reader import LOOKS_AHEAD, MOST
from gpupipe.tools.planning.layout import layout_of
from gpupipe.tools.planning.nodes import Run, curve, epochs_of
from gpupipe.tools.planning.report import Network, Plan

__all__ = ["Asked", "planned"]

PARTS = (0.025, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0)  # of the data, for the curve
MOST_READS = 1 << 28
"""Samples times epochs that are gone through on all nodes, at 0.4 to 2.3 us; of more the first node stands for all."""


@dataclass(frozen=True)
class Asked:
    """The run: see `gpupipe plan`. cache: bytes of a node; node_blocks: epochs after which shards are dealt anew.

    Raises ConfigError for a count below 1 (below 0 for `workers`, `seed` and `cache`).
    """

    nodes: int = 1
    ranks_per_node: int = 1
    batch_size: int = 128
    epochs: int = 10
    workers: int = 8
    seed: int = 0
    drop_last: bool = False
    cache: int = 0
    node_blocks: int | None = None

    def __post_init__(self) -> None:
        at_least(self, "nodes ranks_per_node batch_size epochs node_blocks", 1)
        at_least(self, "workers seed cache", 0)

    @property
    def global_batch(self) -> int:
        """Samples a step."""
        return self.nodes * self.ranks_per_node * self.batch_size


def planned(source: Source, asked: Asked, network: Network) -> Plan:
    """Raises DataError where the samples' sizes are not known, ConfigError for an epoch without a step."""
    layout = layout_of(source)
    order = _order(source, asked)
    batches = RankBatches(len(order), asked.batch_size, 0, asked.nodes * asked.ranks_per_node, asked.drop_last)
    if not len(batches):
        raise ConfigError(f"an epoch of {len(order)} samples has no full batch of {batches.global_batch}")
    each = layout.space(np.arange(len(layout.sizes)))
    data, mean = int(each.sum()), float(each.mean())
    ahead = network.processes * min(MOST, (source.looks_ahead or LOOKS_AHEAD) * mean)  # local data does not say
    jobs = outstanding(max(1, asked.workers), PREFETCH["torch"])
    under_way = mean * asked.batch_size * asked.ranks_per_node, jobs, ahead
    room = room_for(asked.cache, *under_way)
    run = Run(order, asked.seed, batches, asked.ranks_per_node, asked.epochs, room.capacity, room.lag)
    nodes = range(asked.nodes) if len(order) * asked.epochs <= MOST_READS else range(1)
    found = []
    with progress("nodes", len(nodes)) as done:
        for one in epochs_of(run, layout, nodes):
            found.append(one)
            done(1)
    held = [int(data * part) for part in PARTS]
    sizes = [size_for(capacity, *under_way) for capacity in held]
    return Plan(run, network, asked.cache, data, nodes, found, sizes, curve(run, layout, held))


def _order(source: Source, asked: Asked) -> Order:
    if asked.node_blocks is None:
        return source.usual_order(True)
    return NodeBlocks.of_shards(source, asked.nodes, asked.global_batch, asked.node_blocks)
