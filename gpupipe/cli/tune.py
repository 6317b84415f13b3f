"""`gpupipe tune`: finds the fastest settings of a loader on this machine, by measuring, and keeps them."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from gpupipe.cli.extra import require

if TYPE_CHECKING:
    import torch

    from gpupipe.tuning.run import Outcome
    from gpupipe.tuning.settings import TuneSettings

__all__ = ["add_parser", "run"]

GPU_BATCH, CPU_BATCH = 256, 128
BUSY = 0.5  # of the CPUs by load average: what others do then decides with

DESCRIPTION = """
Measures loaders with the recipe imagenet_train on a sample of DATA, each in a child process: on a GPU first each
decoder by itself (hardware engines, hybrid decoder, CPU), then all of them with shares of each batch, threads, workers
and prefetch depth; without a GPU worker processes and prefetch depth. The best are played off in turn against the
default settings and the torch engine. The winner is printed as code and kept in the cache folder: loaders on this
machine that leave out num_workers, prefetch_factor and decoders use it. The sample is read from memory: how fast the
disk is does not count. Writes tune.csv and tune.json into the output folder.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `tune` to the command line."""
    parser = subparsers.add_parser("tune", help="find the fastest settings and keep them", description=DESCRIPTION)
    parser.add_argument("data", nargs="+", metavar="DATA", help="a folder, or .tar shards: paths, 'a-{000..009}.tar'")
    parser.add_argument(
        "--batch-size", type=int, metavar="N", help=f"images a batch (default: {GPU_BATCH}, on a CPU {CPU_BATCH})"
    )
    parser.add_argument("--size", type=int, default=224, metavar="PX", help="side of the images (default: 224)")
    parser.add_argument(
        "--cpus",
        type=int,
        metavar="N",
        help="CPUs that a training process will have (default: those that may be used, shared by the visible GPUs)",
    )
    parser.add_argument("--minutes", type=float, default=4.0, metavar="M", help="time for it, about (default: 4)")
    parser.add_argument("--output", type=Path, default=Path("tune-out"), help="folder for the results")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure, print, write the files, keep what was found."""
    require("psutil")
    from gpupipe.benchmark.environment import machine
    from gpupipe.cli.progress import minutes
    from gpupipe.engines.choose import choose
    from gpupipe.sources import open_source
    from gpupipe.tuned import keep
    from gpupipe.tuning.permitted import permitted
    from gpupipe.tuning.run import tune

    _, device = choose("auto", "auto")
    settings = settings_from(args, device)
    facts = machine() | {"device": str(device), "settings": settings.as_dict()}  # its load average: before measuring
    open_source(settings.data)  # here, where its errors are told and its first scan shows progress
    args.output.mkdir(parents=True, exist_ok=True)
    with minutes(settings.minutes) as say:
        say("self-test of the decoders")
        outcome = tune(settings, device, args.output / "tune.log", say, permitted(device))
    kept = keep(device, outcome.winner.candidate, settings.cpus)
    _print(outcome, settings, kept)
    if facts["load_average"] > BUSY * facts["usable_cpus"]:
        print(f"the machine was busy (load {facts['load_average']:.1f} before it began): tune again when it is idle")
    from gpupipe.tuning.report import write_all

    print(f"written: {', '.join(str(path) for path in write_all(outcome, facts, args.output))}")
    return 0


def settings_from(args: argparse.Namespace, device: torch.device) -> TuneSettings:
    """The settings; what was not given depends on whether there is a GPU."""
    import torch

    from gpupipe.system import default_workers
    from gpupipe.tuning.settings import TuneSettings

    on_gpu = device.type == "cuda"
    batch_size = args.batch_size if args.batch_size is not None else GPU_BATCH if on_gpu else CPU_BATCH
    return TuneSettings(
        data=args.data[0] if len(args.data) == 1 else args.data,
        cpus=args.cpus if args.cpus is not None else default_workers(torch.cuda.device_count() if on_gpu else None),
        batch_size=batch_size,
        size=args.size,
        minutes=args.minutes,
    )


def _print(outcome: Outcome, settings: TuneSettings, kept: bool) -> None:
    from rich.console import Console

    from gpupipe.tuning.report import code, table

    Console().print(table(outcome))
    failed = Counter(trial.reason for trial in outcome.trials if trial.reason)
    for reason, count in failed.items():
        print(f"failed: {count} of {len(outcome.trials)}: {reason}")
    print(code(outcome.winner.candidate))
    if kept:
        print(
            f"kept: loaders on this machine that leave out num_workers, prefetch_factor and decoders use it, in "
            f"processes that have {settings.cpus} CPUs"
        )
