"""Cases and contenders that behave badly, for the scoreboard's tests; its processes import them from here."""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing import shared_memory
from typing import Any

from reliability.case import Case, Context, expect_equal
from reliability.contenders.base import Stream
from reliability.traces import SHM
from reliability.victim import Victim

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


BAD = (hangs, hangs_at_exit, dies_at_exit, leaks_a_child, leaks_an_orphan, leaks_shared_memory, leaks_a_file)
BAD += (leaks_a_thread, crashes, exits, raises)
CASES = {run.__name__: Case(run.__name__, run, limit=2.0, settle=0.3, orphans=0.3) for run in BAD}
CASES |= {run.__name__: Case(run.__name__, run) for run in (fine, victims)}


class Right(Stream):
    """Gives each sample once, in its own order, padded and flagged."""

    name = "right"

    def __iter__(self) -> Iterator[list[int]]:
        samples = len(self.setup.dataset)
        own = range(self.setup.rank, -(-samples // self.setup.world) * self.setup.world, self.setup.world)
        numbers = self.changed([number % samples for number in own])
        self._padding = 0
        for start in range(0, len(numbers), self.setup.batch_size):
            batch = numbers[start : start + self.setup.batch_size]
            self._padding = int(start + len(batch) == len(numbers) and own[-1] >= samples)
            yield batch

    def changed(self, numbers: list[int]) -> list[int]:
        """What goes wrong."""
        return numbers

    @property
    def padding(self) -> int:
        return self._padding

    def set_epoch(self, epoch: int) -> None:
        pass


class Repeats(Right):
    """One sample comes twice."""

    name = "repeats"

    def changed(self, numbers: list[int]) -> list[int]:
        return [numbers[0], *numbers] if self.setup.rank == 0 else numbers


class Loses(Right):
    """One sample never comes."""

    name = "loses"

    def changed(self, numbers: list[int]) -> list[int]:
        return numbers[1:] if self.setup.rank == 0 else numbers
