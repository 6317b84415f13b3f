"""What was to be reached, what was measured, and whether that is enough, from the files that run.sh has written.

    python3 -m gpu.table FILE.json [FILE.json ...] [--out TABLE.md]

Files of several calls are put together; where two have the same part, the later file counts. "unknown" stands where a
part has not run, or has no figure that the target needs. What was missed is printed, and no error.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu.decoders import CPU_WORKERS, DALI
from gpu.host import WAITING
from gpu.loaders import NATIVE, PACKED, SPDL, TORCH, TORCHVISION_GPU, TORCHVISION_V2, TUNED
from gpu.memory import GROWTH
from gpu.rows import Row

__all__ = ["Line", "caption", "lines", "main", "markdown", "read"]

RATE = 27_500.0  # img/s: the fastest published DALI pipeline, a GPU
SHARE = 0.90  # of the sum of what the decoders reach alone
SMALLER = 2.0  # times the rate, on images packed at 400 px
CEILING = 0.97  # of the rate with data already on the GPU
HOST_MS = 1.0
GROWN_MB = 64.0  # two batches of 256 in float16, or an allocator's block; a leak of one batch in 2,000 would be 300 GB

RIVALS = (NATIVE, TORCHVISION_V2, TORCH, TORCHVISION_GPU, SPDL)


@dataclass(frozen=True)
class Line:
    """A target; `reached` is None where that is not known."""

    what: str
    to_reach: str
    measured: str
    reached: bool | None


class Figures:
    """Medians by part, name and quantity."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.rows = [row for row in rows if row.median is not None]

    def one(self, part: str, name: str, quantity: str = "img/s") -> float | None:
        """The median of what has this name."""
        return next((row.median for row in self._of(part, quantity) if row.name == name), None)

    def best(self, part: str, start: str, *parts: str) -> tuple[str, float] | None:
        """The fastest of those whose names start so and contain all of `parts`."""
        found = [
            (row.name, row.median)
            for row in self._of(part, "img/s")
            if row.median is not None and row.name.startswith(start) and all(text in row.name for text in parts)
        ]
        return max(found, key=lambda one: one[1]) if found else None

    def _of(self, part: str, quantity: str) -> list[Row]:
        return [row for row in self.rows if row.part == part and row.quantity == quantity]


def lines(rows: Iterable[Row]) -> list[Line]:
    """All targets."""
    figures = Figures(rows)
    return [*rivals(figures), *decoders(figures), packed(figures), training(figures), *host(figures), memory(figures)]


def rivals(figures: Figures) -> list[Line]:
    """The loader alone beside each of the others."""
    ours = figures.one("loaders", TUNED)
    made = []
    for rival in RIVALS:
        theirs = figures.best("loaders", rival)
        if ours is None or theirs is None:
            made.append(unknown(f"loader alone, beside {rival}", "more", [(TUNED, ours), (rival, theirs)]))
        else:
            text = f"{ours:,.0f} img/s, {theirs[0]}: {theirs[1]:,.0f}"
            made.append(Line(f"loader alone, beside {rival}", "more", text, ours > theirs[1]))
    return made


def decoders(figures: Figures) -> list[Line]:
    """The loader beside the sum of the decoders alone, all measured in turn."""
    hardware = figures.best("decoders", DALI, "hw 1,") or figures.best("decoders", DALI)
    cpu, ours = figures.one("decoders", CPU_WORKERS), figures.one("decoders", TUNED)
    share, past = f"at least {SHARE:.0%}", f"more than {RATE:,.0f} img/s, if the sum allows"
    if hardware is None or cpu is None or ours is None:
        parts = [("DALI alone", hardware), (CPU_WORKERS, cpu), (TUNED, ours)]
        return [unknown("share of what the decoders reach alone", share, parts), unknown("loader alone", past, parts)]
    total = hardware[1] + cpu
    text = f"{ours / total:.0%}: {ours:,.0f} of {hardware[1]:,.0f} ({hardware[0]}) + {cpu:,.0f} ({CPU_WORKERS}) img/s"
    allowed = total > RATE
    rate = f"{ours:,.0f} img/s" + ("" if allowed else f"; the sum of {total:,.0f} does not allow it")
    return [
        Line("share of what the decoders reach alone", share, text, ours >= SHARE * total),
        Line("loader alone", past, rate, ours > RATE if allowed else None),
    ]


