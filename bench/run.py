"""Measures the common ways to load ImageNet-style batches, each in its own process and, if needed, environment.

    python bench/run.py imagenet/train --out results
    python bench/run.py imagenet/train --out results --max-size 400 --only gpupipe-torch,ffcv --dtype uint8

All are played in turn (A B C, A B C, ...). For each dtype it writes results.csv, results.json and results.png into a
folder below --out, and results.md for all.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from peers import FILTERS, PEERS
from peers.common import cache, convert, converted
from peers.environments import InstallError, interpreter, requirements, versions

from gpupipe.errors import ConfigError, GpupipeError
from gpupipe.host.progress import steps
from gpupipe.sources import open_source
from gpupipe.tools.benchmark import report
from gpupipe.tools.benchmark.measurement import DTYPES, BenchSettings, Result
from gpupipe.tools.benchmark.report import describe, environment
from gpupipe.tools.benchmark.runner import measure
from gpupipe.tools.pack import CLASSES_NAME, PackSettings, pack


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write. Exit code 1 if nothing could be measured."""
    args = parse(arguments)
    if args.cache:
        os.environ["GPUPIPE_PEERS"] = str(args.cache.absolute())  # the contenders' processes look there too
    try:
        return run(args)
    except GpupipeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", metavar="DATA", help="image folder")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the results")
    parser.add_argument("--dtype", type=names, default=DTYPES, help=f"of the batches (default: {','.join(DTYPES)})")
    parser.add_argument("--only", type=names, default=tuple(PEERS), metavar="A,B", help=f"of {', '.join(PEERS)}")
    parser.add_argument("--max-size", type=int, metavar="PX", help="shrink images first, to this shorter side")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="rounds of each contender (default: 5)")
    parser.add_argument("--seconds", type=float, default=4.0, metavar="S", help="time of a round (default: 4)")
    parser.add_argument("--threads", type=int, default=2, metavar="N", help="threads or workers (default: 2)")
    parser.add_argument("--batch-size", type=int, default=128, metavar="N", help="images a batch (default: 128)")
    parser.add_argument("--size", type=int, default=224, metavar="PX", help="side of the output (default: 224)")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="for environments and converted data")
    return parser.parse_args(arguments)


def names(text: str) -> tuple[str, ...]:
    """The parts of a list with commas."""
    return tuple(text.split(","))


def run(args: argparse.Namespace) -> int:
    """Install, convert, measure, write."""
    unknown = sorted(set(args.only) - set(PEERS))
    if unknown:
        raise ConfigError(f"--only has no {', '.join(unknown)}; there are {', '.join(PEERS)}")
    all_settings = [
        BenchSettings(
            data=args.data,
            dtype=dtype,
            batch_size=args.batch_size,
            size=args.size,
            workers=args.threads,
            threads=args.threads,
            rounds=args.rounds,
            seconds=args.seconds,
        )
        for dtype in args.dtype
    ]
    data = shrunk(args.data, args.max_size) if args.max_size else args.data
    pythons, failed = install(args.only)
    used = {name: versions(pythons[name], requirements(PEERS[name])) for name in pythons}
    parts, measured_any = [], False
    for settings in all_settings:
        facts = environment(settings) | {"max_size": args.max_size, "versions_of": used}
        output = args.out / settings.dtype
        results = play(args.only, replace(settings, data=data), output, pythons, failed)
        report.write_all(results, facts, output)
        parts.append(markdown(report.rows(results), facts))
        measured_any |= any(result.rounds for result in results)
    text = "\n\n".join([*parts, version_list(used)]) + "\n"
    (args.out / "results.md").write_text(text)
    print(text)
    return 0 if measured_any else 1


def shrunk(data: str, max_size: int) -> str:
    """The folder with the images of `data` as `gpupipe pack --max-size` writes them; made once."""

    def write(target: Path) -> None:
        with tempfile.TemporaryDirectory(dir=target) as work:
            pack(open_source(data), work, PackSettings(max_size=max_size))
            classes = json.loads((Path(work) / CLASSES_NAME).read_text())
            for shard in sorted(Path(work).glob("*.tar")):
                unpack(shard, classes, target)

    kind = f"max-{max_size}"
    convert(data, kind, write)
    return str(converted(data, kind))


def unpack(shard: Path, classes: Sequence[str], target: Path) -> None:
    """The images of a shard as files in folders of their classes; a shard has each one's label before it."""
    with tarfile.open(shard) as tar:
        for member in tar:
            file = tar.extractfile(member)
            assert file is not None, "a shard holds files only"
            content = file.read()
            if member.name.endswith(".cls"):
                folder = target / classes[int(content)]
                folder.mkdir(exist_ok=True)
            else:
                (folder / member.name).write_bytes(content)


def install(wanted: Iterable[str]) -> tuple[dict[str, str], dict[str, str]]:
    """The interpreter of each contender, and the reasons of those whose requirements can't be installed."""
    pythons, failed = {}, {}
    for name in wanted:
        try:
            pythons[name] = interpreter(requirements(PEERS[name]), cache() / "environments")
        except InstallError as error:
            failed[name] = str(error)
    return pythons, failed


def play(
    wanted: Sequence[str], settings: BenchSettings, output: Path, pythons: dict[str, str], failed: dict[str, str]
) -> list[Result]:
    """A result for each contender, under its name."""
    references = [PEERS[name] for name in pythons]
    with steps(len(references) * (1 + settings.rounds)) as step:
        measured = measure(
            references,
            settings,
            output / "logs",
            step,
            pythons={PEERS[name]: python for name, python in pythons.items()},
            require_antialias=False,
        )
    found = dict(zip(pythons, measured, strict=True))
    for name, result in found.items():
        result.name = name
    return [found[name] if name in found else Result(name, failed[name]) for name in wanted]


def markdown(rows: Sequence[report.Row], facts: dict[str, Any]) -> str:
    """The rows as a table, the fastest first, then the reasons of those without figures."""
    lines = [
        f"## {facts['settings']['dtype']}",
        "",
        describe(facts) + (f"; images shrunk to {facts['max_size']} px" if facts["max_size"] else ""),
        "",
        "| contender | img/s (min - max) | CPU ms an image | first batch s | memory MB | antialiased |",
        "|---|---|---|---|---|---|",
    ]
    for row in report.by_rate(rows):
        name, rate, spread, _, first, cpu, memory, _ = report.cells(row)
        antialiased = FILTERS.get(name, "yes") if row["antialiased"] == "yes" else "no"
        lines.append(f"| {name} | {rate} ({spread}) | {cpu} | {first} | {memory} | {antialiased} |")
    return "\n".join([*lines, "", *(f"- {line}" for line in report.remarks(rows))]).rstrip()


def version_list(used: dict[str, dict[str, str]]) -> str:
    """The versions that each contender ran with."""
    lines = [f"- {name}: {', '.join(f'{key} {value}' for key, value in found.items())}" for name, found in used.items()]
    return "\n".join(["## Versions", "", *lines])


if __name__ == "__main__":
    sys.exit(main())
