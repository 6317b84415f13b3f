"""What a loader goes through from when it is built until it is closed: a pure function of the seed and a number."""

from __future__ import annotations

import random
from dataclasses import dataclass

__all__ = ["CLASSES", "KINDS", "Act", "Life", "life_of"]

CLASSES = 8  # folders, or shards; one is renamed at a time
ENGINES = ("torch", "dali", "shared")  # the last: DALI, with workers that decode a part
FORMS = ("folder", "tar", "folder", "tar", "remote")  # whose workers take seconds to start, as they can't be forks
KINDS = tuple((engine, form) for form in FORMS for engine in ENGINES)
WORKERS = 2
STEPS = 16  # of an epoch, about
DISTURBED = 0.7  # the part of epochs in which something happens
ACTS = ("stop", "stop", "kill", "freeze", "hide", "hide", "press")


@dataclass(frozen=True)
class Act:
    """What happens before that call of next().

    what:    "stop": a worker stands still for so many seconds. "freeze": all processes do. "kill": a worker is ended by
             SIGKILL. "hide": a class folder, or a shard, is renamed, and put back after so many further calls. "press":
             another process takes memory for so long, and the data's pages are dropped.
    which:   a number that chooses the worker or the folder.
    """

    call: int
    what: str
    which: int
    seconds: float
    calls: int


@dataclass(frozen=True)
class Life:
    """A loader: what of, and what happens to it in each epoch.

    resumes: after an error by its own state, and so with the batch that did not come; else next() goes on behind it.
    """

    number: int
    engine: str
    form: str
    on_error: str
    resumes: bool
    epochs: tuple[tuple[Act, ...], ...]

    @property
    def name(self) -> str:
        """For a message."""
        after = "resumed" if self.resumes else "goes on"
        return f"life {self.number} ({self.engine}, {self.form}, on_error={self.on_error}, {after} after an error)"


def life_of(seed: int, number: int, epochs: int) -> Life:
    """Engines and forms of data come in turn."""
    drawn = random.Random(f"{seed} {number}")
    engine, form = KINDS[number % len(KINDS)]
    kinds = [act for act in ACTS if not (act == "hide" and form == "remote")]
    on_error, resumes = drawn.choice(("raise", "skip")), drawn.random() < 0.5

    def acts() -> tuple[Act, ...]:
        if drawn.random() > DISTURBED:
            return ()
        found = [
            Act(drawn.randrange(STEPS), drawn.choice(kinds), drawn.randrange(1000), drawn.random() * 0.3, calls)
            for calls in drawn.choices(range(1, STEPS), k=drawn.randint(1, 4))
        ]
        return tuple(sorted(found, key=lambda act: act.call))

    return Life(number, engine, form, on_error, resumes, tuple(acts() for _ in range(epochs)))
