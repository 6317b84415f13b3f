"""The client of storage against servers. It runs in a process of its own: one that has used it can't be forked."""

import hashlib
import logging
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor

import pytest
from servers.faults import Fault, FaultServer, deaf_server

from gpupipe.errors import ConfigError
from gpupipe.host import processes
from gpupipe.sources.remote.apart import apart
from gpupipe.sources.remote.objects import Extent, MissingError, Object, shown

DATA = bytes(range(256)) * 1000
SECONDS = 16.0  # the first try of a request may take a second, on a machine that is busy
FEW = 2.0


@pytest.fixture(scope="module")
def child():
    """Runs a function of this file there, with the environment of here."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        yield lambda function, *arguments: pool.submit(_there, dict(os.environ), function, arguments).result(300)


def _there(environment, function, arguments):
    os.environ.clear()
    os.environ.update(environment)
    return function(*arguments)


class Lines(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


def use(ask, seconds=SECONDS):
    """What a new client answers, or (type, message) of what it raises; its counts, and what was logged."""
    from gpupipe.sources.remote.client import Client
    from gpupipe.sources.remote.patience import Patience

    lines = Lines()
    logging.getLogger("gpupipe").addHandler(lines)
    client = Client(Patience(seconds))
    try:
        return _result(lambda: ask(client)), client.counts(), lines.lines
    finally:
        logging.getLogger("gpupipe").removeHandler(lines)
        client.close()


def _result(function):
    try:
        return function()
    except Exception as error:  # with its cause, whose text could hold what is kept out of its own
        return type(error).__name__, f"{error}{error.__cause__ or ''}"


def read(wanted, seconds=SECONDS):
    return use(lambda client: [_result(lambda f=f: f.result().tobytes()) for f in client.read(wanted)], seconds)


def head(urls):
    return use(lambda client: client.head(urls))


def listing(url):
    return use(lambda client: client.list(url))


@pytest.fixture
def served(fault_server, child):
    """A server with an object, and the object."""
    fault_server.put("d/a.bin", DATA)
    (found,), _, _ = child(head, [fault_server.url_of("d/a.bin")])
    fault_server.log.clear()
    return fault_server, found


def once(counts):
    """Requests that answers were needed of: a busy machine may take so long for one that it is asked again."""
    return counts.requests - counts.retries


def test_an_object_as_it_is_now(fault_server, child):
    names = ["d/a.bin", "d/ü b#?.bin", "100%/a%20b"]
    for name in names:
        fault_server.put(name, name.encode())
    found, counts, _ = child(head, [fault_server.url_of(name) for name in [*names, "nope"]])
    assert [each.size for each in found[:3]] == [len(name.encode()) for name in names]
    assert len({each.etag for each in found[:3]}) == 3
    assert found[3] is None
    assert once(counts) == 4
    wanted = [Extent(each, 0, each.size) for each in found[:3]]
    assert child(read, wanted)[0] == [name.encode() for name in names]


def test_parts_are_read_with_few_requests_that_are_pinned(served, child):
    server, found = served
    wanted = [Extent(found, 200_000, 10), Extent(found, 10, 100), Extent(found, 5, 20), Extent(found, 0, 0)]
    parts, counts, _ = child(read, wanted)
    assert parts == [DATA[e.offset : e.offset + e.size] for e in wanted]
    assert once(counts) == 2
    assert counts.bytes == 10 + 105
    assert {request.range for request in server.requests("d/a.bin")} == {(5, 109), (200_000, 200_009)}
    assert {request.headers["if-match"] for request in server.requests("d/a.bin")} == {found.etag}


def one_by_one(wanted):
    return use(lambda client: [client.read([each])[0].result().tobytes() for each in wanted])


@pytest.mark.parametrize(
    ("fault", "ours"),
    [
        (None, [True, True]),
        (Fault(cut=100), [True, True]),  # closed behind a whole answer: the connection is not there any more
        (Fault(headers={"Connection": "close"}), [True, True]),
        (Fault(headers={"X-Long": "x" * 5000}), [True, False, False]),
        (Fault(headers={"ETag": "", "Last-Modified": ""}), [True, False, False]),
        (Fault(headers={"X-Line": "ends\rX-Other: for some"}), [True, False, False]),
    ],
)
def test_ranges_of_the_web_are_read_by_sockets_of_our_own_where_answers_are_understood(served, child, fault, ours):
    server, found = served
    server.script("d/a.bin", fault)
    extents = [Extent(found._replace(etag=""), offset, 100) for offset in (50, 1000)]
    parts, counts, _ = child(one_by_one, extents)
    assert parts == [DATA[50:150], DATA[1000:1100]]
    assert (counts.requests, counts.retries) == (2, 0)
    assert [request.headers.get("user-agent") == "gpupipe" for request in server.requests("d/a.bin")] == ours


def over_a_kept_connection(wanted):
    """As `one_by_one`; and how many were begun without a thread that waits."""
    from gpupipe.sources.remote.plain import Plain

    begun, begin = [], Plain.begin
    Plain.begin = lambda *arguments: begun.append(begin(*arguments)) or begun[-1]
    try:
        return one_by_one(wanted), sum(answer is not None for answer in begun)
    finally:
        Plain.begin = begin


@pytest.mark.parametrize(
    ("fault", "retries"),
    [
        (None, 0),
        (Fault(503), 1),
        (Fault(cut=40), 1),
        (Fault(cut=90_000, reset=True), 1),
        (Fault(cut=0, reset=True), 1),
        (Fault(pace=1.0), 1),
        (Fault(silent=True), 1),
        (Fault(whole=True), 0),
        (Fault(headers={"X-Long": "x" * 5000}), 0),
        (Fault(replace=DATA[::-1]), None),
    ],
)
def test_whatever_becomes_of_what_was_asked_for_by_a_connection_that_is_kept(served, child, fault, retries):
    server, found = served
    server.script("d/a.bin", None, fault)
    extents = [Extent(found, offset, 100_000) for offset in (50, 1000)]
    (result, counts, _), begun = child(over_a_kept_connection, extents)
    assert begun >= 1
    if retries is None:
        assert result[0] == "ReplacedError"
        assert "bytes 1,000 to 101,000" in result[1]
    else:
        assert result == [DATA[50:100_050], DATA[1000:101_000]]
        assert (counts.requests, counts.retries) == (2 + retries, retries)
    assert {request.headers["if-match"] for request in server.requests("d/a.bin", "GET")} == {found.etag}


def long_one(url, size):
    def ask(client):
        (found,) = client.head([url])
        whole, part = client.read([Extent(found, 0, size), Extent(found, 5_000_000, 7)])
        return whole.result().tobytes(), part.result().tobytes(), whole.result().flags.writeable

    return use(ask)


def test_a_long_part_is_read_by_several_requests(fault_server, child):
    data = os.urandom(9_000_000)
    fault_server.put("big", data)
    fault_server.script("big", Fault(503), None, Fault(cut=1000))
    (whole, part, writeable), counts, _ = child(long_one, fault_server.url_of("big"), len(data))
    assert whole == data
    assert part == data[5_000_000:5_000_007]
    assert not writeable
    assert once(counts) == 1 + 3
    assert counts.retries >= 2


def test_an_object_of_unknown_size_is_read_whole_and_pinned(fault_server, child):
    fault_server.put("a", b"first")
    extent = Extent(Object(fault_server.url_of("a"), -1, ""), 0, -1)
    (result, counts, _) = child(use_twice, extent)
    assert result == b"first"
    assert once(counts) == 1
    fault_server.script("a", None, Fault(replace=b"other"))
    (kind, text), _, _ = child(use_twice, extent, 2)
    assert kind == "ReplacedError"
    assert shown(extent.object.url) in text


def use_twice(extent, times=1):
    return use(lambda client: [client.read([extent])[0].result().tobytes() for _ in range(times)][-1])


@pytest.mark.parametrize(
    ("faults", "tries"),
    [
        ([Fault(503)] * 3, 4),
        ([Fault(500), Fault(429), Fault(502)], 4),
        ([Fault(cut=40)], 2),
        ([Fault(cut=40, reset=True)], 2),
        ([Fault(cut=0, reset=True)], 2),
        ([Fault(pace=1.0)], 2),
        ([Fault(silent=True)], 2),
        ([Fault(whole=True)], 1),
        ([Fault(status=302, headers={"Location": "/d/a.bin"})], 1),
    ],
)
def test_what_passes_is_outlived(served, child, faults, tries):
    server, found = served
    server.script("d/a.bin", *faults)
    parts, counts, _ = child(read, [Extent(found, 1000, 500)])
    assert parts == [DATA[1000:1500]]
    assert once(counts) == 1
    assert counts.retries >= tries - 1
    assert counts.bytes == (len(DATA) if faults[0].whole else 500)


@pytest.mark.parametrize("seed", range(4))
def test_many_parts_through_faults_of_every_kind(fault_server, child, seed):
    draw = random.Random(seed)
    data = draw.randbytes(10_000_000)
    fault_server.put("big", data)
    found = Object(fault_server.url_of("big"), len(data), f'"{hashlib.md5(data).hexdigest()}"')
    kinds = [Fault(503), Fault(429), Fault(cut=7), Fault(cut=99, reset=True), Fault(whole=True), Fault(delay=0.05)]
    fault_server.script("big", *[draw.choice([None, *kinds]) for _ in range(60)])
    wanted = [Extent(found, draw.randrange(len(data) - 9000), draw.choice([0, 1, 1000, 9000])) for _ in range(80)]
    parts, counts, _ = child(read, wanted)
    assert parts == [data[extent.offset : extent.offset + extent.size] for extent in wanted]
    assert counts.retries > 20
    other = found._replace(etag='"other"')
    parts, _, _ = child(read, [extent._replace(object=other) for extent in wanted])
    assert {part[0] for part in parts if part} == {"ReplacedError"}


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (Fault(503), "answered 503"),
        (Fault(cut=40), "broke off"),
        (Fault(cut=40, reset=True), ""),
        (Fault(pace=1.0), "in time"),
        (Fault(silent=True), "in time"),
    ],
)
def test_what_does_not_pass_ends_in_time_and_is_named(served, child, fault, says):
    server, found = served
    server.script("d/a.bin", fault, forever=True)
    begin = time.monotonic()
    (result,), counts, lines = child(read, [Extent(found, 1000, 500)], FEW)
    assert time.monotonic() - begin < 10 * FEW
    kind, text = result
    assert kind == "ReadError"
    assert f"{shown(found.url)}, bytes 1,000 to 1,500" in text
    assert f"tried {counts.requests} times" in text
    assert says in text
    assert counts.retries == counts.requests - 1 > 1
    assert len(lines) == 1  # not one for each


@pytest.mark.parametrize(
    ("fault", "kind", "says"),
    [
        (Fault(403, body=b"<Code>AccessDenied</Code>"), "ReadError", "403 (AccessDenied)"),
        (Fault(404), "MissingError", "404"),
        (Fault(400, body=b"<Code>InvalidRequest</Code>"), "ReadError", "400 (InvalidRequest)"),
        (Fault(replace=DATA + b"more"), "ReplacedError", "412"),
        (Fault(headers={"ETag": '"other"'}), "ReplacedError", '"other"'),
        (Fault(status=302, headers={"Location": "file:///etc/passwd"}), "ReadError", "redirect"),
        (Fault(status=302, headers={"Location": "ftp://h/x"}), "ReadError", "redirect"),
    ],
)
def test_what_trying_again_would_not_help_is_not_tried_again(served, child, fault, kind, says):
    server, found = served
    server.script("d/a.bin", fault, forever=True)
    (result,), counts, _ = child(read, [Extent(found, 0, 100)])
    assert result[0] == kind
    assert says in result[1]
    assert shown(found.url) in result[1]
    assert counts.requests == 1


def test_an_answer_of_400_without_a_reason_may_be_of_credentials_that_have_ended(served, child):
    server, found = served
    server.script("d/a.bin", Fault(400), methods="HEAD")
    ((one,), counts, _) = child(head, [found.url])
    assert one == found
    assert counts.requests == 2
    server.script("d/a.bin", Fault(400), methods="HEAD", forever=True)
    ((kind, text), counts, _) = child(head, [found.url])
    assert kind == "ReadError"
    assert "credentials have ended, or the region is another" in text
    assert counts.requests == 2


def test_a_redirect_in_a_circle_ends(served, child):
    server, found = served
    server.script("d/a.bin", Fault(status=302, headers={"Location": "/d/a.bin"}), forever=True)
    (result,), counts, _ = child(read, [Extent(found, 0, 100)])
    assert result[0] == "ReadError"
    assert counts.requests == 1


def test_bytes_beyond_the_end_are_no_short_part(served, child):
    _, found = served
    longer = found._replace(size=len(DATA) + 100)
    for extent in (Extent(longer, len(DATA) - 10, 50), Extent(longer, len(DATA) + 10, 50)):
        (result,), _, _ = child(read, [extent])
        assert result[0] == "ReplacedError"


def test_one_part_that_fails_leaves_the_others(served, child):
    server, found = served
    server.put("b", b"b" * 100)
    missing = Object(server.url_of("nope"), 100, '"x"')
    (b,), _, _ = child(head, [server.url_of("b")])
    parts, _, _ = child(read, [Extent(missing, 0, 10), Extent(found, 0, 10), Extent(b, 0, 10)])
    assert parts[0][0] == "MissingError"
    assert parts[1:] == [DATA[:10], b"b" * 10]


def test_a_server_without_ranges_gives_small_objects_and_refuses_large_ones(served, child):
    server, found = served
    server.script("d/a.bin", Fault(whole=True), forever=True)
    parts, counts, _ = child(read, [Extent(found, 1000, 500), Extent(found, 200_000, 5)])
    assert parts == [DATA[1000:1500], DATA[200_000:200_005]]
    server.put("big", bytes(20 << 20))
    (big,), _, _ = child(head, [server.url_of("big")])
    server.script("big", Fault(whole=True), forever=True)
    (result,), counts, _ = child(read, [Extent(big, 1000, 500)])
    assert "ignores ranges" in result[1]
    assert counts.requests == 1


@pytest.mark.parametrize("after", ["1", "date"])
def test_a_server_says_how_long_to_wait(served, child, after):
    from email.utils import formatdate

    server, found = served
    headers = {"Retry-After": formatdate(time.time() + 2, usegmt=True) if after == "date" else after}
    server.script("d/a.bin", *[Fault(429, headers=headers)] * 2, methods="GET HEAD")
    parts, _, _ = child(read, [Extent(found, 0, 100)])
    assert parts == [DATA[:100]]
    first, asked, second = server.requests("d/a.bin")
    assert (first.method, asked.method, second.method) == ("GET", "HEAD", "GET")
    assert second.start - first.start > 0.9


@pytest.mark.parametrize("after", ["soon", "\u00b2", "Wed, 21 Oct 2065 1099511627776:28:00 GMT"])
def test_a_time_to_wait_that_is_none_is_as_if_none_were_said(served, child, after):
    server, found = served
    server.script("d/a.bin", *[Fault(429, headers={"Retry-After": after})] * 2, methods="GET HEAD")
    parts, _, _ = child(read, [Extent(found, 0, 100)])
    assert parts == [DATA[:100]]


def test_more_patience_than_there_is_is_an_error(served, child):
    server, found = served
    server.script("d/a.bin", Fault(503, headers={"Retry-After": "3600"}), forever=True, methods="GET HEAD")
    (result,), counts, _ = child(read, [Extent(found, 0, 100)])
    assert "asks for 3600 s of patience" in result[1]
    assert counts.requests == 1


def test_servers_without_etags_are_held_to_the_time_of_change_or_the_size(served, child):
    server, _ = served
    dated = {"ETag": "", "Last-Modified": "Wed, 21 Oct 2015 07:28:00 GMT"}
    server.script("d/a.bin", Fault(headers=dated), forever=True, methods="GET HEAD")
    (found,), _, _ = child(head, [server.url_of("d/a.bin")])
    assert found.etag == "modified 2015-10-21T07:28:00+00:00"
    unknown, longer = found._replace(etag=""), found._replace(etag="", size=found.size + 1)
    parts, _, _ = child(read, [Extent(each, 0, 10) for each in (found, unknown, longer)])
    assert parts[:2] == [DATA[:10]] * 2
    assert parts[2][0] == "ReplacedError"
    server.script("d/a.bin", Fault(headers={**dated, "Last-Modified": "Wed, 21 Oct 2015 07:28:01 GMT"}))
    assert child(read, [Extent(found, 0, 10)])[0][0][0] == "ReplacedError"


def test_a_weak_etag_is_compared_but_not_asked_for(served, child):
    server, _ = served
    server.script("d/a.bin", Fault(headers={"ETag": 'W/"5"'}), forever=True, methods="GET HEAD")
    (found,), _, _ = child(head, [server.url_of("d/a.bin")])
    assert found.etag == 'W/"5"'
    assert child(read, [Extent(found, 0, 10)])[0] == [DATA[:10]]
    assert "if-match" not in server.requests("d/a.bin")[-1].headers
    server.script("d/a.bin", Fault(headers={"ETag": 'W/"6"'}))
    assert child(read, [Extent(found, 0, 10)])[0][0][0] == "ReplacedError"


def test_a_connection_that_is_never_answered(child):
    with deaf_server() as url:
        begin = time.monotonic()
        (result,), _, _ = child(read, [Extent(Object(f"{url}/x", 100, '"e"'), 0, 100)], FEW)
        assert time.monotonic() - begin < 10 * FEW
    assert result[0] == "ReadError"


def test_nothing_secret_is_told(served, child):
    """By presigned URLs, passwords and servers that repeat what they were sent."""
    server, found = served
    host = server.url.removeprefix("http://")
    url = f"http://me:hidden1@{host}/d/a.bin?X-Amz-Signature=hidden2"
    faults = [Fault(status, body=b"hidden3") for status in (400, 401, 403, 404, 412, 416, 500)]
    for fault in [
        *faults,
        Fault(status=302, headers={"Location": "file:///hidden4"}),
        Fault(cut=3),
        Fault(silent=True),
    ]:
        server.script("d/a.bin", fault, forever=True, methods="GET HEAD")
        (result,), _, lines = child(read, [Extent(Object(url, found.size, found.etag), 0, 100)], 1.0)
        assert "hidden" not in repr((result, lines))
        assert f"{host}/d/a.bin" in result[1]
    assert server.requests("d/a.bin")[0].query == "X-Amz-Signature=hidden2"
    assert server.requests("d/a.bin")[0].headers["authorization"].startswith("Basic ")
    dead = Extent(Object("http://me:hidden@127.0.0.1:1/x?hidden", 5, ""), 0, 5)
    assert "hidden" not in repr(child(read, [dead], 1.0))


@pytest.mark.parametrize("answer", [{}, {"status": 200}, {"status": 207}], ids=["no answer", "200", "207"])
def test_folders_of_the_web_are_not_listed(served, child, answer):
    """Nor is a page for people, in HTML, taken for the listing of an empty folder."""
    server, _ = served
    if answer:
        page = b"<html><body><h1>Index of /d/</h1><a href='a.jpg'>a.jpg</a></body></html>"
        server.script("d*", Fault(body=page, **answer), forever=True, methods="GET PROPFIND")
    (kind, text), counts, _ = child(listing, f"{server.url}/d")
    assert kind == "ReadError"
    assert "name the objects" in text
    assert counts.requests == 1


KEYS = ["train/a.jpg", "train/b c.jpg", "train/é#%20.jpg", "train/deep/er/d.jpg", "other/a.jpg"]


def test_buckets_are_listed_and_their_objects_read(bucket, child):
    for key in KEYS:
        bucket.put(key, key.encode() * 50)
    listed, _, _ = child(listing, f"{bucket.url}/train/")
    assert [found.url for found in listed] == sorted(f"{bucket.url}/{key}" for key in KEYS[:4])
    assert child(listing, f"{bucket.url}/train")[0] == listed
    assert len(child(listing, bucket.url)[0]) == len(KEYS)
    assert child(listing, f"{bucket.url}/tra")[0] == []
    found, _, _ = child(head, [each.url for each in listed] + [f"{bucket.url}/train/nope"])
    assert found == [*listed, None]  # the same ETags, in the same form
    parts, counts, _ = child(read, [Extent(each, 3, 9) for each in listed])
    assert parts == [(each.url.removeprefix(f"{bucket.url}/").encode() * 50)[3:12] for each in listed]
    assert once(counts) == 4


def test_an_object_of_a_bucket_that_was_replaced(bucket, child):
    bucket.put("a", b"first" * 10)
    (found,), _, _ = child(head, [f"{bucket.url}/a"])
    bucket.put("a", b"other" * 10)
    (result,), counts, _ = child(read, [Extent(found, 0, 10)])
    assert result[0] == "ReplacedError"
    assert counts.requests == 1
    bucket.delete("a")
    (result,), _, _ = child(read, [Extent(found, 0, 10)])
    assert result[0] in ("MissingError", "ReplacedError")  # Azure answers 412


def test_many_objects_of_a_folder_are_told_by_its_listing(s3_bucket, child):
    for number in range(40):
        s3_bucket.put(f"d/{number}", b"x" * number)
    urls = [f"{s3_bucket.url}/d/{number}" for number in range(45)]
    found, counts, _ = child(head, urls)
    assert [each and each.size for each in found] == [*range(40), *[None] * 5]
    assert once(counts) < 10


def test_large_listings_go_by_folders(bucket, child):
    keys = [f"in/{split}/{folder}/{number}" for split in "ab" for folder in range(12) for number in range(2)]
    keys += ["in/0", "in/a/0", "in/b/3/deep/er", *(f"flat/{number:02}" for number in range(25)), "in it"]
    for key in keys:
        bucket.put(key, key.encode())
    for folder, least in (("", 24), ("/in", 24), ("/in/a", 12), ("/flat", 3)):
        listed, counts, _ = child(small_pages, bucket.url + folder)
        below = [key for key in keys if f"/{key}".startswith(f"{folder}/")]
        assert [each.url for each in listed] == sorted(f"{bucket.url}/{key}" for key in below)
        assert least <= once(counts) < 3 * least


def small_pages(url):
    from gpupipe.sources.remote import listing as first, stores as second

    before = first.PAGE
    first.PAGE = second.PAGE = 10
    try:
        return listing(url)
    finally:
        first.PAGE = second.PAGE = before


def test_objects_of_a_bucket_that_may_not_be_listed(moto, monkeypatch, child):
    bucket = moto.bucket()
    bucket.put("d/0", b"x")
    with FaultServer(upstream=moto.url) as server:
        for name, value in moto.environment(server.url).items():
            monkeypatch.setenv(name, value)
        server.script(bucket.name, Fault(403), forever=True)
        found, _, _ = child(head, [f"{bucket.url}/d/{number}" for number in range(20)])
    assert [each is not None for each in found] == [True] + [False] * 19


def test_buckets_and_keys_that_are_not_there(s3_bucket, child):
    (kind, text), _, _ = child(listing, "s3://no-such-bucket/x")
    assert kind == "MissingError"
    assert "the listing of s3://no-such-bucket/x" in text
    assert "NoSuchBucket" in text
    assert child(head, [f"{s3_bucket.url}/nope"])[0] == [None]
    s3_bucket.put("bad/./name", b"")
    (kind, text), _, _ = child(listing, f"{s3_bucket.url}/bad")
    assert kind == "ReadError"
    assert "the name 'bad/./name' in it can't be asked for" in text


def test_a_bucket_whose_gateway_redirects_to_where_objects_lie(s3_bucket, fault_server, monkeypatch, child):
    """As AIStore's do."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"{fault_server.url}/s3")
    with FaultServer() as other:
        other.put("there", DATA)
        elsewhere = Fault(307, {"Location": other.url_of("there")})
        fault_server.script("s3/box/a", elsewhere, forever=True, methods="GET HEAD")
        (found,), _, _ = child(head, ["s3://box/a"])
        assert child(read, [Extent(found, 50, 10)])[0] == [DATA[50:60]]
        assert "authorization" in fault_server.requests("s3/box/a")[0].headers
        assert not any("authorization" in request.headers for request in other.requests())


