"""`gpupipe new`: writes a training script for the user's data."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING

from gpupipe.errors import ConfigError
from gpupipe.host.checks import whole
from gpupipe.tools.cli.options import DATA, Subparsers, add_command, add_fields, data_of, fields_of, say
from gpupipe.tools.cli.presets import PRESETS

if TYPE_CHECKING:
    from gpupipe.recipe import Recipe

__all__ = ["add_parser", "run"]

# Task -> the recipe where none is named, and the modules that have recipes for it.
RECIPES = {"classification": ("train", "imagenet"), "segmentation": ("segmentation_train", "dense")}
EVALUATION = {"mae_finetune": "convnext_eval"}
# Presets whose loss smooths labels, by so much. Those of others are smoothed where they are mixed, or not at all.
SMOOTHING = {"imagenet_train": 0.1, "resnet50_v2_train": 0.1}

DESCRIPTION = """Write a training script for DATA, which runs as it is, on a GPU or a CPU, by one process or torchrun: a
model of torchvision's or timm's, whichever is installed, mixed precision on a GPU, a learning rate schedule, an
evaluation over all processes, and a checkpoint from which the run goes on at any step. DATA is opened for its fields,
classes and sizes. Where it has folders train and val, or is called train and val lies beside it, these are used; else a
part is kept for the evaluation. The script is yours to change; it needs nothing of this command."""


def add_parser(subparsers: Subparsers) -> None:
    parser = add_command(subparsers, "new", run, "write a training script for your data", description=DESCRIPTION)
    parser.add_argument("data", nargs="+", **DATA)
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("train.py"), metavar="FILE", help="the script (default: train.py)"
    )
    parser.add_argument("--task", metavar="TASK", help="classification or segmentation (default: what the fields are)")
    parser.add_argument("--val", metavar="DATA", help="for the evaluation (default: see above)")
    recipe = f"{', '.join(name for name in PRESETS if name not in ('eval', 'dino'))}, or a preset for training"
    parser.add_argument("--recipe", metavar="RECIPE", help=f"{recipe} (default: train, or segmentation_train)")
    parser.add_argument("--size", type=int, metavar="PX", help="side of the images (default: the recipe's)")
    parser.add_argument("--classes", type=int, metavar="N", help="how many (default: as many as the data has)")
    add_fields(parser)
    parser.add_argument("--force", action="store_true", help="overwrite the file")


def run(args: argparse.Namespace) -> int:
    """Look at the data, write the script, say how to run it."""
    from gpupipe.recipe import check_fields
    from gpupipe.tools.scripts.facts import find, task_of
    from gpupipe.tools.scripts.writing import installed, script

    path: Path = args.output
    _check_output(path, args.force)
    if args.classes is not None:
        whole("classes", args.classes, 1)
    fields = fields_of(args)
    task = task_of(args.task, fields)
    (train, recipe), (evaluation, _) = recipes_of(args.recipe, args.size, args.classes, task)
    facts = find(data_of(args), args.val, fields, task, args.classes)
    check_fields(recipe, facts.schema)
    library = installed(task)
    text = script(facts, (train, evaluation), library, path.name, SMOOTHING.get(_preset(args.recipe, task)[0], 0.0))
    path.write_text(text, encoding="utf-8")
    names = f" ({', '.join(facts.names[:5])}{' ...' if len(facts.names) > 5 else ''})" if facts.names else ""
    say(f"{path}: {task} of {facts.classes} classes{names}, {facts.samples:,} samples, a model of {library}")
    say(f"evaluation: {f'on {facts.val}' if facts.val is not None else f'on {facts.parts[1]:.0%} of the samples'}")
    say(f"next: python {path} --epochs 1")
    say(f"to go on for more epochs: python {path} --epochs 10 --resume")
    return 0


Made = tuple[str, "Recipe"]
"""A recipe as code, and itself."""


def recipes_of(name: str | None, size: int | None, classes: int | None, task: str) -> tuple[Made, Made]:
    """Those for training and evaluation. Raises ConfigError for a name that has none of this task."""
    preset, arguments = _preset(name, task)
    given = {"size": size, "num_classes": classes}
    return _made(preset, arguments, given), _made(EVALUATION.get(preset, preset.replace("_train", "_eval")), (), given)


def _preset(name: str | None, task: str) -> tuple[str, tuple[str, ...]]:
    """A preset for training, and its arguments. Raises ConfigError."""
    usual, module = RECIPES[task]
    preset, arguments = PRESETS.get(name or usual, (name or usual, ()))
    known = _of_module(module)
    if preset not in known:
        if ":" in preset:
            raise ConfigError(f"recipe {name!r}: a script is begun with a preset; put your own in its place as TRAIN")
        short = [short for short, (one, _) in PRESETS.items() if one in known]
        whole = [one for one in known if not _variants(one)]
        raise ConfigError(f"recipe {name!r} is none for {task}; those are {', '.join([*short, *whole])}")
    if not arguments and (variants := _variants(preset)):
        raise ConfigError(f"recipe {name!r} has variants: pass one of {', '.join(variants)}")
    return preset, arguments


def _variants(preset: str) -> list[str]:
    """The short names of a preset that needs arguments."""
    return [name for name, (one, arguments) in PRESETS.items() if one == preset and arguments]


def _of_module(module: str) -> list[str]:
    """The names of its presets for training."""
    import gpupipe

    found = {name: getattr(gpupipe, name) for name in gpupipe.__all__ if name.endswith("_train")}
    fits = f"gpupipe.recipe.presets.{module}"
    return [name for name, one in found.items() if one.__module__ == fits and not name.startswith("detection")]


def _made(preset: str, arguments: tuple[str, ...], asked: dict[str, int | None]) -> Made:
    """The preset with these arguments, and with those of what is asked for that it takes; None is not asked for."""
    import gpupipe

    make: Callable[..., Recipe] = getattr(gpupipe, preset)
    takes = signature(make).parameters
    assert "size" in takes, preset
    settings = {name: value for name, value in asked.items() if value is not None and name in takes}
    given = [f'"{one}"' for one in arguments] + [f"{name}={value}" for name, value in settings.items()]
    return f"gpupipe.{preset}({', '.join(given)})", make(*arguments, **settings)


def _check_output(path: Path, force: bool) -> None:
    if path.suffix != ".py":
        raise ConfigError(f"--output {path}: name a Python file, as train.py")
    if path.exists() and not force:
        raise ConfigError(f"--output {path} exists: pass another name, or --force to overwrite it")
    if not path.parent.is_dir():
        raise ConfigError(f"--output {path}: there is no folder {path.parent}; make it, or pass another name")
