"""Presets on the CPU, through real loaders: each beside the code of those who published it.

    python bench/presets.py [DATA] --originals FOLDER --out results
    python bench/presets.py --originals FOLDER --out results --only dinov2_train,segmentation_train --rounds 2

gpupipe.Loader with the preset, and torch's DataLoader with the original's own transform on Pillow images and, where the
original mixes, its mixing: as many workers, each in a process of its own, in turn. FOLDER is where you have put the
originals' code, of which nothing is kept here; what is not there is left out, and told with how it comes there.
torchvision's and timm's presets that need no more than these packages are measured without a folder, too.

Before a preset is timed, both make the first `--compared` images. What an evaluation makes has to be the same to a gray
level in the mean, and of a training, which draws, what can be said of an image has to have the same distributions: its
colours, contrast, detail, shading, its boxes and its mask (Kolmogorov-Smirnov, seeded). The tests compare pixels and
masks of the same draws.

DATA is an image folder, by default the made sample set; masks and boxes are made for it. Writes results.md,
presets.csv and presets.json; with --page, puts the table into that page, in the place of the one there.
"""

from __future__ import annotations

import os
import re
import statistics
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from field_peers.data import prepare
from in_turn import cell, options, parsed, rate_of, settings_of, write
from preset_peers import ORIGINAL, WAYS
from preset_peers.agreement import Agreement
from preset_peers.code import FOLDER
from preset_peers.table import PRESETS

from gpupipe.host.children import Child, ChildError
from gpupipe.host.progress import steps
from gpupipe.tools.benchmark.measurement import BenchSettings, Result, ratio
from gpupipe.tools.benchmark.report import environment

__all__ = ["main"]

HOST = "preset_peers.host:Host"
TABLE = re.compile(r"^\| preset \| original \|.*\n(\|.*\n)+\n.*; \d{4}-\d\d-\d\d\n(\n- .*\n(- .*\n)*)?", re.MULTILINE)
"""In a page, with the line about where it was measured, and the reasons."""


@dataclass(frozen=True)
class Row:
    """A preset: images a second over the rounds of both, how many times the original's, and CPU time; or the reason."""

    preset: str
    source: str
    size: int
    img_per_s: float | None
    img_per_s_min: float | None
    img_per_s_max: float | None
    original_img_per_s: float | None
    original_img_per_s_min: float | None
    original_img_per_s_max: float | None
    times: float | None
    cpu_ms_per_img: float | None
    original_cpu_ms_per_img: float | None
    agreement: str
    reason: str


@dataclass
class Entrant:
    """A contender for a preset: its result and, while it takes part, its process."""

    preset: str
    result: Result
    process: Child
    agreement: Agreement | None = None

    def prepare(self, compared: int) -> None:
        """Ask whether it can take part, compare, open it."""
        with self.leaving():
            reason = self.process.ask("available")
            if reason is None and self.result.name == ORIGINAL:
                self.agreement = self.process.ask("compare", self.preset, compared)
                reason = self.agreement.wrong
            if reason is not None:
                raise ChildError(reason)
            self.result.opened = self.process.ask("open", 0)

    def run_round(self, seconds: float) -> None:
        """Measure once."""
        with self.leaving():
            if self.result.reason is None:
                self.result.rounds.append(self.process.ask("run", seconds, extra_time=seconds))

    @contextmanager
    def leaving(self) -> Iterator[None]:
        """What fails is the reason in its result."""
        try:
            yield
        except ChildError as error:
            self.result.reason = str(error)


def measure(name: str, settings: BenchSettings, compared: int, logs: Path) -> tuple[list[Result], Agreement | None]:
    """Both in turn, once they agree."""
    logs.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack, steps(1 + settings.rounds) as step, ThreadPoolExecutor(len(WAYS)) as threads:
        entrants = []
        for way, reference in WAYS.items():
            log = stack.enter_context((logs / f"{name}-{way}.log").open("wb"))
            process = Child(HOST, (reference + name, settings), log, settings.timeout)
            stack.callback(process.end)
            entrants.append(Entrant(name, Result(way), process))
        step("comparing")
        list(threads.map(lambda one: one.prepare(compared), entrants))
        for number in range(settings.rounds):
            step(f"round {number + 1} of {settings.rounds}")
            for one in entrants:
                one.run_round(settings.seconds)
    return [one.result for one in entrants], entrants[-1].agreement