def packed(figures: Figures) -> Line:
    """Packed at 400 px beside the original files."""
    what, to_reach = "packed at 400 px, beside the original files", f"at least {SMALLER:g} times"
    files, small = (figures.one("loaders-400", name) for name in (TUNED, TUNED + PACKED))
    if files is None or small is None:
        return unknown(what, to_reach, [(TUNED, files), (TUNED + PACKED, small)])
    text = f"{small / files:.2f} times: {small:,.0f} and {files:,.0f} img/s"
    return Line(what, to_reach, text, small >= SMALLER * files)


def training(figures: Figures) -> Line:
    """ResNet-50 fed by gpupipe beside data that lies on the device."""
    what, to_reach = "training ResNet-50, of the ceiling", f"at least {CEILING:.0%} where the loader alone is faster"
    share, ceiling = figures.one("training", "gpupipe", "of ceiling"), figures.one("training", "device")
    alone = figures.one("loaders", TUNED)
    if share is None or ceiling is None:
        return unknown(what, to_reach, [("training with gpupipe", share), ("the ceiling", ceiling)])
    text = f"{share:.1%} of {ceiling:,.0f} img/s"
    if share >= CEILING:
        return Line(what, to_reach, text, True)
    if alone is None:
        return Line(what, to_reach, f"{text}; no figure of {TUNED} alone", None)
    if alone <= ceiling:
        return Line(what, to_reach, f"{text}; the loader alone reaches {alone:,.0f}, which is less", None)
    return Line(what, to_reach, text, False)


def host(figures: Figures) -> list[Line]:
    """The consumer's thread, with batches ready."""
    made = []
    for quantity in ("median ms", "p99 ms"):
        what, to_reach = f"host time of `next`, {quantity.removesuffix(' ms')}", f"under {HOST_MS:g} ms"
        found = figures.one("host", WAITING, quantity)
        if found is None:
            made.append(unknown(what, to_reach, [("the part host", found)]))
        else:
            made.append(Line(what, to_reach, f"{found:.3f} ms", found < HOST_MS))
    return made


def memory(figures: Figures) -> Line:
    """Device memory over 2,000 batches."""
    what, to_reach = "growth of device memory, batch 500 to 2,000", f"at most {GROWN_MB:g} MB"
    grown, level = figures.one("memory", "device", GROWTH), figures.one("memory", "after 2000 batches", "device MB")
    if grown is None or level is None:
        return unknown(what, to_reach, [("2,000 batches on a GPU", level)])
    return Line(what, to_reach, f"{grown:+,.0f} MB, {level:,.0f} MB in all", grown <= GROWN_MB)


def unknown(what: str, to_reach: str, needed: Sequence[tuple[str, object]]) -> Line:
    """A line that names what is missing."""
    return Line(what, to_reach, "no figure of " + ", ".join(name for name, value in needed if value is None), None)


def markdown(made: Sequence[Line], captions: Sequence[str] = ()) -> str:
    """The table, below a line about each machine."""
    words = {True: "yes", False: "NO", None: "unknown"}
    text = [*captions, *([""] if captions else []), "| what | to reach | measured | reached |", "|---|---|---|---|"]
    text += [f"| {one.what} | {one.to_reach} | {one.measured} | {words[one.reached]} |" for one in made]
    return "\n".join(text)


def read(paths: Sequence[Path]) -> list[Row]:
    """The rows of all files; a part of a later file replaces that of an earlier one."""
    parts: dict[str, list[Row]] = {}
    for path in paths:
        rows = [Row(**row) for row in json.loads(path.read_text())["rows"]]
        for part in dict.fromkeys(row.part for row in rows):
            parts[part] = [row for row in rows if row.part == part]
    return [row for rows in parts.values() for row in rows]


def caption(path: Path) -> str:
    """The machine of a file."""
    facts = json.loads(path.read_text())["contents"].get("machine", {})
    gpus = ", ".join(facts.get("gpus", ())) or "NO GPU: not what the targets are for"
    return (
        f"{gpus}; {facts.get('cpu', 'CPU unknown')}, {facts.get('usable_cpus', '?')} CPUs; {facts.get('date', '')[:10]}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Print, and write if asked to."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("files", nargs="+", type=Path, metavar="FILE.json", help="what run.sh wrote")
    made.add_argument("--out", type=Path, metavar="TABLE.md")
    args = made.parse_args(argv)
    found = lines(read(args.files))
    text = markdown(found, list(dict.fromkeys(caption(path) for path in args.files)))
    print(text)
    missed = [line.what for line in found if line.reached is False]
    print(f"\nmissed: {'; '.join(missed)}" if missed else "\nnothing that was measured misses its target")
    if args.out:
        args.out.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
