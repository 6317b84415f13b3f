"""What is done to a loader's processes and files while it runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil

from soaking.lives import CLASSES, Act

__all__ = ["Disturber"]

TAKEN = 256 << 20  # bytes of memory that another process takes
STANDS_STILL = "kill -STOP $1 2> /dev/null; sleep $2; kill -CONT $1 2> /dev/null"  # it may have been killed
TAKES = "import sys, time; held = bytearray(b'x') * int(sys.argv[1]); time.sleep(float(sys.argv[2]))"
AWAY = ".away"


class Disturber:
    """Does what a life has, to the children that this process has beyond those at the start, and to a folder's files.

    killed: process IDs. hidden: names that were renamed. counts: how often each was done.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._own = {child.pid for child in psutil.Process().children(recursive=True)}
        self._helpers: list[subprocess.Popen[bytes]] = []
        self._away: Path | None = None
        self._back_in = 0
        self.killed: list[int] = []
        self.hidden: set[str] = set()
        self.counts: dict[str, int] = {}

    def do(self, act: Act) -> None:
        """It; nothing where there is no worker, or something is hidden already."""
        if getattr(self, f"_{act.what}")(act):
            self.counts[act.what] = self.counts.get(act.what, 0) + 1

    def called(self) -> None:
        """next() has been called: what was to be hidden for so many calls is put back."""
        self._back_in -= 1
        if self._back_in <= 0:
            self.put_back()

    def put_back(self) -> None:
        """What is hidden."""
        if self._away is not None:
            os.rename(self._away, self._away.with_name(self._away.name.removesuffix(AWAY)))
            self._away = None

    def end(self) -> None:
        """All is as it was."""
        self.put_back()
        for helper in self._helpers:
            helper.wait()
        self._helpers.clear()

    def _stop(self, act: Act) -> bool:
        return (pid := self._worker(act)) is not None and self._still(pid, act)

    def _freeze(self, act: Act) -> bool:
        return self._still(os.getpid(), act)

    def _still(self, pid: int, act: Act) -> bool:
        return self._help("sh", "-c", STANDS_STILL, "sh", str(pid), f"{act.seconds:.3f}")

    def _kill(self, act: Act) -> bool:
        pid = self._worker(act)
        if pid is not None:
            self.killed.append(pid)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return pid is not None

    def _hide(self, act: Act) -> bool:
        if self._away is not None:
            return False
        names = sorted(os.listdir(self._root))
        names = [name for name in names if not name.startswith(".")]
        path = self._root / names[act.which % CLASSES]
        self._away, self._back_in = path.with_name(path.name + AWAY), act.calls
        os.rename(path, self._away)
        self.hidden.add(path.name)
        return True

    def _press(self, act: Act) -> bool:
        for path in self._root.rglob("*"):
            if path.is_file():
                with path.open("rb") as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return self._help(sys.executable, "-c", TAKES, str(TAKEN), f"{act.seconds:.3f}")

    def _worker(self, act: Act) -> int | None:
        known = self._own | {helper.pid for helper in self._helpers}
        workers = []
        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                served = "resource_tracker" in (line := " ".join(child.cmdline())) or "forkserver" in line
                if child.pid not in known and child.ppid() not in known and line and not (served and _serves(child)):
                    workers.append(child.pid)
        return sorted(workers)[act.which % len(workers)] if workers else None

    def _help(self, *command: str) -> bool:
        self._helpers = [helper for helper in self._helpers if helper.poll() is None]
        self._helpers.append(subprocess.Popen(command))
        return True


def _serves(process: psutil.Process) -> bool:
    """Whether it is multiprocessing's own, a child of this process; a fork of the fork server is a worker."""
    return process.ppid() == os.getpid()
