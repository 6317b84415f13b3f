"""The `gpupipe` command: each module holds one subcommand that parses, calls the library and prints."""

from __future__ import annotations

import argparse
import importlib
import logging
import sys
from collections.abc import Sequence

from gpupipe.errors import GpupipeError

__all__ = ["main"]

COMMANDS = ("bench", "doctor", "index", "pack", "profile", "show", "tune")


def parser() -> argparse.ArgumentParser:
    """The whole command line; every module in `COMMANDS` adds its own subcommand with `add_parser`."""
    top = argparse.ArgumentParser(prog="gpupipe", description="GPU-accelerated vision input pipeline for PyTorch")
    subparsers = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in COMMANDS:
        importlib.import_module(f"gpupipe.cli.{name}").add_parser(subparsers)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; returns its exit code, 1 for an error that gpupipe raised itself, 130 when interrupted."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    args = parser().parse_args(argv)
    try:
        return int(args.run(args))
    except GpupipeError as error:
        print(f"gpupipe {args.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"gpupipe {args.command}: interrupted", file=sys.stderr)
        return 130
