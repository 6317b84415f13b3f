"""`gpupipe pack`: from any data to WebDataset shards or Parquet files."""

from __future__ import annotations

import argparse
import time
from dataclasses import fields

from gpupipe.tools.cli.options import (
    Subparsers,
    add_command,
    add_fields,
    add_label_field,
    add_share,
    byte_size,
    fields_of,
    option,
    print_some,
    say,
)

__all__ = ["add_parser", "run"]

FORMATS = ("shards", "parquet", "huggingface")

DESCRIPTION = """Write the samples of SRC as WebDataset shards DST/shard-000000.tar and so on, or as Parquet files,
in an order shuffled once. Each file appears when it is whole, and is read back and compared. After an interruption the
same command goes on where it stopped, and the result is the same as that of one run; so the tasks of a job array can
share the files, or a Ray cluster."""


def add_parser(subparsers: Subparsers) -> None:
    parser = add_command(subparsers, "pack", run, "write WebDataset shards or Parquet files", description=DESCRIPTION)
    parser.add_argument("source", metavar="SRC", help="any data: a folder, .tar shards as 'a-{000..009}.tar', a table")
    parser.add_argument("destination", metavar="DST", help="a new folder, or one where this command was interrupted")
    parser.add_argument("--to", choices=FORMATS, default=FORMATS[0], help=f"default: {FORMATS[0]}")
    size = parser.add_mutually_exclusive_group()
    size.add_argument(
        "--shard-size", type=byte_size, default=256_000_000, metavar="BYTES", help="most of a file (default: 256MB)"
    )
    size.add_argument("--samples-per-shard", type=int, metavar="N", help="samples of a file, instead of bytes")
    parser.add_argument("--max-size", type=int, metavar="PX", help="shrink images whose shorter side exceeds this")
    option(parser, "--quality", 90, "Q", "1 to 95, of shrunk JPEGs")
    option(parser, "--seed", 0, "S", "seed of the order")
    parser.add_argument("--workers", type=int, default=0, metavar="N", help="threads (default: one per usable CPU)")
    add_share(parser.add_mutually_exclusive_group())
    parser.add_argument("--skip-bad", action="store_true", help="leave damaged images out and list them")
    add_fields(parser)
    add_label_field(parser)


def run(args: argparse.Namespace) -> int:
    """Pack, then print what lies in the destination."""
    from gpupipe.sources import open_source
    from gpupipe.tools.pack import PackSettings, pack, pack_share

    settings = PackSettings(**{field.name: getattr(args, field.name) for field in fields(PackSettings)})
    start = time.perf_counter()
    source = open_source(args.source, fields=fields_of(args), label_field=args.label_field)
    packed = (
        pack(source, args.destination, settings, args.workers, on=args.on)
        if args.task is None
        else pack_share(source, args.destination, settings, args.task, args.workers)
    )
    seconds = f"in {time.perf_counter() - start:.1f} s"
    if packed is None:
        say(f"task {args.task[0]}/{args.task[1]} is done {seconds}; others have files to write")
        return 0
    say(f"{len(packed.source):,} samples {seconds}, read back as they were written: {packed.source!r}")
    print_some("left out", map(source.location, packed.left_out), len(packed.left_out))
    return 0
