"""Loaders that read from a storage: images a second from a server with a latency, as a part of a local folder's.

    python bench/remote.py [DATA] --out results
    python bench/remote.py imagenet/train --out results --latency 0,50 --only gpupipe,litdata

nginx serves the images of DATA (an image folder, by default the made sample set), `--copies` times, in each loader's
own form: tar shards by HTTP, chunks of LitData and shards of MosaicML Streaming and single files by S3, which is the
same GET. It waits `--latency` milliseconds before the first byte of each answer, and sends `--rate` MB a second on each
connection; neither costs CPU time, as it sleeps in its event loop and the kernel paces TCP. Server and loaders share
the CPUs: what the server took is told.

Before anything is timed, each loader has to give the images and labels of the folder, byte for byte, in a pass, and
batches of the same shape, type and mean: all decode and crop with torchvision's code but gpupipe, whose pixels are
compared in the tests. Then, for each latency, they are played in turn. Each time a loader is started anew with an
empty cache: its first pass is the cold one, its second the warm one; before each, the system writes out what earlier
ones have left. Of each the first batches are not counted, and what comes after `--seconds`. The cold pass then goes on
for at most `--filling` seconds; where it does not come to its end there is no warm one, nor is there of loaders that
keep nothing. Writes results.md, remote.csv and remote.json.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parent.parent / "tests"))

from in_turn import cell, options, parsed, settings_of, words, write
from peers.common import cache, converted
from peers.environments import InstallError, interpreter, requirements, versions
from remote_peers import CONTENDERS, FOLDER
from remote_peers.common import Place
from remote_peers.host import Looked, Pass
from servers.nginx import Nginx
from source_peers.kinds import copied

from gpupipe.host.children import Child, ChildError
from gpupipe.host.progress import steps
from gpupipe.host.system import usable_cpus
from gpupipe.tools.benchmark.measurement import BenchSettings
from gpupipe.tools.benchmark.report import describe, environment
from gpupipe.tools.benchmark.runner import file_name
from gpupipe.tools.benchmark.sample_set import sample_set

__all__ = ["main"]

HOST = "remote_peers.host:Host"
KINDS = ("tar", "mds", "litdata")
PASSES = ("cold", "warm")
PREPARATION = 3600  # seconds that writing the data in a loader's form and looking at all of it may take
MEAN = 6.0  # gray levels that the means of random crops of 2,000 images may be apart: 1.1 is one standard deviation


@dataclass(frozen=True)
class Round:
    """A pass, and what it took of the server: CPU seconds, requests, and bytes of bodies, for all its images."""

    taken: Pass
    server_seconds: float
    requests: int
    sent: int

    @property
    def rate(self) -> float:
        """Images a second."""
        return self.taken.images / self.taken.seconds

    @property
    def rate_alone(self) -> float:
        """Images a second if the server's CPU time were another machine's: what it took of all CPUs is left out."""
        server = self.server_seconds * self.taken.images / self.taken.whole
        return self.taken.images / (self.taken.seconds - server / usable_cpus())


@dataclass
class Entry:
    """A loader at one latency: its rounds by pass, or why it has none. keeps: whether it has a cache."""

    rounds: dict[str, list[Round]] = field(default_factory=lambda: {name: [] for name in PASSES})
    reason: str = ""
    keeps: bool = True

    @property
    def passes(self) -> tuple[str, ...]:
        """Those that it has."""
        return PASSES if self.keeps else PASSES[:1]


@dataclass(frozen=True)
class Row:
    """A line of the table. to_folder: its median beside the folder's in the same turns and pass; alone_to_folder: as if
    the server were on another machine. server_ms_per_img and loader_ms_per_img: CPU time."""

    latency_ms: float
    loader: str
    cache: str
    img_per_s: float | None
    img_per_s_min: float | None
    img_per_s_max: float | None
    to_folder: float | None
    alone_to_folder: float | None
    first_batch_s: float | None
    loader_ms_per_img: float | None
    server_ms_per_img: float | None
    requests_per_img: float | None
    bytes_per_img: float | None
    through: bool
    reason: str


class Bench:
    """What stays the same for all turns."""

    def __init__(self, args: Any, settings: BenchSettings, pythons: dict[str, str], scratch: Path) -> None:
        self.args, self.settings, self.pythons, self.scratch = args, settings, pythons, scratch
        self.root = scratch / "served"
        self.root.mkdir()
        (self.root / "files").symlink_to(settings.data)
        for kind in KINDS:
            (self.root / kind).symlink_to(converted(settings.data, f"remote-{kind}"))

    @contextmanager
    def server(self, latency_ms: float) -> Iterator[Nginx]:
        """Of all kinds of data."""
        with tempfile.TemporaryDirectory(dir=self.scratch) as folder:
            rate = round(self.args.rate * 1e6) if self.args.rate else None
            with Nginx(self.root, Path(folder), latency_ms / 1000, rate) as server:
                yield server

    @contextmanager
    def child(self, name: str) -> Iterator[Child]:
        """The loader's process."""
        logs = self.args.out / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        with (logs / f"{file_name(name)}.log").open("ab") as log:
            child = Child(HOST, (CONTENDERS[name], self.settings), log, self.settings.timeout, self.pythons[name])
        try:
            yield child
        finally:
            child.end()

    @contextmanager
    def place(self, server: Nginx) -> Iterator[Place]:
        """With an empty cache.

        Its files are emptied, and removed when all is over: before ext4 makes a file it looks at the inodes that were
        freed in the last minutes. After turns that had removed theirs a fifth of a cold pass's reading went into that.
        """
        folder = Path(tempfile.mkdtemp(dir=self.scratch))
        try:
            yield Place(self.settings.data, server.url, str(folder))
        finally:
            for file in filter(Path.is_file, folder.rglob("*")):
                os.truncate(file, 0)

    def check(self, name: str, server: Nginx, wanted: Looked | None) -> Looked:
        """What the loader gives. Raises ChildError if that is not what is wanted."""
        found = self.ask(name, server)
        if wanted and found.samples != wanted.samples:
            raise ChildError(f"left out: a pass has {found.samples} for {wanted.samples} of {FOLDER}")
        if wanted and (found.batches != wanted.batches or abs(found.mean - wanted.mean) > MEAN):
            raise ChildError(f"left out: batches are {found}, not {wanted}")
        return found

    def ask(self, name: str, server: Nginx) -> Looked:
        """In a process of its own."""
        with self.child(name) as child, self.place(server) as place:
            return child.ask("check", place, extra_time=PREPARATION)  # type: ignore[no-any-return]

    def turn(self, name: str, server: Nginx, entry: Entry) -> None:
        """From an empty cache to the end of the last pass."""
        with self.child(name) as child, self.place(server) as place:
            entry.keeps = child.ask("open", place)
            for number in entry.passes:
                os.sync()  # what an earlier pass has written goes to the disk now, not while this one is timed
                before, lines = server.cpu_seconds, len(server.log())
                times = (self.args.seconds, self.args.filling if number != entry.passes[-1] else 0.0)
                taken = child.ask("run", self.args.skip, *times, extra_time=sum(times))
                log = server.log()[lines:]
                sent = sum(sent for _, _, sent, _ in log)
                entry.rounds[number].append(Round(taken, server.cpu_seconds - before, len(log), sent))
                if not taken.through:
                    break


