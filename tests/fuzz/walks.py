"""A training loop's ways through a loader, beside a plain model.

Iterations are left, taken up or overtaken, epochs are set, states loaded, by other ranks and in other batches; errors
come once or always, and a Ctrl-C.

An input is the seed of the walk.
"""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from images import picture

import gpupipe
from fuzz.harness import Finding, Target
from fuzz.items import SEED, seeds

SIDE = 8
RECIPE = gpupipe.Recipe((gpupipe.RandomCrop(SIDE, padding=2), gpupipe.RandomHorizontalFlip()), "uint8", "NCHW")
EPOCHS = 4
BATCHES = (1, 2, 3, 4, 6, 8, 12, 48, 64)
PASS = 1000  # labels of pass 1 begin there
PIXELS = [picture(SIDE, SIDE, number) for number in range(7)]


class Faults:
    """What is wrong with samples, by their labels. once: raised where one is read, then never again; each worker of a
    dataset has its own."""

    def __init__(self, bad: Sequence[int] = (), once: dict[int, BaseException] | None = None) -> None:
        self.bad, self.once = frozenset(bad), dict(once or {})
        self.lost = frozenset(self.once)
        self.interrupts = any(isinstance(error, KeyboardInterrupt) for error in self.once.values())

    def sample(self, label: int) -> tuple[Any, int]:
        if label in self.once:
            raise self.once.pop(label)
        return b"bad" if label in self.bad else PIXELS[label % len(PIXELS)], label


class Numbered:
    """A map-style dataset, whose labels are its indices, and `first` more."""

    def __init__(self, count: int, faults: Faults, first: int = 0) -> None:
        self.count, self.faults, self.first = count, faults, first

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.faults.sample(self.first + index)


class Passes:
    """A stream with a state of its own, which after an error, as after its end, gives nothing more."""

    def __init__(self, lengths: Sequence[int], faults: Faults) -> None:
        self.lengths, self.faults = lengths, faults
        self.at = self.number = 0

    def set_epoch(self, number: int) -> None:
        self.at, self.number = 0, number

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at, "number": self.number}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]

    def __iter__(self) -> Iterator[tuple[Any, int]]:
        while self.at < self.lengths[self.number % len(self.lengths)]:
            self.at += 1
            yield self.faults.sample(PASS * self.number + self.at - 1)


