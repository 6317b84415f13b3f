"""An HTTP server with ranges and ETags that fails as it is told, for each object and request, and logs what it did."""

from __future__ import annotations

import ctypes
import hashlib
import http.client
import re
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote, unquote, urlsplit

__all__ = ["Fault", "FaultServer", "Request", "deaf_server"]

PIECE = 1 << 16


@dataclass(frozen=True)
class Fault:
    """What is wrong with one answer; all that is not said is as it should be.

    status:  this instead of the object's own, with `body`, which is empty unless it is given.
    headers: beside those of the answer, or instead of the ones of the same name: Retry-After, Location, ETag.
    body:    these bytes instead of the right ones. They are told by Content-Length.
    wrong:   the right number of bytes, each with its bits turned over.
    whole:   Range is ignored: 200 with all of the object.
    cut:     the connection ends after so many bytes of the body that was promised: a short body.
    reset:   where it is cut it is reset (RST), not closed.
    delay:   seconds until the first byte of the answer.
    pace:    bytes of the body a second.
    silent:  nothing is ever answered.
    replace: from this request on the object has these bytes, and another ETag.
    """

    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    wrong: bool = False
    whole: bool = False
    cut: int | None = None
    reset: bool = False
    delay: float = 0.0
    pace: float | None = None
    silent: bool = False
    replace: bytes | None = None


@dataclass
class Request:
    """A request as it came, and what became of it: never less than its client can know by now.

    range:  (first, last), inclusive. (first, None) is to the end, (-count, None) the last ones.
    start:  seconds, of `time.monotonic`, when it was read.
    status: 0 until it is answered. sent: bytes of the body.
    """

    method: str
    path: str
    query: str
    range: tuple[int, int | None] | None
    headers: Mapping[str, str]
    start: float
    status: int = 0
    sent: int = 0


class FaultServer:
    """Serves what was `put`; without faults in a script it is a good server.

        with FaultServer() as server:
            server.put("a.tar", data)
            server.script("a.tar", *[Fault(503)] * 2)          # the first two requests; the third is answered
            server.script("b.tar", Fault(404), forever=True)
            ... read server.url + "/a.tar"
            assert [request.status for request in server.requests("a.tar")] == [503, 503, 206]

    guard: asked of each request, what it gives goes before the scripts: another fault, or None.
    upstream: the address of another server, such as moto's: what was not put here is asked of it, so that faults
    come in front of it.
    """

    def __init__(self, upstream: str | None = None) -> None:
        self.log: list[Request] = []
        self.guard: Callable[[Request], Fault | None] = lambda request: None
        self._objects: dict[str, bytes] = {}
        self._scripts: dict[str, _Script] = {}
        self._upstream = None if upstream is None else urlsplit(upstream)
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._connections: set[socket.socket] = set()
        self._http = _Server(self)
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    @property
    def url(self) -> str:
        """http://127.0.0.1:port"""
        return f"http://127.0.0.1:{self._http.server_port}"

    def url_of(self, path: str) -> str:
        """The URL of an object, quoted."""
        return f"{self.url}/{quote(path)}"

    def put(self, path: str, data: bytes) -> None:
        """An object, or another in its place. Its ETag follows from its bytes."""
        with self._lock:
            self._objects[path] = data

    def put_folder(self, folder: Path, below: str = "") -> list[str]:
        """All files of a folder as objects `below`/their path in it; these paths, sorted."""
        files = {below + file.relative_to(folder).as_posix(): file for file in folder.rglob("*") if file.is_file()}
        for path, file in files.items():
            self.put(path, file.read_bytes())
        return sorted(files)

    def remove(self, path: str) -> None:
        """Not there any more."""
        with self._lock:
            del self._objects[path]

    def script(self, path: str, *faults: Fault | None, forever: bool = False, methods: str = "GET") -> None:
        """The next requests for an object get these faults in turn, None being none; afterwards all is well.

        forever: begin again after the last. methods: the requests that it is for, as in "GET HEAD". A path that ends
        in "*" is for all objects that begin so, which have no script of their own.
        """
        with self._lock:
            self._scripts[path] = _Script(deque(faults), forever, frozenset(methods.split()))

    def requests(self, path: str | None = None, method: str | None = None) -> list[Request]:
        """Those of the log for an object, or all."""
        with self._lock:
            return [one for one in self.log if path in (None, one.path) and method in (None, one.method)]

    @property
    def body_bytes(self) -> int:
        """All that was sent, without headers."""
        return sum(request.sent for request in self.requests())

    def close(self) -> None:
        """Cut all connections and wait for the threads."""
        self._closing.set()
        self._http.shutdown()
        with self._lock:
            for connection in self._connections:
                _end(connection)
        self._http.server_close()
        self._thread.join()

    def __enter__(self) -> FaultServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _next_fault(self, path: str, method: str) -> Fault:
        with self._lock:
            script = self._scripts.get(path)
            if script is None:
                patterns = (name for name in self._scripts if name.endswith("*") and path.startswith(name[:-1]))
                script = self._scripts.get(max(patterns, key=len, default=""))
            fault = script.next() if script is not None and method in script.methods else None
            if fault is not None and fault.replace is not None:
                self._objects[path] = fault.replace
            return fault or Fault()


