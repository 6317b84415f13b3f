"""Ranges of objects by HTTP without TLS, by plain sockets.

obstore's runtime hands each piece of an answer to the thread that asked, and copies it twice: 110 kB cost 300 us of CPU
time and 7 changes of threads. By a socket, at which the thread itself waits, they cost 105 us and 2; where one thread
waits at 64 (`waiting`) what is done at the sockets takes 60 to 90 and 0.3 (nginx with 50 ms of latency and 90 MB/s for
each connection, two cores of an Intel Xeon that others were using, too).

Threads make connections, and go on with what is odd: errors, timeouts, connections that were closed meanwhile.
"""

from __future__ import annotations

import re
import socket
import struct
import time
import urllib.request
from contextlib import suppress
from email.utils import parsedate_to_datetime
from functools import lru_cache
from urllib.parse import quote, urlsplit

import numpy as np
from numpy.typing import NDArray

from gpupipe.sources.remote.faults import NETWORK, Fault, Kind, fault_of, fault_of_status
from gpupipe.sources.remote.store import Found, found_of

__all__ = ["Answer", "Plain"]

MOST_AT_ONCE = 256 << 10  # bytes that gather in the kernel before they are received
HEAD = 4096  # bytes that an answer's head has at most; others are left to obstore
ERROR = 16 << 10  # bytes of an error's text that are looked at
CODE = re.compile(rb"<Code>([A-Za-z0-9_.]{1,60})</Code>")
ENDED = (BrokenPipeError, ConnectionResetError, EOFError)
"""What is heard of a connection that was kept, and closed by the server meanwhile."""

FIELD = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):([^\r\n]*)")
"""A line of a head, of RFC 9112, section 5: no blank before the colon, none that goes on with the line before."""

ONCE = {"connection", "etag", "last-modified", "transfer-encoding"}
ONCE |= {f"content-{one}" for one in ("encoding", "length", "range")}
"""Fields that are looked at. Of two that say otherwise nobody knows which counts."""


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

    def begin(self, path: str, offset: int, size: int, etag: str) -> Answer | None:
        """Ask for a part of an object, as `read` does, and do not wait; None where no connection is kept for it."""
        if not self._idle or not self._asks(path, size):
            return None
        with suppress(IndexError, OSError, MemoryError):
            connection = self._idle.pop()
            answer = Answer(connection, self._idle, offset, size, time.monotonic() + self._timeout)
            connection.sendall(self._text(path, offset, size, etag))
            return answer
        return None

    def read(
        self, path: str, offset: int, size: int, etag: str, begun: Answer | None = None
    ) -> tuple[NDArray[np.uint8], Found] | None:
        """A part of an object, which must have this ETag unless that is empty; None where obstore has to be asked: for
        what is no range, by way of proxies and redirects, and where the answer is not understood. Raises Fault. begun:
        the same, as far as it has come."""
        if begun is None and not self._asks(path, size):
            return None
        answer = begun
        try:
            answer = self._asked(self._text(path, offset, size, etag), offset, size, begun)
            data = None if answer.part() is None else answer.body()
        except socket.gaierror:
            raise Fault(Kind.BROKEN, "its host's name is not known", NETWORK) from None
        except (OSError, EOFError) as error:
            raise fault_of(error) from None
        finally:
            if answer is not None:
                answer.release()
        if answer.found is None or data is None:
            self._knows = False
            return None
        return data, answer.found

    def _asks(self, path: str, size: int) -> bool:
        return self._knows and size > 0 and path != ""

    def _text(self, path: str, offset: int, size: int, etag: str) -> bytes:
        pinned = f"if-match: {etag}\r\n" if etag else ""
        span = f"range: bytes={offset}-{offset + size - 1}\r\n"
        return f"GET /{_quoted(path)}{self._query}{self._headers}{span}{pinned}\r\n".encode()

    def _asked(self, text: bytes, offset: int, size: int, begun: Answer | None) -> Answer:
        """The answer, as far as its head."""
        deadline, kept = time.monotonic() + self._timeout, True
        while True:
            answer = begun
            if answer is None:
                connection, kept = self._connection()
                answer = Answer(connection, self._idle, offset, size, deadline)
            try:
                if begun is None:
                    connection.sendall(text)
                answer.begin()
                return answer
            except BaseException as error:
                answer.connection.close()
                if not (kept and answer.count == 0 and isinstance(error, ENDED)):
                    raise
                begun = None

    def _connection(self) -> tuple[socket.socket, bool]:
        """One, and whether it was kept."""
        with suppress(IndexError):
            return self._idle.pop(), True
        made = socket.create_connection(self._place, min(self._connect, self._timeout))
        made.settimeout(None)
        return made, False


def _fields(lines: list[str]) -> dict[str, str] | None:
    """What a head says, by names in small letters; None where it can be read in more than one way."""
    said: dict[str, str] = {}
    for line in lines:
        field = FIELD.fullmatch(line)
        if field is None:
            return None
        name, value = field[1].lower(), field[2].strip()
        if name in ONCE and said.setdefault(name, value) != value:
            return None
        said[name] = value
    return said


@lru_cache(4096)
def _quoted(path: str) -> str:
    return quote(path, errors="surrogateescape")


