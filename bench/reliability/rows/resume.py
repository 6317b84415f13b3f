"""Rows 3 to 5, 7 and 8: where a run goes on."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from reliability.case import Case, Context, Failed, NoFunction, Row, expect, expect_equal
from reliability.contenders.base import Setup
from reliability.data import Numbered
from reliability.rows.common import batches_of, copied, expected_batches, make_setup, ranks, require_state
from reliability.rows.order import expect_each_once

__all__ = ["ROWS"]


# 3 and 5: at every step, and at the ends of an epoch.


def every_step(context: Context) -> None:
    """A state of each step, each loaded into a new stream."""
    require_state(context)
    setup = make_setup(context, samples=context.random.randint(12, 24), batch_size=context.random.randint(2, 5))
    setup = replace(setup, workers=context.random.choice((0, 0, 2)))
    world, epoch = context.random.choice((1, 2)), context.random.randrange(100)
    for one in ranks(setup, world):
        whole = expected_batches(context.contender, one, epoch)
        states = _states(context, one, epoch)
        expect_equal(len(states), len(whole), "steps of a stream whose state is taken")
        for step in range(1, len(whole)):
            _expect_tail(context, one, states[step - 1], epoch, whole[step:], f"after step {step} of {len(whole)}")


def _states(context: Context, setup: Setup, epoch: int) -> list[Any]:
    """The state after each step."""
    with context.contender(setup) as stream:
        stream.set_epoch(epoch)
        return [copied(stream.state()) for _ in stream]


def _expect_tail(context: Context, setup: Setup, state: Any, epoch: int, tail: Sequence[list[int]], where: str) -> None:
    """A stream with this state gives the tail, and then the next epoch."""
    with context.contender(setup) as stream:
        stream.load(state, epoch)
        expect_equal(batches_of(stream), list(tail), f"resumed {where}")
        stream.set_epoch(epoch + 1)
        following = batches_of(stream)
    expect_equal(following, expected_batches(context.contender, setup, epoch + 1), f"the epoch after a resume {where}")


def before_the_first(context: Context) -> None:
    """A state from before the first batch."""
    setup, epoch, whole = _small(context)
    with context.contender(setup) as stream:
        stream.set_epoch(epoch)
        state = copied(stream.state())
    _expect_tail(context, setup, state, epoch, whole, "before the first step")


def at_the_last(context: Context) -> None:
    """One batch is left; and none, where the loop has not asked for more."""
    setup, epoch, whole = _small(context)
    states = _states(context, setup, epoch)
    _expect_tail(context, setup, states[-2], epoch, whole[-1:], "before the last step")
    _expect_tail(context, setup, states[-1], epoch, [], "after the last step")


def after_the_last(context: Context) -> None:
    """The loop has ended: the next epoch comes."""
    setup, epoch, _ = _small(context)
    with context.contender(setup) as stream:
        stream.set_epoch(epoch)
        batches_of(stream)
        state = copied(stream.state())
    following = expected_batches(context.contender, setup, epoch + 1)
    _expect_tail(context, setup, state, epoch + 1, following, "after the epoch")


def _small(context: Context) -> tuple[Setup, int, list[list[int]]]:
    """A setup, an epoch, and that epoch without interruption: two steps or more."""
    require_state(context)
    setup = make_setup(context, samples=context.random.randint(12, 24), workers=context.random.choice((0, 0, 1, 2)))
    setup = replace(setup, drop_last=context.random.choice((False, True)))
    epoch = context.random.randrange(100)
    return setup, epoch, expected_batches(context.contender, setup, epoch)


# 4: with other ranks and workers.

GLOBAL_BATCH = 24


class Elastic:
    """A case: an epoch whose parts are done by so many ranks each, changing at random steps."""

    def __init__(self, *worlds: int) -> None:
        self.worlds = worlds

    def __call__(self, context: Context) -> None:
        require_state(context)
        steps = context.random.randint(len(self.worlds) + 1, 8)
        samples = GLOBAL_BATCH * steps + context.random.choice((0, context.random.randrange(GLOBAL_BATCH)))
        setup = make_setup(context, samples=samples, workers=context.random.choice((0, 0, 0, 1)))
        epoch = context.random.randrange(100)
        cuts = sorted(context.random.sample(range(1, steps), len(self.worlds) - 1))
        states: list[Any] = []
        counts: Counter[int] = Counter()
        for world, start, end in zip(self.worlds, (0, *cuts), (*cuts, None), strict=True):
            setup = replace(setup, batch_size=GLOBAL_BATCH // world)
            states, given = _part(context, ranks(setup, world), states, epoch, None if end is None else end - start)
            counts.update(given)
        expect_each_once(counts, samples)


def _part(
    context: Context, setups: list[Setup], states: list[Any], epoch: int, steps: int | None
) -> tuple[list[Any], list[int]]:
    """Do so many steps with all ranks, from the former ranks' states on: new states, and what came.

    A rank takes the state of the former rank of its number; there may be more ranks now than then.
    """
    after, given = [], []
    for setup in setups:
        with context.contender(setup) as stream:
            stream.set_epoch(epoch)
            if states:
                stream.load(copied(states[setup.rank % len(states)]), epoch)
            given += [number for batch in batches_of(stream, steps) for number in batch]
            after.append(stream.state())
    return after, given


class OtherWorkers:
    """A case: an epoch in three parts, each with another number of workers."""

    def __init__(self, *workers: int) -> None:
        self.workers = workers

    def __call__(self, context: Context) -> None:
        require_state(context)
        setup = make_setup(context, samples=context.random.randint(30, 60), batch_size=context.random.randint(2, 5))
        epoch = context.random.randrange(100)
        whole = expected_batches(context.contender, setup, epoch)
        first, second = sorted(context.random.sample(range(1, len(whole)), 2))
        state: Any = None
        for workers, start, end in zip(self.workers, (0, first, second), (first, second, len(whole)), strict=True):
            with context.contender(replace(setup, workers=workers)) as stream:
                stream.set_epoch(epoch)
                if state is not None:
                    stream.load(state, epoch)
                expect_equal(batches_of(stream, end - start), whole[start:end], f"steps {start} to {end}")
                state = copied(stream.state())


# 7: with a full queue.


class Counted(Numbered):
    """Adds a byte to a file for each read, in whatever process."""

    def __init__(self, samples: int, path: Path) -> None:
        super().__init__(samples)
        self.path = path

    def touch(self, index: int) -> None:
        file = os.open(self.path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        os.write(file, b".")
        os.close(file)

    def reads(self) -> int:
        """So far."""
        return self.path.stat().st_size


def full_queue(context: Context) -> None:
    """All that may be fetched ahead is there when the state is taken."""
    require_state(context)
    workers, ahead, batch = context.random.randint(1, 2), context.random.randint(2, 5), context.random.randint(1, 4)
    steps = context.random.randint(1, 4)
    queue = workers * ahead
    dataset = Counted(batch * (steps + queue + 4), context.folder / "reads")
    setup = make_setup(context, dataset=dataset, batch_size=batch, workers=workers, options={"prefetch_factor": ahead})
    epoch = context.random.randrange(100)
    whole = expected_batches(context.contender, setup, epoch)
    before = dataset.reads()
    with context.contender(setup) as stream:
        stream.set_epoch(epoch)
        iterator = iter(stream)
        for _ in range(steps):
            next(iterator)
        _wait_for_reads(dataset, before + batch * (steps + queue - 1))
        state = copied(stream.state())
        del iterator
    _expect_tail(context, setup, state, epoch, whole[steps:], f"after step {steps} with {queue} batches ahead")


def _wait_for_reads(dataset: Counted, wanted: int) -> None:
    deadline = time.monotonic() + 10
    while dataset.reads() < wanted:
        expect(time.monotonic() < deadline, f"{dataset.reads()} of {wanted} samples were read ahead")
        time.sleep(0.005)


# 8: a state that does not fit.


def refused(context: Context) -> None:
    """Each difference is an error, not another order."""
    setup, epoch, _ = _small(context)
    state = _states(context, setup, epoch)[0]
    silent = [name for name, other in _changes(setup) if _accepts(context, other, state, epoch)]
    expect(not silent, f"a state was loaded in silence though these had changed: {', '.join(silent)}")


def _changes(setup: Setup) -> Iterator[tuple[str, Setup]]:
    yield "dataset", replace(setup, dataset=Numbered(len(setup.dataset) + 1))
    yield "seed", replace(setup, seed=setup.seed + 1)
    yield "order", replace(setup, shuffle=not setup.shuffle)
    yield "drop_last", replace(setup, drop_last=not setup.drop_last)
    yield "global batch", replace(setup, batch_size=setup.batch_size + 1)


def _accepts(context: Context, setup: Setup, state: Any, epoch: int) -> bool:
    with context.contender(setup) as stream:
        try:
            stream.load(copied(state), epoch)
            next(iter(stream), None)
        except (NoFunction, Failed):
            raise
        except Exception:
            return False
        return True


FIELDS = {"dataset": "source", "global batch": "global_batch"}  # where the state has another word


def refused_by_name(context: Context) -> None:
    """The message has the field and both values, for the recipe too."""
    import gpupipe

    setup, epoch, _ = _small(context)
    state = _states(context, setup, epoch)[0]
    for name, other in _changes(setup):
        with context.contender(other) as stream:
            _expect_message(stream.loader, state, FIELDS.get(name, name))
    options = {"shuffle": setup.shuffle, "drop_last": setup.drop_last, "seed": setup.seed, "num_workers": 0}
    recipe = gpupipe.imagenet_train(16)
    with gpupipe.Loader(setup.dataset, recipe, setup.batch_size, engine="torch", device="cpu", **options) as loader:
        _expect_message(loader, state, "recipe")


def _expect_message(loader: Any, state: dict[str, Any], field: str) -> None:
    import gpupipe

    own = loader.state_dict()
    expect(own[field] != state[field], f"{field}: the change does not show in the state")
    try:
        loader.load_state_dict(state)
    except gpupipe.StateError as error:
        message = str(error)
        parts = (f"{field} is {state[field]!r}", repr(own[field]))
        expect(all(part in message for part in parts), f"the message lacks one of {parts}: {message}")
    else:
        raise Failed(f"a state with another {field} was loaded in silence")


GPUPIPE = ("gpupipe",)

ROWS = (
    Row(
        3,
        "Resume at every step",
        "the rest of the epoch and the next epoch are those of a run without interruption",
        (Case("every step", every_step),),
    ),
    Row(
        4,
        "Resume with other ranks and workers",
        "twice within an epoch, at random steps, the global batch kept: each sample once",
        (
            Case("8 -> 2 -> 8 ranks", Elastic(8, 2, 8)),
            Case("4 -> 3 -> 4 ranks", Elastic(4, 3, 4)),
            Case("2 -> 0 -> 3 workers", OtherWorkers(2, 0, 3)),
            Case("0 -> 2 -> 1 workers", OtherWorkers(0, 2, 1)),
        ),
    ),
    Row(
        5,
        "Resume at the ends of an epoch",
        "as row 3",
        (
            Case("before the first step", before_the_first),
            Case("at the last step", at_the_last),
            Case("after the last step", after_the_last),
        ),
    ),
    Row(
        7,
        "State with a full queue",
        "what was delivered counts, not what was fetched",
        (Case("full queue", full_queue),),
    ),
    Row(
        8,
        "A state that does not fit",
        "another dataset, seed, order, drop_last, global batch or recipe is refused, by name and with both values",
        (Case("refused", refused), Case("the field and both values", refused_by_name, only=GPUPIPE)),
    ),
)
