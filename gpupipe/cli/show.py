"""`gpupipe show`: a contact sheet of what the model will see."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpupipe.recipe import MultiCrop, Recipe

__all__ = ["add_parser", "run"]

COLUMNS = 6

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
them, with their labels."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "show", help="write a contact sheet of what the model will see", description=DESCRIPTION
    )
    parser.add_argument("data", metavar="DATA", nargs="+", help="a folder, or .tar shards: paths, 'a-{000..009}.tar'")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help=".png, .jpg or .webp")
    parser.add_argument("--recipe", choices=PRESETS, default="train", help="default: train")
    parser.add_argument("--size", type=int, metavar="PX", help="of each picture (default: the recipe's)")
    parser.add_argument("--count", type=int, default=24, metavar="N", help="so many samples (default: 24)")
    parser.add_argument("--columns", type=int, metavar="N", help=f"default: {COLUMNS}, or what --repeat says")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="show each sample in N epochs (default: 1)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of the run (default: 0)")
    parser.add_argument("--epoch", type=int, default=0, metavar="E", help="the first epoch shown (default: 0)")
    parser.add_argument("--shuffle", action=argparse.BooleanOptionalAction, default=False, help="as in the Loader")
    parser.add_argument("--engine", choices=("auto", "dali", "torch"), default="auto", help="default: auto")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Read the samples, write the sheet, print where it lies."""
    from gpupipe.contact_sheet import draw_sheet, read_tiles, sheet_format, write_sheet
    from gpupipe.loader import Loader
    from gpupipe.sources import open_source

    sheet_format(args.output)  # a wrong name is better known before the work than after
    columns = args.columns if args.columns is not None else (args.repeat if args.repeat > 1 else COLUMNS)
    source = open_source(args.data[0] if len(args.data) == 1 else args.data)
    loader = Loader(
        source,
        _recipe(args),
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
    write_sheet(draw_sheet(tiles, columns), args.output)
    print(f"{len(tiles)} pictures written to {args.output}")
    return 0


def _recipe(args: argparse.Namespace) -> Recipe | MultiCrop:
    import gpupipe

    name, arguments = PRESETS[args.recipe]
    preset = getattr(gpupipe, name)
    settings = {} if args.size is None else {"size": args.size}
    made: Recipe | MultiCrop = preset(*arguments, **settings)
    return made
