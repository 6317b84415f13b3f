"""Epochs under disturbance, each batch compared with a quiet run's; what is open at the end is what was at the start.

    python bench/soak.py --minutes 60 --out soak-out
    python bench/soak.py --lives 1 --first 417 --seed 0 --out again        # one life once more

Loaders of an image folder, tar shards and a loopback server, by the torch engine, DALI on the CPU, and DALI with
workers that share its work, are built, go through --epochs epochs and are closed, one after the other in one process.
Meanwhile workers and whole processes are stopped and go on, workers are killed, class folders and shards are renamed
and put back, and another process takes memory while the data's pages are dropped: when and what follows from the seed.

An error has to be a WorkerError that names a process that was killed, or a SampleError that names a file that was
renamed; then next() goes on behind the batch that did not come, or a state resumes with it. All other batches have to
come, once and in order, each row with the checksum that another process gets which nothing disturbs. Substitutes of
renamed files are the next of the epoch's order that were there, in the pixels of the CPU's decoder. After each loader
no open file, thread, process or entry of /dev/shm may be left, and memory must not grow by more than `GROWTH`. What
takes longer than --patience seconds hangs. Into --out it writes results.md and results.json. Exit code 1: something was
wrong.
"""

from __future__ import annotations

import argparse
import json
import operator
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

sys.path += [str(Path(__file__).parent), str(Path(__file__).parent.parent / "tests")]

import numpy as np
from images import encode, picture
from reliability.traces import own_shm
from servers.faults import FaultServer
from soaking import checks
from soaking.lives import CLASSES, KINDS, Life, life_of
from tars import write_tar

from gpupipe.host.children import Child, ChildError
from gpupipe.host.machine import machine

__all__ = ["main"]

PER_CLASS = 30  # images
GROWTH = {"used": 0.02, "mb": 0.05}
"""Of memory, by a line: more is not flat. That of all memory is through the second half alone, in which it has to level
off: malloc keeps free chunks in arenas, up to 8 for each CPU, and each pipeline of DALI has new threads, which take any
of them, until all have had the largest share. In a process that makes and runs plain pipelines of DALI such chunks
are 0.8 MB at first, 16 after 80 pipelines, and 11 to 17 from then to the 400th; 3 where there is one arena
(MALLOC_ARENA_MAX=1). What is in use stays, but for 2.1 KB that DALI 2.4 loses with each pipeline with a decoder."""
SHOWN = 20  # of what is wrong; all is in results.json
WARM = len(KINDS)  # lives in which libraries start what stays


def main(argv: Sequence[str] | None = None) -> int:
    """Play, compare, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0, metavar="M")
    parser.add_argument("--lives", type=int, metavar="N", help="loaders; default: as many as there is time for")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="to repeat one (default: 0)")
    parser.add_argument("--epochs", type=int, default=8, metavar="N", help="of each loader (default: 8)")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--patience", type=float, default=300.0, metavar="S")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the results")
    args = parser.parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    own_shm()
    soaked = Soaked()
    with data() as places, tempfile.TemporaryDirectory() as scratch, (args.out / "log").open("wb") as log:
        size = sum(path.stat().st_size for path in Path(places["folder"]).rglob("*.jpg")) // 2
        with ExitStack() as stack:

            @cache
            def player(name: str) -> Child:
                child = Child("soaking.player:Player", (places, f"{scratch}/{name}", size), log, args.patience)
                stack.callback(child.kill)
                return child

            play(args, player, soaked)
    code = write(args, soaked)
    print((args.out / "results.md").read_text())
    return code


@contextmanager
def data() -> Iterator[dict[str, str]]:
    """Where the same images lie in each form."""
    with tempfile.TemporaryDirectory(prefix="soak-") as root, FaultServer() as server:
        for folder in ("folder", "tar"):
            (Path(root) / folder).mkdir()
        for label in range(CLASSES):
            (Path(root) / "folder" / f"class{label}").mkdir()
            members = []
            for number in range(PER_CLASS):
                rng = np.random.default_rng([label, number])
                height, width = rng.integers(60, 200, 2).tolist()
                image = encode(picture(height, width, 1000 * label + number), quality=85)
                (Path(root) / "folder" / f"class{label}" / f"{number:03}.jpg").write_bytes(image)
                members += [(f"{label}{number:03}.jpg", image), (f"{label}{number:03}.cls", str(label).encode())]
            shard = write_tar(Path(root) / "tar" / f"shard{label}.tar", members)
            server.put(shard.name, shard.read_bytes())
        remote = f"{server.url}/shard{{0..{CLASSES - 1}}}.tar"
        yield {"folder": f"{root}/folder", "tar": f"{root}/tar", "remote": remote}


@dataclass
class Soaked:
    """What came of it."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    acts: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    substitutes: int = 0
    batches: int = 0
    epochs: int = 0


