"""Training with several loaders in turn, in one process and with one model, and with no loader at all.

    round 1                              round 2               ...
    torchvision-v2   gpupipe   device    torchvision-v2   ...
    |start, settle|measure|end|

A loader begins each part with nothing ready and ends with it: its workers and queues are no burden for the next one,
and no round lives on what was made before it. The settling steps, which are not counted, are one turn of the workers
and one step more. From there on, where a loader is slower than the model, the model takes each batch as it comes: what
is counted is what the loader makes meanwhile, in whole turns of its workers, which began together and end together.
Where it is faster, batches lie ready at all times, and the model's own speed is counted. Starting the workers and the
first batches are not counted: in an epoch of 5,000 steps they are nothing. All read the same files, from page cache.
A DataLoader whose 4 workers sleep, so that they make 12.5 batches a second, was measured at 12.2 to 12.5 in front of
models of 12.7, 13.9 and 16.7 steps a second, with 24 steps a round.

"device" gives four real batches, which lie on the device, again and again: the ceiling. A batch's way to the device
counts as waiting for it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from gpupipe.errors import ConfigError
from gpupipe.host.machine import machine
from gpupipe.tools.benchmark.measurement import columns
from gpupipe.tools.benchmark.report import plot
from gpupipe.tools.figures import write_csv
from gpupipe.tools.profiling.rounds import ProfileSettings, Stretch, run_part
from gpupipe.tools.profiling.training import TrainingStep
from training.loaders import make_loader, workers

__all__ = ["CEILING", "Result", "compare", "facts_of", "rows", "settings_of", "table", "write_all"]

CEILING = "device"
FORMS = {"img_per_s": ",.0f", "waited": ".1%", "of_ceiling": ".1%"}
Row = dict[str, Any]


@dataclass
class Result:
    """One contender: its part in each round, what its loader is set to, and why there are no parts, or no more."""

    name: str
    parts: list[Stretch] = field(default_factory=list)
    loader: dict[str, str] = field(default_factory=dict)
    reason: str = ""


def settings_of(args: argparse.Namespace) -> ProfileSettings:
    """Steps are made whole turns of the workers. Raises ConfigError for a number that is too low."""
    count = workers(args)
    if args.rounds < 1:
        raise ConfigError(f"rounds={args.rounds} must be at least 1")
    settings = ProfileSettings(args.batch_size, count, args.steps, args.size, args.engine)
    return replace(settings, steps=math.ceil(args.steps / max(1, count)) * max(1, count))


def compare(
    args: argparse.Namespace, names: Sequence[str], step: TrainingStep, say: Callable[[str], None]
) -> list[Result]:
    """Warm up with each contender, then measure all of them in turn; `say` is called with a line before each part.

    A contender that fails is left out from there on.
    """
    settings = settings_of(args)
    # Beyond the measured steps too, so that the workers don't run out of work before the end.
    steps = settings.settling + settings.steps + 4 * (settings.workers + 1)
    results = {name: Result(name) for name in names}
    loaders: dict[str, Any] = {}
    with contextlib.ExitStack() as opened:
        for name, result in results.items():
            say(f"warming up: {name}")
            with noted(result):
                options = argparse.Namespace(**vars(args) | {"loader": name})
                loaders[name] = make_loader(options, args.data, True, steps * args.batch_size)
                opened.callback(getattr(loaders[name], "close", lambda: None))
                run(step, loaders[name], replace(settings, steps=1))  # kernels are chosen and compiled
                result.loader = described(loaders[name])
        for turn in range(1, args.rounds + 1):
            for name, result in results.items():
                if not result.reason:
                    say(f"round {turn} of {args.rounds}: {name}")
                    with noted(result):
                        result.parts.append(run(step, loaders[name], settings, turn))
    return list(results.values())


@contextlib.contextmanager
def noted(result: Result) -> Iterator[None]:
    """What goes wrong becomes the result's reason."""
    try:
        yield
    except Exception as error:  # of any library: the other contenders are measured all the same
        result.reason = f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"


def run(step: TrainingStep, loader: Any, settings: ProfileSettings, epoch: int = 0) -> Stretch:
    """A part: from a loader that has nothing ready to one that is at rest. Raises ValueError where training is none."""
    if hasattr(loader, "set_epoch"):
        loader.set_epoch(epoch)  # torch's RandomSampler draws anew by itself
    last: list[torch.Tensor] = []

    def watched(images: torch.Tensor, labels: torch.Tensor) -> None:
        last[:] = images, labels, step(images, labels)

    with contextlib.closing(on_device(step, loader)) as batches:
        part = run_part(watched, batches, settings, step.device)
    check(settings, *last)
    return part


