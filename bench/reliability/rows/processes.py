"""Rows 19 to 26: workers and the training process are killed, stopped, interrupted and started in other ways."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gpupipe.kernels import Crops, decode_crops
from reliability.case import Case, Context, Failed, Row, expect, expect_equal
from reliability.contenders.base import Setup, Stream
from reliability.data import JPEG, Numbered
from reliability.traces import processes
from reliability.victim import Victim

__all__ = ["ROWS"]

SAMPLES, BATCH, WORKERS = 48, 4, 2
AT_ONCE = 5.0  # seconds within which an error counts as immediate
TIMEOUT = 3  # seconds; workers have to have started by then, on a busy machine too: forks do

Act = Callable[["Trap"], None]


class Trap(Numbered):
    """At one sample, `act` is done: once if a marker file says so, else each time."""

    def __init__(self, at: int, act: Act, folder: Path, once: bool = False) -> None:
        super().__init__(SAMPLES)
        self.at, self.act, self.once = at, act, once
        self.folder = folder

    def touch(self, index: int) -> None:
        if index == self.at and not (self.once and self.sprung):
            (self.folder / "sprung").write_text(str(os.getpid()))
            self.act(self)

    @property
    def sprung(self) -> bool:
        """Whether a worker has come to the sample."""
        return (self.folder / "sprung").exists()

    @property
    def pid(self) -> int:
        """Of the worker that came there last."""
        return int((self.folder / "sprung").read_text())


# What happens at the sample.


def kill(trap: Trap) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def segfault(trap: Trap) -> None:
    ctypes.string_at(0)


def bus_error(trap: Trap) -> None:
    """A file that is shortened while it is mapped."""
    with open(trap.folder / "mapped", "w+b") as file:
        file.truncate(1 << 16)
        memory = mmap.mmap(file.fileno(), 1 << 16)
        file.truncate(0)
        memory[1 << 15]


def exit_3(trap: Trap) -> None:
    os._exit(3)


def exit_0(trap: Trap) -> None:
    os._exit(0)


def system_exit(trap: Trap) -> None:
    sys.exit("enough")


def stop(trap: Trap) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def hang(trap: Trap) -> None:
    time.sleep(1000)


def stall(trap: Trap) -> None:
    time.sleep(2 * TIMEOUT)


def fail(trap: Trap) -> None:
    raise ValueError("the user's own words")


def setup(context: Context, dataset: Numbered, method: str | None = None, **options: Any) -> Setup:
    """A few batches by two workers, in the dataset's order; by one where each has to import all modules anew."""
    options = {"persistent_workers": context.random.random() < 0.5, "prefetch_factor": 2} | options
    if method is not None:
        options["multiprocessing_context"] = method
    folder = context.folder / "made"
    folder.mkdir(exist_ok=True)
    workers = 1 if method in ("forkserver", "spawn") else WORKERS
    return Setup(dataset, BATCH, folder, workers=workers, shuffle=False, options=options)


def somewhere(context: Context) -> int:
    """A sample that is not in the first batches of both workers."""
    return context.random.randrange(5 * BATCH, SAMPLES)


def error_of(stream: Iterator[list[int]], seconds: float) -> Exception:
    """What an iteration raises, which has to come within so many seconds of the last batch."""
    begun = time.monotonic()
    try:
        for _ in stream:
            begun = time.monotonic()
    except Exception as error:
        took = time.monotonic() - begun
        expect(took < seconds, f"{type(error).__name__} came only after {took:.1f} s")
        return error
    raise Failed("the epoch went on to its end as if nothing had happened")


def wait_until(condition: Callable[[], bool], seconds: float) -> None:
    """Raise Failed if it does not come true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        expect(time.monotonic() < deadline, f"nothing happened within {seconds:g} s")
        time.sleep(0.01)


def expect_named(error: Exception, *words: object) -> None:
    """The error's text has all of the words."""
    for word in words:
        expect(str(word) in str(error), f"{word} is not in: {type(error).__name__}: {error}")


def expect_exact(stream: Stream) -> None:
    """A new iteration gives the epoch, whole."""
    stream.set_epoch(0)
    given = [number for batch in stream for number in batch]
    expect_equal(sorted(given), list(range(SAMPLES)), "the next epoch")


