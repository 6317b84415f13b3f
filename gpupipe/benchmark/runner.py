"""Runs the contenders: each in its own process, opened and checked one after the other, then measured in turn."""

from __future__ import annotations

import multiprocessing
import signal
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from gpupipe.benchmark import checks
from gpupipe.benchmark.child import serve
from gpupipe.benchmark.contenders import reference
from gpupipe.benchmark.measurement import Result
from gpupipe.benchmark.settings import Settings
from gpupipe.errors import GpupipeError

__all__ = ["ContenderError", "ContenderProcess", "measure"]

Report = Callable[[str], None]
PATIENCE = 10  # seconds that a process gets to end by itself


class ContenderError(GpupipeError):
    """A contender failed, died or did not answer; its row says so and the others go on."""


class ContenderProcess:
    """A contender behind a pipe; `end` it, and all its children with it."""

    def __init__(self, name: str, settings: Settings, log: Path) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would share this process's libraries and threads
        self._connection: Connection
        self._connection, other = context.Pipe()
        self._timeout = settings.timeout
        self._hangs = False
        self._process: BaseProcess = context.Process(target=serve, args=(name, settings, other, log), name=name)
        self._process.start()
        other.close()

    def ask(self, command: str, *arguments: Any, extra_time: float = 0.0) -> Any:
        """The answer to a command. Raises ContenderError if the contender fails, dies or does not answer in time."""
        try:
            self._connection.send((command, arguments))
            if not self._connection.poll(self._timeout + extra_time):
                self._hangs = True
                raise ContenderError(f"no answer to '{command}' within {self._timeout + extra_time:.0f} s")
            status, answer = self._connection.recv()
        except (EOFError, ConnectionError):
            raise ContenderError(f"died during '{command}': {self._exit()}") from None
        if status == "error":
            raise ContenderError(answer)
        return answer

    def _exit(self) -> str:
        self._process.join(10)
        code = self._process.exitcode
        if code is not None and code < 0:
            return signal.Signals(-code).name
        return f"exit code {code}"

    def end(self) -> None:
        """Close the pipe, on which the process ends by itself; kill whatever of it has not ended after a while."""
        tree = descendants(self._process.pid)
        self._connection.close()
        self._process.join(1 if self._hangs else PATIENCE)
        if self._process.is_alive():
            self._process.kill()
        self._process.join()
        kill_remaining(tree)


def descendants(pid: int | None) -> list[Any]:
    """The living descendants of a process."""
    import psutil

    try:
        return psutil.Process(pid).children(recursive=True)  # type: ignore[no-any-return]
    except psutil.NoSuchProcess:
        return []


def kill_remaining(processes: Sequence[Any]) -> None:
    """End processes whose parent has gone; psutil knows a reused id by its start time."""
    import psutil

    _, alive = psutil.wait_procs(processes, timeout=1)
    for process in alive:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(alive, timeout=5)


class Entrant:
    """A contender's result and, while it takes part, its process."""

    def __init__(self, name: str, settings: Settings, log: Path) -> None:
        self.result = Result(name)
        self.settings = settings
        self._process: ContenderProcess | None = ContenderProcess(name, settings, log)

    def prepare(self, noise: str, labels: dict[int, int] | None) -> None:
        """Ask whether it can take part, open it, and check what it makes."""
        reason = self._ask("available")
        if reason is not None:
            return self._leave(reason)
        self.result.noise_std = self._ask("noise", noise)
        self.result.opened = self._ask("open", sum(labels.values()) if labels else 0)
        wrong = self._wrong(labels)
        return self._leave(f"left out: {wrong}") if wrong else None

    def _wrong(self, labels: dict[int, int] | None) -> str | None:
        if self.result.opened is None or self.result.noise_std is None:
            return None
        return checks.problem(self.result.opened, self.settings, labels) or checks.noise_problem(self.result.noise_std)

    def run_round(self) -> None:
        """Measure once."""
        measured = self._ask("run", self.settings.seconds, extra_time=self.settings.seconds)
        if measured is not None:
            self.result.rounds.append(measured)

    def finish(self) -> None:
        """Measure the memory and end the process."""
        self.result.memory_mb = self._ask("memory")
        self.end()

    def end(self) -> None:
        """End the process, if it is still there."""
        if self._process is not None:
            self._process.end()
        self._process = None

    def _ask(self, command: str, *arguments: Any, extra_time: float = 0.0) -> Any:
        """The answer; None from one that has left. A failure makes it leave, with the reason in its row."""
        if self._process is None:
            return None
        try:
            return self._process.ask(command, *arguments, extra_time=extra_time)
        except ContenderError as error:
            return self._leave(str(error))

    def _leave(self, reason: str) -> None:
        self.result.reason = reason
        self.end()


def measure(names: Sequence[str], settings: Settings, logs: Path, report: Report = lambda text: None) -> list[Result]:
    """Measure the contenders; one result each, in the order of `names`.

    What each process prints goes to a file in `logs`. `report` is called with a line before each of the
    len(names) * (1 + settings.rounds) steps. Raises ConfigError for a name that is unknown, DataError for data that
    can't be opened.
    """
    for name in names:
        reference(name)
    labels = checks.expected_labels(settings.data)
    logs.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        noise = checks.noise_folder(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpupipe-"))))
        entrants = []
        for name in names:
            report(f"opening {name}")
            entrant = Entrant(name, settings, logs / f"{name.replace(':', '-')}.log")
            stack.callback(entrant.end)
            entrants.append(entrant)
            entrant.prepare(str(noise), labels)
        for number in range(settings.rounds):
            for entrant in entrants:
                report(f"round {number + 1} of {settings.rounds}: {entrant.result.name}")
                entrant.run_round()
        for entrant in entrants:
            entrant.finish()
    return [entrant.result for entrant in entrants]
