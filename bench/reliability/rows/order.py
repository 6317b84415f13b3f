"""Rows 1, 2, 9 and 10: which samples come, and in which order."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from itertools import zip_longest
from typing import Any

import torch
import torch.distributed

from reliability.case import Case, Context, Row, expect, expect_equal
from reliability.contenders.base import Setup, Stream
from reliability.data import Numbered
from reliability.rows.common import batches_of, expected_batches, make_setup, ranks
from reliability.victim import Report, Victim

__all__ = ["LARGE", "ROWS", "once_even", "once_uneven"]

WORLDS, WORKERS = (1, 2, 3, 4, 8), (0, 1, 4)
MILLION = 1_000_000
UNEVEN_RANKS = 7


# 1: exactly once.


def once_even(context: Context) -> None:
    """The samples fill all batches of all ranks."""
    world, batch = context.random.choice(WORLDS), context.random.randint(1, 8)
    samples = world * batch * context.random.randint(1, 8)
    _once(context, make_setup(context, samples=samples, batch_size=batch, workers=_workers(context)), world)


def once_uneven(context: Context) -> None:
    """The samples can't be shared out evenly over the ranks."""
    world = context.random.choice([world for world in WORLDS if world > 1])
    samples = world * context.random.randint(8, 40) + context.random.randrange(1, world)
    _once(context, make_setup(context, samples=samples, workers=_workers(context)), world)


def _workers(context: Context) -> int:
    return context.random.choice((0, *WORKERS))


def _once(context: Context, setup: Setup, world: int) -> None:
    """One epoch over all ranks, one after the other."""
    epoch = context.random.randrange(100)
    counts: Counter[int] = Counter()
    flagged = 0
    for one in ranks(setup, world):
        with context.contender(one) as stream:
            stream.set_epoch(epoch)
            for batch in stream:
                counts.update(batch[: len(batch) - stream.padding])
                flagged += stream.padding
    expect_each_once(counts, len(setup.dataset))
    expect(flagged < world, f"{flagged} repeats on {world} ranks")


def expect_each_once(counts: Counter[int], samples: int) -> None:
    """All numbers below `samples`, none twice."""
    missing, repeated = samples - len(counts), counts.total() - len(counts)
    expect(not missing and not repeated, f"{missing} of {samples} samples missing, {repeated} repeated and not flagged")


class Million:
    """A case: a million samples over so many ranks with so many workers each."""

    def __init__(self, world: int, workers: int) -> None:
        self.world, self.workers = world, workers

    def __call__(self, context: Context) -> None:
        _once(context, make_setup(context, samples=MILLION, batch_size=1000, workers=self.workers), self.world)


LARGE = tuple(
    Case(f"a million samples, {world} ranks, {workers} workers", Million(world, workers), limit=600.0)
    for world in WORLDS
    for workers in WORKERS
)


# 2: the same order.


def same_order(context: Context) -> None:
    """Any number of workers, reads that take random times, run again: one hash."""
    world, epoch = context.random.randint(1, 2), context.random.randrange(100)
    setup = make_setup(context, dataset=Numbered(context.random.randint(30, 60), nap=0.003))
    hashes = {}
    for name, workers in (("0 workers", 0), ("1 worker", 1), ("3 workers", 3), ("3 workers, again", 3)):
        batches = [_epoch(context, replace(one, workers=workers), epoch) for one in ranks(setup, world)]
        hashes[name] = hashlib.sha256(repr(batches).encode()).hexdigest()[:12]
    expect(len(set(hashes.values())) == 1, f"the order differs: {hashes}")


def _epoch(context: Context, setup: Setup, epoch: int) -> list[list[int]]:
    return expected_batches(context.contender, setup, epoch)


# 9: uneven data on seven ranks.


