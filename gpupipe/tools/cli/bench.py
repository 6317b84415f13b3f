"""`gpupipe bench`: measures the ways to load ImageNet-style batches on this machine, in turn."""

from __future__ import annotations

import argparse
from dataclasses import replace

from gpupipe.host.progress import steps
from gpupipe.host.system import usable_cpus
from gpupipe.tools.benchmark.contenders import CONTENDERS, describe, reference
from gpupipe.tools.benchmark.measurement import BenchSettings
from gpupipe.tools.cli.options import Subparsers, add_command, add_fields, add_output, fields_of, option, require

__all__ = ["add_parser", "run"]

EXTRA = ("matplotlib", "psutil", "torchvision")

DESCRIPTION = """
Measures the contenders in turn, each in a process of its own, on the same images and with the same output: float32
batches, randomly cropped, resized, flipped and normalized. Without DATA it makes a sample set once, in the cache
folder. Writes a table here, and results.csv, results.json and results.png into the output folder.
"""


def add_parser(subparsers: Subparsers) -> None:
    parser = add_command(subparsers, "bench", run, "compare gpupipe with other loaders here", description=DESCRIPTION)
    parser.add_argument(
        "data", nargs="?", metavar="DATA", help="image folder, tar shards or a table; default: a made sample set"
    )
    add_fields(parser)
    option(parser, "--batch-size", 128, "N", "images a batch")
    option(parser, "--workers", usable_cpus(), "N", "DataLoader processes")
    option(parser, "--threads", usable_cpus(), "N", "DALI threads")
    option(parser, "--size", 224, "PX", "side of the output")
    option(parser, "--seconds", 4.0, "S", "time of a round")
    option(parser, "--rounds", 5, "N", "rounds of each contender")
    option(parser, "--timeout", 300.0, "S", "patience with each")
    parser.add_argument("--only", nargs="+", action="extend", metavar="NAME", help="only these contenders, see --list")
    parser.add_argument("--list", action="store_true", help="list the contenders and stop")
    add_output(parser, "bench-out")


def run(args: argparse.Namespace) -> int:
    """List the contenders, or measure them. Exit code 1 if one failed, or none could take part."""
    if args.list:
        for name in CONTENDERS:
            print(f"{name:<{max(map(len, CONTENDERS))}}  {describe(name)}")
        return 0
    require(*EXTRA)
    from rich.console import Console

    from gpupipe.tools.benchmark import report
    from gpupipe.tools.benchmark.runner import measure

    names = list(dict.fromkeys(args.only or CONTENDERS))
    for name in names:
        reference(name)
    settings = settings_from(args)
    facts = report.environment(settings)  # before the measurement: its load average says whether the machine was idle
    with steps(len(names) * (1 + settings.rounds)) as step:
        results = measure(names, settings, args.output / "logs", step)
    paths = report.write_all(results, facts, args.output)
    measured = report.rows(results)
    console = Console()
    console.print(report.table(measured, facts))
    for line in [*report.remarks(measured), f"written: {', '.join(str(path) for path in paths)}"]:
        console.print(line, highlight=False, soft_wrap=True, markup=False, emoji=False)
    return 0 if any(result.rounds for result in results) and not any(result.failed for result in results) else 1


def settings_from(args: argparse.Namespace) -> BenchSettings:
    """The settings; without DATA the sample set is made if it is not there."""
    from gpupipe.tools.benchmark.sample_set import sample_set

    values = {name: getattr(args, name) for name in ("batch_size", "size", "workers", "threads", "seconds", "rounds")}
    values |= {"timeout": args.timeout, "fields": fields_of(args, pair=True)}
    settings = BenchSettings(data=args.data or "", **values)  # checked before anything is made
    return settings if args.data else replace(settings, data=str(sample_set()))