def workers() -> list[int]:
    """This process's children that run Python or are stopped, the newest last."""
    return sorted(process.pid for process in processes() if process.parent == os.getpid() and process.state != "Z")


# 19 and 20: a worker dies.


def dies_reading(context: Context, act: Act = kill) -> None:
    trap = Trap(somewhere(context), act, context.folder, once=True)
    with context.contender(setup(context, trap)) as stream:
        expect_named(error_of(iter(stream), AT_ONCE), trap.pid)
        expect_exact(stream)


def dies_idle(context: Context, how_many: int = 1) -> None:
    with context.contender(setup(context, Numbered(SAMPLES))) as stream:
        iterator = iter(stream)
        next(iterator)
        time.sleep(0.3)  # the queues are full by now
        pids = context.random.sample(workers(), how_many)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        error = error_of(iterator, AT_ONCE)
        expect(any(str(pid) in str(error) for pid in pids), f"none of {pids} is in: {type(error).__name__}: {error}")
        expect_exact(stream)


def dies_at_close(context: Context) -> None:
    """A consumer that leaves an epoch early learns nothing of it, as nothing is missing."""
    with context.contender(setup(context, Numbered(SAMPLES, nap=0.02))) as stream:
        iterator = iter(stream)
        batch = next(iterator)
        os.kill(context.random.choice(workers()), context.random.choice((signal.SIGKILL, signal.SIGSTOP)))
        expect_equal(batch, list(range(BATCH)), "the first batch")
        with suppress(RuntimeError):  # torch's handler of SIGCHLD may raise here
            time.sleep(0.05)
        del iterator


def dies_in_a_thread(context: Context) -> None:
    """The loader is iterated by a thread that is not the main one."""
    trap, found = Trap(somewhere(context), kill, context.folder, once=True), []

    def consume() -> None:
        with context.contender(setup(context, trap)) as stream:
            found.append(error_of(iter(stream), AT_ONCE))

    thread = threading.Thread(target=consume, daemon=True)
    thread.start()
    thread.join(25)
    expect(bool(found), "the thread got no error")
    expect_named(found[0], trap.pid)


# 21: a worker hangs.


def hangs(context: Context, act: Act) -> None:
    trap = Trap(somewhere(context), act, context.folder, once=True)
    with context.contender(setup(context, trap, "fork", timeout=TIMEOUT)) as stream:
        expect_named(error_of(iter(stream), TIMEOUT + AT_ONCE), trap.pid, f"sample {trap.at}")
        expect_exact(stream)


def slow(context: Context) -> None:
    """The timeout ends an epoch whose worker was only slow; it is resumed where it stood."""
    trap = Trap(somewhere(context), stall, context.folder, once=True)
    with context.contender(setup(context, trap, "fork", timeout=TIMEOUT)) as stream:
        stream.set_epoch(0)
        given: list[int] = []
        state = stream.state()
        with suppress(RuntimeError):
            for batch in stream:
                given += batch
                state = stream.state()
    expect(0 < len(given) < SAMPLES, f"{len(given)} samples came before the timeout")
    with context.contender(setup(context, trap, "fork", timeout=10)) as stream:
        stream.load(state, 0)
        given += [number for batch in stream for number in batch]
    expect_equal(given, list(range(SAMPLES)), "both parts together")


def exits_with_a_stopped_worker(context: Context) -> None:
    """A script that ends without closing anything, while a worker is stopped."""
    with Victim(_leave_a_stopped_worker, context, output=context.folder / "printed") as victim:
        expect_equal(victim.end(20), 0, "the script's exit code")


def _leave_a_stopped_worker(report: Callable[[Any], None], context: Context) -> None:
    global _kept
    _kept = iter(context.contender(setup(context, Numbered(SAMPLES))))
    next(_kept)
    os.kill(workers()[0], signal.SIGSTOP)


_kept: Any = None


# 22 and 23: the training process is interrupted or killed.


