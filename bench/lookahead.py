"""What it costs to know what a node reads next: CPU time, memory, and what a resume waits for.

    python bench/lookahead.py [--samples 1281167,1000000000] [--rounds 5] [--out FOLDER]
    python bench/lookahead.py --scale [--samples 1000000000] [--shards 1000000] [--nodes 32] [--ranks 8] [--out FOLDER]

Without `--scale`: nanoseconds a sample of `Future.next_use`, of what a node of 1, 8 and 32 reads, 16,384 samples at
once, for the epochs that the plan of a cache of a tenth of the data looks ahead; and of that plan (`Retention`) in all:
what is read, when it comes again, what is kept. CPU time of the working thread in epoch 50, the median of the rounds,
the smallest and the largest.

With `--scale`, of each order on one rank of many: its memory (tracemalloc); seconds until a resume in mid-epoch has the
sample indices of its first batch, with the order made, and until the node's plan stands there; what the plan then takes
for a sample, and its memory for each that it holds, with what the kernel says of its own. And the memory of the index:
its bytes a sample and a shard, of shards that are written for it, for so many.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import tarfile
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
from PIL import Image

import gpupipe
from gpupipe.host.machine import machine
from gpupipe.order import BlockShuffled, Future, NodeBlocks, Order, RankBatches, Shuffled
from gpupipe.order.retention import Retention
from gpupipe.sources.storage import open_index

__all__ = ["main"]

SHARE = 0.1
AHEAD = {1: 5, 8: 8, 32: 21}  # epochs that are looked ahead with so many nodes and that share
AT_ONCE = 16384
BATCH = 256  # of a rank
BYTES = 110_000  # of a sample
EPOCH = 50
MB, GB = 1e6, 1e9

Row = dict[str, object]


def orders(samples: int, shards: int, nodes: int, batch_size: int) -> dict[str, Callable[[], Order]]:
    """Name -> what makes it."""
    sizes = np.diff(np.linspace(0, samples, shards + 1).astype(np.int64))
    return {
        "Shuffled": partial(Shuffled, samples),
        "NodeBlocks, every=5": partial(NodeBlocks, sizes, nodes, batch_size, 5),
        "BlockShuffled, window=16": partial(BlockShuffled, sizes, 16),
    }


def sizes_of(indices: np.ndarray) -> np.ndarray:
    """All samples are of one size."""
    return np.full(len(indices), BYTES)


def seconds(work: Callable[[], object]) -> float:
    """CPU seconds that it takes."""
    start = time.thread_time()
    work()
    return time.thread_time() - start


def points(future: Future, step: int = 0) -> Iterator[tuple[int, int]]:
    """Epoch and step, from there on."""
    epoch = EPOCH
    while True:
        yield from ((epoch, later) for later in range(step, len(future.cut(epoch))))
        epoch, step = epoch + 1, 0


def cost(samples: Sequence[int], rounds: int) -> list[Row]:
    """Nanoseconds, for each order, size and number of nodes."""
    rows: list[Row] = []
    for size in samples:
        for nodes, ahead in AHEAD.items():
            for name, make in orders(size, max(1, size // 1000), nodes, nodes * BATCH).items():
                future = Future(make(), 0, RankBatches(size, BATCH, 0, nodes, drop_last=True), range(1))
                facts = {"order": name, "samples": size, "nodes": nodes, "epochs": ahead}
                rows.append(facts | {"next_use_ns": next_uses(future, ahead, rounds), "plan_ns": plans(future, rounds)})
    return rows


def next_uses(future: Future, ahead: int, rounds: int) -> list[float]:
    """Of each round, after one that is not counted."""
    steps = np.arange(min(AT_ONCE // BATCH, len(future.cut(EPOCH))))
    indices = np.concatenate([future.uses(EPOCH, step) for step in steps.tolist()])
    work = partial(future.next_use, indices, EPOCH, np.repeat(steps, BATCH), ahead)
    return [1e9 * seconds(work) / len(indices) for _ in range(rounds + 1)][1:]


def plans(future: Future, rounds: int) -> list[float]:
    """Likewise, of consecutive steps."""
    plan = Retention(future, sizes_of, int(SHARE * future.batches.size * BYTES), begin=(EPOCH, 0))
    steps, count = points(future), AT_ONCE // BATCH
    works = [partial(planned, plan, [*islice(steps, count)]) for _ in range(rounds + 1)]
    return [1e9 * seconds(work) / (count * BATCH) for work in works][1:]


def planned(plan: Retention, steps: Sequence[tuple[int, int]]) -> None:
    """So many steps of the plan."""
    for step in steps:
        plan.at(*step)


def scale(samples: int, shards: int, nodes: int, ranks: int, steps: int) -> list[Row]:
    """Of each order, on a rank of the last node, and of so many steps of its plan."""
    world = nodes * ranks
    batches = RankBatches(samples, BATCH, world - 1, world, drop_last=True)
    made = orders(samples, shards, nodes, world * BATCH)
    return [{"order": name} | at_scale(make, batches, ranks, steps) for name, make in made.items()]


def at_scale(make: Callable[[], Order], batches: RankBatches, ranks: int, steps: int) -> Row:
    """Memory, and what a resume in the middle of an epoch waits for."""
    step = len(batches) // 2
    here = range(batches.world_size - ranks, batches.world_size)
    capacity = batches.size * BYTES * ranks // batches.world_size  # a share of the data
    first = seconds(lambda: make().indices(0, EPOCH, batches.positions(step)))
    tracemalloc.start()
    order = make()
    order.indices(0, EPOCH, batches.positions(step))
    order_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    future = Future(order, 0, batches, here)
    begins = seconds(lambda: begun(future, capacity, step))
    some = [*islice(points(future, step + 1), steps)]
    tracemalloc.start()
    plan = begun(future, capacity, step)
    planned(plan, some)
    plan_bytes = tracemalloc.get_traced_memory()[0] + getattr(plan._policy, "nbytes", 0)  # of the kernel
    tracemalloc.stop()
    plan = begun(future, capacity, step)
    plan_ns = 1e9 * seconds(partial(planned, plan, some)) / (len(some) * BATCH * ranks)
    return {
        "order_mb": order_bytes / MB,
        "first_batch_s": first,
        "plan_begins_s": begins,
        "plan_ns": plan_ns,
        "held": len(plan.held()),
        "bytes_per_held": plan_bytes / max(1, len(plan.held())),
    }


def begun(future: Future, capacity: int, step: int) -> Retention:
    """The node's plan, which has given the step."""
    plan = Retention(future, sizes_of, capacity, begin=(EPOCH, step))
    plan.at(EPOCH, step)
    return plan