@dataclass
class _Script:
    faults: deque[Fault | None]
    forever: bool
    methods: frozenset[str]

    def next(self) -> Fault | None:
        if not self.faults:
            return None
        fault = self.faults.popleft()
        if self.forever:
            self.faults.append(fault)
        return fault


@dataclass
class _Answer:
    status: int
    headers: dict[str, str]
    body: bytes


class _Server(ThreadingHTTPServer):
    daemon_threads = False  # they are joined
    request_queue_size = 512

    def __init__(self, owner: FaultServer) -> None:
        self.owner = owner
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is no error of ours."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def setup(self) -> None:
        super().setup()
        owner = self.server.owner
        with owner._lock:
            owner._connections.add(self.connection)
        if owner._closing.is_set():
            _end(self.connection)

    def finish(self) -> None:
        with self.server.owner._lock:
            self.server.owner._connections.discard(self.connection)
        super().finish()

    def log_message(self, format: str, *values: Any) -> None:
        """Nothing is printed."""

    def do_GET(self) -> None:
        owner, parts = self.server.owner, urlsplit(self.path)
        path = unquote(parts.path).lstrip("/")
        found = Request(self.command, path, parts.query, _range(self.headers), dict(self.headers), time.monotonic())
        with owner._lock:
            owner.log.append(found)
        asked = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = owner.guard(found) or owner._next_fault(path, self.command)
        try:
            if fault.silent or owner._closing.wait(fault.delay):
                self._wait_for_the_end()
                return
            answer = self._answer(path, fault, asked)
            found.status = answer.status
            self._begin(answer)
            if self.command != "HEAD":
                for piece in self._pieces(answer.body, fault):
                    found.sent += len(piece)
                    self.connection.sendall(piece)
                if fault.cut is not None:
                    self._cut(fault.reset)
        except OSError:
            self.close_connection = True

    do_HEAD = do_PUT = do_POST = do_DELETE = do_PROPFIND = do_GET

    def _answer(self, path: str, fault: Fault, asked: bytes) -> _Answer:
        owner = self.server.owner
        with owner._lock:
            data = owner._objects.get(path)
        if fault.status is not None:
            answer = _Answer(fault.status, {}, b"")
        elif data is not None and self.command in ("GET", "HEAD"):
            answer = _object(data, self.headers, fault.whole)
        elif data is None and owner._upstream is not None:
            answer = self._from_upstream(asked, fault.whole)
        else:
            answer = _Answer(404 if data is None else 405, {}, b"")
        if fault.body is not None:
            answer.body = fault.body
        if fault.wrong:
            answer.body = bytes(byte ^ 0xFF for byte in answer.body)
        replaced = {name.lower() for name in fault.headers}
        kept = {name: value for name, value in answer.headers.items() if name.lower() not in replaced}
        answer.headers = kept | dict(fault.headers)
        return answer

    def _from_upstream(self, asked: bytes, whole: bool) -> _Answer:
        address = self.server.owner._upstream
        assert address is not None
        ignored = {"connection", "range"} if whole else {"connection"}
        headers = {name: value for name, value in self.headers.items() if name.lower() not in ignored}
        connection = http.client.HTTPConnection(address.netloc, timeout=30)
        try:
            connection.request(self.command, self.path, asked or None, headers)
            response = connection.getresponse()
            body = response.read()
            ignored = {"connection", "transfer-encoding", "date", "server"}
            kept = {name: value for name, value in response.getheaders() if name.lower() not in ignored}
            return _Answer(response.status, kept, body)
        finally:
            connection.close()

    def _begin(self, answer: _Answer) -> None:
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if not any(name.lower() == "content-length" for name in answer.headers):
            self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()

    def _pieces(self, body: bytes, fault: Fault) -> Iterator[bytes]:
        body = body[: fault.cut]
        if fault.pace is None:
            yield from (body[first : first + PIECE] for first in range(0, len(body), PIECE))
            return
        size = max(1, round(fault.pace / 20))
        for first in range(0, len(body), size):
            piece = body[first : first + size]
            yield piece
            if self.server.owner._closing.wait(len(piece) / fault.pace):
                return

    def _cut(self, reset: bool) -> None:
        self.close_connection = True
        if reset:
            time.sleep(0.02)  # what was sent before would be thrown away at the other end
            _reset(self.connection)
        else:
            _end(self.connection)

    def _wait_for_the_end(self) -> None:
        """Until the client has gone or the server closes."""
        self.close_connection = True
        while not self.server.owner._closing.wait(0.02):
            if select.select([self.connection], [], [], 0)[0] and not self.connection.recv(PIECE):
                return


