"""How well orders mix a dataset that lies sorted by class in shards, on several nodes.

    python bench/mixing.py [--shards 1000] [--per-shard 1300] [--classes 1000] [--nodes 8] [--epochs 5] [--out FOLDER]

The full shuffle; `BlockShuffled` with several windows; `NodeBlocks`, which deals shards to nodes anew after several
numbers of epochs; and WebDataset's own shuffling in two tiers: shards through a buffer, dealt to the nodes, and samples
of each node through buffers of several sizes, read by one process. Each over several epochs. For batches of
`--batch-size`, of which each node makes an equal part:

- classes: different classes in a batch, and in a node's part of it, which is what batch normalization sees;
  `expected` is the mean of those drawn at random without replacement;
- spread: the variance of a class's count in a batch, over that of the hypergeometric law (1: as if drawn at random);
- neighbours: how often two neighbours in storage come in the same batch, over the chance of that in a full shuffle;
- rank correlation of position and place in storage, without its sign;
- stays: the share of samples that come to the node that had them in the epoch before, which its cache can have;
- again: how often two samples of one node's part of a batch come together so in the next epoch, too, over the chance of
  that in a full shuffle.

`gpupipe pack` shuffles once when it packs; a dataset sorted by class, as here, is the worst case.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np
import webdataset
from webdataset import filters, shardlists

from gpupipe.host.machine import machine
from gpupipe.order import BlockShuffled, NodeBlocks, Order, Shuffled

__all__ = ["main"]

WINDOWS = (1, 4, 16, 64, 256)
EVERY = (1, 2, 5)
BUFFERS = (1000, 5000, 10_000)
SHARD_BUFFER = 100  # what WebDataset takes for shardshuffle=True
WITHIN = ("classes", "node_classes", "spread", "neighbours", "correlation")  # figures of an epoch
BETWEEN = ("stays", "again")  # of one and the next

Epoch = Callable[[int], np.ndarray]  # its number -> samples by their place in storage, (steps, nodes, rows)


@dataclass(frozen=True)
class Storage:
    """A dataset sorted by class, cut into shards of one size."""

    shards: int
    per_shard: int
    classes: int

    def __len__(self) -> int:
        return self.shards * self.per_shard

    def labels(self, samples: np.ndarray) -> np.ndarray:
        """Classes of the samples, all of one size within one sample."""
        return samples * self.classes // len(self)


@dataclass(frozen=True)
class Reading:
    """`nodes` nodes that make `rows` samples each of every batch."""

    nodes: int
    rows: int

    @property
    def batch_size(self) -> int:
        """Of all nodes."""
        return self.nodes * self.rows


def contenders(storage: Storage, reading: Reading) -> dict[str, Epoch]:
    """Name -> its epochs."""
    sizes = np.full(storage.shards, storage.per_shard)
    made = {"full shuffle": partial(ours, reading, Shuffled(len(storage)))}
    for window in (window for window in WINDOWS if window < storage.shards):
        made[f"BlockShuffled, window={window}"] = partial(ours, reading, BlockShuffled(sizes, window))
    for every in EVERY:
        order = NodeBlocks(sizes, reading.nodes, reading.batch_size, every)
        made[f"NodeBlocks, every={every}"] = partial(ours, reading, order)
    for buffer in BUFFERS:
        made[f"webdataset, shardshuffle={SHARD_BUFFER}, shuffle({buffer})"] = partial(
            theirs, storage, reading, SHARD_BUFFER, buffer
        )
    made[f"webdataset, shards in turn, shuffle({BUFFERS[0]})"] = partial(theirs, storage, reading, 0, BUFFERS[0])
    return made


def ours(reading: Reading, order: Order, epoch: int) -> np.ndarray:
    """An epoch of an order."""
    whole = len(order) // reading.batch_size * reading.batch_size
    return order.indices(0, epoch, np.arange(whole)).reshape(-1, reading.nodes, reading.rows)


def theirs(storage: Storage, reading: Reading, shard_buffer: int, buffer: int, epoch: int) -> np.ndarray:
    """An epoch of WebDataset's pipeline, node by node: shards shuffled alike on all, dealt in turn, opened one after
    the other, samples shuffled."""
    parts = []
    for node in range(reading.nodes):
        with mock.patch.dict(os.environ, RANK=str(node), WORLD_SIZE=str(reading.nodes)):
            parts.append(np.fromiter(pipeline(storage, shard_buffer, buffer, (epoch, node)), np.int64))
    steps = min(map(len, parts)) // reading.rows
    return np.stack([part[: steps * reading.rows].reshape(steps, reading.rows) for part in parts], axis=1)


def pipeline(storage: Storage, shard_buffer: int, buffer: int, at: tuple[int, int]) -> webdataset.DataPipeline:
    """What a node of an epoch reads."""

    def opened(shards: Iterator[int]) -> Iterator[int]:
        for shard in shards:
            yield from range(shard * storage.per_shard, (shard + 1) * storage.per_shard)

    shards = [partial(iter, range(storage.shards))]
    if shard_buffer:
        shards.append(filters.detshuffle(shard_buffer, epoch=at[0] - 1))
    samples = filters.shuffle(buffer, rng=random.Random(str(at)))
    return webdataset.DataPipeline(*shards, shardlists.split_by_node, opened, samples)


def quality(storage: Storage, made: np.ndarray) -> dict[str, float]:
    """The figures of one epoch."""
    samples, batch_size = made.reshape(-1), made[0].size
    counts = counted(storage, made.reshape(-1, batch_size))
    share = np.bincount(storage.labels(np.arange(len(storage))), minlength=storage.classes) / len(storage)
    law = batch_size * share * (1 - share) * (len(storage) - batch_size) / (len(storage) - 1)
    batches = batch_of(storage, made.reshape(-1, batch_size))
    together = np.mean((batches[1:] == batches[:-1]) & (batches[1:] >= 0))
    return {
        "classes": float((counts > 0).sum(axis=1).mean()),
        "node_classes": float((counted(storage, made.reshape(-1, made.shape[2])) > 0).sum(axis=1).mean()),
        "spread": float(((counts - batch_size * share) ** 2).mean() / law.mean()),
        "neighbours": float(together / ((batch_size - 1) / (len(samples) - 1))),
        "correlation": float(abs(np.corrcoef(samples, np.arange(len(samples)))[0, 1])),
    }


def change(storage: Storage, made: np.ndarray, following: np.ndarray) -> dict[str, float]:
    """The figures of an epoch and the next."""
    _, nodes, rows = made.shape
    parts = batch_of(storage, following.reshape(-1, rows))[made.reshape(-1, rows)]  # -1: left out there
    same_node = (parts.reshape(made.shape) % nodes == np.arange(nodes)[:, None]) & (parts.reshape(made.shape) >= 0)
    parts = np.sort(parts, axis=1)
    met = sum(((parts[:, by:] == parts[:, :-by]) & (parts[:, by:] >= 0)).sum() for by in range(1, rows))
    expected = made.size * (rows - 1) / 2 * (rows - 1) / (len(storage) - 1)
    return {"stays": float(same_node.mean()), "again": float(met / expected)}


def counted(storage: Storage, batches: np.ndarray) -> np.ndarray:
    """How many of each class are in each batch, (batches, classes)."""
    at = np.arange(len(batches))[:, None] * storage.classes + storage.labels(batches)
    return np.bincount(at.reshape(-1), minlength=len(batches) * storage.classes).reshape(-1, storage.classes)


def batch_of(storage: Storage, batches: np.ndarray) -> np.ndarray:
    """In which batch each sample is; -1: in none."""
    found = np.full(len(storage), -1)
    found[batches] = np.arange(len(batches))[:, None]
    return found


def expected_classes(storage: Storage, batch_size: int) -> float:
    """Different classes in a batch drawn without replacement, in the mean."""
    counts = np.bincount(storage.labels(np.arange(len(storage))), minlength=storage.classes)
    drawn = np.arange(batch_size)[:, None]
    lacking = np.prod(np.maximum(len(storage) - counts - drawn, 0) / (len(storage) - drawn), axis=0)
    return float((1 - lacking).sum())


Rows = dict[str, dict[str, list[float]]]


def measure(storage: Storage, reading: Reading, epochs: int) -> Rows:
    """Contender -> figure -> each epoch's value."""
    rows: Rows = {}
    for name, epoch in contenders(storage, reading).items():
        figures = rows[name] = {figure: [] for figure in (*WITHIN, *BETWEEN)}
        before = None
        for number in range(epochs):
            made = epoch(number)
            found = quality(storage, made) | ({} if before is None else change(storage, before, made))
            for figure, value in found.items():
                figures[figure].append(value)
            before = made
    return rows


