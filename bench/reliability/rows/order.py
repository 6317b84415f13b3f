"""Rows 1 to 10: which samples come, in which order, and where a run goes on."""

from __future__ import annotations

from collections import Counter
from typing import Any

from reliability.case import Case, Context, Row, expect
from reliability.contenders.base import Setup, Stream
from reliability.data import Numbered

__all__ = ["ROWS"]


def ranks(setup: dict[str, Any], world: int) -> list[Setup]:
    """The setups of all ranks."""
    return [Setup(**setup, rank=rank, world=world) for rank in range(world)]


def epoch_of(contender: type[Stream], setup: Setup, epoch: int) -> tuple[list[int], int]:
    """What a rank is given in an epoch, flagged repeats left out, and how many of these there were."""
    numbers: list[int] = []
    flagged = 0
    with contender(setup) as stream:
        stream.set_epoch(epoch)
        for batch in stream:
            padding = stream.padding
            numbers += batch[: len(batch) - padding]
            flagged += padding
    return numbers, flagged


def expect_each_once(given: list[int], samples: int) -> None:
    """All numbers below `samples`, none twice."""
    counts = Counter(given)
    missing = samples - len(counts)
    repeated = sum(counts.values()) - len(counts)
    expect(not missing and not repeated, f"{missing} of {samples} samples missing, {repeated} repeated and not flagged")


def _once(context: Context, samples: int, world: int, workers: int, batch: int) -> None:
    """One epoch over all ranks."""
    common = {"dataset": Numbered(samples), "batch_size": batch, "folder": context.folder, "workers": workers}
    epoch, given, flagged = context.random.randrange(100), [], 0
    for setup in ranks(common | {"seed": context.random.randrange(2**32)}, world):
        numbers, padding = epoch_of(context.contender, setup, epoch)
        given += numbers
        flagged += padding
    expect_each_once(given, samples)
    expect(flagged < world, f"{flagged} repeats on {world} ranks")


def _choice(context: Context) -> tuple[int, int, int]:
    """World size, workers, and batch size of a rank."""
    return context.random.choice((1, 2, 3, 4, 8)), context.random.choice((0, 0, 1, 4)), context.random.randint(1, 8)


def once_even(context: Context) -> None:
    """The samples fill all batches of all ranks."""
    world, workers, batch = _choice(context)
    _once(context, world * batch * context.random.randint(1, 8), world, workers, batch)


def once_uneven(context: Context) -> None:
    """The samples can't be shared out evenly over the ranks."""
    _, workers, batch = _choice(context)
    world = context.random.choice((2, 3, 4, 8))
    samples = world * context.random.randint(8, 40) + context.random.randrange(1, world)
    _once(context, samples, world, workers, batch)


ROWS = (
    Row(
        1,
        "Exactly once",
        "no sample missing, none repeated beyond what is flagged as padding",
        (Case("samples divide evenly", once_even), Case("samples left over", once_uneven)),
    ),
)