@lru_cache(maxsize=64)
def _etag(data: bytes) -> str:
    """By its bytes, which are gone through once: 5 MB take 8 ms."""
    return f'"{hashlib.md5(data).hexdigest()}"'


def _object(data: bytes, headers: Any, whole: bool) -> _Answer:
    etag = _etag(data)
    common = {"ETag": etag, "Accept-Ranges": "bytes", "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
    if headers.get("If-Match") not in (None, "*", etag):
        return _Answer(412, common, b"")
    found = None if whole else _range(headers)
    if found is None:
        return _Answer(200, common, data) if headers.get("Range") is None or whole else _Answer(400, common, b"")
    first, last = found
    first, last = (max(0, len(data) + first), None) if first < 0 else (first, last)
    last = len(data) - 1 if last is None else min(last, len(data) - 1)
    if first > last:
        return _Answer(416, common | {"Content-Range": f"bytes */{len(data)}"}, b"")
    return _Answer(206, common | {"Content-Range": f"bytes {first}-{last}/{len(data)}"}, data[first : last + 1])


def _range(headers: Any) -> tuple[int, int | None] | None:
    """(first, last) of "bytes=first-last", (-count, None) of "bytes=-count"."""
    found = re.fullmatch(r"bytes=(\d*)-(\d*)", headers.get("Range") or "")
    if found is None or found[0] == "bytes=-":
        return None
    if not found[1]:
        return -int(found[2]), None
    return int(found[1]), int(found[2]) if found[2] else None


def _end(connection: socket.socket) -> None:
    """Also where a forked process has the connection open too, unlike close."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _reset(connection: socket.socket) -> None:
    """RST at once, also where a forked process has the connection open too: connect to nowhere (AF_UNSPEC)."""
    ctypes.CDLL(None).connect(connection.fileno(), bytes(16), 16)


@contextmanager
def deaf_server() -> Iterator[str]:
    """The address of a server that no connection to is ever made: its queue is full, and nobody takes from it."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        waiting = []
        try:
            for _ in range(3):
                one = socket.socket()
                one.setblocking(False)
                one.connect_ex(listener.getsockname())
                waiting.append(one)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            for one in waiting:
                one.close()