def index_bytes(shards: int = 4, per_shard: int = 250) -> tuple[float, float]:
    """Bytes of a sample's entries in the arrays of an index, and of a shard's in its notes. Keys have 12 characters."""
    image = io.BytesIO()
    Image.new("RGB", (8, 8)).save(image, "JPEG")
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"train-{number:07d}.tar" for number in range(shards)]
        for number, path in enumerate(paths):
            with tarfile.open(path, "w") as tar:
                for sample in range(number * per_shard, (number + 1) * per_shard):
                    for extension, data in (("jpg", image.getvalue()), ("cls", b"7")):
                        member = tarfile.TarInfo(f"{sample:012d}.{extension}")
                        member.size = len(data)
                        tar.addfile(member, io.BytesIO(data))
        index = open_index(Path(gpupipe.open_source([*map(str, paths)]).index_path))  # type: ignore[attr-defined]
        arrays = sum(array.nbytes for array in index.arrays.values())
        return arrays / (shards * per_shard), len(json.dumps(index.info)) / shards


def cost_table(rows: Sequence[Row]) -> str:
    """Markdown."""
    lines = [
        "| order | samples | nodes | epochs ahead | next use of a sample, ns (min - max) | plan of a sample, ns |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        spans = " | ".join(
            f"{statistics.median(found):,.0f} ({min(found):,.0f} - {max(found):,.0f})"
            for found in (row["next_use_ns"], row["plan_ns"])
        )
        lines.append(f"| {row['order']} | {row['samples']:,} | {row['nodes']} | {row['epochs']} | {spans} |")
    return "\n".join(lines)


def scale_table(rows: Sequence[Row], settings: dict[str, int], index: tuple[float, float]) -> str:
    """Markdown."""
    samples, shards, nodes, ranks = (settings[name] for name in ("samples", "shards", "nodes", "ranks"))
    lines = [
        f"{samples:,} samples in {shards:,} shards, {nodes} nodes of {ranks} ranks, batches of {BATCH} a rank:",
        "",
        "| order | its memory, MB | first batch after a resume, s | plan after a resume, s | plan of a sample, ns | "
        "samples that it then holds | bytes for each |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {row['order']} | {row['order_mb']:,.1f} | {row['first_batch_s']:.3f} | {row['plan_begins_s']:.1f} | "
            f"{row['plan_ns']:,.0f} | {row['held']:,} | {row['bytes_per_held']:.0f} |"
        )
    whole = (index[0] * samples + index[1] * shards) / GB
    return "\n".join(
        [
            *lines,
            "",
            f"Index: {index[0]:.0f} bytes a sample and {index[1]:.0f} a shard: {whole:.1f} GB in each process that has "
            f"one of its own, {whole * ranks:,.0f} GB a node where each rank has; of a node's share of the shards "
            f"{whole / nodes:.1f} GB.",
        ]
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", action="store_true", help="one size, and all that is needed there")
    parser.add_argument("--samples", metavar="N,N", help="1281167,1000000000; with --scale 1000000000")
    parser.add_argument("--shards", type=int, default=10**6, metavar="N", help="with --scale")
    parser.add_argument("--nodes", type=int, default=32, metavar="N", help="with --scale")
    parser.add_argument("--ranks", type=int, default=8, metavar="N", help="of each node, with --scale")
    parser.add_argument("--steps", type=int, default=512, metavar="N", help="of the plan, with --scale")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="without --scale")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for NAME.md and NAME.json: cost or scale")
    args = parser.parse_args(argv)
    sizes = [int(size) for size in (args.samples or ("1000000000" if args.scale else "1281167,1000000000")).split(",")]
    if args.scale:
        settings = {"samples": sizes[0], "shards": args.shards, "nodes": args.nodes, "ranks": args.ranks}
        settings["steps"] = args.steps
        rows, index = scale(**settings), index_bytes()
        text, more = scale_table(rows, settings, index), {"index_bytes": index}
    else:
        settings, rows = {"rounds": args.rounds, "at_once": AT_ONCE}, cost(sizes, args.rounds)
        text, more = cost_table(rows), {}
    print(text)
    if args.out:
        name = "scale" if args.scale else "cost"
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / f"{name}.md").write_text(text + "\n")
        content = {"environment": machine() | {"settings": settings}, "rows": rows} | more
        (args.out / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
