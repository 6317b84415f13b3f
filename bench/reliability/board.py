"""Plays all cases with all contenders and seeds, some at a time, and writes down what became of each as it comes."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from reliability.case import Case, Row
from reliability.contenders import contender
from reliability.rows import ROWS
from reliability.sandbox import Outcome, Sandbox

__all__ = ["Journal", "Plan", "Result", "play"]


@dataclass(frozen=True)
class Plan:
    """What is to be played."""

    rows: tuple[int, ...]
    contenders: tuple[str, ...]
    seeds: range

    def turns(self) -> Iterator[Turn]:
        """All contenders with a case and seed one after the other, so that they meet the same machine."""
        for row in self.rows:
            for case in ROWS[row].cases:
                for seed in self.seeds:
                    for name in self.contenders:
                        yield Turn(ROWS[row], case, name, seed)


@dataclass(frozen=True)
class Turn:
    """A case with a contender and a seed."""

    row: Row
    case: Case
    contender: str
    seed: int


@dataclass(frozen=True)
class Result:
    """What became of a turn. status: "passed", "failed", "hang" or "none"."""

    row: int
    case: str
    contender: str
    seed: int
    status: str
    reason: str
    seconds: float


class Journal:
    """A file with a line for each result, so that a run goes on where it was broken off."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)

    def results(self) -> dict[Turn, Result]:
        """Those that are in it; a line that was cut is not."""
        found: dict[Turn, Result] = {}
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        cases = {(row.number, case.name): (row, case) for row in ROWS.values() for case in row.cases}
        for line in lines:
            with suppress(ValueError):
                result = Result(**json.loads(line))
                if (result.row, result.case) in cases:
                    found[Turn(*cases[result.row, result.case], result.contender, result.seed)] = result
        return found

    def add(self, result: Result) -> None:
        """At its end."""
        with self._path.open("a") as file:
            file.write(json.dumps(asdict(result)) + "\n")


def play(plan: Plan, journal: Journal, at_a_time: int, say: Callable[[str], None]) -> list[Result]:
    """A result for each turn, in the plan's order; what is in the journal is not played again.

    `say` is told how it goes.
    """
    turns, found = list(plan.turns()), journal.results()
    left = [turn for turn in turns if turn not in found]
    progress = _Progress(len(left), journal, say)
    for lone in (False, True):
        found |= _together([turn for turn in left if turn.case.alone is lone], 1 if lone else at_a_time, progress)
    return [found[turn] for turn in turns]


def _together(turns: Iterable[Turn], at_a_time: int, progress: _Progress) -> dict[Turn, Result]:
    """The results of turns of which so many run at a time."""
    waiting = iter(turns)
    lock = threading.Lock()

    def work() -> dict[Turn, Result]:
        found: dict[Turn, Result] = {}
        with lock:
            turn = next(waiting, None)
        if turn is None:
            return found
        with Sandbox() as sandbox:
            while turn is not None:
                found[turn] = _result(turn, sandbox.run_case(turn.case, contender(turn.contender), turn.seed))
                progress(found[turn])
                with lock:
                    turn = next(waiting, None)
        return found

    with ThreadPoolExecutor(at_a_time) as pool:
        parts = [pool.submit(work) for _ in range(at_a_time)]
        return {turn: result for part in parts for turn, result in part.result().items()}


def _result(turn: Turn, outcome: Outcome) -> Result:
    row, case = turn.row.number, turn.case.name
    return Result(row, case, turn.contender, turn.seed, outcome.status, outcome.reason, outcome.seconds)


class _Progress:
    """Writes each result down, says what did not pass at once, and how far it has come now and then."""

    def __init__(self, total: int, journal: Journal, say: Callable[[str], None]) -> None:
        self._total, self._journal, self._say, self._done = total, journal, say, 0
        self._lock = threading.Lock()

    def __call__(self, result: Result) -> None:
        with self._lock:
            self._done += 1
            self._journal.add(result)
            if result.status in ("failed", "hang"):
                reason = " ".join(result.reason.split())[:200]
                self._say(f"row {result.row}, {result.case}, {result.contender}, seed {result.seed}: {reason}")
            if self._done % 50 == 0 or self._done == self._total:
                self._say(f"{self._done} of {self._total}")