class Cutting:
    """An order that cuts epochs into batches of 1 to 5, each epoch otherwise."""

    fingerprint = "cutting"
    largest = 5

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def indices(self, seed: int, epoch: int, positions: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return (positions + epoch) % self.count

    def starts(self, seed: int, epoch: int) -> np.ndarray[Any, Any]:
        draw, found = random.Random(epoch), [0]
        while found[-1] < self.count:
            found.append(min(self.count, found[-1] + draw.randint(1, self.largest)))
        return np.array(found)


@dataclass(frozen=True)
class World:
    """What all loaders of a walk share. data: made with its faults. lengths: of a stream's passes, else empty.
    cuts: whether the order makes batches of its own. faults: of what walks read. is_shared: whether they read the same
    object."""

    data: Callable[[Faults], Any]
    lengths: tuple[int, ...]
    whole: int | None
    order: Callable[[], Any]
    cuts: bool
    drop_last: bool
    faults: Faults
    is_shared: bool

    @property
    def has_workers(self) -> bool:
        """Workers that read a dataset are processes, in which no Ctrl-C comes from the dataset."""
        return bool(self.lengths) or not self.faults.interrupts

    @cached_property
    def shared(self) -> Any:
        return self.data(self.faults)

    def loader(self, batch: int, *, clean: bool = False, **options: Any) -> gpupipe.Loader:
        """batch: of each rank. clean: without faults, and to the last sample."""
        data = self.data(Faults()) if clean else self.shared if self.is_shared else self.data(self.faults)
        drop_last = self.drop_last and not clean
        settings = {"order": self.order(), "drop_last": drop_last, "seed": 5, "device": "cpu", "num_workers": 0}
        return gpupipe.Loader(data, RECIPE, 1 if self.cuts else batch, **settings | options)

    @cached_property
    def _clean(self) -> gpupipe.Loader:
        return self.loader(1, clean=True, engine="torch")

    @cached_property
    def _epochs(self) -> dict[int, tuple[list[int], torch.Tensor]]:
        return {}

    def known(self, epoch: int) -> tuple[list[int], torch.Tensor]:
        """The labels and pixels of an epoch, read by one process from its beginning to its end, sample by sample."""
        if epoch not in self._epochs:
            self._clean.set_epoch(epoch)
            images, labels = zip(*self._clean, strict=True)
            self._epochs[epoch] = torch.cat(labels).tolist(), torch.cat(images)
            if self.lengths and sorted(self._epochs[epoch][0]) != sorted(self.expected(epoch)):
                raise Finding(f"the samples of epoch {epoch} are {self._epochs[epoch][0]}")
        return self._epochs[epoch]

    def expected(self, epoch: int) -> list[int]:
        """The labels of a stream's epoch, in its own order."""
        begin, end = (0, None) if self.whole is None else (epoch * self.whole, (epoch + 1) * self.whole)
        numbers = range(epoch, epoch + 1) if end is None else range(end)  # none is empty
        passes = (range(PASS * one, PASS * one + self.lengths[one % len(self.lengths)]) for one in numbers)
        return [label for one in passes for label in one][begin:end]

    def starts(self, epoch: int, batch: int, origin: int) -> list[int]:
        """Where the epoch's batches begin, and the last one ends."""
        count = len(self.known(epoch)[0])
        if self.cuts:
            return self._clean.order.starts(5, epoch).tolist()  # type: ignore[no-any-return]
        found = [0, origin] if origin else [0]
        while found[-1] + batch <= count:
            found.append(found[-1] + batch)
        return found if self.drop_last or found[-1] >= count else [*found, count]

    def close(self) -> None:
        if "_clean" in self.__dict__:
            self._clean.close()


def world_of(draw: random.Random) -> World:
    return stream_of(draw) if draw.random() < 0.5 else dataset_of(draw)


def faults_of(draw: random.Random, labels: Sequence[int]) -> Faults:
    bad = draw.sample(labels, min(len(labels), draw.choice((0, 0, 0, 1, 2))))
    errors = (ConnectionError("lost"), KeyboardInterrupt(), KeyError("lost"))
    return Faults(bad, {draw.choice(labels): draw.choice(errors) for _ in range(draw.choice((0, 0, 1, 2)))})


def stream_of(draw: random.Random) -> World:
    lengths = tuple(draw.choice((1, 3, 9, 12, 63, 64, 65, 130)) for _ in range(draw.choice((1, 2))))
    whole, buffer_size = draw.choice((None, None, 1, 7, 50, 64)), draw.choice((0, 0, 1, 5, 16, 64, 100))
    is_stateful = draw.random() < 0.5

    def data(faults: Faults) -> gpupipe.Stream:
        def passes(number: int) -> Iterator[Any]:
            made = Passes(lengths, faults)
            made.set_epoch(number)
            return iter(made)

        return gpupipe.Stream(Passes(lengths, faults) if is_stateful else passes, buffer_size, whole, is_stateful)

    labels = [PASS * number + at for number in range(EPOCHS) for at in range(lengths[number % len(lengths)])]
    drop_last = draw.random() < 0.3
    faults = faults_of(draw, labels)
    return World(data, lengths, whole, lambda: None, False, drop_last, faults, draw.random() < 0.5)


def dataset_of(draw: random.Random) -> World:
    count = draw.choice((1, 2, 5, 9, 16, 23))
    orders: dict[str, Callable[[], Any]] = {
        "given": lambda: None,
        "shuffled": lambda: gpupipe.Shuffled(count),
        "virtual": lambda: gpupipe.VirtualEpochs(gpupipe.Shuffled(count), count // 2 + 3),
        "repeated": lambda: gpupipe.Repeated(gpupipe.Shuffled(count), 2),
        "weighted": lambda: gpupipe.Weighted(np.arange(count) + 1.0),
        "sampler": lambda: torch.utils.data.RandomSampler(range(count)),
        "mixture": lambda: None,
        "buckets": lambda: gpupipe.Buckets(np.arange(count) % 2, 4),
        "budget": lambda: gpupipe.BudgetBatches(gpupipe.Shuffled(count), np.arange(count) % 5 + 1, 9, 6),
        "cutting": lambda: Cutting(count),
    }
    kind = draw.choice(list(orders))

    def data(faults: Faults) -> Any:
        made = Numbered(count, faults)
        if kind != "mixture":
            return made
        other = Numbered(4, Faults(), PASS)
        return gpupipe.Mixture({"some": (made, [1, 3]), "four": (other, lambda epoch: 1 + epoch % 2)}, count + 4)

    cuts = kind in ("buckets", "budget", "cutting")
    drop_last = draw.random() < 0.3 and not cuts
    return World(data, (), None, orders[kind], cuts, drop_last, faults_of(draw, range(count)), draw.random() < 0.5)


@dataclass
class Way:
    """An iterator, and where the model has it. turn: of the walk, in which it has begun; None: it has not."""

    batches: gpupipe.loader.iteration.Iteration
    turn: int | None = None
    step: int = 0
    has_given: bool = False
    is_over: bool = False
    has_failed: bool = False  # by the stream itself, behind which nothing comes


class Walk:
    """A loader, and a model of where it stands: so many steps of an epoch that is cut from `origin` on are delivered.

    used: something of the epoch was delivered by an iteration. again: the next one begins the same epoch anew.
    """

    def __init__(self, draw: random.Random, world: World) -> None:
        self.draw, self.world = draw, world
        self.way: Way | None = None
        self.saved: dict[str, Any] | None = None
        self.said: list[str] = []
        self.epoch = self.step = self.origin = self.turn = 0
        self.used = self.again = False
        self.batch = draw.choice(BATCHES)
        self.delivered = 0
        self.build()

    def build(self) -> None:
        """A loader of any rank."""
        draw, batch = self.draw, self.batch
        fitting = [ranks for ranks in (1, 1, 2, 3, 4, 6) if not batch % ranks]
        self.ranks = draw.choice((1, 1, 2, 3, 7) if self.world.cuts else fitting)
        self.rank = draw.randrange(self.ranks)
        workers = draw.choice((0, 0, 0, 0, 2)) if self.world.has_workers else 0
        engine = draw.choice(("torch", "torch", "torch", "dali"))
        self.loader = self.world.loader(
            batch // self.ranks, rank=self.rank, world_size=self.ranks, num_workers=workers, engine=engine
        )
        self.said.append(f"rank {self.rank} of {self.ranks}, {batch=}, {engine}, {workers=}")

    def finding(self, said: str) -> Finding:
        kind = f"a stream of {self.world.lengths}, {self.world.whole}" if self.world.lengths else "a dataset"
        faults = f"bad {sorted(self.world.faults.bad)}"
        where = f"epoch {self.epoch}, step {self.step} of {kind}, {faults}"
        return Finding(f"{said}; {where}, after {'; '.join(self.said)}")

    @property
    def running(self) -> bool:
        return self.way is not None and self.way.has_given and not self.way.is_over and self.way.turn == self.turn

    def go(self, epoch: int) -> None:
        self.epoch, self.step, self.origin = epoch, 0, 0
        self.used = self.again = False

    def act(self) -> None:
        often = (self.iterate, self.iterate, self.iterate, self.all_of_it)
        actions = (*often, self.set_epoch, self.save, self.load, self.move)
        action = self.draw.choice(actions)
        self.said.append(action.__name__)
        action()
        if self.loader.epoch != self.epoch:
            raise self.finding(f"the loader is in epoch {self.loader.epoch}")

    def iterate(self) -> None:
        """Some steps of an iteration, new or taken up, which is then left to itself, closed or kept."""
        self.steps(self.draw.randrange(1, 6))
        match self.draw.randrange(4):
            case 0:
                self.way = None
            case 1 if self.way is not None:
                self.way.batches.close()
                self.way.is_over = True

    def all_of_it(self) -> None:
        self.steps(1 << 30)

    def steps(self, count: int) -> None:
        if self.way is None or self.draw.random() < 0.4:
            old, self.way = self.way, Way(self.interrupted(lambda: iter(self.loader)))
            if old is None or not (old.has_given and not old.is_over and old.turn == self.turn):
                self.begin(self.way)
        for _ in range(count):
            if not self.next_of(self.way):
                return

    def begin(self, way: Way) -> None:
        """Where an iteration was left that has given something, the next one is of the next epoch."""
        if self.used:
            self.go(self.epoch + (not self.again))
        self.turn += 1
        way.turn, way.step, way.has_failed = self.turn, self.step, False

    def next_of(self, way: Way) -> bool:
        """One step, as the model has it; False where there is none."""
        if way.has_given and way.turn != self.turn and not way.is_over:
            with suppress(gpupipe.GpupipeError):
                next(way.batches)
                raise self.finding("an iterator goes on after another has begun, or its epoch was set")
            self.way = None
            return False
        if way.turn != self.turn and not way.is_over:
            self.begin(way)
        starts = self.world.starts(self.epoch, self.batch, self.origin)
        is_end = way.is_over or way.has_failed or way.step >= len(starts) - 1
        try:
            images, labels = self.interrupted(lambda: next(way.batches))
        except StopIteration:
            if not is_end:
                raise self.finding(f"the epoch ends at step {way.step} of {len(starts) - 1}") from None
            if not way.is_over:
                self.go(self.epoch + 1)
            way.is_over = True
            return False
        except gpupipe.SampleError as error:
            self.failed(way, error, [] if is_end else self.rows(starts, way.step)[0])
            way.step += 1
            return True
        if is_end:
            raise self.finding(f"a batch after the end, {labels.tolist()}")
        self.compare(images, labels, starts, way.step)
        way.step += 1
        way.has_given, self.step, self.used, self.again = True, way.step, True, False
        self.delivered += 1
        return True

    def interrupted(self, call: Callable[[], Any]) -> Any:
        """What it gives, where it is asked again after a Ctrl-C."""
        for _ in range(3):
            try:
                return call()
            except KeyboardInterrupt:
                continue
        raise self.finding("more interrupts than there were")

    def rows(self, starts: list[int], step: int) -> tuple[list[int], list[int]]:
        """The labels of this rank's rows, padding included, and the positions of those that are none."""
        begin, end = starts[step : step + 2]
        rows = -(-(end - begin) // self.ranks)
        positions = range(begin + self.rank * rows, begin + (self.rank + 1) * rows)
        labels = self.world.known(self.epoch)[0]
        if self.world.cuts or self.world.lengths:
            padded = [begin + (one - begin) % (end - begin) for one in positions]
        else:
            padded = [one % len(labels) for one in positions]
        return [labels[one] for one in padded], [one for one in positions if one < end]

    def failed(self, way: Way, error: gpupipe.SampleError, labels: list[int]) -> None:
        """An error is one that there is, and of this batch; but a stream's own, which is read ahead, and from a place
        before, is of some batch, once."""
        is_own = isinstance(error, ConnectionError | KeyError)
        if is_own and self.world.lengths and not way.has_failed and not way.is_over:
            way.has_failed = True
        elif not set(labels) & (self.world.faults.lost if is_own else self.world.faults.bad):
            raise self.finding(f"an error that is none of the batch {labels}: {error}") from error

    def compare(self, images: torch.Tensor, labels: torch.Tensor, starts: list[int], step: int) -> None:
        """That the batch is the one that it has to be, and is numbered and counted so."""
        expected, positions = self.rows(starts, step)
        if labels.tolist() != expected:
            raise self.finding(f"step {step} has {labels.tolist()} in the place of {expected}")
        if self.world.faults.bad & set(expected):
            raise self.finding(f"step {step} has a bad sample, {expected}")
        if not torch.equal(images[: len(positions)], self.world.known(self.epoch)[1][positions]):
            raise self.finding(f"other pixels at step {step}, samples {expected}")
        padding = len(expected) - len(positions)
        said = self.loader.last_step, self.loader.padding
        if said != (step, padding):
            raise self.finding(f"step {step} with {padding} rows of padding is said to be {said}")
        position = self.loader.state_dict()["position"]
        ends = {starts[step + 1]} if not self.world.lengths else {starts[step + 1], starts[step] + self.batch}
        if position not in ends:
            raise self.finding(f"step {step} ends at {starts[step + 1]}, and the state's position is {position}")

    def set_epoch(self) -> None:
        epoch = self.draw.randrange(EPOCHS)
        self.said.append(f"{epoch}")
        self.loader.set_epoch(epoch)
        if epoch != self.epoch:
            self.go(epoch)
            self.turn += 1
        elif self.running:
            self.again = True
        elif self.used:
            self.go(epoch)

    def save(self) -> None:
        self.saved = json.loads(json.dumps(self.loader.state_dict()))

    def load(self) -> None:
        """A state, of now or of before, into the same loader or another one of as large batches."""
        if self.saved is None or self.draw.random() < 0.3:
            self.save()
        assert self.saved is not None
        if (self.saved["global_batch"] != self.batch and not self.world.cuts) or self.draw.random() < 0.5:
            self.batch = self.saved["global_batch"]
            self.another()
        self.loaded(self.saved)

    def move(self) -> None:
        """The state of now, by another rank of another number, in batches that may be of another size."""
        state = json.loads(json.dumps(self.loader.state_dict()))
        self.batch = self.draw.choice((self.batch, *BATCHES))
        self.another()
        self.loaded(state)

    def another(self) -> None:
        self.way = None
        self.loader.close()
        self.build()

    def loaded(self, state: dict[str, Any]) -> None:
        self.loader.load_state_dict(state, allow_new_global_batch=True)
        self.go(state["epoch"])
        self.turn += 1
        is_other = state["global_batch"] != self.batch and not self.world.cuts
        self.origin = state["position"] % self.batch if is_other else state["origin"]
        starts = self.world.starts(self.epoch, self.batch, self.origin)
        position = state["position"]
        self.step = starts.index(position) if position in starts else len(starts) - 1

    def close(self) -> None:
        self.way = None
        self.loader.close()


def check_of(scratch: Path) -> Callable[[bytes], Hashable]:
    logging.getLogger("gpupipe").setLevel(logging.CRITICAL)

    def check(data: bytes) -> Hashable:
        draw = random.Random(data)
        world = world_of(draw)
        walk = Walk(draw, world)
        try:
            for _ in range(draw.randint(4, 12)):
                walk.act()
        finally:
            walk.close()
            world.close()
        return min(walk.delivered, 40)

    return check


TARGETS = [Target("walks", seeds, check_of, lambda draw, data, others: draw.randbytes(SEED))]
