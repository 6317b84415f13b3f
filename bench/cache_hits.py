"""What nodes really fetch, beside what `gpupipe plan` says before and beside Belady's optimum.

    python bench/cache_hits.py [--held 800] [--nodes 8] [--epochs 5] [--out FOLDER]

Processes stand for nodes: each is one rank with a cache of its own, on a web server of its own that counts the bytes
of all bodies, and all go through each epoch at the same time. The caches take 5, 10 and 25 % of the data, of which
there is as much as makes room for some 800 samples in each. Samples are small images in tar shards, made 1 to 12 kB
long. For each node and epoch the server's bytes and requests, and the loader's hits, have to be those of the plan; what
is not is listed. Belady's rule (`belady.py`) goes through a list of all that the node reads, with the future in it, and
may use all of the cache, of which the plan leaves some for what is under way: 14 samples here, whatever the size.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

sys.path += [str(Path(__file__).parent), str(Path(__file__).parent.parent / "tests")]

import numpy as np
from belady import belady
from numpy.typing import NDArray
from servers.faults import FaultServer
from tars import jpeg, write_tar

import gpupipe
from gpupipe.host.children import Child
from gpupipe.host.machine import machine
from gpupipe.sources.remote import source as remote_source
from gpupipe.sources.remote.cache import on_disk
from gpupipe.tools.planning.nodes import Run
from gpupipe.tools.planning.planned import Asked, planned
from gpupipe.tools.planning.report import Network, Plan

__all__ = ["Node", "main"]

SHARES = "0.05,0.1,0.25"
SHARDS, IMAGES = 8, 8
SMALLEST, LARGEST = 1_000, 12_000  # bytes of a sample
BATCH, LOOKS_AHEAD = 1, 1  # of few samples little is under way
PATIENCE = 600.0


class Node:
    """A rank, in a process of its own."""

    def __init__(self, url: str, scratch: str, size: int, rank: int, nodes: int) -> None:
        os.environ["GPUPIPE_CACHE"] = scratch
        remote_source.LOOKS_AHEAD = LOOKS_AHEAD  # type: ignore[attr-defined]
        cache = gpupipe.Cache(scratch, size, reserve=0)
        recipe = gpupipe.imagenet_eval(16)
        self._loader = gpupipe.Loader(
            url, recipe, BATCH, True, cache=cache, num_workers=0, engine="torch", rank=rank, world_size=nodes
        )

    def ready(self) -> None:
        """All is opened."""

    def epoch(self) -> dict[str, float]:
        """Go through one; the loader's counters after it."""
        for _ in self._loader:
            pass
        return self._loader.stats()

    def close(self) -> None:
        """End it."""
        self._loader.close()


def made(folder: Path, samples: int) -> None:
    """Shards."""
    rng = np.random.default_rng(0)
    images = [jpeg(number, 16, 16) for number in range(IMAGES)]
    for shard, numbers in enumerate(np.array_split(np.arange(samples), SHARDS)):
        members = []
        for number in numbers.tolist():
            data = images[number % IMAGES].ljust(int(rng.integers(SMALLEST, LARGEST)), b"\0")
            members += [(f"{number:07}.jpg", data), (f"{number:07}.cls", b"0")]
        write_tar(folder / f"{shard:03}.tar", members)


@contextmanager
def served(folder: Path, nodes: int) -> Iterator[list[FaultServer]]:
    """A server for each node, over the same bytes."""
    objects = {path.name: path.read_bytes() for path in sorted(folder.glob("*.tar"))}
    with ExitStack() as stack:
        servers = [stack.enter_context(FaultServer()) for _ in range(nodes)]
        for server in servers:
            for name, data in objects.items():
                server.put(name, data)
        yield servers


def url_of(server: FaultServer) -> str:
    """Of all shards."""
    return f"{server.url}/{{000..{SHARDS - 1:03}}}.tar"


def plan_of(server: FaultServer, nodes: int, epochs: int, share: float) -> tuple[Plan, NDArray[np.int64]]:
    """What `gpupipe plan` says, and what each sample takes of a cache."""
    remote_source.LOOKS_AHEAD = LOOKS_AHEAD  # type: ignore[attr-defined]
    source = gpupipe.open_source(url_of(server), cache=None)
    sizes = source.stored_bytes(np.arange(len(source)))
    assert sizes is not None
    space = on_disk(sizes)
    asked = Asked(nodes, 1, BATCH, epochs, workers=0, cache=int(share * space.sum()))
    return planned(source, asked, Network()), space