def train(report: Callable[[Any], None], context: Context, dataset: Numbered, method: str | None) -> None:
    """A second or two of epochs, with a word before the first batch, after it, in the second epoch, before the end."""
    os.setpgid(0, 0)
    with context.contender(setup(context, dataset, method)) as stream:
        for epoch in range(5):
            stream.set_epoch(epoch)
            report(("start", "second epoch", *"345")[epoch])
            for step, _ in enumerate(stream):
                if step == 0:
                    report("first batch")
                time.sleep(0.02)
        report("close")
    report("closed")


def interrupted(context: Context, word: str, times: int = 1) -> None:
    """SIGINT to the process or to its whole group, as a terminal sends it."""
    nap = context.random.choice((0.0, 0.1))
    with Victim(train, context, Numbered(SAMPLES, nap), None, output=context.folder / "printed") as victim:
        while victim.hear(20) != word:
            pass
        time.sleep(context.random.random() * 0.05)
        group = context.random.random() < 0.5
        for _ in range(times):
            (os.killpg if group else os.kill)(victim.pid, signal.SIGINT)
            time.sleep(context.random.choice((0.001, 0.1)))
        code = victim.end(10)
        printed = victim.output.read_text()
    expect(code is not None, f"it still runs after 10 s; {printed[-2000:]}")
    if word != "close":
        expect_equal(code, -signal.SIGINT, f"the exit code; {printed[-2000:]}")
    if times > 1:  # Python itself says this of one that comes in a finalizer
        printed = re.sub(r"Exception ignored in.*?\nKeyboardInterrupt:? *\n", "", printed, flags=re.DOTALL)
    tracebacks = printed.count("Traceback") - printed.count("During handling of the above")  # chained: one exception
    expect(tracebacks <= 1, f"more than one traceback:\n{printed[-3000:]}")


def parent_dies(context: Context, number: signal.Signals, act: Act | None, methods: Sequence[str] = ("fork",)) -> None:
    """The process is killed while its workers are at work, or stand in a read of the user's that does not end."""
    method = context.random.choice(methods)
    dataset = Numbered(5000, 0.005) if act is None else Trap(2 * BATCH, act, context.folder)
    with Victim(train, context, dataset, method, output=context.folder / "printed") as victim:
        victim.hear(25)
        if isinstance(dataset, Trap):
            wait_until(lambda: dataset.sprung, 25)
        else:
            victim.hear(25)
        victim.send(number)
        expect_equal(victim.end(5), -number, "the exit code")


# 24: how workers are started.


def warm_up() -> None:
    """Threads of all kinds in the parent, which a fork does not copy."""
    torch.set_num_threads(4)
    torch.rand(512, 512) @ torch.rand(512, 512)
    boxes = np.tile(np.array([0, 0, 8, 8], np.int64), (64, 1))
    decode_crops([np.frombuffer(JPEG, np.uint8)] * 64, [Crops.of(boxes, (8, 8))], threads=4)
    _run_dali()


def _run_dali() -> None:
    """A pipeline of the user's own, kept."""
    global _pipeline
    from nvidia.dali import fn, pipeline_def

    @pipeline_def(batch_size=4, num_threads=2, device_id=None)  # type: ignore[untyped-decorator]
    def pipeline() -> Any:
        return fn.decoders.image(fn.external_source(lambda _: np.frombuffer(JPEG, np.uint8), batch=False))

    _pipeline = pipeline()
    _pipeline.build()
    _pipeline.run()


_pipeline: Any = None


def started(context: Context, methods: Sequence[str]) -> None:
    """An epoch after other libraries have started their threads."""
    with context.contender(setup(context, Numbered(SAMPLES), context.random.choice(methods))) as stream:
        expect_exact(stream)


# 25: an exception in the user's code.


def raises(context: Context) -> None:
    """Its type, its words and the line that raised it are told, with the sample's number."""
    trap = Trap(somewhere(context), fail, context.folder)
    with context.contender(setup(context, trap)) as stream:
        error = error_of(iter(stream), AT_ONCE)
    told = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    for words in ("ValueError", "the user's own words", Path(__file__).name, "in fail", f"sample {trap.at}"):
        expect(words in told, f"{words!r} is not in the traceback:\n{told[-2000:]}")