def install(names: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    """The interpreter of each loader, and the reasons of those whose requirements can't be installed."""
    pythons, failed = {}, {}
    for name in names:
        try:
            pythons[name] = interpreter(requirements(CONTENDERS[name]), cache() / "environments")
        except InstallError as error:
            failed[name] = str(error)
    return pythons, failed


def measure(bench: Bench, names: Sequence[str], failed: dict[str, str], done: Any) -> dict[float, dict[str, Entry]]:
    """Check, then play in turn for each latency; `done` is told after each latency."""
    entries: dict[float, dict[str, Entry]] = {}
    reasons, wanted = dict(failed), None
    with bench.server(0) as server, steps(len(names)) as step:
        for name in names:
            step(f"checking {name}")
            with leaving(reasons, name):
                if name not in reasons:
                    wanted = bench.check(name, server, wanted)
    for latency in bench.args.latency:
        entries[latency] = {name: Entry() for name in names}
        with bench.server(latency) as server, steps(bench.args.rounds * len(names)) as step:
            for number in range(bench.args.rounds):
                for name, entry in entries[latency].items():
                    step(f"{latency:g} ms, round {number + 1} of {bench.args.rounds}: {name}")
                    if name not in reasons:
                        with leaving(reasons, name):
                            bench.turn(name, server, entry)
                    entry.reason = reasons.get(name, "")
        done(entries)
    return entries


@contextmanager
def leaving(reasons: dict[str, str], name: str) -> Iterator[None]:
    """A failure makes a loader leave, with the reason."""
    try:
        yield
    except ChildError as error:
        reasons[name] = str(error)


def rows(entries: dict[float, dict[str, Entry]]) -> list[Row]:
    """One for each loader, latency and pass."""
    made = []
    for latency, of_names in entries.items():
        for name, entry in of_names.items():
            for number in entry.passes:
                made.append(row(latency, name, number, entry, of_names.get(FOLDER)))
    return made


def row(latency: float, name: str, number: str, entry: Entry, folder: Entry | None) -> Row:
    """Of the rounds of one pass."""
    rounds = entry.rounds[number]
    reason = entry.reason
    if not rounds:
        reason = reason or "the cold pass did not come to its end"
        return Row(latency, name, number, *[None] * 10, through=False, reason=reason)
    rates = [one.rate for one in rounds]
    local = statistics.median(one.rate for one in folder.rounds[number]) if folder and folder.rounds[number] else None
    return Row(
        latency,
        name,
        number,
        statistics.median(rates),
        min(rates),
        max(rates),
        statistics.median(rates) / local if local else None,
        statistics.median(one.rate_alone for one in rounds) / local if local else None,
        statistics.median(one.taken.first for one in rounds),
        statistics.median(1000 * one.taken.cpu_seconds / one.taken.images for one in rounds),
        statistics.median(1000 * one.server_seconds / one.taken.whole for one in rounds),
        statistics.median(one.requests / one.taken.whole for one in rounds),
        statistics.median(one.sent / one.taken.whole for one in rounds),
        all(one.taken.through for one in rounds),
        reason,
    )


def markdown(measured: Sequence[Row], facts: dict[str, Any]) -> str:
    """A table for each latency; then the reasons."""
    head = "loader | cache | img/s (min - max) | part of the folder's | with the server elsewhere | first batch s"
    head += " | CPU ms an image: loader | server | requests an image | kB an image"
    lines = [describe(facts)]
    for latency in dict.fromkeys(one.latency_ms for one in measured):
        lines += ["", f"**{latency:g} ms** before each answer", "", f"| {head} |", "|---" * 10 + "|"]
        lines += [line(one) for one in measured if one.latency_ms == latency and one.img_per_s is not None]
    reasons = dict.fromkeys(
        f"- {one.loader}, {one.latency_ms:g} ms, {one.cache}: {one.reason}" for one in measured if one.reason
    )
    cold, warm = (dict.fromkeys(one.loader for one in measured if one.cache == name) for name in PASSES)
    alone = [name for name in cold if name not in warm]
    notes = [f"- no warm pass, as they keep nothing: {', '.join(alone)}"] if alone else []
    return "\n".join([*lines, "", *notes, *reasons]).rstrip()


def line(one: Row) -> str:
    """A row of the table."""
    rate = cell(one.img_per_s, one.img_per_s_min, one.img_per_s_max)
    parts = ["-" if part is None else f"{part:.1%}" for part in (one.to_folder, one.alone_to_folder)]
    small = (one.first_batch_s, one.loader_ms_per_img, one.server_ms_per_img, one.requests_per_img)
    cells = [*(f"{value:.2f}" for value in small if value is not None), f"{(one.bytes_per_img or 0) / 1000:.0f}"]
    return f"| {one.loader} | {one.cache} | {rate} | {' | '.join(parts)} | {' | '.join(cells)} |"


def main(argv: Sequence[str] | None = None) -> int:
    """Check, measure, and write after each latency. Exit code 1 if gpupipe could not be measured."""
    parser = options(__doc__, CONTENDERS)
    parser.set_defaults(seconds=20.0)
    parser.add_argument("--latency", type=words, default=["0", "10", "50"], metavar="MS,MS", help="default: 0,10,50")
    parser.add_argument("--filling", type=float, default=200.0, metavar="S", help="at most (default: 200)")
    parser.add_argument("--rate", type=float, default=90.0, metavar="MB", help="a second and connection (default: 90)")
    parser.add_argument("--skip", type=int, default=12, metavar="N", help="first batches of a pass (default: 12)")
    parser.add_argument("--size", type=int, default=224, metavar="PX", help="side of the output (default: 224)")
    parser.add_argument("--copies", type=int, default=32, metavar="N", help="of each image (default: 32)")
    args = parsed(parser, argv, CONTENDERS)
    if args is None:
        return 1
    args.latency = [float(text) for text in args.latency]
    args.data = copied(args.data or str(sample_set()), args.copies)
    settings = settings_of(args, threads=1, size=args.size, dtype="uint8")
    pythons, failed = install(args.only)
    facts = environment(settings)
    facts |= {"versions_of": {name: versions(pythons[name], requirements(CONTENDERS[name])) for name in pythons}}
    facts |= {"rate_mb_per_s": args.rate, "skipped_batches": args.skip}
    with tempfile.TemporaryDirectory(dir=cache()) as scratch:
        bench = Bench(args, settings, pythons, Path(scratch))

        def done(entries: dict[float, dict[str, Entry]]) -> None:
            found = {f"{latency:g}": {name: asdict(one) for name, one in of.items()} for latency, of in entries.items()}
            measured = rows(entries)
            text = markdown(measured, facts)
            write(args.out, "remote", text, measured, {"environment": facts, "results": found})

        entries = measure(bench, args.only, failed, done)
    print((args.out / "results.md").read_text())
    return int(any(of[name].reason for of in entries.values() for name in (FOLDER, "gpupipe") if name in of))


if __name__ == "__main__":
    sys.exit(main())