def test_a_bucket_of_another_region(s3_bucket, fault_server, monkeypatch, child):
    monkeypatch.setenv("AWS_ENDPOINT_URL", fault_server.url)
    moved = Fault(400, body=b"<Error><Code>AuthorizationHeaderMalformed</Code><Message>expecting 'eu-west-1'</Message>")
    for fault in (Fault(301), moved):
        fault_server.script("box/a", fault)
        (result,), counts, _ = child(read, [Extent(Object("s3://box/a", 5, ""), 0, 5)])
        assert "set AWS_REGION" in result[1]
        assert counts.requests == 1


def test_a_bucket_without_etags_is_held_to_sizes(s3_bucket, fault_server, monkeypatch, child):
    """Its times may be those of the last access, as AIStore's."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", fault_server.url)
    fault_server.put("box/a", DATA)
    fault_server.script("box/a", Fault(headers={"ETag": ""}), forever=True, methods="GET HEAD")
    (found,), _, lines = child(head, ["s3://box/a"])
    assert found == Object("s3://box/a", len(DATA), "")
    assert lines == [lines[0]]
    assert "s3://box tells no ETags" in lines[0]
    assert child(read, [Extent(found, 50, 10)])[0] == [DATA[50:60]]


def test_expired_credentials_are_looked_up_once_more(moto, tmp_path, monkeypatch, child):
    """As a tool that renews the file of credentials has it; AWS answers 400 with a code of its own."""
    bucket = moto.bucket()
    bucket.put("a", DATA)
    with FaultServer(upstream=moto.url) as server:
        for name, value in moto.environment(server.url).items():
            monkeypatch.setenv(name, value)
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        credentials = tmp_path / "credentials"
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))
        expired = Fault(400, body=b"<Error><Code>ExpiredToken</Code></Error>")
        server.script(f"{bucket.name}/a", None, expired)
        result, counts, _ = child(through_renewal, f"{bucket.url}/a", str(credentials))
        assert result == [DATA[:10], DATA[20:30]]
        assert counts.requests == 4
        used = [request.headers["authorization"].partition("Credential=")[2][:3] for request in server.requests()]
        assert used == ["OLD", "OLD", "OLD", "NEW"]
        server.script(f"{bucket.name}/a", expired, forever=True)
        (kind, text), counts, _ = child(through_renewal, f"{bucket.url}/a", str(credentials))
        assert kind == "ReadError"
        assert "ExpiredToken" in text
        assert counts.requests == 3  # once more, and not for ever
    assert "HIDDEN" not in text


def write_credentials(path, name):
    with open(path, "w") as file:
        file.write(f"[default]\naws_access_key_id = {name}\naws_secret_access_key = HIDDEN\n")


def through_renewal(url, path):
    def ask(client):
        write_credentials(path, "OLD")
        (found,) = client.head([url])
        first = client.read([Extent(found, 0, 10)])[0].result().tobytes()
        write_credentials(path, "NEW")
        return [first, client.read([Extent(found, 20, 10)])[0].result().tobytes()]

    return use(ask)


IN_A_FORK = """
import os, sys
from gpupipe.errors import ConfigError
from gpupipe.sources.remote import client
assert not client.used_here()
url = sys.argv[1]
if sys.argv[2] == "before":
    assert client.client().head([url])[0].size == 256000
    assert client.used_here()
