"""The `gpupipe` command: each module holds one subcommand that parses, calls the library and prints."""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys
from collections.abc import Sequence

from gpupipe import __version__
from gpupipe.errors import GpupipeError
from gpupipe.texts import MOST_MESSAGE, printable

__all__ = ["main"]

COMMANDS = ("bench", "cache", "doctor", "index", "new", "pack", "plan", "profile", "show", "tune")
USAGE, INTERRUPTED = 2, 130  # exit codes: as argparse has it, and as shells have it for SIGINT

DESCRIPTION = """gpupipe feeds PyTorch vision training from encoded images, decoded on the GPU where there is one. These
commands look at machines and data; `gpupipe COMMAND --help` says more of each."""
CODES = """Exit code: 0 where all went well, 1 where the answer is a bad one, 2 where the command could not do its work
(a wrong option, data that can't be used), 3 where `index` found damaged images, 130 after Ctrl-C."""

FIRST_STEPS = """\
gpupipe feeds PyTorch vision training. What to try first, in this order:

    gpupipe doctor                        is this machine ready?
    gpupipe bench                         how fast is it here, beside plain torchvision? needs no data
    gpupipe show DATA --html page.html    what is in your data, and what will a model see of it?
    gpupipe new DATA -o train.py          a training script for your data

DATA is a folder with a folder of images for each class, .tar shards, a table, Parquet, or a URL of these.
`gpupipe --help` lists all commands.
"""


def parser() -> argparse.ArgumentParser:
    """The whole command line; every module in `COMMANDS` adds its own subcommand with `add_parser`."""
    top = argparse.ArgumentParser(prog="gpupipe", description=DESCRIPTION, epilog=CODES)
    top.add_argument("--version", action="version", version=f"gpupipe {__version__}")
    subparsers = top.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name in COMMANDS:
        importlib.import_module(f"gpupipe.tools.cli.{name}").add_parser(subparsers)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand, or say what to try where none is named; returns the exit code, see `CODES`."""
    name = "gpupipe"
    try:
        logging.basicConfig(format="%(message)s", stream=sys.stderr)
        logging.getLogger("gpupipe").setLevel(logging.INFO)  # not the root's: torch would tell of its caches
        top = parser()
        args = top.parse_args(argv)
        if args.command is None:
            print(FIRST_STEPS, end="")
            return 0
        name = f"gpupipe {args.command}"
        code = int(args.run(args))
        sys.stdout.flush()  # here, where a pipe that nobody reads any more is expected
        return code
    except BrokenPipeError:  # `gpupipe index DATA | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (GpupipeError, OSError) as error:
        return _failed(name, str(error))
    except ImportError as error:
        return _failed(name, f"{error}; `gpupipe doctor` says what this machine lacks")
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        return INTERRUPTED


def _failed(name: str, reason: str) -> int:
    print(f"{name}: {printable(' '.join(reason.splitlines()), MOST_MESSAGE)}", file=sys.stderr)
    return USAGE