# 26: a dataset that can't be sent to a worker.


def unpicklable(context: Context, method: str) -> None:
    """Refused when the loader is built, with the attribute's name; a fork needs no pickling."""
    dataset = Numbered(SAMPLES)
    parts = {"transform": lambda image: image, "handle": open(os.devnull), "lock": threading.Lock()}  # noqa: SIM115
    name = context.random.choice(sorted(parts))
    setattr(dataset, name, parts[name])
    with context.contender(setup(context, dataset, "fork")) as stream:
        expect_exact(stream)
    try:
        context.contender(setup(context, dataset, method))
    except Exception as error:
        expect_named(error, name)
    else:
        raise Failed("the loader was built")
    finally:
        parts["handle"].close()  # type: ignore[attr-defined]


ROWS: tuple[Row, ...] = (
    Row(
        19,
        "kill -9 of a worker",
        "an error within 5 s that names the process; the next iteration is whole",
        (
            Case("worker killed while it reads", dies_reading),
            Case("worker killed while it is idle", dies_idle),
            Case("all workers killed", partial(dies_idle, how_many=WORKERS)),
            Case("worker killed or stopped, then the loader is closed", dies_at_close, limit=40),
            Case("worker killed, the consumer is a thread", dies_in_a_thread),
        ),
    ),
    Row(
        20,
        "a worker crashes or exits",
        "an error within 5 s that names the process; the next iteration is whole",
        tuple(
            Case(name, partial(dies_reading, act=act))
            for name, act in (
                ("segmentation fault", segfault),
                ("bus error", bus_error),
                ("os._exit(3)", exit_3),
                ("os._exit(0)", exit_0),
                ("sys.exit()", system_exit),
            )
        ),
    ),
    Row(
        21,
        "a worker is stopped or hangs",
        "after the timeout an error that names process and sample; the next iteration is whole",
        (
            Case("SIGSTOP", partial(hangs, act=stop)),
            Case("a read that never ends", partial(hangs, act=hang)),
            Case("a slow read, resumed from the state", slow),
            Case("the script ends while a worker is stopped", exits_with_a_stopped_worker),
        ),
    ),
    Row(
        22,
        "Ctrl-C",
        "one KeyboardInterrupt, one traceback at most, an end within 10 s",
        tuple(
            Case(f"SIGINT {'twice ' * (times - 1)}{when}", partial(interrupted, word=word, times=times))
            for when, word in (
                ("at the start", "start"),
                ("in the first batch", "first batch"),
                ("in a later epoch", "second epoch"),
                ("at the end", "close"),
            )
            for times in (1, 2)
        ),
    ),
    Row(
        23,
        "the training process is killed",
        "no worker left after 10 s",
        (
            Case("SIGTERM", partial(parent_dies, number=signal.SIGTERM, act=None)),
            Case("kill -9", partial(parent_dies, number=signal.SIGKILL, act=None)),
            Case("kill -9, a worker sleeps in a read", partial(parent_dies, number=signal.SIGKILL, act=hang)),
            Case("kill -9, a worker is stopped", partial(parent_dies, number=signal.SIGKILL, act=stop)),
            Case(
                "kill -9, forkserver or spawn, a worker sleeps in a read",
                partial(parent_dies, number=signal.SIGKILL, act=hang, methods=("forkserver", "spawn")),
                limit=60,
            ),
        ),
    ),
    Row(
        24,
        "fork, forkserver and spawn after other libraries' threads",
        "the epoch is whole",
        tuple(
            Case(" or ".join(methods), partial(started, methods=methods), prepare=warm_up, limit=60)
            for methods in (("fork",), ("forkserver", "spawn"))
        ),
    ),
    Row(
        25,
        "an exception in the user's dataset",
        "its type, message and line are told, and the sample",
        (Case("exception in __getitem__", raises),),
    ),
    Row(
        26,
        "a dataset that can't be pickled",
        "refused when the loader is built, with the attribute's name; works with fork",
        tuple(
            Case(f"unpicklable, {method}", partial(unpicklable, method=method)) for method in ("forkserver", "spawn")
        ),
    ),
)