child = os.fork()
if child == 0:
    try:
        print("read", client.client().head([url])[0].size, client.used_here(), flush=True)
    except ConfigError as error:
        print("refused", error, client.used_here(), flush=True)
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
print("parent", client.client().head([url])[0].size)
"""


@pytest.mark.parametrize(
    ("when", "says"), [("before", "refused this process was forked"), ("after", "read 256000 True")]
)
def test_a_fork_has_a_client_of_its_own_or_is_refused(served, when, says):
    _, found = served
    ran = run(IN_A_FORK, found.url, when)
    assert ran.stdout.splitlines()[0].startswith(says)
    assert "forkserver" in ran.stdout or when == "after"
    assert ran.stdout.splitlines()[1] == "parent 256000"


def run(program, *arguments, code=0):
    # from Python 3.12 on the interpreter warns of a program's own fork beside threads
    command = [sys.executable, "-W", "ignore:This process:DeprecationWarning", "-c", program, *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stderr) == (code, "")
    return ran


AT_THE_END = """
import sys, time
from gpupipe.sources.remote.client import client
from gpupipe.sources.remote.objects import Extent, Object
futures = client().read([Extent(Object(sys.argv[1], 256000, ""), 1000 * n, 1) for n in range(200)])
time.sleep(0.3)
"""


def test_a_process_ends_with_requests_under_way(served):
    server, found = served
    server.script("d/a.bin", Fault(silent=True), forever=True)
    begin = time.monotonic()
    run(AT_THE_END.replace("1000 * n", "100_000 * (n % 3)"), found.url)
    assert time.monotonic() - begin < 60  # without an end the requests have 120


FEW_FILES = """
import resource, sys
from gpupipe.sources.remote.client import client
from gpupipe.sources.remote.objects import Extent, Object
wanted = [Extent(Object(sys.argv[1], 256000, ""), 40_000 * (n % 6), 10) for n in range(6 * 20)]
client().head([sys.argv[1]])  # with what is imported on the way
resource.setrlimit(resource.RLIMIT_NOFILE, (30, 30))
futures = [future for n in range(0, 120, 6) for future in client().read(wanted[n : n + 6])]
print(len([future.result() for future in futures]), client().flight.limit)
"""


def test_few_open_files_are_enough(served):
    server, found = served
    server.script("d/a.bin", Fault(delay=0.05), forever=True)
    read, limit = map(int, run(FEW_FILES, found.url).stdout.split())
    assert read == 120
    assert limit < 32


def test_work_apart(served, capfd):
    server, found = served
    (answer,) = apart("test_remote_client:sizes", urls=[found.url])
    assert answer == len(DATA)
    assert "printed" in capfd.readouterr().err
    with pytest.raises(MissingError, match=r"nope\.bin, bytes 0 to 5: the storage answered 404"):
        apart("test_remote_client:first_bytes", url=server.url_of("nope.bin"))
    with pytest.raises(ConfigError, match=r"x=0 must be an int"):
        apart("gpupipe.host.checks:whole", name="x", value=0, least=1)
    with pytest.raises(RuntimeError, match="has no attribute"):
        apart("gpupipe.host.checks:nope")
    with pytest.raises(RuntimeError, match="was killed by SIGKILL"):
        apart("test_remote_client:die")


def sizes(urls):
    from gpupipe.sources.remote.client import client

    print("printed")
    return [found.size for found in client().head(urls)]


def first_bytes(url):
    from gpupipe.sources.remote.client import client

    client().read([Extent(Object(url, 5, ""), 0, 5)])[0].result()


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def sleep(path):
    with open(path, "w") as file:
        file.write(str(os.getpid()))
    time.sleep(60)


APART = """
import sys
from gpupipe.sources.remote.apart import apart
apart("test_remote_client:sleep", path=sys.argv[1])
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_work_apart_ends_with_what_asked_for_it(tmp_path, number, interruptible):
    path = tmp_path / "pid"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    parent = subprocess.Popen(
        [sys.executable, "-c", APART, str(path)], stderr=subprocess.DEVNULL, env=environment, start_new_session=True
    )
    until(lambda: path.exists() and path.read_text())
    parent.send_signal(number)
    parent.wait(60)
    until(lambda: processes.state(int(path.read_text())) == "has ended")


