"""`gpupipe profile`: how much faster training would be with a perfect loader, and what holds it up."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from gpupipe.host.system import usable_cpus
from gpupipe.tools.cli.options import (
    DATA,
    ENGINES,
    Subparsers,
    add_command,
    add_fields,
    add_output,
    data_of,
    fields_of,
    option,
    require,
)

if TYPE_CHECKING:
    from gpupipe.tools.profiling.rounds import ProfileSettings

__all__ = ["add_parser", "run"]

GPU_BATCH, CPU_BATCH = 256, 16
GPU_STEPS, CPU_STEPS = 20, 4  # of a part, at least
SECONDS = 2.0  # of a part, at least

DESCRIPTION = """
Trains a model (forward, backward, SGD; on a GPU with bfloat16 autocast and channels_last) with the real loader and with
a few cached batches, in turn, and says how much faster training would be if loading cost nothing, which stage holds it
up (read, storage, decode, finish, or the model itself) and what to do about it. Rounds of both go on until the gain is
known well enough, or the time is over. Without DATA it uses the made sample set of `gpupipe bench`. Writes profile.json
and timeline.png into the output folder.
"""


def add_parser(subparsers: Subparsers) -> None:
    help = "say what holds up training on this machine"
    parser = add_command(subparsers, "profile", run, help, description=DESCRIPTION)
    parser.add_argument("data", nargs="*", **DATA)
    add_fields(parser)
    option(parser, "--model", "resnet50", "NAME", "one of torchvision's, 'timm:NAME', or 'tiny'")
    parser.add_argument(
        "--batch-size", type=int, metavar="N", help=f"images a step (default: {GPU_BATCH}, on a CPU {CPU_BATCH})"
    )
    steps = f"{SECONDS:g} s of them, at least {GPU_STEPS}, on a CPU {CPU_STEPS}"
    parser.add_argument("--steps", type=int, metavar="N", help=f"measured steps a round (default: {steps})")
    minutes = "time for it, about; it ends earlier where the gain is known to within 10%%"
    option(parser, "--minutes", 4.0, "M", minutes)
    option(parser, "--workers", usable_cpus(), "N", "processes, or DALI's threads")
    parser.add_argument("--engine", **ENGINES)
    option(parser, "--size", 224, "PX", "side of the images")
    add_output(parser, "profile-out")


def run(args: argparse.Namespace) -> int:
    """Measure, print, write the files."""
    require("matplotlib", *(() if args.model == "tiny" or args.model.startswith("timm:") else ("torchvision",)))
    from gpupipe.host.machine import machine
    from gpupipe.host.progress import minutes
    from gpupipe.sources import open_source
    from gpupipe.tools.benchmark.sample_set import sample_set
    from gpupipe.tools.profiling import report
    from gpupipe.tools.profiling.rounds import measure, open_loader, training_step
    from gpupipe.tools.profiling.training import build_model, check_model, classes_of
    from gpupipe.tools.profiling.verdict import judge

    settings = settings_from(args)
    facts = machine() | {"model": args.model}  # before the measurement: its load average says if the machine was idle
    data = data_of(args) if args.data else sample_set()
    source = open_source(data, fields=fields_of(args, pair=True))
    with open_loader(source, settings) as loader, minutes(args.minutes) as say:
        args.output.mkdir(parents=True, exist_ok=True)  # where it can't be made that is better known before the work
        classes = classes_of(loader.source)
        step = training_step(build_model(args.model, classes), loader.device)
        check_model(step.model, args.model, classes, args.size)
        seconds = SECONDS if args.steps is None else 0.0
        profile = measure(loader, step, settings, say, minutes=args.minutes, seconds=seconds)
    verdict = judge(profile)
    print(f"{args.model}: ", end="")
    print("\n".join(report.lines(profile, verdict)))
    print(f"written: {', '.join(str(path) for path in report.write_all(profile, verdict, facts, args.output))}")
    return 0


def settings_from(args: argparse.Namespace) -> ProfileSettings:
    """The settings; what was not given depends on whether there is a GPU."""
    import torch

    from gpupipe.tools.profiling.rounds import ProfileSettings

    on_gpu = torch.cuda.is_available()
    workers = max(1, args.workers)
    steps = -(-(GPU_STEPS if on_gpu else CPU_STEPS) // workers) * workers
    return ProfileSettings(
        batch_size=(GPU_BATCH if on_gpu else CPU_BATCH) if args.batch_size is None else args.batch_size,
        workers=args.workers,
        steps=steps if args.steps is None else args.steps,
        size=args.size,
        engine=args.engine,
    )
