"""The tests' servers: the faults of ours as a client of others meets them, and what others' serve."""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from servers.buckets import Bucket
from servers.faults import Fault, FaultServer, deaf_server
from servers.nginx import Nginx

DATA = random.Random(0).randbytes(1024)


@pytest.fixture
def server(fault_server: FaultServer) -> FaultServer:
    fault_server.put("a/x y.bin", DATA)
    return fault_server


class Client:
    """Of the standard library, with one connection."""

    def __init__(self, server: FaultServer, timeout: float = 60.0) -> None:
        self.connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=timeout)
        self.target = urlsplit(server.url_of("a/x y.bin")).path

    def __call__(self, method: str = "GET", **headers: str) -> tuple[int, bytes, Mapping[str, str]]:
        self.connection.request(method, self.target, headers={name.replace("_", "-"): v for name, v in headers.items()})
        response = self.connection.getresponse()
        return response.status, response.read(), response.headers


@pytest.fixture
def client(server: FaultServer) -> Iterator[Client]:
    client = Client(server)
    yield client
    client.connection.close()


@pytest.mark.parametrize(
    ("asked", "status", "body"),
    [
        (None, 200, DATA),
        ("bytes=0-9", 206, DATA[:10]),
        ("bytes=1000-", 206, DATA[1000:]),
        ("bytes=-7", 206, DATA[-7:]),
        ("bytes=1020-2000", 206, DATA[1020:]),
        ("bytes=1024-2000", 416, b""),
        ("bytes=5", 400, b""),
    ],
)
def test_ranges(client: Client, asked: str | None, status: int, body: bytes) -> None:
    found = client(**({} if asked is None else {"Range": asked}))
    assert found[:2] == (status, body)
    assert found[2]["Content-Length"] == str(len(body))
    if status == 206:
        first = DATA.index(body)
        assert found[2]["Content-Range"] == f"bytes {first}-{first + len(body) - 1}/1024"


def test_etags(server: FaultServer, client: Client) -> None:
    status, body, headers = client("HEAD")
    etag = headers["ETag"]
    assert (status, body, headers["Content-Length"]) == (200, b"", "1024")
    assert client(If_Match=etag)[:2] == (200, DATA)
    server.script("a/x y.bin", None, Fault(replace=DATA[::-1]))
    assert client(If_Match=etag)[0] == 200
    assert client(If_Match=etag)[:2] == (412, b"")
    assert client()[1] == DATA[::-1]
    server.remove("a/x y.bin")
    assert client()[0] == 404


def test_faults_come_in_turn_and_are_logged(server: FaultServer, client: Client) -> None:
    server.script("a/x y.bin", *[Fault(503)] * 2, None, Fault(429, {"Retry-After": "1"}, b"slow"))
    found = [client("HEAD")[0], *(client(Range="bytes=2-5") for _ in range(5))]
    assert found[0] == 200  # no GET
    assert [one[:2] for one in found[1:]] == [
        (503, b""),
        (503, b""),
        (206, DATA[2:6]),
        (429, b"slow"),
        (206, DATA[2:6]),
    ]
    assert found[4][2]["Retry-After"] == "1"
    log = server.requests("a/x y.bin", "GET")
    assert [(one.status, one.sent, one.range) for one in log[1:4]] == [
        (503, 0, (2, 5)),
        (206, 4, (2, 5)),
        (429, 4, (2, 5)),
    ]
    assert server.body_bytes == 4 + 4 + 4
    assert [one.start for one in log] == sorted(one.start for one in log)


def test_a_script_for_all_that_begin_so(server: FaultServer, client: Client) -> None:
    server.script("a/*", Fault(403), forever=True)
    server.script("*", Fault(404), forever=True)
    assert [client()[0] for _ in range(3)] == [403] * 3


def test_wrong_bytes_and_ignored_ranges(server: FaultServer, client: Client) -> None:
    server.script("a/x y.bin", Fault(wrong=True), Fault(whole=True), Fault(302, {"Location": "file:///etc/passwd"}))
    wrong = client(Range="bytes=0-99")
    assert wrong[0] == 206
    assert len(wrong[1]) == 100
    assert not any(one == other for one, other in zip(wrong[1], DATA[:100], strict=True))
    assert client(Range="bytes=0-99")[:2] == (200, DATA)
    status, _, headers = client()
    assert (status, headers["Location"]) == (302, "file:///etc/passwd")


