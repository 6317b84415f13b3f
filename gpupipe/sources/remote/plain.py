"""Ranges of objects by HTTP without TLS, by plain sockets.

obstore's runtime hands each piece of an answer to the thread that asked, and copies it twice: 110 kB cost 300 us of CPU
time and 7 changes of threads. By a socket, at which the thread itself waits, they cost 105 us and 2 (32 threads, nginx
with 50 ms of latency and 90 MB/s for each connection, two cores of an Intel Xeon that others were using, too).
"""

from __future__ import annotations

import re
import socket
import struct
import time
import urllib.request
from contextlib import suppress
from email.utils import parsedate_to_datetime
from urllib.parse import quote, urlsplit

import numpy as np
from numpy.typing import NDArray

from gpupipe.sources.remote.faults import NETWORK, Fault, Kind, fault_of, fault_of_status
from gpupipe.sources.remote.store import Found, found_of

__all__ = ["Plain"]

HEAD = 4096  # bytes that an answer's head has at most; others are left to obstore
ERROR = 16 << 10  # bytes of an error's text that are looked at
CODE = re.compile(rb"<Code>([A-Za-z0-9_.]{1,60})</Code>")
ENDED = (BrokenPipeError, ConnectionResetError, EOFError)
"""What is heard of a connection that was kept, and closed by the server meanwhile."""

RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


class Plain:
    """Of one server. headers: of each request. connect, timeout: seconds for a connection, and for a whole try.

    Connections are kept, as many as were in use at once. Threads may share it.
    """

    def __init__(self, address: str, headers: dict[str, str], connect: float, timeout: float) -> None:
        parts = urlsplit(address)
        self._place = parts.hostname or "", parts.port or 80
        self._query = f"?{parts.query}" if parts.query else ""
        more = "".join(f"{name.lower()}: {value}\r\n" for name, value in headers.items())
        self._headers = f" HTTP/1.1\r\nhost: {parts.netloc}\r\nuser-agent: gpupipe\r\n{more}"
        self._connect, self._timeout = connect, timeout
        self._idle: list[socket.socket] = []
        self._knows = re.fullmatch(r"http://[!-~]+", address) is not None and not urllib.request.getproxies()

    def read(self, path: str, offset: int, size: int, etag: str) -> tuple[NDArray[np.uint8], Found] | None:
        """A part of an object, which must have this ETag unless that is empty; None where obstore has to be asked: for
        what is no range, by way of proxies and redirects, and where the answer is not understood. Raises Fault."""
        if not self._knows or size <= 0 or not path:
            return None
        pinned = f"if-match: {etag}\r\n" if etag else ""
        name = quote(path, errors="surrogateescape")
        text = f"GET /{name}{self._query}{self._headers}range: bytes={offset}-{offset + size - 1}\r\n{pinned}\r\n"
        deadline = time.monotonic() + self._timeout
        try:
            connection, answer = self._asked(text.encode(), HEAD + size, deadline)
            try:
                found = answer.part(offset, size)
                data = None if found is None else answer.body(size)
            except BaseException:
                connection.close()
                raise
        except socket.gaierror:
            raise Fault(Kind.BROKEN, "its host's name is not known", NETWORK) from None
        except (OSError, EOFError) as error:
            raise fault_of(error) from None
        if answer.keeps:
            self._idle.append(connection)
        else:
            connection.close()
        if found is None or data is None:
            self._knows = False
            return None
        return data, found

    def _asked(self, text: bytes, most: int, deadline: float) -> tuple[socket.socket, _Answer]:
        """The answer, as far as its head, and the connection that it comes by."""
        while True:
            connection, kept = self._connection()
            answer = _Answer(connection, np.empty(most, np.uint8), deadline)
            try:
                connection.sendall(text)
                answer.begin()
                return connection, answer
            except BaseException as error:
                connection.close()
                if not (kept and answer.count == 0 and isinstance(error, ENDED)):
                    raise

    def _connection(self) -> tuple[socket.socket, bool]:
        """One, and whether it was kept."""
        with suppress(IndexError):
            return self._idle.pop(), True
        made = socket.create_connection(self._place, min(self._connect, self._timeout))
        made.settimeout(None)
        return made, False


class _Answer:
    """What comes by a connection, in the buffer that its bytes stay in: `count` of them so far.

    status: 0 for what is no answer of HTTP, or has too long a head. keeps: whether another question may follow, as
    all of it has come.
    """

    def __init__(self, connection: socket.socket, buffer: NDArray[np.uint8], deadline: float) -> None:
        self._connection, self._buffer, self._deadline = connection, buffer, deadline
        self.count = self.status = self._begin = 0
        self.keeps = False
        self._said: dict[str, str] = {}

    def begin(self) -> None:
        """Receive its head. Raises OSError and EOFError, as all that follows."""
        while not self._begin:
            self._receive(len(self._buffer), 0)
            head = self._buffer[: min(self.count, HEAD)].tobytes()
            self._begin = head.find(b"\r\n\r\n") + 4 if b"\r\n\r\n" in head else 0
            if self.count >= HEAD and not self._begin:
                return
        first, *lines = head[: self._begin - 4].decode("latin-1").split("\r\n")
        if first.startswith("HTTP/1.1 ") and first[9:12].isdigit():
            self.status = int(first[9:12])
        pairs = (line.partition(":") for line in lines)
        self._said = {name.lower(): value.strip() for name, _, value in pairs}

    def part(self, offset: int, size: int) -> Found | None:
        """What it says of the object whose part it brings; None where it brings something else. Raises Fault for an
        error, and for all of the object."""
        if self.status >= 400:
            raise fault_of_status(self.status, self._code())
        if self.status == 200:
            raise Fault(Kind.WHOLE, "")
        said, match = self._said, RANGE.fullmatch(self._said.get("content-range", ""))
        if self.status != 206 or match is None or "transfer-encoding" in said or "content-encoding" in said:
            return None
        begin, last, whole = map(int, match.groups())
        if (begin, last - begin + 1) != (offset, size) or said.get("content-length") != str(size):
            return None
        try:
            changed = None if said.get("etag") else parsedate_to_datetime(said["last-modified"])
        except (KeyError, ValueError, TypeError):
            return None
        found = found_of(whole, said.get("etag"), changed)
        return found if found.etag else None

    def body(self, size: int) -> NDArray[np.uint8]:
        """All of it. The kernel waits for the last byte."""
        end = self._begin + size
        while self.count < end:
            self._receive(end, socket.MSG_WAITALL)
        self.keeps = self.count == end and self._said.get("connection", "").lower() != "close"
        return self._buffer[self._begin : end]

    def _code(self) -> str:
        """What an error's text names as its cause."""
        length = self._said.get("content-length", "")
        end = min(self._begin + ERROR, len(self._buffer), self._begin + int(length) if length.isdigit() else 0)
        with suppress(OSError, EOFError):
            while self.count < end:
                self._receive(end, socket.MSG_WAITALL)
        found = CODE.search(self._buffer[self._begin : self.count].tobytes())
        return found[1].decode() if found else ""

    def _receive(self, end: int, flags: int) -> None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        limit = struct.pack("@ll", int(left), int(left % 1 * 1e6) | 1)  # Python's own would ask twice for each piece
        self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        try:
            came = self._connection.recv_into(self._buffer.data[self.count : end], 0, flags)
        except BlockingIOError:
            raise TimeoutError("timed out") from None
        if not came:
            raise EOFError("the connection was closed")
        self.count += came