def until(holds):
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_storage_that_only_fsspec_knows(child):
    parts, size, listed, lines = child(in_memory)
    assert parts == [b"2345", ("MissingError", parts[1][1]), b"0123456789"]
    assert "memory://box/d/nope, bytes 0 to 3: it is not there" in parts[1][1]
    assert size == 10
    assert listed == ["memory://box/d/a b", "memory://box/d/c"]
    assert len([line for line in lines if "read by fsspec" in line]) == 1


def test_files_of_hugging_face_have_versions(monkeypatch):
    """By the facts of whatever version of its library is installed."""
    hub = pytest.importorskip("huggingface_hub")
    from gpupipe.sources.remote.foreign import ForeignStore

    oids = iter("aabb")
    lfs = {"size": 9, "oid": "f" * 64, "pointerSize": 3}

    def tree(*_, **__):
        return [hub.hf_api.RepoFile(path="d/x.jpg", size=9, oid=next(oids), lfs=lfs, xetHash="h")]

    monkeypatch.setattr(hub.HfApi, "repo_info", lambda *_, **__: None)
    monkeypatch.setattr(hub.HfApi, "list_repo_tree", tree)
    monkeypatch.setattr(hub.HfApi, "get_paths_info", tree)
    store = ForeignStore("hf://datasets/some/one")
    assert [store.head("d/x.jpg") for _ in range(3)] == [(9, '"a"'), (9, '"a"'), (9, '"b"')]
    assert list(store.pages("d", "")) == [[("d/x.jpg", (9, '"b"'))]]


