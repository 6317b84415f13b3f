"""Cases and contenders that behave badly, for the scoreboard's tests; its processes import them from here."""

from __future__ import annotations

import atexit
import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from mmap import ACCESS_READ, mmap
from multiprocessing import shared_memory
from typing import Any, ClassVar
from unittest import mock

from reliability.case import Case, Context, NoFunction, expect, expect_equal
from reliability.contenders.base import Setup, Stored, Stream
from reliability.contenders.gpupipe_loader import GpupipeStream
from reliability.data import gray, pictures
from reliability.rows import disturbed, engines, resources, resume
from reliability.traces import SHM
from reliability.victim import Victim

import gpupipe
from gpupipe.decode import rendering

KEPT: list[object] = []


def fine(context: Context) -> None:
    """Uses files, threads, children and shared memory, and gives all of them back."""
    thread = threading.Thread(target=time.sleep, args=(0.01,))
    thread.start()
    (context.folder / "file").write_text("x")
    subprocess.run([sys.executable, "-c", ""], check=True)
    memory = shared_memory.SharedMemory(create=True, size=100)
    memory.close()
    memory.unlink()


def hangs(context: Context) -> None:
    wait_here()


def wait_here() -> None:
    time.sleep(3600)


def leaks_a_child(context: Context) -> None:
    KEPT.append(subprocess.Popen(["sleep", "3600"]))


def leaks_an_orphan(context: Context) -> None:
    subprocess.run(["sh", "-c", "sleep 3600 &"], check=True)


def leaks_shared_memory(context: Context) -> None:
    (SHM / f"reliability-test-{context.random.getrandbits(64)}").write_bytes(b"x")


def leaks_a_file(context: Context) -> None:
    KEPT.append(open(__file__))  # noqa: SIM115


def leaks_a_thread(context: Context) -> None:
    threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()


def crashes(context: Context) -> None:
    print("last words", flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)


def exits(context: Context) -> None:
    os._exit(3)


def raises(context: Context) -> None:
    raise KeyError("no such thing")


def dies_at_exit(context: Context) -> None:
    atexit.register(os._exit, 4)


def hangs_at_exit(context: Context) -> None:
    atexit.register(wait_here)


def _trains(report: Any, steps: int) -> None:
    for step in range(steps):
        report(step)
        time.sleep(3600 if step == steps - 1 else 0)


def _finishes(report: Any, code: int) -> None:
    sys.exit(code)


def victims(context: Context) -> None:
    with Victim(_trains, 2, output=context.folder / "a") as victim:
        expect_equal([victim.hear(10), victim.hear(10)], [0, 1], "reports")
        expect_equal(victim.end(0.05), None, "a running process's exit code")
        victim.send(signal.SIGINT)
        expect_equal(victim.end(10), -signal.SIGINT, "the exit code after SIGINT")
        expect_equal(victim.printed().count("KeyboardInterrupt"), 1, "tracebacks")
    with Victim(_finishes, 7, output=context.folder / "b") as victim:
        expect_equal(victim.end(10), 7, "the exit code")
    with Victim(_trains, 1, output=context.folder / "c") as victim:
        victim.hear(10)


def reads_all_kinds(context: Context) -> None:
    for kind in context.contender.kinds:
        samples = pictures(9)
        context.contender.write(context.folder / kind, samples, kind)
        for number, level in context.contender.read(Stored(local=context.folder / kind, kind=kind, workers=0)):
            expect(abs(level - gray(samples.pop(number))) < 0.5, f"sample {number} of {kind}: {level}")
        expect_equal(samples, {}, kind)


BAD = (hangs, hangs_at_exit, dies_at_exit, leaks_a_child, leaks_an_orphan, leaks_shared_memory, leaks_a_file)
BAD += (leaks_a_thread, crashes, exits, raises)
CASES = {run.__name__: Case(run.__name__, run, limit=2.0, settle=0.3, orphans=0.3) for run in BAD}
CASES |= {run.__name__: Case(run.__name__, run) for run in (fine, victims)}


