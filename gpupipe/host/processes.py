"""Facts about processes, from the kernel's own files: whether one runs, what state it is in, how it ended."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Identity", "ending", "is_stopped", "state"]

# proc(5), the third field of /proc/PID/stat.
STATES = {
    "R": "runs",
    "S": "sleeps",
    "D": "waits for storage",
    "T": "is stopped",
    "t": "is stopped by a debugger",
    "Z": "has ended",
    "X": "has ended",
}
START_TIME = 19  # field 22 of /proc/PID/stat, counted from the state


def _fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; none where there is no such process.

    Raises OSError where that can't be told, as in a process that has no file descriptor left.
    """
    try:
        # The name before it, in brackets, may hold anything.
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].decode("ascii").split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def state(pid: int) -> str:
    """What a process is doing, as a verb: "sleeps", "is stopped", "waits for storage"."""
    try:
        fields = _fields(pid)
    except OSError as error:
        return f"is in a state that can't be read ({error.strerror})"
    return STATES.get(fields[0], f"is in state {fields[0]}") if fields else "has ended"


def is_stopped(pid: int) -> bool:
    """Whether SIGSTOP or a debugger is known to hold it."""
    with suppress(OSError):
        return _fields(pid)[:1] in (["T"], ["t"])
    return False


@dataclass(frozen=True)
class Identity:
    """A process, told from a later one with the same number by the time at which it was started."""

    pid: int
    started: str

    @classmethod
    def own(cls) -> Identity:
        """Of this process."""
        return cls(os.getpid(), _fields(os.getpid())[START_TIME])

    def runs(self) -> bool:
        """Whether it is not known to have ended; one that waits to be reaped by its parent has."""
        try:
            fields = _fields(self.pid)
        except OSError:
            return True
        return bool(fields) and fields[0] not in "ZX" and fields[START_TIME] == self.started


def ending(exit_code: int) -> str:
    """How a process ended, by `multiprocessing.Process.exitcode`: "was killed by SIGKILL", "ended with exit code 3"."""
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    try:
        return f"was killed by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"was killed by signal {-exit_code}"
