"""Which processes are alive: each has a file of its own and keeps it locked. The kernel takes a lock away when its
process ends, however that ends, and shows it in every container that has the folder."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from gpupipe.host.cache import digest

__all__ = ["Lease", "alive", "facts_of"]


class Lease:
    """A process's sign of life. run: a name of the run's that files can have. name: that, a dash, and its own. size: of
    the cache, as the process has it."""

    def __init__(self, folder: Path, run: str, size: int | str | None = None) -> None:
        facts = {"pid": os.getpid(), "since": time.time(), "program": sys.argv[:1], "size": size}
        self.run, self._process = digest(run), os.getpid()
        while True:
            self.name = f"{self.run}-{uuid.uuid4().hex[:16]}"
            self._path = folder / self.name
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX)
                os.write(self._file, json.dumps(facts).encode())
                os.stat(self._path)
                return
            except FileNotFoundError:  # taken for a dead one's before it was locked
                os.close(self._file)
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """It is over; for a child that was forked, to which it does not belong, it only is no more its own."""
        if os.getpid() == self._process:
            with contextlib.suppress(OSError):
                self._path.unlink()
        os.close(self._file)


def alive(folder: Path, name: str) -> bool:
    """Whether the process lives; whether it is stopped does not matter."""
    try:
        file = os.open(folder / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(file)


def facts_of(folder: Path, name: str) -> dict[str, Any]:
    """What a lease says of its process."""
    try:
        facts = json.loads((folder / name).read_bytes()[:4096])
        return facts if isinstance(facts, dict) else {}
    except (OSError, ValueError):
        return {}
