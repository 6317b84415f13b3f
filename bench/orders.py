"""What each order costs: memory, and CPU microseconds for the sample indices of a batch, and back.

    python bench/orders.py [--large 2000000000] [--listed 10000000] [--rounds 5] [--batches 200] [--out FOLDER]

Each order is made over 1,000 samples and over as many as it can take: `--large` for those that keep nothing for each
sample, `--listed` for those that do ("listed" in the table). Memory is what tracemalloc counts of making the order, the
lists that are given to it, and a first batch of 256 in the middle of the epoch: the highest, and what stays. Then, in
turn, `--rounds` times: the first batch of a new epoch, and `--batches` more of it at random places of the middle; the
table has the median of the rounds' means, the smallest and the largest. Back: where these samples come in a later
epoch, by the orders that say so. Times are CPU time of the working thread, so that other processes on the machine weigh
less.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from torch.utils.data import RandomSampler

from gpupipe.host.machine import machine
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
from gpupipe.order.protocol import is_invertible, positions_of

__all__ = ["main"]

BATCH = 256
SMALL = 1000
FAR = 1000  # epochs: no round's first batch finds there what the inverse has made before
MB = 1e6


@dataclass
class Case:
    """An order to measure, and what was found."""

    name: str
    samples: int
    make: Callable[[], Order]
    listed: bool = False
    peak_mb: float = 0.0
    kept_mb: float = 0.0
    build_ms: float = 0.0
    first_ms: list[float] = field(default_factory=list)
    batch_us: list[float] = field(default_factory=list)
    back_us: list[float] = field(default_factory=list)

    def figures(self) -> dict[str, object]:
        """Plain values."""
        return {key: value for key, value in vars(self).items() if key != "make"}


def cases(large: int, listed: int) -> list[Case]:
    """Every order at both sizes."""
    made = []
    for n in (SMALL, large):
        made += [
            Case("Sequential", n, lambda n=n: Sequential(n)),
            Case("Shuffled", n, lambda n=n: Shuffled(n)),
            Case("Repeated(Shuffled, 3)", n, lambda n=n: Repeated(Shuffled(n), 3)),
            Case(
                "Interleaved, 3 of Shuffled",
                n,
                lambda n=n: Interleaved(
                    [Shuffled(size) for size in (n, n // 3, n // 9)], (n, n // 3, n // 9), (5, 3, 1), n
                ),
            ),
            Case("VirtualEpochs(Shuffled)", n, lambda n=n: VirtualEpochs(Shuffled(n), max(1, n * 2 // 3))),
        ]
        for shards in [10] if n == SMALL else [shards for shards in (10**4, 10**5, 10**6) if shards <= large]:
            name = f"BlockShuffled, {shards:,} shards"
            made.append(Case(name, n, lambda n=n, s=shards: BlockShuffled(np.full(s, n // s), window=min(16, s))))
            name = f"NodeBlocks, {shards:,} shards"
            made.append(Case(name, n, lambda n=n, s=shards: NodeBlocks(np.full(s, n // s), 32, 32 * BATCH)))
    for n in (SMALL, listed):
        made += [
            Case("Subset, shuffled", n, lambda n=n: Subset(np.arange(n), shuffle=True), listed=True),
            Case("Weighted", n, lambda n=n: Weighted(np.arange(1, n + 1) / n), listed=True),
            Case("Weighted, replacement=False", n, lambda n=n: without_replacement(n), listed=True),
            Case("Weighted.balanced", n, lambda n=n: Weighted.balanced(labels(n)), listed=True),
            Case("Stratified", n, lambda n=n: Stratified(labels(n), min(4096, n)), listed=True),
            Case("Buckets", n, lambda n=n: Buckets(labels(n) % 16, BATCH), listed=True),
            Case(
                "BudgetBatches(Shuffled)", n, lambda n=n: BudgetBatches(Shuffled(n), 1 + labels(n), 99_999, BATCH), True
            ),
            Case("SamplerOrder(RandomSampler)", n, lambda n=n: SamplerOrder(RandomSampler(range(n))), listed=True),
        ]
    return made


def without_replacement(samples: int) -> Weighted:
    """A weighted permutation."""
    return Weighted(np.arange(1, samples + 1) / samples, replacement=False)


def labels(samples: int) -> np.ndarray:
    """Up to 1,000 classes, in turn."""
    return np.arange(samples) % min(1000, samples // 10)


def middle(order: Order, rng: np.random.Generator) -> np.ndarray:
    """The positions of a batch that begins in the middle tenth of an epoch."""
    size = len(order)
    start = int(rng.integers(size * 9 // 20, size * 11 // 20))
    return start + np.arange(min(BATCH, size - start))


def build(case: Case) -> Order:
    """The order; its memory and time are noted."""
    tracemalloc.start()
    order = case.make()
    order.indices(0, 0, middle(order, np.random.default_rng(0)))
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    case.kept_mb, case.peak_mb = kept / MB, peak / MB
    start = time.thread_time()
    case.make()
    case.build_ms = 1e3 * (time.thread_time() - start)
    return order


def measure(case: Case, order: Order, epoch: int, batches: int) -> None:
    """One round: the first batch of an epoch, and the mean of more."""
    rng = np.random.default_rng(epoch)
    positions = [middle(order, rng) for _ in range(batches + 1)]
    start = time.thread_time()
    order.indices(1, epoch, positions[0])
    first = time.thread_time()
    for some in positions[1:]:
        order.indices(1, epoch, some)
    end = time.thread_time()
    case.first_ms.append(1e3 * (first - start))
    case.batch_us.append(1e6 * (end - first) / batches)
    if is_invertible(order):
        samples = [order.indices(1, epoch, some) for some in positions]
        later = epoch + FAR
        positions_of(order, 1, later, samples[0])
        start = time.thread_time()
        for some in samples[1:]:
            positions_of(order, 1, later, some)
        case.back_us.append(1e6 * (time.thread_time() - start) / batches)


def table(measured: Sequence[Case]) -> str:
    """Markdown."""
    lines = [
        "| order | samples | peak MB | kept MB | made, ms | first batch of an epoch, ms | "
        f"batch of {BATCH}, us (min - max) | back, us |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for case in measured:
        size = f"{case.samples:,}" + (" listed" if case.listed else "")
        batch, back = (
            f"{statistics.median(found):,.0f} ({min(found):,.0f} - {max(found):,.0f})" if found else "-"
            for found in (case.batch_us, case.back_us)
        )
        lines.append(
            f"| {case.name} | {size} | {case.peak_mb:,.2f} | {case.kept_mb:,.2f} | {case.build_ms:,.2f} "
            f"| {statistics.median(case.first_ms):,.2f} | {batch} | {back} |"
        )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", type=int, default=2 * 10**9, metavar="N", help="samples of orders that list none")
    parser.add_argument("--listed", type=int, default=10**7, metavar="N", help="samples of orders that list all")
    parser.add_argument("--rounds", type=int, default=5, metavar="N")
    parser.add_argument("--batches", type=int, default=200, metavar="N", help="in each round")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for results.md and results.json")
    args = parser.parse_args(argv)
    made = cases(args.large, args.listed)
    for case in made:
        if case.samples == SMALL:  # once before, as what NumPy imports on first use counts for no order
            case.make().indices(0, 0, middle(case.make(), np.random.default_rng(0)))
    orders = []
    for case in made:
        print(f"making {case.name} of {case.samples:,}", file=sys.stderr)
        orders.append(build(case))
    for number in range(args.rounds):
        for case, order in zip(made, orders, strict=True):
            measure(case, order, number + 1, args.batches)
    print(table(made))
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "results.md").write_text(table(made) + "\n")
        settings = {"batch_size": BATCH, "rounds": args.rounds, "batches": args.batches}
        content = {"environment": machine() | {"settings": settings}, "orders": [case.figures() for case in made]}
        (args.out / "results.json").write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