def ran(servers: Sequence[FaultServer], size: int, epochs: int) -> list[list[dict[str, int]]]:
    """What each node fetched in each epoch: hits by its loader, bytes and requests by its server."""
    nodes = len(servers)
    with tempfile.TemporaryDirectory() as scratch, open(os.devnull, "wb") as log, ThreadPoolExecutor(nodes) as pool:
        arguments = [(url_of(server), f"{scratch}/{rank}", size, rank, nodes) for rank, server in enumerate(servers)]
        children = [Child("cache_hits:Node", one, log, PATIENCE) for one in arguments]
        try:
            list(pool.map(lambda child: child.ask("ready"), children))
            for server in servers:
                server.log.clear()  # of what an index is made of
            counts = [[(0, 0, 0)] for _ in children]
            for _ in range(epochs):
                stats = list(pool.map(lambda child: child.ask("epoch"), children))
                for server, found, count in zip(servers, stats, counts, strict=True):
                    count.append((int(found["cache_hits"]), server.body_bytes, len(server.requests())))
        finally:
            for child in children:
                child.kill()
    names = ("hits", "fetched", "requests")
    return [
        [dict(zip(names, np.subtract(*pair).tolist(), strict=True)) for pair in zip(count[1:], count[:-1], strict=True)]
        for count in counts
    ]


def optimum(run: Run, space: NDArray[np.int64], size: int, node: int) -> int:
    """The hits of a node whose cache has `size` bytes, by Belady's rule."""
    future = run.future(node)
    steps = [(epoch, step) for epoch in range(4 * run.epochs) for step in range(len(future.cut(epoch)))]
    reads = np.concatenate([future.uses(*step) for step in steps])
    return sum(belady(reads, space, size)[: len(reads) // 4])


def compared(plan: Plan, found: list[list[dict[str, int]]]) -> list[str]:
    """Where a node's epoch was another than planned."""
    return [
        f"node {node}, epoch {epoch}: {name} {count}, planned {getattr(plan.found[node], name)[epoch]}"
        for node, epochs in enumerate(found)
        for epoch, counts in enumerate(epochs)
        for name, count in counts.items()
        if count != getattr(plan.found[node], name)[epoch]
    ]


def measure(held: int, nodes: int, epochs: int, shares: Sequence[float]) -> tuple[list[dict[str, Any]], list[str]]:
    """A row for each size of the caches, and all differences."""
    rows, differences = [], []
    for share in shares:
        with scratch() as folder:
            made(folder, round(held / share))
            with served(folder, nodes) as servers:
                plan, space = plan_of(servers[0], nodes, epochs, share)
                found = ran(servers, plan.cache, epochs)
        differences += [f"{share:.0%}: {line}" for line in compared(plan, found)]
        totals = {name: sum(counts[name] for node in found for counts in node) for name in found[0][0]}
        optima = [[optimum(plan.run, space, size, node) for node in range(nodes)] for size in sizes_of(plan)]
        nearest = [
            sum(counts["hits"] for counts in node) / max(1, best) for node, best in zip(found, optima[0], strict=True)
        ]
        row = {"cache": share, "samples": len(space), "reads": int(plan.of("samples").sum()), **totals}
        rows.append(row | {"optimum": sum(optima[0]), "optimum_of_held": sum(optima[1]), "least": min(nearest)})
    return rows, differences


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder, in which indexes are kept as well."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["GPUPIPE_CACHE"] = f"{folder}/index"
        yield Path(folder)


def sizes_of(plan: Plan) -> tuple[int, int]:
    """Of the cache, and of what the plan may hold of it."""
    return plan.cache, plan.run.capacity


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown."""
    names = ("cache of each", "samples", "hits", "Belady's optimum", "of what may be held", "hits of the optimum's")
    names += ("of the node with the fewest", "GB from storage", "requests")
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for row in rows:
        rates = [f"{row[name] / row['reads']:.4f}" for name in ("hits", "optimum", "optimum_of_held")]
        near = f"{row['hits'] / row['optimum']:.2%} | {row['least']:.2%}"
        fetched = f"{row['fetched'] / 1e9:.3f} | {row['requests']:,}"
        lines.append(f"| {row['cache']:.0%} | {row['samples']:,} | {' | '.join(rates)} | {near} | {fetched} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, run, print, write; 1 where something was another than planned."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--held", type=int, default=800, metavar="N", help="samples that a cache has room for, some")
    parser.add_argument("--nodes", type=int, default=8, metavar="N")
    parser.add_argument("--epochs", type=int, default=5, metavar="N")
    parser.add_argument("--shares", default=SHARES, metavar="X,X", help="of the data that a cache takes")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for results.md and results.json")
    args = parser.parse_args(argv)
    shares = [float(share) for share in args.shares.split(",")]
    rows, differences = measure(args.held, args.nodes, args.epochs, shares)
    print(table(rows))
    print("\n".join(differences) or "every node's bytes, requests and hits of each epoch are as planned")
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "results.md").write_text(table(rows) + "\n")
        settings = {"held": args.held, "nodes": args.nodes, "epochs": args.epochs}
        content = {"environment": machine() | {"settings": settings}, "rows": rows, "differences": differences}
        (args.out / "results.json").write_text(json.dumps(content, indent=1) + "\n")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
