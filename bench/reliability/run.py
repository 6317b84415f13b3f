"""Runs the fault cases many times with each library and writes how often each passed.

    python bench/reliability/run.py --out reliability-out
    python bench/reliability/run.py --out reliability-out --rows 1-10,19 --contenders gpupipe,torch --seeds 5
    python bench/reliability/run.py --out again --rows 4 --contenders gpupipe --first-seed 17 --seeds 1

Into --out it writes results.md (the table), results.csv (a line for each case and seed) and results.json (the reasons
of all that failed or hung, the environment). Two cases run at a time, or --at-a-time, which is for rows that mostly
wait, 34 to 50; those that measure time run alone. Each result is in played.jsonl at once: the same command goes on
after it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path[0] = str(Path(__file__).parent.parent)  # the folder that has the package; this one has its modules

from reliability.board import Journal, Plan, play  # noqa: E402
from reliability.contenders import CONTENDERS, contender  # noqa: E402
from reliability.report import write_all  # noqa: E402
from reliability.rows import ROWS  # noqa: E402


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and write. Exit code 1 if gpupipe, on either engine, did not pass everywhere."""
    args = parse(arguments)
    plan = Plan(
        rows=args.rows,
        contenders=args.contenders or installed(),
        seeds=range(args.first_seed, args.first_seed + args.seeds),
    )
    results = play(plan, Journal(args.out / "played.jsonl"), args.at_a_time, say=lambda text: print(text, flush=True))
    print(write_all(plan, results, args.out))
    ours = (result for result in results if result.contender.startswith("gpupipe"))
    return int(any(result.status in ("failed", "hang") for result in ours))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the results")
    parser.add_argument("--rows", type=rows, default=tuple(ROWS), metavar="A-B,C", help="default: all")
    parser.add_argument("--seeds", type=positive, default=20, metavar="N", help="runs of each case (default: 20)")
    parser.add_argument("--first-seed", type=int, default=0, metavar="N", help="to repeat one run (default: 0)")
    parser.add_argument("--at-a-time", type=int, default=2, metavar="N", help="cases at a time (default: 2)")
    names = ", ".join(CONTENDERS)
    parser.add_argument("--contenders", type=known, metavar="A,B", help=f"of {names} (default: all that are installed)")
    return parser.parse_args(arguments)


def positive(text: str) -> int:
    """A number of runs."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} must be a number from 1 on")
    return int(text)


def rows(text: str) -> tuple[int, ...]:
    """1-3,19 as 1, 2, 3 and 19."""
    wanted: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        wanted += range(int(first), int(last or first) + 1)
    unknown = [number for number in wanted if number not in ROWS]
    if unknown:
        raise argparse.ArgumentTypeError(f"there is no row {unknown[0]}; there are {', '.join(map(str, ROWS))}")
    return tuple(wanted)


def installed() -> tuple[str, ...]:
    """The contenders whose libraries are here. Says which are left out."""
    found = []
    for name in CONTENDERS:
        try:
            contender(name)
            found.append(name)
        except ImportError as error:
            print(f"{name} is left out: {error}", flush=True)
    return tuple(found)


def known(text: str) -> tuple[str, ...]:
    """Names of contenders."""
    wanted = tuple(text.split(","))
    for name in wanted:
        if name not in CONTENDERS:
            raise argparse.ArgumentTypeError(f"there is no contender {name}; there are {', '.join(CONTENDERS)}")
        try:
            contender(name)
        except ImportError as error:
            raise argparse.ArgumentTypeError(f"contender {name}: {error}; install it, or leave it out") from error
    return wanted


if __name__ == "__main__":
    sys.exit(main())
