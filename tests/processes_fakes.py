"""Datasets, orders and cases for test_processes.py; its processes import them from here."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from reliability.case import Case, Context, Failed, expect_equal
from reliability.data import JPEG, Numbered
from reliability.rows.processes import SAMPLES, WORKERS, Trap, expect_exact, hang, setup, wait_until, workers
from reliability.victim import Victim

import gpupipe
from gpupipe.batch import Columns, Images, Schema
from gpupipe.sources import Source
from gpupipe.workers import watched

KILL = signal.SIGKILL


class Deadly(Numbered):
    """Does something terrible at sample 9."""

    def __init__(self, end: Any = None) -> None:
        super().__init__(SAMPLES)
        self.end = end

    def touch(self, index: int) -> None:
        if index == 9 and os.getpid() != getattr(self, "spared", 0):
            self.end() if self.end is not None else os.kill(os.getpid(), KILL)


class DeadlyAtStart(Numbered):
    """Ends the process that receives it."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        os._exit(1)


class Whole(Source):
    """A user's own source, which reads a batch at once and dies over it."""

    fields = Schema.of(None)
    fingerprint = "whole"

    def __len__(self) -> int:
        return SAMPLES

    def fetch(self, indices: np.ndarray) -> Columns:
        if indices[0] == 8:
            os.kill(os.getpid(), KILL)
        return {"image": Images([np.frombuffer(JPEG, np.uint8)] * len(indices)), "label": indices}

    def location(self, index: int) -> str:
        raise RuntimeError("a source of the user's own may do this")


def crash() -> None:
    ctypes.string_at(0)


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def sleep() -> None:
    time.sleep(1000)


def die_with_a_child() -> None:
    """The child keeps the pipe open whose end would tell of the death."""
    if os.fork() == 0:
        time.sleep(4)
        os._exit(0)
    os.kill(os.getpid(), KILL)


class Late(gpupipe.Sequential):
    """Fails at position 8."""

    def indices(self, seed: int, epoch: int, positions: np.ndarray) -> np.ndarray:
        if positions[-1] >= 8:
            raise self.error
        return positions

    error = LookupError("no such class")


# Cases.


def message(context: Context, make: Any, words: Sequence[str], error: type, **options: Any) -> None:
    """The error has all these words; the next iteration from the state goes on at the batch that did not come."""
    data, recipe, options = make(), gpupipe.imagenet_train(8), {"num_workers": WORKERS} | options
    with gpupipe.Loader(data, recipe, 4, device="cpu", engine="torch", **options) as loader:
        given = []
        try:
            for _, labels in loader:
                given += labels.tolist()
        except error as caught:
            for word in words:
                if word not in str(caught):
                    raise Failed(f"{word} is not in {caught}") from None
        else:
            raise Failed("no error")
        expect_equal(given, list(range(len(given))), "the batches before")
        if isinstance(data, Deadly):
            data.end = int
            loader.load_state_dict(loader.state_dict())
            expect_equal(given + [n for _, labels in loader for n in labels.tolist()], list(range(SAMPLES)), "in all")


def whole_group_stopped(context: Context) -> None:
    """Ctrl-Z and fg: the time in which the loader's own process was stopped does not count."""
    with Victim(slow_epoch, context, output=context.folder / "printed") as victim:
        victim.hear(20)
        os.killpg(victim.pid, signal.SIGSTOP)
        time.sleep(4.5)
        os.killpg(victim.pid, signal.SIGCONT)
        expect_equal(victim.end(20), 0, f"the exit code; {victim.printed()}")


def slow_epoch(report: Any, context: Context) -> None:
    os.setpgid(0, 0)
    with context.contender(setup(context, Numbered(SAMPLES, nap=0.2), "fork", timeout=3)) as stream:
        for step, _ in enumerate(stream):
            if step == 0:
                report("first batch")


def thread_ends(context: Context) -> None:
    """Workers outlive the thread that started them."""
    with context.contender(setup(context, Numbered(SAMPLES), persistent_workers=True)) as stream:
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.extend((iterator := iter(stream), next(iterator))))
        thread.start()
        thread.join()
        time.sleep(1.2)
        pids = workers()
        rest = found[1] + [number for batch in found[0] for number in batch]
        expect_equal(rest, list(range(SAMPLES)), "the epoch")
        expect_equal(workers(), pids, "the workers")


def forked_exit(context: Context) -> None:
    """A fork of the training process, at its own end, leaves the workers alone."""
    with context.contender(setup(context, Numbered(SAMPLES), persistent_workers=True)) as stream:
        iterator = iter(stream)
        given = next(iterator)
        child = os.fork()
        if child == 0:
            watched._end_all()
            stream.close()
            os._exit(0)
        expect_equal(os.waitpid(child, 0)[1], 0, "the fork's exit code")
        expect_equal(given + [n for batch in iterator for n in batch], list(range(SAMPLES)), "the epoch")
        expect_exact(stream)