def equal_steps(context: Context) -> None:
    """Seven processes meet in an all_reduce on every step."""
    samples = UNEVEN_RANKS * context.random.randint(4, 12) + context.random.randrange(1, UNEVEN_RANKS)
    setup = make_setup(context, samples=samples, workers=context.random.choice((0, 0, 1)))
    with ExitStack() as stack:
        victims = [
            stack.enter_context(
                Victim(_reduce_on_every_step, context.contender, one, output=context.folder / f"rank-{one.rank}")
            )
            for one in ranks(setup, UNEVEN_RANKS)
        ]
        steps = [victim.hear(20) for victim in victims]
        expect(len(set(steps)) == 1, f"steps of the ranks: {steps}")
        sums = [victim.hear(20) for victim in victims]
        expect(set(sums) == {steps[0] * UNEVEN_RANKS}, f"sums of ones over ranks and steps: {sums}")
        expect_equal([victim.end(10) for victim in victims], [0] * UNEVEN_RANKS, "exit codes")


def _reduce_on_every_step(report: Report, contender: type[Stream], setup: Setup) -> None:
    """Reports how many steps there are, and then does them."""
    report(len(expected_batches(contender, setup, 0)))
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{setup.folder}/meeting",
        rank=setup.rank,
        world_size=setup.world,
        timeout=timedelta(seconds=15),
    )
    total = 0
    with contender(setup) as stream:
        for _ in stream:
            ones = torch.ones(1)
            torch.distributed.all_reduce(ones)
            total += int(ones)
    report(total)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


# 10: iterations that are left, and interleaved ones.


def broken_off(context: Context) -> None:
    """A hundred iterations left early; each begins as the first did, and the last is whole."""
    workers = context.random.choice((0, 0, 0, 1))
    setup = make_setup(context, samples=context.random.randint(20, 40), workers=workers)
    epoch = context.random.randrange(100)
    whole = _epoch(context, setup, epoch)
    with context.contender(setup) as stream:
        for turn in range(100):
            stream.set_epoch(epoch)
            steps = context.random.randint(1, len(whole))
            found = []
            for batch in stream:
                found.append(batch)
                if len(found) == steps:
                    break
            expect_equal(found, whole[:steps], f"iteration {turn}, left after {steps} steps")
        stream.set_epoch(epoch)
        expect_equal(batches_of(stream), whole, "the iteration after those")


def interleaved(context: Context) -> None:
    """Two loaders, their batches taken in turn."""
    setups = [
        make_setup(context, samples=context.random.randint(10, 40), workers=context.random.choice((0, 1, 2)))
        for _ in range(2)
    ]
    for number, setup in enumerate(setups):
        (context.folder / str(number)).mkdir()
        setups[number] = replace(setup, folder=context.folder / str(number))
    alone = [_epoch(context, setup, 3) for setup in setups]
    with context.contender(setups[0]) as one, context.contender(setups[1]) as two:
        one.set_epoch(3)
        two.set_epoch(3)
        pairs = list(zip_longest(one, two))
    for number, batches in enumerate(alone):
        expect_equal(_given(pair[number] for pair in pairs), batches, f"loader {number} beside another")


def _given(batches: Iterable[Any]) -> list[list[int]]:
    return [batch for batch in batches if batch is not None]


ROWS = (
    Row(
        1,
        "Exactly once",
        "no sample missing, none repeated beyond what is flagged as padding",
        (Case("samples divide evenly", once_even), Case("samples left over", once_uneven)),
    ),
    Row(
        2,
        "One order",
        "the same for 0, 1 and 3 workers and when run again, while reads take random times",
        (Case("hash of the order", same_order),),
    ),
    Row(
        9,
        "Uneven data on 7 ranks",
        "as many steps on each rank; an all_reduce on every step does not hang",
        (Case("all_reduce on every step", equal_steps),),
    ),
    Row(
        10,
        "Iterations left early",
        "each begins as the first did; two loaders don't disturb each other",
        (Case("left early 100 times", broken_off), Case("two loaders in turn", interleaved)),
    ),
)
