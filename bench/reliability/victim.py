"""A process for cases that interrupt or kill the training process itself.

with Victim(train, folder) as victim:      # `train(report, folder)` runs in a fork
    victim.hear(10)                        # what it has reported, such as its workers' ids
    victim.send(signal.SIGINT)
    code = victim.end(10)                  # its exit code, negative for a signal; None if it still runs
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from reliability.case import Failed, NoFunction
from reliability.warm import end_like_a_script

__all__ = ["Report", "Victim"]

Report = Callable[[Any], None]


class Victim:
    """A fork of the case's process that runs `function(report, *arguments)` and ends as a script does.

    It has to be made before the case starts a thread. `output` has what it printed.
    """

    def __init__(self, function: Callable[..., None], *arguments: Any, output: Path) -> None:
        self.output = output
        self._connection, theirs = multiprocessing.Pipe(duplex=False)
        self._code: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            self._connection.close()
            _run(function, theirs.send, arguments, output)
        theirs.close()

    def hear(self, seconds: float) -> Any:
        """What it reports next. Raises Failed if nothing comes in time."""
        if not self._connection.poll(seconds):
            raise Failed(f"the process said nothing for {seconds:g} s; it printed: {self.printed()}")
        try:
            found = self._connection.recv()
        except EOFError:
            raise Failed(f"the process ended without a word; it printed: {self.printed()}") from None
        if isinstance(found, NoFunction):
            raise found
        return found

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def end(self, seconds: float) -> int | None:
        """Its exit code, negative for a signal; None if it has not ended after so long."""
        deadline = time.monotonic() + seconds
        while self._code is None and time.monotonic() < deadline:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
            else:
                time.sleep(0.005)
        return self._code

    def printed(self) -> str:
        """The end of what it has printed."""
        return self.output.read_text(errors="replace")[-3000:].strip()

    def __enter__(self) -> Victim:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._connection.close()
        if self._code is None:
            with suppress(ProcessLookupError):
                self.send(signal.SIGKILL)
            self.end(10)


def _run(function: Callable[..., None], report: Report, arguments: tuple[Any, ...], output: Path) -> NoReturn:
    """The function, and then the end that the interpreter would give it."""
    code, interrupted = 0, False
    try:
        log = os.open(output, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        function(report, *arguments)
    except NoFunction as error:
        report(error)
    except KeyboardInterrupt:
        interrupted = True  # first, as a second one may come while this one is printed
        traceback.print_exc()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        sys.stderr.flush()
        end_like_a_script(code, signal.SIGINT if interrupted else None)
    raise AssertionError("unreachable")
