"""Processes or threads for the torch engine's work: each mix in turn, on one CPU and on all.

    python bench/workers.py [DATA] [--rounds 5] [--seconds 3] [--batch-size 128] [--out FOLDER]

A mix is so many worker processes of the DataLoader (0: the work is done in the consumer's process), each with so many
threads of the C++ kernel. The consumer takes uint8 batches and does nothing with them. Prints images a second, CPU time
an image, seconds to the first batch and memory (anonymous memory by PSS, files once), medians of the rounds.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

__all__ = ["main"]

FIGURES = ("img_s", "cpu_ms", "first_s", "memory_mb")
HEADINGS = ("img/s", "CPU ms", "first s", "MB")


def mixes(cpus: Sequence[int]) -> list[tuple[int, int, list[int]]]:
    """Processes, threads of each, and the CPUs to run on."""
    n = len(cpus)
    on_all = [(n, 1), (1, n), (0, n), (n, 2)]
    unique = dict.fromkeys(on_all if n > 1 else [])
    return [(*mix, list(cpus)) for mix in unique] + [(*mix, [cpus[0]]) for mix in ((1, 1), (0, 1))]


def child(data: str, processes: int, threads: int, seconds: float, batch_size: int) -> dict[str, float]:
    """One measurement, in a process of its own."""
    import torch

    from gpupipe import imagenet_train, open_source
    from gpupipe.batch import Job
    from gpupipe.decode import rendering, torch as engine
    from gpupipe.host.usage import cpu_seconds, memory_mb, process_tree

    source = open_source(data)

    def jobs() -> Iterator[Job]:
        rng = np.random.default_rng(0)
        while True:
            yield Job(0, 0, rng.integers(0, 2**40, batch_size), rng.integers(0, len(source), batch_size))

    rendering.THREADS = threads  # the workers are forked with it
    ahead = {"prefetch_factor": 2} if processes else {}
    made = engine.TorchEngine(
        rendering.Rendering(source, (imagenet_train(dtype="uint8"),), augmented=True),
        torch.device("cpu"),
        batch_size=batch_size,
        num_workers=processes,
        generator=torch.Generator(),
        describe=source.location,
        dataset=source,
        **ahead,
    )
    start = time.perf_counter()
    stream = made.stream(jobs())
    next(stream)
    first = time.perf_counter() - start
    for _ in range(3 * max(processes, 1)):
        next(stream)
    count, cpu, start = 0, cpu_seconds(), time.perf_counter()
    while time.perf_counter() - start < seconds or count % max(processes, 1):  # whole turns of the workers
        next(stream)
        count += 1
    elapsed, images = time.perf_counter() - start, count * batch_size
    memory = memory_mb(process.pid for process in process_tree())
    cpu = cpu_seconds() - cpu
    made.close()
    return {"img_s": images / elapsed, "cpu_ms": 1e3 * cpu / images, "first_s": first, "memory_mb": memory}


def measure(mix: tuple[int, int, list[int]], args: argparse.Namespace) -> dict[str, float]:
    """`child` in a new process on the mix's CPUs."""
    processes, threads, cpus = mix
    numbers = (processes, threads, args.seconds, args.batch_size)
    command = [sys.executable, __file__, args.data, "--child", *map(str, numbers)]
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        preexec_fn=lambda: os.sched_setaffinity(0, cpus),
    )
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?", help="image folder or shards (default: the made sample set)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N")
    parser.add_argument("--seconds", type=float, default=3, metavar="S", help="of each round")
    parser.add_argument("--batch-size", type=int, default=128, metavar="N")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for workers.csv")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.child:
        processes, threads, seconds, batch_size = args.child
        print(json.dumps(child(args.data, int(processes), int(threads), float(seconds), int(batch_size))))
        return
    if args.data is None:
        from gpupipe.tools.benchmark.sample_set import sample_set

        args.data = str(sample_set())
    chosen = mixes(sorted(os.sched_getaffinity(0)))
    rounds = [[measure(mix, args) for mix in chosen] for _ in range(args.rounds)]
    lines = [["processes", "threads", "CPUs", *HEADINGS, "img/s min", "img/s max"]]
    for (processes, threads, cpus), results in zip(chosen, zip(*rounds, strict=True), strict=True):
        medians = [f"{statistics.median(result[figure] for result in results):.6g}" for figure in FIGURES]
        rates = [result["img_s"] for result in results]
        lines.append([str(processes), str(threads), str(len(cpus)), *medians, f"{min(rates):.6g}", f"{max(rates):.6g}"])
    for line in lines:
        print("".join(f"{cell:>11}" for cell in line))
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        with open(args.out / "workers.csv", "w", newline="") as file:
            csv.writer(file).writerows(lines)


if __name__ == "__main__":
    main()
