"""The command line that all parts share."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gpupipe.host.system import usable_cpus
from gpupipe.tools.benchmark.measurement import BenchSettings
from gpupipe.tools.benchmark.sample_set import sample_set

__all__ = ["loader_settings", "parser", "say"]


def parser(doc: str | None) -> argparse.ArgumentParser:
    """DATA, where the results go, and the sizes."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = made.add_argument
    add("data", nargs="?", metavar="DATA", help="image folder (default: the made sample set)")
    add("--out", type=Path, required=True, metavar="DIR", help="folder for the part's JSON file")
    add("--seconds", type=float, default=1.0, metavar="S", help="of one contender in a round (default: 1)")
    add("--rounds", type=int, default=5, metavar="N")
    add("--batch-size", type=int, default=256, metavar="N")
    add("--size", type=int, default=224, metavar="PX", help="side of the output")
    add("--workers", type=int, default=usable_cpus(), metavar="N", help="processes or threads (default: the CPUs)")
    return made


def loader_settings(args: argparse.Namespace, dtype: str = "uint8") -> BenchSettings:
    """The runner's settings, with the made sample set in place of no data."""
    return BenchSettings(
        data=args.data or str(sample_set()),
        batch_size=args.batch_size,
        size=args.size,
        workers=args.workers,
        threads=args.workers,
        seconds=args.seconds,
        rounds=args.rounds,
        dtype=dtype,
        timeout=150.0,  # many processes start at once, and a GPU may be tested first
    )


def say(text: str) -> None:
    """A line of the log, at once."""
    sys.stdout.write(f"{text}\n")  # in one piece, as threads use it
    sys.stdout.flush()
