"""What scripts have in common that measure contenders in turn, case by case: options, cells of tables, files."""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpupipe.host.progress import steps
from gpupipe.host.system import usable_cpus
from gpupipe.tools.benchmark.measurement import BenchSettings, Result
from gpupipe.tools.benchmark.runner import measure
from gpupipe.tools.benchmark.sample_set import sample_set
from gpupipe.tools.figures import write_csv, write_json

__all__ = ["cell", "options", "parsed", "play", "rate_of", "settings_of", "words", "write"]


def options(doc: str | None, cases: Iterable[str]) -> argparse.ArgumentParser:
    """A command line with what all have."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?", help="image folder (default: the made sample set)")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the results")
    parser.add_argument("--only", type=words, default=list(cases), metavar="A,B", help=f"of {', '.join(cases)}")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="of each contender (default: 5)")
    parser.add_argument("--seconds", type=float, default=3.0, metavar="S", help="time of a round (default: 3)")
    parser.add_argument("--workers", type=int, default=usable_cpus(), metavar="N", help="default: the usable CPUs")
    parser.add_argument("--batch-size", type=int, default=128, metavar="N", help="images a batch (default: 128)")
    return parser


def words(text: str) -> list[str]:
    """Those between commas."""
    return text.split(",")


def parsed(parser: argparse.ArgumentParser, argv: Sequence[str] | None, cases: Iterable[str]) -> Any:
    """The options; None, and a line on stderr, where `--only` names what is not there."""
    args = parser.parse_args(argv)
    unknown = sorted(set(args.only) - set(cases))
    if not unknown:
        return args
    print(f"--only has no {', '.join(unknown)}; there are {', '.join(cases)}", file=sys.stderr)
    return None


def settings_of(args: argparse.Namespace, **others: Any) -> BenchSettings:
    """What is measured."""
    return BenchSettings(
        data=args.data or str(sample_set()),
        batch_size=args.batch_size,
        workers=args.workers,
        seconds=args.seconds,
        rounds=args.rounds,
        **others,
    )


def play(names: dict[str, str], settings: BenchSettings, logs: Path, **how: Any) -> list[Result]:
    """Contenders, which have a reference each, in turn; the results under their names."""
    with steps(len(names) * (1 + settings.rounds)) as step:
        results = measure(list(names.values()), settings, logs, step, **how)
    for name, result in zip(names, results, strict=True):
        result.name = name
    return results


def rate_of(result: Result) -> tuple[float | None, float | None, float | None]:
    """Images a second: median, smallest and largest of the rounds."""
    rates = [one.rate for one in result.rounds]
    return (statistics.median(rates), min(rates), max(rates)) if rates else (None, None, None)


def cell(median: float | None, low: float | None, high: float | None) -> str:
    """Images a second."""
    return "-" if median is None else f"{median:,.0f} ({low:,.0f} - {high:,.0f})"


def write(folder: Path, name: str, text: str, rows: Sequence[Any], content: dict[str, Any]) -> None:
    """results.md with the text, the rows, which are dataclasses, as CSV, and all that there is as JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.md").write_text(text + "\n")
    plain = [asdict(row) for row in rows]
    write_csv(folder / f"{name}.csv", plain)
    write_json(folder / f"{name}.json", content | {"rows": plain})