def on_device(step: TrainingStep, loader: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The loader's batches as the model takes them."""
    for images, labels in loader:
        yield step.to_device(images, labels)


def check(settings: ProfileSettings, images: torch.Tensor, labels: torch.Tensor, loss: torch.Tensor) -> None:
    """Raise ValueError where the last batch is not one of normalized photographs, or the loss is not finite."""
    shape = (settings.batch_size, 3, settings.size, settings.size)
    if images.shape != shape or labels.shape != shape[:1]:
        raise ValueError(f"images of shape {tuple(images.shape)}, labels of {tuple(labels.shape)}; expected {shape}")
    mean, deviation = float(images.float().mean()), float(images.float().std())
    if not (abs(mean) < 2 and 0.2 < deviation < 3):
        raise ValueError(
            f"images have the mean {mean:.3g} and the deviation {deviation:.3g}: not normalized photographs"
        )
    if not math.isfinite(float(loss)):
        raise ValueError(f"the loss is {float(loss)}; give a lower --lr")


def described(loader: Any) -> dict[str, str]:
    """What the loader is set to."""
    names = ("engine", "device", "num_workers", "prefetch_factor", "decoders")
    return {name: str(getattr(loader, name)) for name in names if hasattr(loader, name)}


def facts_of(args: argparse.Namespace) -> dict[str, Any]:
    """The environment, and what is measured."""
    settings = settings_of(args)
    more = {name: getattr(args, name) for name in ("rounds", "model", "amp", "channels_last", "compile")}
    threads = {"threads": settings.workers, "data": Path(args.data).name}  # results are shown to others
    return machine() | {"settings": asdict(settings) | threads | more}


def rows(results: Sequence[Result]) -> list[Row]:
    """One plain row for each contender; None where there is no value.

    of_ceiling: the rate over that of `device` in the same round.
    """
    ceiling = next((result.parts for result in results if result.name == CEILING), [])
    return [row(result, ceiling) for result in results]


def row(result: Result, ceiling: Sequence[Stretch]) -> Row:
    """A contender's row."""
    shares = [part.rate / best.rate for part, best in zip(result.parts, ceiling, strict=False)]
    return {
        "contender": result.name,
        **columns("img_per_s", [part.rate for part in result.parts]),
        **columns("waited", [part.waited for part in result.parts]),
        **columns("of_ceiling", shares),
        "not_measured": result.reason,
    }


def table(measured: Sequence[Row]) -> str:
    """Markdown."""
    lines = ["| loader | img/s (min - max) | device waited | of the ceiling |", "|---|---|---|---|"]
    for one in measured:
        rate, waited, ceiling = (cell(one, *form) for form in FORMS.items())
        lines.append(f"| {one['contender']} | {rate} | {waited} | {ceiling} |")
    return "\n".join(lines)


def cell(one: Row, name: str, form: str) -> str:
    """Median, smallest and largest as text; a dash where there are none."""
    if one[name] is None:
        return "-"
    return f"{one[name]:{form}} ({one[name + '_min']:{form}} - {one[name + '_max']:{form}})"


def write_all(results: Sequence[Result], facts: dict[str, Any], output: Path) -> list[Path]:
    """Write training.csv, .json, .md and, where matplotlib is installed, .png into the folder `output`; their paths."""
    output.mkdir(parents=True, exist_ok=True)
    measured = rows(results)
    paths = [output / f"training.{kind}" for kind in ("csv", "json", "md", "png")]
    write_csv(paths[0], measured)
    rounds = {
        result.name: {"loader": result.loader, "rounds": [as_dict(part) for part in result.parts]} for result in results
    }
    paths[1].write_text(json.dumps({"environment": facts, "rows": measured, "contenders": rounds}, indent=2) + "\n")
    paths[2].write_text(table(measured) + "\n")
    try:
        plot([one | {"ratio": one["of_ceiling"]} for one in measured], facts, paths[3])
    except ModuleNotFoundError:  # minutes of measuring must not end in an error
        return paths[:3]
    return paths


def as_dict(part: Stretch) -> dict[str, float]:
    """A part in plain values."""
    return {"images": part.images, "seconds": part.seconds, "img_per_s": part.rate, "waited": part.waited}
