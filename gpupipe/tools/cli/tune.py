"""`gpupipe tune`: finds the fastest settings of a loader on this machine, by measuring, and keeps them."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import TYPE_CHECKING

from gpupipe.errors import ConfigError
from gpupipe.tools.cli.options import (
    DATA,
    Subparsers,
    add_command,
    add_fields,
    add_output,
    data_of,
    fields_of,
    option,
    require,
    say,
)

if TYPE_CHECKING:
    import torch

    from gpupipe.tools.tuning.run import Outcome, TuneSettings

__all__ = ["add_parser", "run"]

GPU_BATCH, CPU_BATCH = 256, 128
NOT_KEPT = 1

DESCRIPTION = """
Measures loaders with the recipe imagenet_train on a sample of DATA, each in a child process: on a GPU first each
decoder by itself (hardware engines, hybrid decoder, CPU), then all of them with shares of each batch, threads, workers
and prefetch depth; without a GPU worker processes and prefetch depth. The best are played off in turn against the
default settings and the torch engine. The winner is printed as code and kept in the cache folder: loaders on this
machine that leave out num_workers, prefetch_factor and decoders use it. Nothing is kept where other processes took 10%
of the CPUs or more meanwhile. The sample is read from memory: how fast the disk is does not count. Writes tune.csv and
tune.json into the output folder.
"""
CODES = """Exit code: 0 where settings were kept, 1 where they were found but not kept (the machine was busy, or the
cache folder can't be written), 2 where none could be measured."""


def add_parser(subparsers: Subparsers) -> None:
    help = "find the fastest settings and keep them"
    parser = add_command(subparsers, "tune", run, help, description=DESCRIPTION, epilog=CODES)
    parser.add_argument("data", nargs="*", **DATA)
    add_fields(parser)
    parser.add_argument(
        "--keep-anyway", action="store_true", help="keep it on a busy machine too, as one whose other work never ends"
    )
    stored = parser.add_mutually_exclusive_group()
    stored.add_argument("--kept", action="store_true", help="say what is kept for this machine, and stop")
    stored.add_argument("--forget", action="store_true", help="remove it, say what it was, and stop")
    parser.add_argument(
        "--batch-size", type=int, metavar="N", help=f"images a batch (default: {GPU_BATCH}, on a CPU {CPU_BATCH})"
    )
    option(parser, "--size", 224, "PX", "side of the images")
    cpus = "CPUs that a training process will have (default: those that may be used, shared by the visible GPUs)"
    parser.add_argument("--cpus", type=int, metavar="N", help=cpus)
    option(parser, "--minutes", 4.0, "M", "time for it, about")
    add_output(parser, "tune-out")


def run(args: argparse.Namespace) -> int:
    """Measure, print, write the files and keep what was found; or list or forget what was kept."""
    stored = args.kept or args.forget
    if stored and args.data:
        raise ConfigError(f"--{'kept' if args.kept else 'forget'} takes no DATA; what is kept is for any")
    if not stored and not args.data:
        raise ConfigError("DATA is missing: a folder or .tar shards, of which loaders read a sample")
    return list_kept(forget=args.forget) if stored else tune_here(args)


def list_kept(*, forget: bool) -> int:
    """Print what is kept for this machine's device, and remove it where that is asked for."""
    import torch

    from gpupipe.decode.tuned import kept

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    found = kept(gpu)
    for one in found:
        if forget:
            one.path.unlink(missing_ok=True)
        say(f"{'forgotten' if forget else 'kept'}: {one.text} ({one.path})")
    if not found:
        say(f"nothing is kept for {gpu or 'batches on the CPU'}")
    return 0


def tune_here(args: argparse.Namespace) -> int:
    """Find the fastest settings, and keep them unless the machine was busy."""
    require("psutil")
    from gpupipe.decode.choose import choose
    from gpupipe.decode.tuned import keep
    from gpupipe.host.machine import machine
    from gpupipe.host.progress import minutes
    from gpupipe.sources import open_source
    from gpupipe.tools.tuning.report import write_all
    from gpupipe.tools.tuning.run import BUSY, permitted, tune

    _, device = choose("auto", "auto")
    settings = settings_from(args, device)
    facts = machine() | {"device": str(device), "settings": settings.as_dict()}  # its load average: before measuring
    open_source(
        settings.data, fields=settings.fields
    )  # here, where its errors are told and its first scan shows progress
    args.output.mkdir(parents=True, exist_ok=True)
    with minutes(settings.minutes) as say:
        say("self-test of the decoders")
        outcome = tune(settings, device, args.output / "tune.log", say, permitted(device))
    worth_it = outcome.others < BUSY or args.keep_anyway
    kept = worth_it and keep(device, outcome.winner.candidate, settings.cpus, outcome.others)
    _print(outcome, settings, kept)
    say(f"written: {', '.join(str(path) for path in write_all(outcome, facts, kept, args.output))}")
    return 0 if kept else NOT_KEPT


def settings_from(args: argparse.Namespace, device: torch.device) -> TuneSettings:
    """The settings; what was not given depends on whether there is a GPU."""
    import torch

    from gpupipe.host.system import default_workers
    from gpupipe.tools.tuning.run import TuneSettings

    on_gpu = device.type == "cuda"
    cpus = default_workers(torch.cuda.device_count() if on_gpu else None) if args.cpus is None else args.cpus
    batch_size = (GPU_BATCH if on_gpu else CPU_BATCH) if args.batch_size is None else args.batch_size
    fields = fields_of(args, pair=True)
    return TuneSettings(data_of(args), cpus, batch_size, args.size, args.minutes, fields=fields)


def _print(outcome: Outcome, settings: TuneSettings, kept: bool) -> None:
    from rich.console import Console

    from gpupipe.tools.tuning.report import code, table
    from gpupipe.tools.tuning.run import BUSY

    Console().print(table(outcome))
    failed = Counter(trial.reason for trial in outcome.trials if trial.reason)
    for reason, count in failed.items():
        say(f"failed: {count} of {len(outcome.trials)}: {reason}")
    print(code(outcome.winner.candidate))
    busy = f"other processes took {outcome.others:.0%} of the CPUs meanwhile"
    if kept:
        say(
            f"kept: loaders on this machine that leave out num_workers, prefetch_factor and decoders use it, in "
            f"processes that have {settings.cpus} CPUs; {busy}"
        )
    elif outcome.others >= BUSY:
        say(f"not kept: {busy}, {BUSY:.0%} or more; tune again when they have ended, or with --keep-anyway")
