"""Plays all cases with all contenders and seeds, two at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from reliability.case import Case, Row
from reliability.contenders import contender
from reliability.rows import ROWS
from reliability.sandbox import Outcome, Sandbox

__all__ = ["Plan", "Result", "play"]

AT_A_TIME = 2


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


def play(plan: Plan, say: Callable[[str], None]) -> list[Result]:
    """A result for each turn, in the plan's order. `say` is told how it goes."""
    turns = list(plan.turns())
    shared = [turn for turn in turns if not turn.case.alone]
    lone = [turn for turn in turns if turn.case.alone]
    progress = _Progress(len(turns), say)
    found = _together(shared, min(AT_A_TIME, len(shared)), progress) | _together(lone, min(1, len(lone)), progress)
    return [found[turn] for turn in turns]


def _together(turns: Iterable[Turn], at_a_time: int, progress: _Progress) -> dict[Turn, Result]:
    """The results of turns of which so many run at a time."""
    waiting = iter(turns)
    lock = threading.Lock()

    def work() -> dict[Turn, Result]:
        found: dict[Turn, Result] = {}
        with Sandbox() as sandbox:
            while True:
                with lock:
                    turn = next(waiting, None)
                if turn is None:
                    return found
                found[turn] = _result(turn, sandbox.run_case(turn.case, contender(turn.contender), turn.seed))
                progress(found[turn])

    with ThreadPoolExecutor(max(1, at_a_time)) as pool:
        parts = [pool.submit(work) for _ in range(at_a_time)]
        return {turn: result for part in parts for turn, result in part.result().items()}


def _result(turn: Turn, outcome: Outcome) -> Result:
    row, case = turn.row.number, turn.case.name
    return Result(row, case, turn.contender, turn.seed, outcome.status, outcome.reason, outcome.seconds)


class _Progress:
    """Says what did not pass at once, and how far it has come now and then."""

    def __init__(self, total: int, say: Callable[[str], None]) -> None:
        self._total, self._say, self._done = total, say, 0
        self._lock = threading.Lock()

    def __call__(self, result: Result) -> None:
        with self._lock:
            self._done += 1
            if result.status in ("failed", "hang"):
                reason = " ".join(result.reason.split())[:200]
                self._say(f"row {result.row}, {result.case}, {result.contender}, seed {result.seed}: {reason}")
            if self._done % 50 == 0 or self._done == self._total:
                self._say(f"{self._done} of {self._total}")