def test_an_object_of_fsspec_that_was_replaced(child):
    kind, text = child(in_memory_replaced)
    assert kind == "ReplacedError"
    assert "memory://box/e" in text


def in_memory():
    import fsspec

    files = fsspec.filesystem("memory")
    files.pipe("/box/d/a b", b"0123456789")
    files.pipe("/box/d/c", b"")

    def ask(client):
        (found,) = client.head(["memory://box/d/a b"])
        nope = Object("memory://box/d/nope", 3, "")
        wanted = [Extent(found, 2, 4), Extent(nope, 0, 3), Extent(Object(found.url, -1, ""), 0, -1)]
        parts = [_result(lambda f=f: f.result().tobytes()) for f in client.read(wanted)]
        return parts, found.size, [each.url for each in client.list("memory://box/d")]

    (parts, size, listed), _, lines = use(ask)
    return parts, size, listed, lines


def in_memory_replaced():
    import fsspec

    files = fsspec.filesystem("memory")
    files.pipe("/box/e", b"01234")

    def ask(client):
        (found,) = client.head(["memory://box/e"])
        files.pipe("/box/e", b"56789")
        return client.read([Extent(found, 0, 3)])[0].result()

    return use(ask)[0]


def read_in_turn(wanted, more, seconds):
    """Parts one after the other, then, when an object that was given up is asked for again, `more` of them."""

    def ask(client):
        found = [_result(lambda e=e: client.read([e])[0].result().tobytes()) for e in wanted]
        time.sleep(seconds / 2)
        return found, [_result(lambda e=e: client.read([e])[0].result().tobytes()) for e in more]

    return use(ask, seconds)


def test_an_object_that_was_given_up_costs_no_more_patience(served, child):
    server, found = served
    server.put("other", DATA)
    (other,), _, _ = child(head, [server.url_of("other")])
    server.script("d/a.bin", Fault(503), forever=True)
    parts = [Extent(found, 50_000 * number, 10) for number in range(5)]
    ((first, *rest, well), again), counts, _ = child(read_in_turn, [*parts, Extent(other, 0, 10)], parts[:2], FEW)
    assert "the storage answered 503, tried" in first[1]
    assert all("not asked for, as the object was given up a short while ago: the storage" in text for _, text in rest)
    assert well == DATA[:10]
    assert "tried" not in again[0][1]  # once
    assert "given up" in again[1][1]
    assert counts.requests == len(server.requests("d/a.bin", "GET")) + 1
