"""Which sample stands at which position of an epoch, as a pure function of (seed, epoch, position).

No order holds random state, so any rank can resume at any position without replaying what came before.
"""

from __future__ import annotations

from gpupipe.order.batches import BatchesOrder as BatchesOrder
from gpupipe.order.blocks import BlockShuffled
from gpupipe.order.buckets import Buckets
from gpupipe.order.budgets import BudgetBatches
from gpupipe.order.future import NEVER as NEVER, Future as Future
from gpupipe.order.mixture import Interleaved as Interleaved
from gpupipe.order.node_blocks import NodeBlocks
from gpupipe.order.plain import Sequential, Shuffled, Subset
from gpupipe.order.protocol import Order
from gpupipe.order.ranks import RankBatches as RankBatches, cut_by as cut_by
from gpupipe.order.repeated import Repeated, VirtualEpochs
from gpupipe.order.sampler import SamplerOrder as SamplerOrder
from gpupipe.order.splitting import split
from gpupipe.order.stratified import Stratified
from gpupipe.order.weighted import Weighted

__all__ = [
    "BlockShuffled",
    "Buckets",
    "BudgetBatches",
    "NodeBlocks",
    "Order",
    "Repeated",
    "Sequential",
    "Shuffled",
    "Stratified",
    "Subset",
    "VirtualEpochs",
    "Weighted",
    "split",
]
