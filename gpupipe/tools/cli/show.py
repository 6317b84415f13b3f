"""`gpupipe show`: a contact sheet of what the model will see."""

from __future__ import annotations

import argparse
import importlib.util
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from gpupipe.errors import ConfigError
from gpupipe.recipe import MultiCrop, Recipe
from gpupipe.tools.cli.options import DATA, ENGINES, Subparsers, add_command, add_fields, data_of, fields_of, option

__all__ = ["add_parser", "run"]

COLUMNS = 6
MODULE = "gpupipe_recipe_file"  # what a user's file is called while it runs, so that it takes no other module's name

# --recipe NAME -> the preset of gpupipe and its arguments.
PRESETS: dict[str, tuple[str, tuple[str, ...]]] = {
    "train": ("imagenet_train", ()),
    "eval": ("imagenet_eval", ()),
    "resnet50-v2": ("resnet50_v2_train", ()),
    "timm-a1": ("timm_a_train", ("A1",)),
    "timm-a2": ("timm_a_train", ("A2",)),
    "timm-a3": ("timm_a_train", ("A3",)),
    "deit3": ("deit3_train", ()),
    "dino": ("dino_train", ()),
}

DESCRIPTION = """Write a picture of the first samples of an epoch, cropped, augmented and mixed as the model will see
them, with their labels. Samples that are mixed show the share of each label. The views of a sample stand in a row."""


def add_parser(subparsers: Subparsers) -> None:
    help = "write a contact sheet of what the model will see"
    parser = add_command(subparsers, "show", run, help, description=DESCRIPTION)
    parser.add_argument("data", nargs="+", **DATA)
    add_fields(parser)
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help=".png, .jpg or .webp")
    recipes = f"{', '.join(PRESETS)}, or one of yours as FILE.py:NAME: a Recipe, a MultiCrop, or a function without"
    option(parser, "--recipe", "train", "RECIPE", f"{recipes} arguments that returns one")
    parser.add_argument("--size", type=int, metavar="PX", help="side of the pictures (default: the preset's)")
    option(parser, "--count", 24, "N", "samples to show")
    parser.add_argument(
        "--columns", type=int, metavar="N", help=f"default: the number of views, else --repeat, else {COLUMNS}"
    )
    option(parser, "--repeat", 1, "N", "show each sample in N epochs")
    option(parser, "--seed", 0, "S", "the Loader's seed")
    option(parser, "--epoch", 0, "E", "the first epoch to show")
    parser.add_argument(
        "--shuffle", action=argparse.BooleanOptionalAction, default=False, help="the Loader's order (default: no)"
    )
    parser.add_argument("--engine", **ENGINES)


def run(args: argparse.Namespace) -> int:
    """Read the samples, write the sheet, print where it lies."""
    from gpupipe.loader.loader import Loader
    from gpupipe.sources import open_source
    from gpupipe.tools.contact_sheet import draw_sheet, read_tiles, sheet_format, write_sheet

    sheet_format(args.output)  # a wrong name is better known before the work than after
    recipe = recipe_of(args)
    source = open_source(data_of(args), fields=fields_of(args))
    loader = Loader(
        source,
        recipe,
        batch_size=2,  # samples are mixed in pairs
        shuffle=args.shuffle,
        seed=args.seed,
        num_workers=0,
        engine=args.engine,
        device="cpu" if args.engine == "torch" else "auto",
        rank=0,
        world_size=1,
    )
    with loader:
        loader.set_epoch(args.epoch)
        tiles = list(read_tiles(loader, args.count, args.repeat))
    write_sheet(draw_sheet(tiles, _columns(args, recipe)), args.output)
    print(f"{len(tiles)} pictures written to {args.output}")
    return 0


def _columns(args: argparse.Namespace, recipe: Recipe | MultiCrop) -> int:
    """The views of a sample in a row, or its epochs, or as many as look well."""
    usual = next((views for views in (recipe.views, args.repeat) if views > 1), COLUMNS)
    return usual if args.columns is None else int(args.columns)


def recipe_of(args: argparse.Namespace) -> Recipe | MultiCrop:
    """The preset that --recipe names, or one of the user's own."""
    import gpupipe

    if args.recipe in PRESETS:
        name, arguments = PRESETS[args.recipe]
        settings = {} if args.size is None else {"size": args.size}
        made: Recipe | MultiCrop = getattr(gpupipe, name)(*arguments, **settings)
        return made
    if ":" not in args.recipe:
        raise ConfigError(f"recipe {args.recipe!r} is neither FILE.py:NAME nor one of {', '.join(PRESETS)}")
    if args.size is not None:
        raise ConfigError(f"--size={args.size} is for presets; {args.recipe} says its own size")
    return load_recipe(args.recipe)


def load_recipe(text: str) -> Recipe | MultiCrop:
    """The recipe that `text` names as FILE.py:NAME: a Recipe, a MultiCrop, or a function that makes one of nothing.

    The file runs as it does when it is imported, with its folder on the path. Raises ConfigError.
    """
    file, _, name = text.rpartition(":")
    path = Path(file).expanduser().absolute()
    if path.suffix != ".py" or not name.isidentifier():
        raise ConfigError(f"recipe {text!r} is not of the form FILE.py:NAME, as in my_training.py:train_recipe")
    if not path.is_file():
        raise ConfigError(f"recipe {text!r}: there is no file {path}; check the path")
    module = _ran(path, text)
    if not hasattr(module, name):
        known = ", ".join(key for key, value in vars(module).items() if isinstance(value, (Recipe, MultiCrop)))
        raise ConfigError(f"recipe {text!r}: {path} has no {name}; the recipes in it: {known or 'none'}")
    found = getattr(module, name)
    made = _called(found, path, text) if callable(found) else found
    if not isinstance(made, (Recipe, MultiCrop)):
        what = f"what {name}() returned" if callable(found) else name
        kind = f"{type(made).__module__}.{type(made).__qualname__}"
        raise ConfigError(
            f"recipe {text!r}: {what} in {path} is a {kind}, {made!r:.80}, not a gpupipe.Recipe or MultiCrop"
        )
    return made


def _ran(path: Path, text: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(MODULE, path)
    assert spec is not None, path
    assert spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module  # dataclasses look themselves up there
    sys.path.insert(0, str(path.parent))
    _called(lambda: spec.loader.exec_module(module), path, text)  # type: ignore[union-attr]
    return module


def _called(call: Callable[[], Any], path: Path, text: str) -> Any:
    """What a user's code returns; whatever it raises is said with the line of the file."""
    try:
        return call()
    except (Exception, SystemExit) as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        where = f", line {lines[-1]}" if lines else ""
        raise ConfigError(f"recipe {text!r}: {path}{where} raised {type(error).__name__}: {error}") from error
