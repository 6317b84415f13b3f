"""Programs that serve on a port of 127.0.0.1, each in a process group of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

__all__ = ["Absent", "Program", "free_port"]


class Absent(Exception):
    """The program is not installed; the message says how it would be."""


def free_port() -> int:
    """A port that nobody listened on just now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


class Program:
    """A server's process, which answers on `port` once this returns. What it prints goes to a file in `folder`.

    environment: beside this process's own. inherited: file descriptors that it gets.
    """

    def __init__(
        self,
        command: Sequence[str],
        port: int,
        folder: Path,
        environment: Mapping[str, str] | None = None,
        inherited: Sequence[int] = (),
        seconds: float = 30.0,
    ) -> None:
        self.port = port
        self.output = folder / f"{Path(command[0]).name}.{port}.txt"
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=folder,
                env=os.environ | (environment or {}),
                pass_fds=inherited,
                start_new_session=True,
            )
        limit = time.monotonic() + seconds
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > limit:
                self.close()
                raise RuntimeError(f"{command} does not answer on port {port}: {self.output.read_text()[-2000:]}")
            time.sleep(0.02)

    @property
    def cpu_seconds(self) -> float:
        """User and system time of the processes in its group that are alive."""
        total = 0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has ended meanwhile
            if int(fields[2]) == self.process.pid:
                total += int(fields[11]) + int(fields[12])
        return total / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        """End the whole group."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()

    def __enter__(self) -> Program:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _answers(self) -> bool:
        """By HTTP: whoever holds a socket that listens can be connected to."""
        with socket.socket() as connection, suppress(OSError):
            connection.settimeout(1)
            connection.connect(("127.0.0.1", self.port))
            connection.sendall(b"HEAD / HTTP/1.0\r\n\r\n")
            return bool(connection.recv(1))
        return False
