"""How well orders mix a dataset that lies sorted by class in shards.

    python bench/mixing.py [--shards 1000] [--per-shard 1300] [--classes 1000] [--epochs 5] [--out FOLDER]

The full shuffle, `BlockShuffled` with several windows, and WebDataset's own shuffling of shards and samples, with
buffers of several sizes and one reader, each over several epochs. For batches of `--batch-size`:

- classes: different classes in a batch; `expected` is the mean of batches drawn at random without replacement;
- spread: the variance of a class's count in a batch, over that of the hypergeometric law (1: as if drawn at random);
- neighbours: how often two neighbours in storage come in the same batch, over the chance of that in a full shuffle;
- rank correlation of position and place in storage, without its sign.

`gpupipe pack` shuffles once when it packs; a dataset sorted by class, as here, is the worst case.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import webdataset
from webdataset import filters

from gpupipe.host.machine import machine
from gpupipe.order import BlockShuffled, Order, Shuffled

__all__ = ["main"]

WINDOWS = (1, 4, 16, 64, 256)
BUFFERS = (1000, 5000, 10_000)
SHARD_BUFFER = 100  # what WebDataset takes for shardshuffle=True
FIGURES = ("classes", "spread", "neighbours", "correlation")

Epoch = Callable[[int], np.ndarray]  # its number -> samples by their place in storage


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


def contenders(storage: Storage) -> dict[str, Epoch]:
    """Name -> its epochs."""
    sizes = np.full(storage.shards, storage.per_shard)
    made = {"full shuffle": partial(ours, Shuffled(len(storage)))}
    for window in (window for window in WINDOWS if window < storage.shards):
        made[f"BlockShuffled, window={window}"] = partial(ours, BlockShuffled(sizes, window))
    for buffer in BUFFERS:
        made[f"webdataset, shardshuffle={SHARD_BUFFER}, shuffle({buffer})"] = partial(
            theirs, storage, SHARD_BUFFER, buffer
        )
    made[f"webdataset, shards in turn, shuffle({BUFFERS[0]})"] = partial(theirs, storage, 0, BUFFERS[0])
    return made


def ours(order: Order, epoch: int) -> np.ndarray:
    """An epoch of an order."""
    return order.indices(0, epoch, np.arange(len(order)))


def theirs(storage: Storage, shard_buffer: int, buffer: int, epoch: int) -> np.ndarray:
    """An epoch of WebDataset's pipeline: shards shuffled, opened one after the other, samples shuffled."""
    rng = random.Random(epoch)

    def opened(shards: Iterator[int]) -> Iterator[int]:
        for shard in shards:
            yield from range(shard * storage.per_shard, (shard + 1) * storage.per_shard)

    stages = [partial(iter, range(storage.shards)), opened, filters.shuffle(buffer, rng=rng)]
    if shard_buffer:
        stages.insert(1, filters.shuffle(shard_buffer, rng=rng))
    return np.fromiter(webdataset.DataPipeline(*stages), np.int64, count=len(storage))


def quality(storage: Storage, samples: np.ndarray, batch_size: int) -> dict[str, float]:
    """The figures of one epoch, over its full batches."""
    whole = len(samples) // batch_size * batch_size
    batch_of = np.arange(whole) // batch_size
    classes = storage.labels(samples[:whole])
    counts = np.bincount(batch_of * storage.classes + classes, minlength=whole // batch_size * storage.classes)
    counts = counts.reshape(-1, storage.classes)
    share = np.bincount(storage.labels(np.arange(len(storage))), minlength=storage.classes) / len(storage)
    law = batch_size * share * (1 - share) * (len(storage) - batch_size) / (len(storage) - 1)
    places = np.empty(len(samples), np.int64)
    places[samples] = np.arange(len(samples))
    together = np.mean(places[1:] // batch_size == places[:-1] // batch_size)
    return {
        "classes": float((counts > 0).sum(axis=1).mean()),
        "spread": float(((counts - batch_size * share) ** 2).mean() / law.mean()),
        "neighbours": float(together / ((batch_size - 1) / (len(samples) - 1))),
        # of a permutation, whose ranks are its values
        "correlation": float(abs(np.corrcoef(samples, np.arange(len(samples)))[0, 1])),
    }


def expected_classes(storage: Storage, batch_size: int) -> float:
    """Different classes in a batch drawn without replacement, in the mean."""
    counts = np.bincount(storage.labels(np.arange(len(storage))), minlength=storage.classes)
    drawn = np.arange(batch_size)[:, None]
    lacking = np.prod(np.maximum(len(storage) - counts - drawn, 0) / (len(storage) - drawn), axis=0)
    return float((1 - lacking).sum())


Rows = dict[str, dict[str, list[float]]]


def measure(storage: Storage, batch_size: int, epochs: int) -> Rows:
    """Contender -> figure -> each epoch's value."""
    rows: Rows = {}
    for name, epoch in contenders(storage).items():
        found = [quality(storage, epoch(number), batch_size) for number in range(epochs)]
        rows[name] = {figure: [one[figure] for one in found] for figure in FIGURES}
    return rows


def table(rows: Rows, expected: float, batch_size: int) -> str:
    """Markdown, medians of the epochs."""
    lines = [
        f"| order | classes in a batch of {batch_size} (min - max; expected {expected:.1f}) | spread | neighbours | "
        "rank correlation |",
        "|---|---|---|---|---|",
    ]
    for name, figures in rows.items():
        classes, spread, neighbours, correlation = (statistics.median(figures[figure]) for figure in FIGURES)
        span = f"{min(figures['classes']):.1f} - {max(figures['classes']):.1f}"
        lines.append(f"| {name} | {classes:.1f} ({span}) | {spread:.2f} | {neighbours:,.1f} | {correlation:.3f} |")
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
    parser.add_argument("--batch-size", type=int, default=256, metavar="N")
    parser.add_argument("--epochs", type=int, default=5, metavar="N")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for results.md, results.json and results.png")
    args = parser.parse_args(argv)
    storage = Storage(args.shards, args.per_shard, args.classes)
    rows, expected = measure(storage, args.batch_size, args.epochs), expected_classes(storage, args.batch_size)
    print(table(rows, expected, args.batch_size))
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "results.md").write_text(table(rows, expected, args.batch_size) + "\n")
        facts = machine() | {"settings": {"batch_size": args.batch_size, "epochs": args.epochs}}
        content = {"environment": facts, "storage": vars(storage), "expected_classes": expected, "epochs": rows}
        (args.out / "results.json").write_text(json.dumps(content, indent=1) + "\n")
        plot(rows, expected, args.out / "results.png")


if __name__ == "__main__":
    main()
