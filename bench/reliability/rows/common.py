"""What rows of several subjects share."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from typing import Any

from reliability.case import Context
from reliability.contenders.base import Setup, Stored, Stream
from reliability.data import Numbered
from reliability.victim import Report, Victim

__all__ = ["batches_of", "copied", "expected_batches", "make_setup", "ranks", "read_at_once", "require_state"]

Batches = list[list[int]]


def make_setup(context: Context, **values: Any) -> Setup:
    """A setup with these values, and seed and folder from the context."""
    values = {"batch_size": context.random.randint(1, 6), "workers": 0} | values
    if "samples" in values:
        values["dataset"] = Numbered(values.pop("samples"))
    return Setup(folder=context.folder, seed=context.random.randrange(2**32), **values)


def ranks(setup: Setup, world: int) -> list[Setup]:
    """The setups of all ranks; the batch size stays that of a rank."""
    return [replace(setup, rank=rank, world=world) for rank in range(world)]


def batches_of(stream: Stream, steps: int | None = None) -> Batches:
    """The batches of one iteration, at most so many; repeats that the library flags are left out."""
    found = []
    for batch in islice(stream, steps):
        found.append(batch[: len(batch) - stream.padding])
    return found


def expected_batches(contender: type[Stream], setup: Setup, epoch: int) -> Batches:
    """An epoch that nothing interrupts."""
    with contender(setup) as stream:
        stream.set_epoch(epoch)
        return batches_of(stream)


def require_state(context: Context) -> None:
    """Raise NoFunction at once for a contender without a state, before it is asked for what it can do."""
    with context.contender(Setup(Numbered(2), 1, context.folder)) as stream:
        stream.state()


def copied(state: Any) -> Any:
    """A state as it comes back from a file."""
    return pickle.loads(pickle.dumps(state))


def read_at_once(context: Context, where: Stored, check: Callable[[list[tuple[int, float]]], None]) -> None:
    """Four processes begin an epoch of the same data at the same time; what each of them reads is checked."""
    runs = [Victim(_read_once, context, where, output=context.folder / f"run-{number}") for number in range(4)]
    try:
        for run in runs:
            check(run.hear(25))
    finally:
        for run in runs:
            run.end(5)
            run.__exit__(None, None, None)


def _read_once(report: Report, context: Context, where: Stored) -> None:
    report(list(context.contender.read(where)))
