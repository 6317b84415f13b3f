"""One of every kind of order, over a dataset of `SIZE` samples."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from torch.utils.data import RandomSampler

from gpupipe.order import (
    BlockShuffled,
    Buckets,
    BudgetBatches,
    Interleaved,
    NodeBlocks,
    Order,
    Repeated,
    SamplerOrder,
    Sequential,
    Shuffled,
    Stratified,
    Subset,
    VirtualEpochs,
    Weighted,
)

SIZE = 37
LABELS = np.arange(SIZE) ** 2 % 3  # 13 of class 0, 24 of class 1


class Users:
    """A user's order, without `samples`: the samples in turn, from another one on in every epoch."""

    fingerprint = "users"

    def __len__(self) -> int:
        return SIZE

    def indices(self, seed: int, epoch: int, positions: np.ndarray) -> np.ndarray:
        return (positions + (epoch + 7 * seed) % SIZE) % SIZE


EVERY_ORDER: dict[str, Callable[[], Order]] = {
    "sequential": lambda: Sequential(SIZE),
    "shuffled": lambda: Shuffled(SIZE),
    "subset": lambda: Subset([5, 3, 30, 36, 0, 11, 12, 9, 7, 2, 1, 20, 21]),
    "subset-shuffled": lambda: Subset(np.arange(SIZE - 9), shuffle=True),
    "weighted": lambda: Weighted(np.arange(SIZE)),
    "weighted-once": lambda: Weighted(np.arange(SIZE), num_samples=20, replacement=False),
    "balanced": lambda: Weighted.balanced(LABELS, num_samples=50),
    "repeated": lambda: Repeated(Shuffled(SIZE), 3),
    "repeated-all": lambda: Repeated(Users(), 2, num_samples=2 * SIZE),
    "blocks": lambda: BlockShuffled([9, 0, 4, 11, 1, 12], window=2),
    "node-blocks": lambda: NodeBlocks([9, 0, 4, 11, 1, 12], nodes=4, batch_size=8, every=2),
    "node-blocks-few": lambda: NodeBlocks([30, 7], nodes=8, batch_size=8),
    "stratified": lambda: Stratified(LABELS, batch_size=8),
    "buckets": lambda: Buckets(LABELS, [8, 5]),
    "buckets-full": lambda: Buckets(LABELS, 8, drop_last=True),
    "length": lambda: Buckets.by_size(1 + LABELS * 3, 8),
    "budget": lambda: BudgetBatches(Shuffled(SIZE), 1 + LABELS, 10, 8),
    "virtual": lambda: VirtualEpochs(Shuffled(SIZE), 29),
    "virtual-long": lambda: VirtualEpochs(BlockShuffled([5] * 5, window=3), 60),
    "virtual-of-repeated-users": lambda: VirtualEpochs(Repeated(Users(), 2), 41),
    "mixture": lambda: Interleaved([Shuffled(20), Shuffled(5)], [20, 5], [0.7, 0.3], 170),
    "mixture-schedule": lambda: Interleaved([Shuffled(17), BlockShuffled([9, 11], 1)], [17, 20], [[1, 0.2], 0.5]),
    "sampler": lambda: SamplerOrder(RandomSampler(range(SIZE))),
    "users": Users,
}


def everything(order: Order, seed: int = 0, epoch: int = 0) -> np.ndarray:
    """The samples of a whole epoch."""
    return order.indices(seed, epoch, np.arange(len(order)))
