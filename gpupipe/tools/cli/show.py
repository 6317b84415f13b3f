"""`gpupipe show`: a contact sheet of what the model will see, or a page that tells more of it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpupipe.batch import Field, Image, Mask, Text
from gpupipe.errors import ConfigError
from gpupipe.recipe import MultiCrop, Recipe
from gpupipe.tools.cli.options import (
    DATA,
    ENGINES,
    Subparsers,
    add_command,
    add_fields,
    data_of,
    fields_of,
    option,
    say,
)
from gpupipe.tools.cli.own_file import load
from gpupipe.tools.cli.presets import PRESETS

if TYPE_CHECKING:
    from gpupipe.loader.loader import Loader

__all__ = ["add_parser", "run"]

COLUMNS = 6

DESCRIPTION = """Write a picture of the first samples of an epoch, cropped, augmented and mixed as the model will see
them, with their labels and texts, masks, boxes and points drawn on them. Samples that are mixed show the share of each
label. The views of a sample stand in a row, those of several image fields side by side. Or write a page, one HTML file:
samples before and after the recipe and what each operation drew for them, how large the images are, how many samples
each class has, and which samples are bad."""


def add_parser(subparsers: Subparsers) -> None:
    help = "write a contact sheet of what the model will see, or a page"
    parser = add_command(subparsers, "show", run, help, description=DESCRIPTION)
    parser.add_argument("data", nargs="+", **DATA)
    add_fields(parser)
    output = parser.add_mutually_exclusive_group()
    output.add_argument("-o", "--output", type=Path, metavar="FILE", help="a contact sheet: .png, .jpg or .webp")
    page = "a page that needs no other files, and lists bad samples (default: show.html, without -o)"
    output.add_argument("--html", type=Path, default=Path("show.html"), metavar="FILE", help=page)
    recipes = f"{', '.join(PRESETS)}, another preset by its name, as mae_train, or one of yours as FILE.py:NAME: "
    option(parser, "--recipe", "train", "RECIPE", f"{recipes}a Recipe, a MultiCrop, or a function that returns one")
    parser.add_argument("--size", type=int, metavar="PX", help="side of the pictures (default: the preset's)")
    option(parser, "--count", 24, "N", "samples to show")
    parser.add_argument(
        "--columns", type=int, metavar="N", help=f"of the sheet (default: a sample's pictures, or {COLUMNS})"
    )
    option(parser, "--repeat", 1, "N", "show each sample in N epochs")
    option(parser, "--seed", 0, "S", "the Loader's seed")
    option(parser, "--epoch", 0, "E", "the first epoch to show")
    parser.add_argument(
        "--shuffle", action=argparse.BooleanOptionalAction, default=False, help="the Loader's order (default: no)"
    )
    parser.add_argument("--engine", **ENGINES)


def run(args: argparse.Namespace) -> int:
    """Read the samples, write the sheet or the page, print where it lies."""
    from gpupipe.loader.loader import Loader
    from gpupipe.sources import open_source
    from gpupipe.tools.showing.sheet import sheet_format

    sheet = args.output is not None
    if sheet:
        sheet_format(args.output)  # a wrong name is better known before the work than after
    elif args.columns is not None:
        raise ConfigError(f"--columns={args.columns} is of a sheet, and a page has none: pass -o FILE.png for a sheet")
    recipe = recipe_of(args)
    source = open_source(data_of(args), fields=_listed(fields_of(args)))
    loader = Loader(
        source,
        recipe,
        batch_size=1 if any(view.crop.varies for view in recipe.view_recipes) else 2,  # samples are mixed in pairs
        shuffle=args.shuffle,
        seed=args.seed,
        num_workers=0,
        engine=args.engine,
        device="cpu" if args.engine == "torch" else "auto",
        rank=0,
        world_size=1,
        on_error="raise" if sheet else "skip",
        max_bad=None if sheet else 1.0,
    )
    with loader:
        loader.set_epoch(args.epoch)
        say(_write_sheet(args, loader) if sheet else _write_page(args, loader))
    return 0


def _write_sheet(args: argparse.Namespace, loader: Loader) -> str:
    from gpupipe.tools.showing.sheet import draw_sheet, tiles_of, write_sheet
    from gpupipe.tools.showing.shown import read_shown, views_of

    tiles = list(tiles_of(read_shown(loader, args.count, args.repeat)))
    pictures = len(views_of(loader)) * len(loader.source.fields.images)
    usual = next((number for number in (pictures, args.repeat) if number > 1), COLUMNS)
    write_sheet(draw_sheet(tiles, usual if args.columns is None else args.columns), args.output)
    return f"{len(tiles)} pictures written to {args.output}"


def _write_page(args: argparse.Namespace, loader: Loader) -> str:
    from gpupipe.tools.showing.cards import cards_of
    from gpupipe.tools.showing.page import Page, write_page
    from gpupipe.tools.showing.shown import read_shown
    from gpupipe.tools.showing.survey import survey

    cards = list(cards_of(loader, read_shown(loader, args.count, args.repeat)))
    found = survey(loader.source)
    found.add(loader.bad_samples)
    facts = {"seed": f"{args.seed}", "epoch": f"{args.epoch}", "engine": f"{loader.engine} on {loader.device}"}
    write_page(Page(" ".join(args.data), loader.source, facts, repr(loader.recipe), found, cards), args.html)
    return f"{len(cards)} samples written to {args.html}"


def _listed(fields: dict[str, Field] | None) -> dict[str, Field] | None:
    """The fields with their values as they are, rather than as they are put together for a model."""
    return None if fields is None else {name: _as_it_is(name, field) for name, field in fields.items()}


def _as_it_is(name: str, field: Field) -> Field:
    if isinstance(field, Text):
        return replace(field, collate="list", tokenizer=None)
    return field if isinstance(field, Image | Mask) or name == "label" else replace(field, collate="list")


def recipe_of(args: argparse.Namespace) -> Recipe | MultiCrop:
    """The preset that --recipe names, or one of the user's own."""
    made: Recipe | MultiCrop
    presets = _presets()
    if args.recipe in presets:
        settings = {} if args.size is None else {"size": args.size}
        made = presets[args.recipe](**settings)
        return made
    if ":" not in args.recipe:
        raise ConfigError(f"recipe {args.recipe!r} is neither FILE.py:NAME nor a preset: {', '.join(presets)}")
    if args.size is not None:
        raise ConfigError(f"--size={args.size} is for presets; {args.recipe} says its own size")
    made = load("recipe", args.recipe, _is_recipe, "a gpupipe.Recipe or MultiCrop")
    return made


def _presets() -> dict[str, Callable[..., Recipe | MultiCrop]]:
    """Those with a short name, and all that need no more than a size."""
    import gpupipe

    short = {name: partial(getattr(gpupipe, preset), *arguments) for name, (preset, arguments) in PRESETS.items()}
    found = {name: getattr(gpupipe, name) for name in gpupipe.__all__}
    made = {name: one for name, one in found.items() if one.__module__.startswith("gpupipe.recipe.presets.")}
    return short | {name: one for name, one in made.items() if next(iter(signature(one).parameters)) == "size"}


def _is_recipe(value: Any) -> bool:
    return isinstance(value, Recipe | MultiCrop)
