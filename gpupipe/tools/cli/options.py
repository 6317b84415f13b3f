"""What commands share: their options, their data, and what they need beyond gpupipe's own dependencies."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

from gpupipe.batch import Field, Schema
from gpupipe.batch.stored import KINDS
from gpupipe.errors import ConfigError
from gpupipe.texts import MOST_MESSAGE, printable
from gpupipe.tools.cli.own_file import load

__all__ = [
    *(
        "DATA",
        "ENGINES",
        "Subparsers",
        "add_command",
        "add_fields",
        "add_label_field",
        "add_output",
        "add_share",
        "byte_size",
        "data_of",
    ),
    *("fields_of", "option", "print_some", "require", "say", "sized"),
]

MOST_PRINTED = 50
Subparsers = Any  # argparse's own class for them is a private one
DATA: dict[str, Any] = {"metavar": "DATA", "help": "a folder, .tar shards: paths, 'a-{000..009}.tar', a table: a.csv"}
ENGINES: dict[str, Any] = {"choices": ("auto", "dali", "torch"), "default": "auto", "help": "default: auto"}
FIELD = "a field of the samples, as image=Image:path or label=Scalar; may be repeated (default: image and label)"
FIELDS = "all fields with their settings, as FILE.py:NAME: a dict of them, or a function that returns one"
LABEL_FIELD = "the field of shards' .json members that holds the label (default: label)"


def require(*packages: str) -> None:
    """Raise ConfigError where one of these packages of the extra `bench` is missing."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"needs {', '.join(missing)}; install them with: pip install 'gpupipe[bench]'")


def add_command(
    subparsers: Subparsers, name: str, run: Callable[[argparse.Namespace], int], help: str, **more: Any
) -> argparse.ArgumentParser:
    """A subcommand, and what runs it; more: of `ArgumentParser`."""
    parser: argparse.ArgumentParser = subparsers.add_parser(name, help=help, **more)
    parser.set_defaults(run=run)
    return parser


def option(parser: argparse.ArgumentParser, name: str, default: Any, metavar: str, help: str, **more: Any) -> None:
    """An option whose default, of its type, stands in its help; more: of `add_argument`."""
    kind = type(default)
    parser.add_argument(name, type=kind, default=default, metavar=metavar, help=f"{help} (default: {default})", **more)


def add_label_field(parser: argparse.ArgumentParser) -> None:
    """--label-field, as `open_source` takes it."""
    parser.add_argument("--label-field", default="label", metavar="F", help=LABEL_FIELD)


def add_share(parser: Any) -> None:
    """--task and --on, of which one may be passed: who does which part of the work."""
    parser.add_argument("--task", type=_task, metavar="I/N", help="only the share of one of N tasks, 1/N to N/N")
    parser.add_argument("--on", choices=("ray",), help="a Ray cluster, or one on this machine: a task for each file")


def _task(text: str) -> tuple[int, int]:
    """The two numbers of "3/8". Raises ArgumentTypeError."""
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise argparse.ArgumentTypeError(f"{text!r} is no task: write the third of eight as 3/8, and the last as 8/8")
    return int(number), int(count)


def byte_size(text: str) -> int:
    """The type of an option that takes "256MB", "1.6T", "1GiB" or a plain number. Raises ArgumentTypeError."""
    from gpupipe.sources.remote.cache import parse_size

    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def sized(size: float) -> str:
    """Bytes for people, as `byte_size` reads them: "1.6 TB"."""
    power = max(power for power in range(5) if power == 0 or size >= 1000**power)
    return f"{size / 1000**power:.1f} {'kMGT'[power - 1]}B" if power else f"{size:.0f} B"


def add_fields(parser: Any) -> None:
    """--field and --fields, for `fields_of`."""
    parser.add_argument("--field", type=_field, action="append", metavar="NAME=KIND[:SOURCE]", help=FIELD)
    parser.add_argument("--fields", metavar="FILE.py:NAME", help=FIELDS)


def fields_of(args: argparse.Namespace, *, pair: bool = False) -> dict[str, Field] | None:
    """The fields as `open_source` takes them. Raises ConfigError for those of both options, and for others than image
    and label where a `pair` of them is needed."""
    if args.field and args.fields:
        raise ConfigError(f"--fields {args.fields} has all fields: leave out --field {args.field[0][0]}")
    fields = dict(args.field) if args.field else None
    if args.fields:
        fields = dict(load("fields", args.fields, _are_fields, "a dict of a name and a gpupipe.Field each"))
    if pair and not Schema.of(fields).is_pair:
        raise ConfigError(
            f"--field: {', '.join(fields or {})}; pass image=Image:... and label=Scalar:..., in this order"
        )
    return fields


def _are_fields(value: Any) -> bool:
    return isinstance(value, dict) and bool(value) and all(isinstance(field, Field) for field in value.values())


def _field(text: str) -> tuple[str, Field]:
    """Name and field of "image=Image:path". Raises ArgumentTypeError."""
    name, _, rest = text.partition("=")
    kind, _, source = rest.partition(":")
    if not name or kind not in KINDS:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=KIND[:SOURCE], with KIND one of {', '.join(KINDS)}")
    return name, KINDS[kind](source or None)


def add_output(parser: argparse.ArgumentParser, folder: str) -> None:
    """--output, for files with results."""
    parser.add_argument(
        "--output", type=Path, default=Path(folder), metavar="DIR", help=f"for the results (default: {folder})"
    )


def data_of(args: argparse.Namespace) -> Any:
    """DATA as `open_source` takes it: one, or a list."""
    return args.data[0] if len(args.data) == 1 else args.data


def say(text: str) -> None:
    """Print a line, whatever it quotes."""
    print(printable(text, MOST_MESSAGE))


def print_some(what: str, lines: Iterable[str], count: int) -> None:
    """The first of so many lines, each behind `what`, and how many more there are."""
    for line in islice(lines, MOST_PRINTED):
        say(f"{what}: {line}")
    if count > MOST_PRINTED:
        print(f"{what}: {count - MOST_PRINTED} more")
