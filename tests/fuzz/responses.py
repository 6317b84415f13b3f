"""Answers of a server to a request for a range, as the client of plain sockets reads them."""

from __future__ import annotations

import http.client
import io
import socket
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path

from fuzz import mutators
from fuzz.harness import Finding, Target, unfit
from gpupipe.sources.remote.faults import Fault
from gpupipe.sources.remote.plain import Plain

OFFSET, SIZE, WHOLE = 100, 700, 5000
BODY = bytes(number % 251 for number in range(SIZE))


def seeds(scratch: Path) -> Sequence[bytes]:
    said = (
        f'Content-Range: bytes {OFFSET}-{OFFSET + SIZE - 1}/{WHOLE}\r\nContent-Length: {SIZE}\r\nETag: "e"\r\n'
        "Last-Modified: Wed, 21 Oct 2015 07:28:00 GMT\r\n"
    ).encode()
    chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (SIZE, BODY)
    return [
        b"HTTP/1.1 206 Partial Content\r\n" + said + b"\r\n" + BODY,
        b"HTTP/1.1 206 Partial Content\r\nConnection: close\r\n" + said + b"\r\n" + BODY,
        b"HTTP/1.1 200 OK\r\n" + said.replace(b"Content-Range", b"X") + b"\r\n" + BODY,
        b"HTTP/1.1 206 Partial Content\r\nTransfer-Encoding: chunked\r\n" + said + b"\r\n" + chunked,
        b"HTTP/1.1 503 Slow Down\r\nRetry-After: 3\r\nContent-Length: 31\r\n\r\n<Error><Code>SlowDown</Code></Error>",
        b"HTTP/1.1 403 Forbidden\r\nContent-Length: 50\r\n\r\n<Error><Code>ExpiredToken</Code></Error>",
        b"HTTP/1.1 301 Moved\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 206 Partial Content\r\n" + said + b"\r\n" + BODY,
    ]


class Kept:
    """A file of bytes, for `http.client`."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, mode: str) -> io.BytesIO:
        return io.BytesIO(self._data)


def check_of(scratch: Path) -> Callable[[bytes], Hashable]:
    def check(data: bytes) -> Hashable:
        plain = Plain("http://127.0.0.1:9", {}, 1.0, 5.0)
        near, far = socket.socketpair()
        for one in (near, far):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        far.sendall(data)
        far.shutdown(socket.SHUT_WR)
        plain._idle.append(near)
        begun = plain.begin("x", OFFSET, SIZE, '"e"') if len(data) % 2 else None
        if begun is not None:
            while not begun.advance():
                pass
        try:
            found = plain.read("x", OFFSET, SIZE, '"e"', begun)
        except Fault as fault:
            if wrong := unfit(fault.text + fault.remedy, ""):
                raise Finding(wrong) from fault
            return f"{fault.kind}: {fault.text}"
        finally:
            far.close()
            near.close()
        if found is None:
            return "left to others"
        body, said = found
        answer = http.client.HTTPResponse(Kept(data))  # type: ignore[arg-type]
        try:
            answer.begin()
        except http.client.HTTPException as error:
            return f"http.client refuses: {type(error).__name__}"
        if answer.status != 206 or answer.read()[:SIZE] != body.tobytes() or len(body) != SIZE:
            raise Finding(f"another body than http.client's, of status {answer.status}")
        whole = answer.getheader("content-range")  # which it does not look for behind lines that are none
        if whole is not None and int(whole.split("/")[-1]) != said.size:
            raise Finding(f"another size: {said} of {whole}")
        return "read", len(said.etag) > 0

    return check


WORDS = (
    *(b"\r\n\r\n", b"\r\n", b"Content-Length: ", b"Content-Range: bytes 100-799/", b"Transfer-Encoding: chunked\r\n"),
    *(b'ETag: W/"x"\r\n', b"Content-Encoding: gzip\r\n", b"HTTP/1.0 206", b"<Code>", b" \t", b"\xb2", b"\x1b[0m"),
    b"x" * 5000,
)

TARGETS = [Target("responses", seeds, check_of, mutators.plain(*WORDS))]