class Undisturbed:
    """The process that nothing disturbs; it is asked once for what no disturbance has changed."""

    def __init__(self, child: Child) -> None:
        self.ask = cache(child.ask)
        self._child = child

    def epoch(self, life: Life, epoch: int, batches: list[tuple[int, list[int], list[int]]]) -> checks.Quiet:
        """What it delivers in an epoch."""
        planned = self.ask("plan", life.form, epoch)
        rows, anew = (self.ask("quiet", engine, life.form, epoch) for engine in (life.engine, "torch"))
        others = {step: indices for step, indices, _ in batches if indices != planned[step]}
        if others:
            anew = self._child.ask("quiet", "torch", life.form, epoch, others)
        return checks.Quiet(planned, rows, anew)


def process_of(life: Life) -> str:
    """The process that plays it: one that has read from a storage can't fork workers any more."""
    return "remote" if life.form == "remote" else "local"


def play(args: argparse.Namespace, player: Callable[[str], Child], soaked: Soaked) -> None:
    """Lives, until the time is over; or until one crashes or hangs, which ends it."""
    begun, number, quiet = time.monotonic(), args.first, Undisturbed(player("quiet"))
    while time.monotonic() - begun < 60 * args.minutes and len(soaked.rows) != args.lives:
        life = life_of(args.seed, number, args.epochs)
        number += 1
        noisy = player(process_of(life))
        try:
            found = noisy.ask("play", life)
            if len(soaked.rows) < WARM:
                noisy.ask("settle")
        except ChildError as error:
            soaked.wrong.append(f"{life.name}: {error}")
            print(soaked.wrong[-1], flush=True)
            return
        if len(soaked.rows) < WARM:
            found["left"] = ""
        wrong = list(compared(life, found, quiet, soaked))
        soaked.wrong += [f"{life.name}: {line}" for line in wrong]
        note(soaked, life, found, time.monotonic() - begun)
        print("\n".join([summary(soaked), *wrong[:SHOWN]]), flush=True)
        write(args, soaked)


def compared(life: Life, found: dict[str, Any], quiet: Undisturbed, soaked: Soaked) -> Iterator[str]:
    """What is wrong with a life."""
    locations = quiet.ask("samples", life.form)
    yield from checks.of_life(life, found, locations)
    away = {index for index, where in enumerate(locations) if any(name in where for name in found["hidden"])}
    bad = {index for index, _ in found["bad"]}
    for epoch, one in enumerate(found["epochs"]):
        expected = quiet.epoch(life, epoch, one["batches"])
        for step, indices, _ in one["batches"]:
            soaked.substitutes += sum(map(operator.ne, indices, expected.planned[step]))
        for line in checks.of_epoch(life, one, expected, bad, away):
            yield f"epoch {epoch}: {line}"


def note(soaked: Soaked, life: Life, found: dict[str, Any], seconds: float) -> None:
    """A row for the life; totals."""
    soaked.acts.update(found["counts"])
    soaked.epochs += len(found["epochs"])
    soaked.batches += sum(len(epoch["batches"]) for epoch in found["epochs"])
    soaked.errors.update(kind for epoch in found["epochs"] for kind, _, _ in epoch["errors"])
    measured = {name: found[name] for name in ("mb", "used", "files", "threads", "processes", "shm")}
    kind = {"process": process_of(life), "engine": life.engine, "form": life.form}
    row = {"life": life.number, "seconds": round(seconds, 2)} | kind
    soaked.rows.append(row | measured)


