"""Runs the contenders: each in its own process, opened and checked one after the other, then measured in turn."""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from gpupipe.host.children import Child, ChildError
from gpupipe.tools.benchmark import checks
from gpupipe.tools.benchmark.contenders import reference
from gpupipe.tools.benchmark.measurement import BenchSettings, Result

__all__ = ["file_name", "measure", "start"]

Report = Callable[[str], None]
PREPARATION = 3600  # seconds that a conversion of the data may take
HOST = "gpupipe.tools.benchmark.child:Host"


def start(name: str, settings: BenchSettings, log: Path, python: str = sys.executable) -> Child:
    """A contender in a process of its own, see `Host`."""
    with log.open("ab") as file:
        return Child(HOST, (name, settings), file, settings.timeout, python)


class Entrant:
    """A contender's result and, while it takes part, its process."""

    def __init__(self, name: str, settings: BenchSettings, log: Path, python: str) -> None:
        self.result = Result(name)
        self.settings = settings
        self._start = partial(start, name, settings, log, python)
        self._process: Child | None = None

    def prepare(self, noise: str, labels: dict[int, int] | None, require_antialias: bool) -> None:
        """Start it, ask whether it can take part, open it, and check what it makes."""
        self._process = self._start()
        with self._leaving():
            self.result.reason = self._process.ask("available")
            if self.result.reason:
                self.end()
                return
            if self._process.ask("prepare", [self.settings.data, noise], extra_time=PREPARATION):
                self.end()  # what the preparation took would count as the contender's memory
                self._process = self._start()
            self.result.noise_std = std = self._process.ask("noise", noise)
            self.result.opened = opened = self._process.ask("open", sum(labels.values()) if labels else 0)
            wrong = checks.problem(opened, self.settings, labels)
            if wrong := wrong or (checks.noise_problem(std) if require_antialias else None):
                raise ChildError(f"left out: {wrong}")

    def run_round(self) -> None:
        """Measure once, and look how much memory is in use after it."""
        if self._process is None:
            return
        with self._leaving():
            measured = self._process.ask("run", self.settings.seconds, extra_time=self.settings.seconds)
            self.result.memory_mb = max(self._process.ask("memory"), self.result.memory_mb or 0.0)
            self.result.rounds.append(measured)

    def end(self) -> None:
        """End the process, if it is still there."""
        if self._process is not None:
            self._process.end()
        self._process = None

    @contextmanager
    def _leaving(self) -> Iterator[None]:
        """A failure makes it leave, with the reason in its row."""
        try:
            yield
        except ChildError as error:
            self.result.reason, self.result.failed = str(error), True
            self.end()


def measure(
    names: Sequence[str],
    settings: BenchSettings,
    logs: Path,
    report: Report = lambda text: None,
    *,
    pythons: Mapping[str, str] | None = None,
    require_antialias: bool = True,
    together: bool = False,
) -> list[Result]:
    """Measure the contenders; one result each, in the order of `names`.

    What each process prints goes to a file in `logs`. `report` is called with a line before each of the
    len(names) * (1 + settings.rounds) steps. `pythons` has the interpreters of those contenders that have their own;
    each must have this one's version, and gpupipe's requirements but torch and DALI. Without `require_antialias`
    those that don't filter take part; their `noise_std` tells. `together` opens and ends all at once: quicker where
    there are CPUs for it, but `first_batch` then says nothing. Raises ConfigError for a name that is unknown, DataError
    for data that can't be opened.
    """
    for name in names:
        reference(name)
    labels = checks.expected_labels(settings)
    logs.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        noise = checks.noise_folder(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpupipe-"))))
        entrants = [
            Entrant(name, settings, logs / f"{file_name(name)}.log", (pythons or {}).get(name, sys.executable))
            for name in names
        ]
        stack.callback(each, Entrant.end, entrants, together)

        def prepare(entrant: Entrant) -> None:
            report(f"opening {entrant.result.name}")
            entrant.prepare(str(noise), labels, require_antialias)

        each(prepare, entrants, together)
        for number in range(settings.rounds):
            for entrant in entrants:
                report(f"round {number + 1} of {settings.rounds}: {entrant.result.name}")
                entrant.run_round()
    return [entrant.result for entrant in entrants]


def each(function: Callable[[Entrant], None], entrants: Sequence[Entrant], together: bool) -> None:
    """Call the function for one after the other, or for all at once."""
    if not together:
        for entrant in entrants:
            function(entrant)
        return
    with ThreadPoolExecutor(max(1, len(entrants))) as threads:
        list(threads.map(function, entrants))


def file_name(contender: str) -> str:
    """What its log is called, without the ending: letters, digits and what file systems and shells leave alone."""
    return re.sub(r"[^A-Za-z0-9._=-]+", "-", contender)