class Right(Stream):
    """Does all that the cases ask for, in the simplest way, on lists."""

    name = "right"

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.epoch = self.step = self.start = self._padding = 0

    def __iter__(self) -> Iterator[list[int]]:
        order = self.order()
        for number in order:
            self.setup.dataset.touch(number)  # all are fetched ahead
        size, rank, world = self.setup.global_batch, self.setup.rank, self.setup.world
        start, self.start = self.start, 0
        for step in range(start, self.steps()):
            batch = order[step * size : (step + 1) * size]
            rows = -(-len(batch) // world)
            self._padding = min(rows, max(0, (rank + 1) * rows - len(batch)))
            self.step = step + 1
            yield [*batch, *order[:world]][rank * rows : (rank + 1) * rows]
        self.epoch, self.step = self.epoch + 1, 0

    def order(self) -> list[int]:
        order = list(range(len(self.setup.dataset)))
        if self.setup.shuffle:
            random.Random(f"{self.setup.seed} {self.epoch}").shuffle(order)
        return order

    def steps(self) -> int:
        whole, rest = divmod(len(self.setup.dataset), self.setup.global_batch)
        return whole + (rest > 0 and not self.setup.drop_last)

    @property
    def padding(self) -> int:
        return self._padding

    def set_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.epoch, self.step, self.start = epoch, 0, 0

    def about(self) -> tuple[object, ...]:
        setup = self.setup
        return len(setup.dataset), setup.seed, setup.shuffle, setup.drop_last, setup.global_batch

    def state(self) -> Any:
        return self.about(), self.epoch, self.step

    def load(self, state: Any, epoch: int) -> None:
        about, self.epoch, self.start = state
        if about != self.about():
            raise ValueError(f"{about} is not {self.about()}")
        self.set_epoch(epoch)


class Repeats(Right):
    """One sample comes twice."""

    def __iter__(self) -> Iterator[list[int]]:
        for step, batch in enumerate(super().__iter__()):
            yield [batch[0], *batch] if step == self.setup.rank == 0 else batch


class Loses(Right):
    """One sample never comes."""

    def __iter__(self) -> Iterator[list[int]]:
        for step, batch in enumerate(super().__iter__()):
            yield batch[1:] if step == self.setup.rank == 0 else batch


class Unflagged(Right):
    """Does not say which rows repeat."""

    padding = 0


class Fickle(Right):
    """Its order depends on the workers."""

    def order(self) -> list[int]:
        order = super().order()
        turn = self.setup.workers
        return order[turn:] + order[:turn]


class Hasty(Right):
    """Its state counts a batch that was fetched, not delivered."""

    def state(self) -> Any:
        return self.about(), self.epoch, self.step + 1


class Forgetful(Right):
    """Its state is always that of the epoch's start."""

    def state(self) -> Any:
        return self.about(), self.epoch, 0


class Gullible(Right):
    """Loads any state."""

    def about(self) -> tuple[object, ...]:
        return ()


class Unequal(Right):
    """The last rank has a step fewer."""

    def steps(self) -> int:
        return super().steps() - (self.setup.rank == self.setup.world - 1)


class GoesOn(Right):
    """Where an iteration was left, the next one goes on."""

    def __iter__(self) -> Iterator[list[int]]:
        self.start = self.step
        return super().__iter__()


class Shares(Right):
    """Its order depends on how many streams there are."""

    opened: ClassVar[int] = 0

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        Shares.opened += 1

    def order(self) -> list[int]:
        order = super().order()
        return order[self.opened :] + order[: self.opened]

    def close(self) -> None:
        Shares.opened -= 1


class Silent(Right):
    """Has no state."""

    def state(self) -> Any:
        raise NoFunction("no state")


# Faults of gpupipe's own, for the cases that ask it alone.


def goes_on_a_step_late(context: Context) -> None:
    load = gpupipe.Loader.load_state_dict

    def late(loader: gpupipe.Loader, state: dict[str, Any]) -> None:
        load(loader, state)
        loader._place.step += 1

    with mock.patch.object(gpupipe.Loader, "load_state_dict", late):
        engines.in_turn(context)


def has_other_pixels(context: Context) -> None:
    render_batch = rendering.render_batch

    def darker(*arguments: Any, **options: Any) -> Any:
        batch = render_batch(*arguments, **options)
        for view in batch.columns["image"]:
            view //= 2
        return batch

    with mock.patch.object(rendering, "render_batch", darker):
        engines.in_turn(context)


def draws_other_boxes(context: Context) -> None:
    """Each time that a batch is planned."""
    turn = itertools.count()

    def other(schema: Any, views: Any, job: Any, columns: Any) -> Any:
        return crops_of(schema, views, replace(job, seed=next(turn)), columns)

    crops_of = engines.crops_of
    with mock.patch.object(engines, "crops_of", other):
        engines.in_turn(context)


def says_little(context: Context) -> None:
    def check(*arguments: Any, **options: Any) -> None:
        raise gpupipe.StateError("invalid state")

    with mock.patch("gpupipe.loader.state.LoaderState.check", check):
        resume.refused_by_name(context)


def says_nothing(context: Context) -> None:
    with mock.patch("gpupipe.loader.state.LoaderState.check"):
        resume.refused_by_name(context)


class Evicts(GpupipeStream):
    """Takes the data for a cache."""

    @classmethod
    def read(cls, stored: Stored) -> Iterator[tuple[int, float]]:
        yield from super().read(stored)
        assert stored.local is not None
        next(stored.local.glob("*.tar")).unlink()


class Keyless(GpupipeStream):
    """Asks for no credentials."""

    @classmethod
    def read(cls, stored: Stored) -> Iterator[tuple[int, float]]:
        return super().read(replace(stored, role=""))


# Of what is read from disks.


class Nameless(GpupipeStream):
    """Says after the first sample that something is wrong."""

    @classmethod
    def read(cls, stored: Stored) -> Iterator[tuple[int, float]]:
        with suppress(gpupipe.GpupipeError):
            yield next(super().read(replace(stored, workers=0)))
        raise RuntimeError("something is wrong")


class Swallows(GpupipeStream):
    """Ends the epoch where something is wrong, as if that were its end."""

    @classmethod
    def read(cls, stored: Stored) -> Iterator[tuple[int, float]]:
        with suppress(Exception):
            yield from super().read(stored)


class Short(GpupipeStream):
    """Leaves out a sample."""

    @classmethod
    def read(cls, stored: Stored) -> Iterator[tuple[int, float]]:
        return itertools.islice(super().read(stored), 1, None)


class Mixes(GpupipeStream):
    """Each sample has another's label."""

    @classmethod
    def read(cls, stored: Stored) -> Iterator[tuple[int, float]]:
        for number, level in super().read(stored):
            yield (number + 1) % disturbed.SAMPLES, level


class Raw(GpupipeStream):
    """Says where something is wrong as the disk has it."""

    @classmethod
    def read(cls, stored: Stored) -> Iterator[tuple[int, float]]:
        assert stored.local is not None
        raise RuntimeError("\n".join(str(path) for path in stored.local.rglob("*")))
        yield


class Vague(GpupipeStream):
    """Does not say what has become of its worker."""

    def __iter__(self) -> Iterator[list[int]]:
        try:
            yield from super().__iter__()
        except RuntimeError:
            raise RuntimeError("a worker ended") from None


def looks_up_a_mapped_index(context: Context) -> None:
    """Two megabytes more of a file in each epoch, none of which a process has for itself."""
    (context.folder / "index").write_bytes(bytes(resources.EPOCHS << 21))
    with (context.folder / "index").open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as index:

        def set_epoch(loader: gpupipe.Loader, epoch: int) -> None:
            index[epoch << 21 : (epoch + 1) << 21 : 4096]
            to_epoch(loader, epoch)

        to_epoch = gpupipe.Loader.set_epoch
        with mock.patch.object(gpupipe.Loader, "set_epoch", set_epoch):
            resources.table_slope(context)


class Grows(Right):
    """Keeps two megabytes of each epoch."""

    def order(self) -> list[int]:
        KEPT.append(bytearray(os.urandom(2 << 20)))
        return list(range(200))
