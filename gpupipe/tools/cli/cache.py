"""`gpupipe cache`: what is kept on this machine's disk of data that lies in a storage."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from gpupipe.tools.cli.options import Subparsers, add_command, say, sized

__all__ = ["add_parser", "run"]

DESCRIPTION = """Show what is kept on this machine's disk of data that was read from a storage (s3://, gs://, https://
and others): its data sets, how much room they take, and the processes that use it now. Blocks that a live run holds are
never removed."""


def add_parser(subparsers: Subparsers) -> None:
    parser = add_command(subparsers, "cache", run, "show or clear what is kept of remote data", description=DESCRIPTION)
    folder = "as in Loader(cache=DIR) (default: in $GPUPIPE_CACHE, $XDG_CACHE_HOME/gpupipe or ~/.cache/gpupipe)"
    parser.add_argument("folder", nargs="?", metavar="DIR", help=folder)
    clear = "remove what no live run holds; with a URL, of data sets that begin so"
    parser.add_argument("--clear", nargs="?", const="", metavar="URL", help=clear)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Clear, if that is asked for, and show what there is."""
    from gpupipe.sources.remote.cache import Cache
    from gpupipe.sources.remote.cache.survey import clear, survey

    settings = Cache(folder=args.folder)
    freed = None if args.clear is None else clear(settings, args.clear)
    found = survey(settings)
    if args.json:
        print(json.dumps(asdict(found) | ({} if freed is None else {"freed": freed})))
        return 0
    if freed is not None:
        say(f"freed: {sized(freed)}")
    say(f"folder: {found.place}")
    say(f"taken: {sized(found.taken)}; {sized(found.free)} of the disk are free")
    if found.chosen:
        say(f"size where none is set: {sized(found.chosen)}")
    for one in found.data_sets:
        held = f", {sized(one.held)} of it held by runs" if one.held else ""
        say(f"data set: {one.name or '(unknown)'}: {one.blocks:,} blocks, {sized(one.taken)}{held}")
    for process in found.processes:
        size = process.get("size")
        say(
            f"in use: by process {process.get('pid', '?')} ({' '.join(process.get('program', []))}), "
            f"run {process['run']}{f', size {sized(size)}' if isinstance(size, int) else ''}"
        )
    return 0