def row(name: str, results: Sequence[Result], agreement: Agreement | None) -> Row:
    """As it is shown."""
    preset, (ours, original) = PRESETS[name], results
    cpu = [statistics.median(one.cpu_ms for one in each.rounds) if each.rounds else None for each in results]
    reasons = [f"{each.name}: {each.reason}" for each in results if each.reason]
    return Row(
        ", ".join(filter(None, [name, preset.also])),
        preset.source,
        preset.size,
        *rate_of(ours),
        *rate_of(original),
        ratio(ours, original),
        *cpu,
        said(agreement, preset.apart),
        "; ".join(reasons),
    )


def said(agreement: Agreement | None, apart: Sequence[str]) -> str:
    """In words."""
    if agreement is None:
        return "-"
    if agreement.mean is None:
        but = f"; not of {', '.join(apart)}" if apart else ""
        return f"distributions: {agreement.distance:.2f} of the limit ({agreement.fact}){but}"
    mask = "" if agreement.mask is None else f", {agreement.mask:.2%} of the mask differs"
    return f"pixels: {agreement.mean:.1g} gray levels apart in the mean{mask}"


def markdown(measured: Sequence[Row], facts: dict[str, Any]) -> str:
    """A line for each preset; where it was measured; the reasons."""
    lines = ["| preset | original | gpupipe | original | times | CPU ms an image | agreement |", "|---" * 7 + "|"]
    for one in measured:
        ours = cell(one.img_per_s, one.img_per_s_min, one.img_per_s_max)
        theirs = cell(one.original_img_per_s, one.original_img_per_s_min, one.original_img_per_s_max)
        times = "-" if one.times is None else f"{one.times:.1f}"
        cpu = " / ".join("-" if ms is None else f"{ms:.2f}" for ms in (one.cpu_ms_per_img, one.original_cpu_ms_per_img))
        cells = f"`{one.preset}`", f"{one.source}, {one.size} px", ours, theirs, times, cpu, one.agreement
        lines.append(f"| {' | '.join(cells)} |")
    settings = facts["settings"]
    where = (
        f"Images a second, median of {settings['rounds']} rounds (smallest - largest), and CPU time of gpupipe / the "
        f"original; {facts['cpu']}, {facts['usable_cpus']} CPUs, {settings['workers']} workers; {facts['date'][:10]}"
    )
    reasons = [f"- {one.preset}: {one.reason}" for one in measured if one.reason]
    return "\n".join([*lines, "", where, "", *reasons]).rstrip()


def main(argv: Sequence[str] | None = None) -> int:
    """Compare, measure, and write after each preset. Exit code 1 if gpupipe could not be measured, or differs."""
    parser = options(__doc__, PRESETS)
    parser.set_defaults(seconds=0.5)
    parser.add_argument("--originals", type=Path, metavar="FOLDER", help=f"of the originals' code (default: ${FOLDER})")
    parser.add_argument(
        "--compared", type=int, default=64, metavar="N", help="images that both make first (default: 64)"
    )
    parser.add_argument("--page", type=Path, metavar="FILE", help="docs/guide/recipes.md")
    args = parsed(parser, argv, PRESETS)
    if args is None:
        return 1
    if args.originals:
        os.environ[FOLDER] = str(args.originals.absolute())  # the contenders' processes look there
    usual = settings_of(args, threads=1)
    prepare(usual.data)
    found, measured = {}, []
    for name in args.only:
        print(f"{name}:", file=sys.stderr)
        batch_size = min(args.batch_size, PRESETS[name].batch_size)
        settings = replace(usual, size=PRESETS[name].size, batch_size=batch_size)
        results, agreement = measure(name, settings, args.compared, args.out / "logs")
        measured.append(row(name, results, agreement))
        found[name] = {
            "agreement": agreement and asdict(agreement),
            "batch_size": batch_size,
            "results": [asdict(result) for result in results],
        }
        facts = environment(settings_of(args, threads=1))
        write(args.out, "presets", markdown(measured, facts), measured, {"environment": facts, "presets": found})
    text = (args.out / "results.md").read_text()
    print(text)
    if args.page:
        args.page.write_text(TABLE.sub(lambda _: text, args.page.read_text(), count=1))
    return int(any(one.img_per_s is None or "apart" in one.reason for one in measured))


if __name__ == "__main__":
    sys.exit(main())