def built_before_a_fork(context: Context) -> None:
    """Workers live as long as the process that iterates, which outlives the one that built the loader."""
    with Victim(build_and_fork, context, output=context.folder / "printed") as victim:
        expect_equal(victim.end(20), 0, "the exit code of the builder")
    done = context.folder / "done"
    wait_until(done.exists, 20)
    expect_equal(done.read_text(), "48", f"the samples that came; {(context.folder / 'printed').read_text()}")


def build_and_fork(report: Any, context: Context) -> None:
    stream = context.contender(setup(context, Numbered(SAMPLES, nap=0.2)))
    if os.fork():
        return
    try:
        given = [number for batch in stream for number in batch]
        stream.close()
        (context.folder / "part").write_text(str(len(given)))
        (context.folder / "part").rename(context.folder / "done")
    finally:
        os._exit(0)


def hangs_in_an_epoch_that_was_left(context: Context) -> None:
    """Persistent workers first end what they had; the one that does not is named, and costs the next epoch no batch,
    nor the timeout, which is longer than the case may take."""
    data = Trap(5, hang, context.folder)
    said: list[str] = []
    listener = logging.Handler()
    listener.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("gpupipe").addHandler(listener)
    with gpupipe.Loader(
        data,
        gpupipe.imagenet_train(8),
        4,
        num_workers=WORKERS,
        device="cpu",
        engine="torch",
        timeout=100,
        persistent_workers=True,
    ) as loader:
        next(iter(loader))
        wait_until(lambda: data.sprung, 20)
        expect_equal(next(iter(loader))[1].tolist(), list(range(4)), "samples")
        if not any("worker 0 " in one and "at sample 5 (Trap[5])" in one for one in said):
            raise Failed(f"said: {said}")


def pinned(context: Context) -> None:
    """With torch's thread that pins memory, which needs a GPU: here its calls into CUDA do nothing."""
    import torch

    torch.accelerator.is_available = lambda *_, **__: True
    torch.accelerator.current_device_index = lambda: 0
    torch.accelerator.set_device_index = lambda *_: None
    torch.Tensor.pin_memory = lambda self, *_: self.clone()
    data = Deadly()
    recipe = gpupipe.imagenet_train(8)
    for persistent in (False, True):
        data.end = None
        with gpupipe.Loader(
            data, recipe, 4, num_workers=2, device="cpu", engine="torch", pin_memory=True, persistent_workers=persistent
        ) as loader:
            try:
                list(loader)
            except gpupipe.WorkerError as error:
                if "at sample 9" not in str(error):
                    raise Failed(str(error)) from None
            else:
                raise Failed("no error")
            data.end = int
            for _ in range(2):
                names = [thread.name for thread in threading.enumerate()]
                given = [n for _, labels in loader for n in labels.tolist()]
                expect_equal(given, list(range(SAMPLES)), f"the epoch; threads {names}")


def told(name: str, make: Any, *words: str, error: type = gpupipe.WorkerError, **options: Any) -> Case:
    """A case in which the error says these words."""
    return Case(name, partial(message, make=make, words=words, error=error, **options), limit=60)


MESSAGES = [
    told("killed", Deadly, "worker 1 of 2 (pid ", "was killed by SIGKILL at sample 9 (Deadly[9])", "memory limit"),
    told("killed, persistent", Deadly, "killed by SIGKILL at sample 9 (Deadly[9])", persistent_workers=True),
    told("crashed", partial(Deadly, crash), "was killed by SIGSEGV at sample 9 (Deadly[9])", "native code crashed"),
    told(
        "exited", partial(Deadly, partial(os._exit, 3)), "ended with exit code 3 at sample 9 (Deadly[9])", "os._exit()"
    ),
    told("a batch at once", Whole, "worker 1 of 2", "SIGKILL at a batch of 4 samples (8, 9, 10, 11)"),
    told(
        "at its start",
        partial(DeadlyAtStart, SAMPLES),
        "ended with exit code 1 at its start",
        "with spawn or forkserver",
        multiprocessing_context="spawn",
        num_workers=1,  # each imports all modules
    ),
    told(
        "stopped",
        partial(Deadly, stop),
        "no batch came from 2 workers within timeout=3 s; the next one is due from worker 1 (pid ",
        "which is stopped at sample 9 (Deadly[9]), where it has been for ",
        "kill -CONT",
        error=gpupipe.LoaderTimeoutError,
        timeout=3,
        multiprocessing_context="fork",
    ),
    told(
        "hangs",
        partial(Deadly, sleep),
        "from worker 1 (pid ",
        "which sleeps at sample 9 (Deadly[9])",
        "py-spy dump --pid ",
        error=gpupipe.LoaderTimeoutError,
        timeout=3,
        multiprocessing_context="fork",
    ),
    told("a child keeps the sentinel", partial(Deadly, die_with_a_child), "killed by SIGKILL at sample 9"),
]
CASES = (whole_group_stopped, thread_ends, forked_exit, built_before_a_fork, hangs_in_an_epoch_that_was_left)
OTHERS = [
    *(Case(case.__name__, case) for case in CASES),
    Case("pinned", pinned, settle=10),  # torch's thread looks every 5 s whether it should end
]
