"""Objects in processes of their own: asked over a pipe, with patience, and ended with all their children.

A crash, a hang or an exception there is a `ChildError` here.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import sysconfig
import time
from multiprocessing.connection import Connection
from typing import IO, Any

from gpupipe.errors import GpupipeError

__all__ = ["Child", "ChildError", "python_path", "serve"]

PATIENCE = 10.0  # seconds that a process gets to end by itself
LENGTH = 400  # characters of an error: DALI's go on with a stack trace
# A process group of its own: a terminal's Ctrl-C is for the parent, which ends the child, and signals reach all of it.
CODE = "import os, sys; os.setpgrp(); from gpupipe.host.children import serve; serve(*map(int, sys.argv[1:]))"
# Ends a group when its first process or the parent of that is gone: a group that stands still can't do so itself, and
# the kernel's SIGHUP comes only where the process that inherits orphans is of another session, not so in containers.
GUARD = """
import contextlib, os, select, signal, sys
parent, group = map(int, sys.argv[1:])
either = select.poll()
with contextlib.suppress(ProcessLookupError):
    for process in (parent, group):
        either.register(os.pidfd_open(process), select.POLLIN)
    either.poll()
with contextlib.suppress(ProcessLookupError):
    os.killpg(group, signal.SIGKILL)
"""


class ChildError(GpupipeError):
    """A child process raised, died or did not answer.

    code: its exit code, negative for a signal, where it has died. hangs: whether it did not answer in time.
    """

    _page = ""  # it is a part of what others say

    def __init__(self, message: str, code: int | None = None, hangs: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.hangs = hangs


class Child:
    """An object behind a pipe, whose methods can be asked for.

    what, arguments: "module:name" of what makes the object there, and of what. It may have a method `close`.
    log:             what the process and its children print goes there, from native code too.
    timeout:         seconds without an answer after which it counts as hanging.
    python:          the interpreter.
    """

    def __init__(
        self, what: str, arguments: tuple[Any, ...], log: IO[bytes], timeout: float, python: str = sys.executable
    ) -> None:
        self._connection: Connection
        self._connection, theirs = multiprocessing.Pipe()
        self._timeout = timeout
        self._hangs = self._gone = False
        self._process = subprocess.Popen(
            [python, "-c", CODE, str(theirs.fileno()), str(os.getpid())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=os.environ | {"PYTHONPATH": python_path()},
        )
        theirs.close()
        with contextlib.suppress(ConnectionError):  # `ask` says how it died
            self._connection.send((what, arguments))

    @property
    def pid(self) -> int:
        """Of the process, and of its group, in which its children are too."""
        return self._process.pid

    def ask(self, question: str, *arguments: Any, extra_time: float = 0.0) -> Any:
        """What the method returns. Raises ChildError if it raises, or the process dies or does not answer in time.

        Between questions the process and all its children stand still, even with queues to fill.
        """
        patience = self._timeout + extra_time
        self._signal(signal.SIGCONT)
        try:
            self._connection.send((question, arguments))
            if not self._connection.poll(patience):
                self._hangs = True
                raise ChildError(f"no answer to '{question}' within {patience:g} s", hangs=True)
            error, answer = self._connection.recv()
        except (EOFError, ConnectionError):
            code = self._process.returncode if self._wait(PATIENCE) else None
            raise ChildError(f"died during '{question}': {_ending(code)}", code) from None
        finally:
            self._signal(signal.SIGSTOP)
        if error:
            raise ChildError(error)
        return answer

    def end(self) -> None:
        """Close the pipe, on which the process ends by itself; kill whatever of it has not ended after a while."""
        self._signal(signal.SIGCONT)
        self._connection.close()
        self._wait(1 if self._hangs else PATIENCE)
        self.kill()

    def kill(self) -> None:
        """End the process and all its children now. May be called twice."""
        if self._gone:
            return
        self._gone = True
        self._connection.close()
        self._signal(signal.SIGKILL)
        self._process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)  # of its children, which outlive it
            for _ in range(50):  # until they are gone, with what they held
                time.sleep(0.02)
                os.killpg(self.pid, 0)

    def _wait(self, patience: float) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(patience)
        return self._process.returncode is not None

    def _signal(self, number: signal.Signals) -> None:
        if self._process.poll() is None:
            try:
                os.killpg(self.pid, number)
            except ProcessLookupError:  # it has just been started
                self._process.send_signal(number)


def _ending(code: int | None) -> str:
    if code is None:
        return "it closed its pipe"
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def python_path() -> str:
    """What this process imports from beside its installed packages: a checkout, the folder of a script."""
    installed = ("site-packages", "dist-packages", ".zip")
    standard = sysconfig.get_path("stdlib")
    paths = (path or os.getcwd() for path in sys.path)
    return os.pathsep.join(p for p in paths if not p.startswith(standard) and not p.endswith(installed))


def serve(descriptor: int, parent: int) -> None:
    """In the child: make the object, and answer until the parent, of this process ID, closes the pipe or is gone."""
    guarded = (str(parent), str(os.getpgrp()))
    subprocess.Popen([sys.executable, "-I", "-S", "-c", GUARD, *guarded], start_new_session=True)
    most = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (0, most))  # no file for a crash, which may be expected
    connection: Connection = Connection(descriptor)
    what, arguments = connection.recv()
    module, _, name = what.partition(":")
    made = getattr(importlib.import_module(module), name)(*arguments)
    with contextlib.suppress(EOFError):
        while True:
            question, arguments = connection.recv()
            connection.send(_answer(made, question, arguments))
    getattr(made, "close", lambda: None)()


def _answer(made: Any, question: str, arguments: tuple[Any, ...]) -> tuple[str, Any]:
    """("", what the method returns) or (the exception in one line, None)."""
    try:
        return "", getattr(made, question)(*arguments)
    except Exception as error:
        import traceback

        traceback.print_exc()
        return f"{type(error).__name__}: {' '.join(str(error).split())[:LENGTH]}", None