@pytest.mark.parametrize(("reset", "error"), [(False, http.client.IncompleteRead), (True, ConnectionResetError)])
def test_bodies_that_end_early(server: FaultServer, client: Client, reset: bool, error: type[Exception]) -> None:
    """Also where a child has inherited the connection, as a forked worker does."""
    server.script("a/x y.bin", None, Fault(cut=100, reset=reset))
    client()
    child = os.fork()
    if child == 0:
        signal.pause()
    try:
        with pytest.raises(error):
            client()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert server.requests()[-1].sent == 100


def test_silence_lasts_until_someone_leaves(server: FaultServer) -> None:
    server.script("a/x y.bin", Fault(silent=True), Fault(pace=1.0))
    with pytest.raises(TimeoutError):
        Client(server, timeout=0.2)()
    slow = Client(server, timeout=60)
    slow.connection.request("GET", slow.target)
    response = slow.connection.getresponse()
    assert response.read(1) == DATA[:1]  # and the server closes in the middle of the rest


def test_latency(server: FaultServer, client: Client) -> None:
    server.script("a/x y.bin", Fault(delay=0.2))
    start = time.monotonic()
    assert client()[1] == DATA
    assert time.monotonic() - start >= 0.2


def test_nothing_is_left_of_a_server() -> None:
    threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
    with FaultServer() as server:
        server.put("a/x y.bin", DATA)
        client = Client(server)
        client()
        server.script("a/x y.bin", Fault(silent=True))
        client.connection.request("GET", client.target)
    client.connection.close()
    assert (threading.active_count(), len(os.listdir("/proc/self/fd"))) == (threads, files)


def test_faults_in_front_of_another_server(server: FaultServer) -> None:
    with FaultServer(upstream=server.url) as front:
        front.script("a/x y.bin", Fault(503))
        client = Client(front)
        assert [client(Range="bytes=3-4")[:2] for _ in range(2)] == [(503, b""), (206, DATA[3:5])]
        client.connection.close()


def test_a_server_that_is_deaf() -> None:
    with deaf_server() as url, pytest.raises(TimeoutError):
        socket.create_connection(urlsplit(url).netloc.split(":"), timeout=0.3)


READ = """
import json, sys
import obstore
from obstore.store import from_url
options = {"allow_http": True} if sys.argv[1].startswith("gs") else None
store = from_url(sys.argv[1], client_options=options)
listed = sorted(one["path"] for page in obstore.list(store) for one in page)
etag = obstore.head(store, listed[0])["e_tag"]
part = obstore.get(store, listed[0], options={"range": (3, 9), "if_match": etag}).bytes()
print(json.dumps([listed, etag, bytes(part).hex()]))
"""


def test_buckets(bucket: Bucket, tmp_path: Path) -> None:
    """As a client of a storage finds them, by the environment alone."""
    bucket.put("a/x y%\u00fc#.bin", DATA)
    bucket.put("b.bin", b"")
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "e.txt").write_bytes(b"text")
    assert bucket.put_folder(tmp_path, "c/") == ["c/d/e.txt"]
    bucket.delete("b.bin")

    def read() -> tuple[list[str], str, str]:
        done = subprocess.run([sys.executable, "-c", READ, bucket.url], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    listed, etag, part = read()
    assert listed == ["a/x y%\u00fc#.bin", "c/d/e.txt"]
    assert bytes.fromhex(part) == DATA[3:9]
    bucket.put("a/x y%\u00fc#.bin", DATA[::-1])
    assert read() != [listed, etag, part]


def test_nginx(serve: Callable[..., Nginx], tmp_path: Path) -> None:
    """Ranges, ETags, a log to the byte, a latency and a rate."""
    (tmp_path / "a b.bin").write_bytes(DATA * 1000)

    def read(server: Nginx, **headers: str) -> tuple[int, bytes, float]:
        connection = http.client.HTTPConnection(urlsplit(server.url).netloc)
        start = time.monotonic()
        connection.request("GET", urlsplit(server.url_of("a b.bin")).path, headers=headers)
        response = connection.getresponse()
        body = response.read()
        connection.close()
        return response.status, body, time.monotonic() - start

    server = serve(tmp_path)
    assert read(server, Range="bytes=3-9")[:2] == (206, DATA[3:10])
    assert read(server, **{"If-Match": '"other"'})[0] == 412
    assert ("GET", 206, 7, "a b.bin") in server.log()
    assert server.cpu_seconds >= 0
    status, body, seconds = read(serve(tmp_path, latency=0.1, rate=5_000_000))
    assert (status, body) == (200, DATA * 1000)
    assert seconds >= 0.1 + 0.1  # of 0.3
