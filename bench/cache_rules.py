"""How often a node's cache hits by the rule that it goes by, simulated.

    python bench/cache_rules.py [--samples 16000] [--epochs 20] [--nodes 1,8,32] [--out FOLDER]

Each node reads its ranks' part of every epoch, and has room for a part of the samples, which are all of one size. Hits
are counted on the first node, after as many epochs as fill its cache and change what is in it. Each rule is written
down plainly here, over a list of all that the node reads:

- LRU: what was used last stays;
- pinned: what came first stays (CoorDL's MinIO cache, arXiv 2007.06775);
- Belady: what is needed last goes, or is not taken in; the list has the whole future;

and beside them gpupipe's own plan (`gpupipe.order.retention`), which has no list, and has to hit as Belady's rule does.
The orders are a full shuffle, and NodeBlocks with shards of 100 samples that are dealt anew after 5 epochs.
"""

from __future__ import annotations

import argparse
import json
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
from belady import belady

from gpupipe.host.machine import machine
from gpupipe.order import Future, NodeBlocks, Order, RankBatches, Shuffled
from gpupipe.order.retention import Retention

__all__ = ["RULES", "Node", "main"]

SHARES = (0.05, 0.10, 0.25)
SHARD = 100
EVERY = 5
ROWS = 10  # of a node in each batch
KINDS = ("full shuffle", f"NodeBlocks, every={EVERY}")


@dataclass(frozen=True)
class Node:
    """The first of several nodes, one rank on each, with room for so many samples. Counted are the `epochs` that follow
    the first `warm` ones."""

    order: Order
    nodes: int
    room: int
    warm: int
    epochs: int

    @property
    def batches(self) -> RankBatches:
        """How an epoch is cut."""
        return RankBatches(len(self.order), ROWS, 0, self.nodes, drop_last=True)

    def steps(self, epochs: int) -> Iterator[tuple[int, int]]:
        """Epoch and step of all that it reads in so many epochs."""
        return ((epoch, step) for epoch in range(epochs) for step in range(len(self.batches)))

    def read(self, epochs: int) -> list[int]:
        """All samples that it reads in so many epochs, in turn."""
        parts = [self.order.indices(0, epoch, self.batches.positions(step)) for epoch, step in self.steps(epochs)]
        return np.concatenate(parts).tolist()

    def rate(self, hits: Sequence[bool]) -> float:
        """The part of reads that hit in the epochs that are counted."""
        reads = len(self.batches) * ROWS
        return float(np.mean(hits[self.warm * reads : (self.warm + self.epochs) * reads]))


def lru(node: Node) -> list[bool]:
    """Whether each read hits where what was used last stays."""
    held: OrderedDict[int, None] = OrderedDict()
    hits = []
    for sample in node.read(node.warm + node.epochs):
        hits.append(sample in held)
        held[sample] = None
        held.move_to_end(sample)
        if len(held) > node.room:
            held.popitem(last=False)
    return hits


def pinned(node: Node) -> list[bool]:
    """Where what came first stays."""
    held: set[int] = set()
    hits = []
    for sample in node.read(node.warm + node.epochs):
        hits.append(sample in held)
        if len(held) < node.room:
            held.add(sample)
    return hits


def furthest(node: Node) -> list[bool]:
    """Where what is needed last goes, be it what was just read."""
    reads = node.read(2 * (node.warm + node.epochs))
    return belady(np.array(reads), np.ones(len(node.order), np.int64), node.room)[: len(reads) // 2]


def plan(node: Node) -> list[bool]:
    """By gpupipe's plan."""
    future = Future(node.order, 0, node.batches, range(1))
    retention = Retention(future, lambda indices: np.ones(len(indices), np.int64), node.room)
    return np.concatenate([retention.at(*step).hits for step in node.steps(node.warm + node.epochs)]).tolist()


RULES = {"LRU": lru, "pinned": pinned, "Belady": furthest, "gpupipe": plan}


def simulated(samples: int, epochs: int, counts: Sequence[int]) -> Iterator[tuple[str, float, Node]]:
    """Order, part of the data that a node has room for, node."""
    for nodes, share in product(counts, SHARES):
        whole = samples // (nodes * ROWS) * nodes * ROWS
        orders = (Shuffled(whole), NodeBlocks(np.full(whole // SHARD, SHARD), nodes, nodes * ROWS, EVERY))
        for kind, order in zip(KINDS, orders, strict=True):
            if nodes > 1 or kind == KINDS[0]:
                yield kind, share, Node(order, nodes, int(len(order) * share), max(nodes, EVERY), epochs)


def measure(samples: int, epochs: int, counts: Sequence[int]) -> list[dict[str, object]]:
    """A row for each order, number of nodes and part."""
    rows = []
    for kind, share, node in simulated(samples, epochs, counts):
        rates = {name: node.rate(rule(node)) for name, rule in RULES.items()}
        rows.append({"order": kind, "nodes": node.nodes, "cache": share} | rates)
    return rows


def table(rows: Sequence[dict[str, object]]) -> str:
    """Markdown."""
    lines = [f"| order | nodes | cache of each | {' | '.join(RULES)} |", "|---" * (3 + len(RULES)) + "|"]
    for row in rows:
        rates = " | ".join(f"{row[name]:.3f}" for name in RULES)
        lines.append(f"| {row['order']} | {row['nodes']} | {row['cache']:.0%} | {rates} |")
    return "\n".join(lines)


def plot(rows: Sequence[dict[str, object]], path: Path) -> None:
    """Bars of a full shuffle's hits: a group for each number of nodes and part of the data, a bar for each rule."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = [row for row in rows if row["order"] == KINDS[0]]
    figure = Figure(figsize=(9, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    rules = {"LRU": "#c8ccd0", "pinned": "#9aa0a6", "Belady": "#5f6368", "gpupipe": "#76b900"}
    for number, (rule, color) in enumerate(rules.items()):
        places = [group + 0.2 * (number - 1.5) for group in range(len(shown))]
        axes.bar(places, [row[rule] for row in shown], 0.2, label=rule, color=color)
    labels = [f"{row['nodes']} node{'s' * (row['nodes'] != 1)}\n{row['cache']:.0%}" for row in shown]
    axes.set_xticks(range(len(shown)), labels)
    axes.set(ylabel="share of reads that hit", xlabel="cache of each node, as a part of the data")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=120)


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, simulate, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=16_000, metavar="N")
    parser.add_argument("--epochs", type=int, default=20, metavar="N", help="that are counted, a multiple of 5")
    parser.add_argument("--nodes", default="1,8,32", metavar="N,N")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for results.md, .json and .png")
    args = parser.parse_args(argv)
    rows = measure(args.samples, args.epochs, [int(count) for count in args.nodes.split(",")])
    print(table(rows))
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "results.md").write_text(table(rows) + "\n")
        plot(rows, args.out / "results.png")
        facts = machine() | {"settings": {"samples": args.samples, "epochs": args.epochs}}
        (args.out / "results.json").write_text(json.dumps({"environment": facts, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
