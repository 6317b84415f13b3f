"""`gpupipe index`: scan a dataset once and say what is in it."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from gpupipe.batch import Field, Image
from gpupipe.errors import ConfigError, DataError
from gpupipe.host.files import replacing
from gpupipe.sources import Source
from gpupipe.sources.indexed import IndexedSource
from gpupipe.tools.cli.options import (
    DATA,
    Subparsers,
    add_command,
    add_fields,
    add_label_field,
    add_share,
    data_of,
    fields_of,
    print_some,
    say,
)

__all__ = ["add_parser", "run"]

DAMAGED_FOUND = 3

DESCRIPTION = """Scan an image folder or WebDataset shards and store an index beside the data, or in the cache folder
($GPUPIPE_CACHE, $XDG_CACHE_HOME/gpupipe or ~/.cache/gpupipe) where that can't be written. A fresh index is used as it
is. Prints what is in the data and lists damaged images. Tables are read and kept in the cache folder, and the numbers
of names of classes are printed; their images are not looked at without --sizes. Nor are those of data by URL: its index
is made of shards' headers, or of what is listed in a folder. Shards on a disk can be shared out to the tasks of a job
array or of a Ray cluster, which keep an index beside each; the one that comes last makes that of all."""
VERIFY = (
    "decode all images and masks once, list what is bad, and keep that in the index, so that loaders know without "
    "reading it (image folders, shards and archives)"
)
CODES = "Exit code: 0 where all is well, 2 where the data can't be used, 3 where some images are damaged."


def add_parser(subparsers: Subparsers) -> None:
    help = "scan a dataset, store its index, list damage"
    parser = add_command(subparsers, "index", run, help, description=DESCRIPTION, epilog=CODES)
    parser.add_argument("data", nargs="+", **DATA)
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--rebuild", action="store_true", help="scan again even if the index is fresh, and read --sizes again"
    )
    add_share(how)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--no-labels", action="store_true", help="of images alone, as Loader(..., fields=...) asks for")
    add_fields(which)
    add_label_field(parser)
    sizes = "read the sizes of images that the index lacks, too, each once, for source.image_sizes()"
    parser.add_argument("--sizes", action="store_true", help=sizes)
    parser.add_argument("--verify", action="store_true", help=VERIFY)
    told = (
        "write the index of .tar shards by URL to a file, too: for open_source(..., index=FILE), or beside the shards"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help=told)


def run(args: argparse.Namespace) -> int:
    """Index `args.data`, print a table; 3 where images are damaged, else 0."""
    from rich.console import Console
    from rich.table import Table

    from gpupipe.sources import open_source
    from gpupipe.tools.pack import damage

    start = time.perf_counter()
    if args.verify and (args.task or args.on):
        raise ConfigError("--verify decodes all of the data here: leave out --task or --on, or verify afterwards")
    fields = {"image": Image()} if args.no_labels else fields_of(args)
    left = _index_share(args, fields) if args.task or args.on else 0
    if left and args.task:
        say(f"task {args.task[0]}/{args.task[1]} is done; others have {left} shards to index")
        return 0
    source = open_source(data_of(args), fields=fields, label_field=args.label_field, rebuild=args.rebuild)
    damaged, rows = summary(source, args.sizes)
    reasons = _verified(source) if args.verify else dict(getattr(source, "verdict", {}))
    if args.verify or reasons:
        rows["can't be decoded"] = f"{len(reasons):,}"
    rows["seconds"] = f"{time.perf_counter() - start:.2f}"
    table = Table(show_header=False)
    for name, value in rows.items():
        table.add_row(name, value)
    Console().print(table)
    say(f"index: {getattr(source, 'index_path', 'none')}")  # a table would cut a long path
    if args.out is not None:
        say(f"written to {args.out}: pass it as index=, or copy it to {_write(source, args.out)}, where it is found")
    for name, names in getattr(source, "names", {}).items():
        print_some(name, (f"{number} is {one}" for number, one in enumerate(names)), len(names))
    found = sorted({*damaged.tolist(), *reasons})
    lines = (f"{source.location(index)}: {reasons.get(index) or damage(source, index)}" for index in found)
    print_some("damaged", lines, len(found))
    return DAMAGED_FOUND if found else 0


def _verified(source: Source) -> dict[int, str]:
    """Why samples are bad, after all were decoded; kept where the source has an index of its own."""
    from gpupipe.tools.verifying import keep_verdict, verify

    bad = verify(source)
    if isinstance(source, IndexedSource):
        keep_verdict(source, bad)
    else:
        say("the verdict is printed, not kept: this data has no index of its own")
    return {error.index: error.reason for error in bad}


def _write(source: Source, path: Path) -> str:
    """Write the index of shards by URL; the URL beside them at which it is looked for."""
    from gpupipe.sources.remote.objects import shown
    from gpupipe.sources.remote.shards import RemoteShardSource

    if not isinstance(source, RemoteShardSource):
        raise ConfigError(f"--out {path}: is for .tar shards by URL, and this is {source!r}; leave it out")
    try:
        with replacing(path) as file:
            file.write(Path(source.index_path).read_bytes())
    except OSError as error:
        raise ConfigError(f"--out {path} can't be written: {error.strerror}") from error
    return shown(source.index_url)


def _index_share(args: argparse.Namespace, fields: Mapping[str, Field] | None) -> int:
    """Index shards one by one; how many are left to others."""
    from gpupipe.sources.opening import shards_of
    from gpupipe.sources.shards import index_shards, unindexed
    from gpupipe.tools.on_ray import run_on_ray

    shards, fields = shards_of(data_of(args), fields)
    if args.on:
        run_on_ray(_index_one, (shards, fields, args.label_field), range(len(shards)), "indexing")
    else:
        number, count = args.task
        index_shards(shards[number - 1 :: count], fields, args.label_field)
    return unindexed(shards, fields, args.label_field)


def _index_one(shared: tuple[list[Path], Mapping[str, Field] | None, str], number: int) -> None:
    from gpupipe.sources.shards import index_shards

    shards, fields, label_field = shared
    index_shards([shards[number]], fields, label_field)


def summary(source: Source, sizes: bool = False) -> tuple[np.ndarray, dict[str, str]]:
    """Indices of the samples that are known to be damaged, and the lines of the table. sizes: those of images are read
    where they are not known."""
    rows = {"samples": f"{len(source):,}", "classes": _classes(source)}
    if hasattr(source, "sizes"):
        rows["bytes"] = f"{int(source.sizes.sum()):,}"
    shapes = source.image_sizes() if sizes else source.shapes(np.arange(len(source)))
    if shapes is None:
        return np.empty(0, np.int64), rows
    good = shapes[:, 0] > 0
    return np.flatnonzero(~good), rows | {
        "heights": _spread(shapes[good, 0]),
        "widths": _spread(shapes[good, 1]),
        "damaged": f"{int((~good).sum()):,}",
    }


def _classes(source: Source) -> str:
    if "label" not in source.fields:
        return "no labels"
    try:
        return f"{len(np.unique(source.targets) if source.classes is None else source.classes):,}"
    except DataError:
        return "labels are no class numbers"


def _spread(values: np.ndarray) -> str:
    if not len(values):
        return "none"
    return f"min {values.min()}, median {np.median(values):g}, max {values.max()}"
