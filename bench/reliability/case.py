"""What a case is, and a row of cases."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Case", "Context", "Failed", "NoFunction", "Row", "expect", "expect_equal"]


class Failed(Exception):
    """What a case asks for did not happen; the message says what did."""


class NoFunction(Exception):
    """The contender has no function for what the case asks for; it is recorded as "none", not as failed."""


@dataclass(frozen=True)
class Context:
    """What a case is given.

    contender: a subclass of `contenders.base.Stream`.
    random:    everything that a case chooses comes from it; seeded by the run's seed and the case's name.
    folder:    empty at the start, removed afterwards. TMPDIR lies there too.
    seed:      of the run.
    """

    contender: Any
    random: random.Random
    folder: Path
    seed: int

    def in_turn(self, choices: Sequence[str], count: int = 1) -> list[str]:
        """So many of them, or all that there are: the first is each one's turn as seeds go up, others are drawn."""
        turn = self.seed % len(choices)
        rest = [*choices[:turn], *choices[turn + 1 :]]
        return [choices[turn], *self.random.sample(rest, min(count - 1, len(rest)))]


@dataclass(frozen=True)
class Case:
    """A function that raises unless all goes well.

    run:     called in a process of its own. It has to be importable: defined at the top of a module.
    prepare: called before open files and threads are counted, for what stays for the life of a process.
    alone:   whether no other case may run at the same time, because time matters.
    limit:   seconds after which it hangs.
    settle:  seconds that threads, files and children have to go after the case, all in its process.
    orphans: seconds that processes and shared memory have to go after its process has ended.
    only:    the contenders that can be asked, where it is a question for some alone; None for all.
    """

    name: str
    run: Callable[[Context], None]
    prepare: Callable[[], None] | None = None
    alone: bool = False
    limit: float = 30.0
    settle: float = 5.0
    orphans: float = 10.0
    only: tuple[str, ...] | None = None

    def asks(self, contender: str) -> bool:
        """Whether it is a question for this one."""
        return self.only is None or contender in self.only


@dataclass(frozen=True)
class Row:
    """Cases under a number. passes: what counts as pass, beside that nothing hangs and nothing is left behind."""

    number: int
    title: str
    passes: str
    cases: tuple[Case, ...]


def expect(condition: bool, otherwise: str) -> None:
    """Raise Failed with the text `otherwise` unless the condition holds."""
    if not condition:
        raise Failed(otherwise)


def expect_equal(found: Any, wanted: Any, what: str) -> None:
    """Raise Failed, with both values, unless they are equal."""
    if found != wanted:
        raise Failed(f"{what}: {_short(found)} instead of {_short(wanted)}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:100]} ... {text[-80:]}"