class Answer:
    """What comes by a connection of the part that was asked for, in the buffer that its bytes stay in: `count` of them
    so far.

    status: 0 for what is no answer of HTTP, or has too long a head. found: what it says of the object, if it brings
    that part. since: when it was asked for. keeps: whether another question may follow, as all of it has come. error:
    what has ended it.
    """

    def __init__(
        self, connection: socket.socket, idle: list[socket.socket], offset: int, size: int, deadline: float
    ) -> None:
        self.connection, self._idle = connection, idle
        self.since, self.deadline = time.monotonic(), deadline
        self._offset, self._size = offset, size
        self._buffer = np.empty(HEAD + size, np.uint8)
        self.count = self.status = self._begin = 0
        self.keeps = False
        self.error: Exception | None = None
        self.found: Found | None = None
        self._said: dict[str, str] = {}
        self._least = 1

    def release(self) -> None:
        """Let others have the connection; one by which nothing may follow is closed."""
        if self.keeps:
            self._idle.append(self.connection)
        else:
            self.connection.close()

    # Without waiting.

    def fileno(self) -> int:
        return self.connection.fileno()

    def advance(self) -> bool:
        """Take what has come; whether a thread has to go on with it, or all is there."""
        try:
            if not self._begin:
                self._receive(len(self._buffer), socket.MSG_DONTWAIT)
                self._look()
                if not self._begin:
                    return self.count >= HEAD
                if self.status >= 300 or self.part() is None:
                    return True
            elif self.count < self._end:
                self._receive(self._end, socket.MSG_DONTWAIT)
            left = self._end - self.count
            self._wake_at(min(max(left, 1), MOST_AT_ONCE))
            self._settle()
            return left <= 0
        except TimeoutError:  # there was nothing
            return False
        except Exception as error:
            self.end(error)
            return True

    def end(self, error: Exception) -> None:
        """Nothing more comes."""
        self.error = error

    @property
    def data(self) -> NDArray[np.uint8] | None:
        """The part's bytes, once all are there."""
        return self._buffer[self._begin : self._end] if self.found and self.count >= self._end else None

    # Waiting. All of it raises OSError and EOFError.

    def begin(self) -> None:
        """Receive its head."""
        if self.error is not None:
            raise self.error
        while not self._begin and self.count < HEAD:
            self._receive(len(self._buffer), 0)
            self._look()

    def part(self) -> Found | None:
        """What it says of the object whose part it brings; None where it brings something else. Raises Fault for an
        error, and for all of the object."""
        if self.status >= 400:
            raise fault_of_status(self.status, self._code())
        if self.status == 200:
            raise Fault(Kind.WHOLE, "")
        said, span = self._said, f"bytes {self._offset}-{self._offset + self._size - 1}/"
        place, whole = said.get("content-range", ""), said.get("content-range", "")[len(span) :]
        if self.status != 206 or not place.startswith(span) or not whole.isdecimal():
            return None
        if said.get("content-length") != str(self._size) or "transfer-encoding" in said or "content-encoding" in said:
            return None
        try:
            changed = None if said.get("etag") else parsedate_to_datetime(said["last-modified"])
        except (KeyError, ValueError, TypeError, OverflowError):  # the last for an hour beyond C's integers
            return None
        found = found_of(int(whole), said.get("etag"), changed)
        self.found = found if found.etag else None
        return self.found

    def body(self) -> NDArray[np.uint8]:
        """All of it. The kernel waits for the last byte."""
        while self.count < self._end:
            self._receive(self._end, socket.MSG_WAITALL)
        self._settle()
        return self._buffer[self._begin : self._end]

    @property
    def _end(self) -> int:
        return self._begin + self._size

    def _look(self) -> None:
        """For its head."""
        head = self._buffer[: min(self.count, HEAD)].tobytes()
        end = head.find(b"\r\n\r\n")
        if end < 0:
            return
        self._begin = end + 4
        first, *lines = head[:end].decode("latin-1").split("\r\n")
        said = _fields(lines)
        if said is None or "\r" in first or "\n" in first:
            return  # others are asked
        if first.startswith("HTTP/1.1 ") and first[9:12].isdecimal():
            self.status = int(first[9:12])
        self._said = said

    def _settle(self) -> None:
        if self.count >= self._end:
            self._wake_at(1)
            self.keeps = self.count == self._end and self._said.get("connection", "").lower() != "close"

    def _wake_at(self, size: int) -> None:
        """Have the kernel tell when so much has come, or all that there is room for."""
        if size != self._least:
            self._least = size
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)

    def _code(self) -> str:
        """What an error's text names as its cause."""
        length = self._said.get("content-length", "")
        end = min(self._begin + ERROR, len(self._buffer), self._begin + int(length) if length.isdecimal() else 0)
        with suppress(OSError, EOFError):
            while self.count < end:
                self._receive(end, socket.MSG_WAITALL)
        found = CODE.search(self._buffer[self._begin : self.count].tobytes())
        return found[1].decode() if found else ""

    def _receive(self, end: int, flags: int) -> None:
        if flags != socket.MSG_DONTWAIT:
            left = self.deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("timed out")
            limit = struct.pack("@ll", int(left), int(left % 1 * 1e6) | 1)  # Python's own would ask twice a piece
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        try:
            came = self.connection.recv_into(self._buffer.data[self.count : end], 0, flags)
        except BlockingIOError:
            raise TimeoutError("timed out") from None
        if not came:
            raise EOFError("the connection was closed")
        self.count += came
