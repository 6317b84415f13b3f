"""A child process that answers commands over a pipe: started, asked with patience, and ended with all its children."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from gpupipe.errors import GpupipeError

__all__ = ["ChildError", "ChildProcess", "descendants"]

PATIENCE = 10  # seconds that a process gets to end by itself
INTERRUPT = {signal.SIGINT}
# A Ctrl-C reaches all processes of a terminal: the parent decides when to stop, and closes the pipe. The child starts
# with the signal blocked, so that none comes before it is ignored, which would print a traceback.
CODE = """
import signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_UNBLOCK, {{signal.SIGINT}})
from {module} import main
main(int(sys.argv[1]), sys.argv[2])
"""


class ChildError(GpupipeError):
    """A child process failed, died or did not answer."""


class ChildProcess:
    """`main(descriptor, log)` of `module` behind a pipe, see `child`; `end` it and all its children.

    first:   what it is sent before any command.
    log:     the file for what it prints.
    timeout: seconds without an answer after which it counts as hanging.
    python:  the interpreter.
    """

    def __init__(self, module: str, first: Any, log: Path, timeout: float, python: str = sys.executable) -> None:
        self._connection: Connection
        self._connection, other = multiprocessing.Pipe()
        self._timeout = timeout
        self._hangs = False
        before = signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPT)
        try:
            self._process = subprocess.Popen(
                [python, "-c", CODE.format(module=module), str(other.fileno()), str(log)],
                pass_fds=[other.fileno()],
                env=os.environ | {"PYTHONPATH": python_path()},
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        other.close()
        self._connection.send(first)

    def ask(self, command: str, *arguments: Any, extra_time: float = 0.0) -> Any:
        """The answer to a command. Raises ChildError if the process fails, dies or does not answer in time."""
        self._signal(signal.SIGCONT)
        try:
            status, answer = self._exchange(command, arguments, self._timeout + extra_time)
        finally:
            self._signal(signal.SIGSTOP)
        if status == "error":
            raise ChildError(answer)
        return answer

    def _exchange(self, command: str, arguments: tuple[Any, ...], patience: float) -> tuple[str, Any]:
        try:
            self._connection.send((command, arguments))
            if not self._connection.poll(patience):
                self._hangs = True
                raise ChildError(f"no answer to '{command}' within {patience:.0f} s")
            answer: tuple[str, Any] = self._connection.recv()
        except (EOFError, ConnectionError):
            raise ChildError(f"died during '{command}': {self._exit()}") from None
        return answer

    def _signal(self, number: signal.Signals) -> None:
        """To the process and all its children: they stand still while others are measured, even with queues to fill."""
        for pid in (self._process.pid, *(child.pid for child in descendants(self._process.pid))):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _exit(self) -> str:
        try:
            code = self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            return "it closed its pipe"
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"

    def end(self) -> None:
        """Close the pipe, on which the process ends by itself; kill whatever of it has not ended after a while."""
        tree = descendants(self._process.pid)
        self._signal(signal.SIGCONT)
        self._connection.close()
        try:
            self._process.wait(1 if self._hangs else PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._process.wait()
        kill_remaining(tree)


def python_path() -> str:
    """What this process imports from beside its installed packages: a checkout, the folder of a script."""
    installed = ("site-packages", "dist-packages", ".zip")
    standard = sysconfig.get_path("stdlib")
    paths = (path or os.getcwd() for path in sys.path)
    return os.pathsep.join(p for p in paths if not p.startswith(standard) and not p.endswith(installed))


def descendants(pid: int) -> list[Any]:
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