def table(rows: Rows, expected: Sequence[float], reading: Reading) -> str:
    """Markdown: medians of the epochs, and means of what is between them."""
    of_all, of_node = expected
    lines = [
        f"| order | classes in a batch of {reading.batch_size} (min - max; expected {of_all:.1f}) | in each of "
        f"{reading.nodes} nodes' part of {reading.rows} (expected {of_node:.1f}) | spread | neighbours | "
        "rank correlation | stays | again |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, figures in rows.items():
        classes, node, spread, neighbours, correlation = (statistics.median(figures[figure]) for figure in WITHIN)
        stays, again = (statistics.mean(figures[figure]) for figure in BETWEEN)
        span = f"{min(figures['classes']):.1f} - {max(figures['classes']):.1f}"
        lines.append(
            f"| {name} | {classes:.1f} ({span}) | {node:.1f} | {spread:.2f} | {neighbours:,.1f} | {correlation:.3f} "
            f"| {stays:.3f} | {again:,.1f} |"
        )
    return "\n".join(lines)


def plot(rows: Rows, expected: float, path: Path) -> None:
    """Bars: classes in a batch, and the spread on a logarithmic scale."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = list(rows)[::-1]
    figure = Figure(figsize=(11, 1.2 + 0.4 * len(names)), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharey=True)
    colors = ["#9aa0a6" if name.startswith("webdataset") else "#76b900" for name in names]
    for axes, which in ((left, "classes"), (right, "spread")):
        values = [statistics.median(rows[name][which]) for name in names]
        axes.bar_label(axes.barh(names, values, color=colors), [f"{value:.3g}" for value in values], padding=4)
        axes.margins(x=0.15)
    left.axvline(expected, color="black", linewidth=0.8)
    left.set(xlabel="different classes in a batch (line: drawn at random)")
    right.axvline(1, color="black", linewidth=0.8)
    right.set(xlabel="variance of class counts, 1: as drawn at random", xscale="log")
    figure.savefig(path, dpi=120)


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=1000, metavar="N")
    parser.add_argument("--per-shard", type=int, default=1300, metavar="N", help="samples of each shard")
    parser.add_argument("--classes", type=int, default=1000, metavar="N")
    parser.add_argument("--nodes", type=int, default=8, metavar="N")
    parser.add_argument("--batch-size", type=int, default=256, metavar="N", help="of all nodes")
    parser.add_argument("--epochs", type=int, default=5, metavar="N", help="2 or more")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for results.md, results.json and results.png")
    args = parser.parse_args(argv)
    storage = Storage(args.shards, args.per_shard, args.classes)
    reading = Reading(args.nodes, args.batch_size // args.nodes)
    expected = [expected_classes(storage, size) for size in (reading.batch_size, reading.rows)]
    rows = measure(storage, reading, args.epochs)
    print(table(rows, expected, reading))
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "results.md").write_text(table(rows, expected, reading) + "\n")
        facts = machine() | {"settings": vars(storage) | vars(reading) | {"epochs": args.epochs}}
        content = {"environment": facts, "expected_classes": expected, "epochs": rows}
        (args.out / "results.json").write_text(json.dumps(content, indent=1) + "\n")
        plot(rows, expected[0], args.out / "results.png")


if __name__ == "__main__":
    main()