def slope(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Of the line through them by least squares."""
    return float(np.polyfit(xs, ys, 1)[0]) if len(xs) > 1 else 0.0


def summary(soaked: Soaked) -> str:
    """Where it stands."""
    row = soaked.rows[-1]
    return (
        f"{row['seconds']:.0f} s: life {row['life']} ({row['engine']}, {row['form']}), {soaked.epochs} epochs, "
        f"{soaked.batches} batches, {dict(soaked.acts)}, {row['mb']:.1f} MB, of them {row['used']:.1f} in use, "
        f"{len(soaked.wrong)} wrong"
    )


def flatness(soaked: Soaked) -> list[dict[str, Any]]:
    """Of each process and measure, from the end of the warm-up on: ends, range, and growth by a line, see `GROWTH`."""
    found = []
    for process in ("local", "remote"):
        rows = [row for row in soaked.rows[WARM:] if row["process"] == process]
        for name in MEASURES if len(rows) > 1 else ():
            values = [row[name] for row in rows]
            ends = {"first": values[0], "last": values[-1], "least": min(values), "most": max(values)}
            judged = rows[len(rows) // 2 :] if name == "mb" else rows
            hours = [row["seconds"] / 3600 for row in judged]
            hourly = slope(hours, [row[name] for row in judged])
            growth = {"an_hour": hourly, "growth": hourly * (hours[-1] - hours[0])}
            found.append({"process": process, "measure": name} | ends | growth)
    return found


def write(args: argparse.Namespace, soaked: Soaked) -> int:
    """The files, also while it goes on; 1 where something was wrong."""
    flat = flatness(soaked)
    wrong = [*soaked.wrong, *map(grew, filter(has_grown, flat))]
    (args.out / "results.md").write_text(table(soaked, flat, wrong))
    settings = {"seed": args.seed, "first": args.first, "epochs": args.epochs, "minutes": args.minutes}
    content = {
        "environment": machine() | {"settings": settings},
        "wrong": wrong,
        "batches": soaked.batches,
        "acts": soaked.acts,
        "errors": soaked.errors,
        "substitutes": soaked.substitutes,
        "flatness": flat,
        "lives": soaked.rows,
    }
    (args.out / "results.json").write_text(json.dumps(content, indent=1) + "\n")
    return int(bool(wrong))


def has_grown(row: dict[str, Any]) -> bool:
    """Whether a measure is not flat."""
    name = row["measure"]
    return bool(row["growth"] > (GROWTH[name] * row["first"] if name in GROWTH else 0.5))


def grew(row: dict[str, Any]) -> str:
    """In words."""
    return f"{row['process']} process: {MEASURES[row['measure']]}, grew by {row['growth']:.2f} from {row['first']:.2f}"


def table(soaked: Soaked, flat: Sequence[dict[str, Any]], wrong: Sequence[str]) -> str:
    """Markdown."""
    names = ("loaders", "epochs", "batches", "substitutes", "errors", "wrong")
    counts = (len(soaked.rows), soaked.epochs, soaked.batches, soaked.substitutes, soaked.errors.total())
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    lines += [f"| {' | '.join(f'{count:,}' for count in (*counts, len(wrong)))} |", ""]
    lines += [
        "| what was done | times |",
        "|---|---|",
        *(f"| {WORDS[name]} | {soaked.acts[name]} |" for name in WORDS),
        "",
    ]
    lines += ["| process | what it has after each loader | first | last | least | most | growth an hour |"]
    lines += ["|---" * 7 + "|"]
    for row in flat:
        cells = [f"{row[name]:,.1f}" for name in ("first", "last", "least", "most", "an_hour")]
        lines.append(f"| {row['process']} | {MEASURES[row['measure']]} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", *wrong[:SHOWN]]).rstrip() + "\n"


WORDS = {
    "stop": "a worker stood still",
    "freeze": "all stood still",
    "kill": "a worker was killed",
    "hide": "a folder or shard was renamed",
    "press": "memory taken, pages dropped",
}
MEASURES = {
    "mb": "memory, MB; its growth in the second half",
    "used": "memory without malloc's free chunks, MB",
    "files": "open files",
    "threads": "threads",
    "processes": "processes",
    "shm": "entries of /dev/shm",
}


if __name__ == "__main__":
    sys.exit(main())
