"""Names of objects, ranges that are asked for, how many at once, how long: all that needs no server."""

import random
from heapq import heappop, heappush
from itertools import pairwise

import pytest

from gpupipe.errors import ConfigError, DataError
from gpupipe.sources.remote.coalescing import Span, coalesce, pieces
from gpupipe.sources.remote.faults import Fault, Kind, fault_of
from gpupipe.sources.remote.flight import FEWEST, MOST, Flight
from gpupipe.sources.remote.objects import (
    Extent,
    Object,
    ReadError,
    ReplacedError,
    is_remote,
    join,
    key_of,
    name,
    parent,
    shown,
    unsigned,
)
from gpupipe.sources.remote.patience import Patience
from gpupipe.sources.remote.stores import object_at, placed


@pytest.mark.parametrize("url", ["s3://b/k", "gs://b", "az://c/k", "https://h/x", "hdfs://n/x", "HTTP://h/x"])
def test_urls_of_storages(url):
    assert is_remote(url)


@pytest.mark.parametrize("text", ["", "/data", "data/a", "file:///data", "pipe:cat x", "pipe://x", "C:/x", "s3:/b"])
def test_what_is_no_url_of_a_storage(text):
    assert not is_remote(text)


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("https://me:secret@host/a.tar?X-Amz-Signature=secret#secret", "https://host/a.tar?..."),
        ("https://secret@host/a.tar", "https://host/a.tar"),
        ("https://host?sig=secret", "https://host?..."),
        ("s3://key:secret@bucket/a?b#c", "s3://bucket/a?b#c"),
        ("abfss://box@account.dfs.core.windows.net/x", "abfss://box@account.dfs.core.windows.net/x"),
        ("sftp://me:secret@host/x?secret", "sftp://host/x?..."),
        ("s3://bucket/a\n\x1b[31m\u202eb\udcff", "s3://bucket/a\\n\\x1b[31m\\u202eb\\udcff"),
        ("s3://bucket/é ü", "s3://bucket/é ü"),
    ],
)
def test_no_secret_and_nothing_that_confuses_a_terminal_is_shown(url, text):
    assert shown(url) == text


PATHS = ["a.jpg", "dog/a b.jpg", "100%/a%20b?c#d&e=f+g.jpg", "é/日本.jpg", "{a}/[b]*.tar"]


@pytest.mark.parametrize("folder", ["s3://b", "gs://b/in it", "https://h/d", "http://u:p@h:8/d/?sig=a%2Fb&x=1"])
@pytest.mark.parametrize("path", PATHS)
def test_paths_below_a_folder_and_back(folder, path):
    url = join(folder, path)
    assert key_of(folder, url) == path
    assert name(url) == path.split("/")[-1]
    assert join(parent(url), name(url)) == url
    place = placed(url)
    assert object_at(place.root, place.path, (1, "e")) == Object(url, 1, "e")


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "a/../../x", "./", "a/"])
def test_paths_that_leave_the_folder_are_refused(path):
    with pytest.raises(DataError, match="no path below s3://b/d"):
        join("s3://b/d", path)


@pytest.mark.parametrize("path", ["./a/x.jpg", "a//x.jpg", "a/./x.jpg"])
def test_a_path_means_what_it_means_on_a_disk(path):
    assert join("s3://b/d", path) == "s3://b/d/a/x.jpg"


@pytest.mark.parametrize(
    ("url", "plain"),
    [
        ("https://h/a.tar?X-Amz-Date=1&X-Amz-Signature=2&versionId=3", "https://h/a.tar?versionId=3"),
        ("https://h/a.tar?sv=1&sig=2%3D&se=3", "https://h/a.tar"),
        ("https://h/a.tar?Expires=1&Signature=2&Key-Pair-Id=3", "https://h/a.tar"),
        ("https://h/get?id=1&expires=2", "https://h/get?id=1&expires=2"),
        ("https://me:secret@h:8/a@b.jpg?id=1", "https://h:8/a@b.jpg?id=1"),
        ("s3://b/a?sig=1", "s3://b/a?sig=1"),
    ],
)
def test_an_object_that_is_signed_anew_is_the_same(url, plain):
    assert unsigned(url) == plain


@pytest.mark.parametrize("key", ["/lead", "a//b", "a/../b", "./a", "a\x01b", "a/./b", "a\udcff"])
def test_keys_that_clients_would_change_are_refused(key):
    with pytest.raises(Fault, match="rename it") as caught:
        placed(f"s3://bucket/{key}")
    assert caught.value.kind is Kind.WRONG


def test_urls_of_the_web_that_do_not_come_apart_are_asked_for_as_they_are():
    for url in ("https://h/a//b", "https://h/a%2Fb", "https://h/d/?id=5", "https://h/../a", "https://h/%FF"):
        assert placed(url) == (url, "")
    assert placed("https://h:1/a%20b/%C3%A9?s=1#part") == ("https://h:1/?s=1", "a b/é")


def test_urls_that_are_none():
    with pytest.raises(Fault, match="its URL is none"):
        placed("https://[::1/a")


def slow_coalesce(wanted, gap, most):
    """By marking bytes, one wanted part after the other as they lie."""
    spans = []
    for found in dict.fromkeys(extent.object for extent in wanted):
        mine = sorted((e.offset, n) for n, e in enumerate(wanted) if e.object == found and e.size > 0)
        runs = []
        for offset, number in mine:
            end = offset + wanted[number].size
            for run in runs[-1:]:
                covered = set(range(*run[:2]))
                joined = (min(run[0], offset), max(run[1], end))
                if set(range(offset, end)) <= covered or (offset - run[1] <= gap and joined[1] - joined[0] <= most):
                    run[:2] = joined
                    run[2].append(number)
                    break
            else:
                runs.append([offset, end, [number]])
        spans += [Span(found, begin, end - begin, tuple(numbers)) for begin, end, numbers in runs]
    spans += [Span(*extent, (number,)) for number, extent in enumerate(wanted) if extent.size <= 0]
    return sorted(spans, key=lambda span: min(span.parts))


@pytest.mark.parametrize("seed", range(40))
def test_coalesced_ranges_are_those_of_a_slow_reference(seed):
    draw = random.Random(seed)
    objects = [Object(f"s3://b/{n}", 3000, f'"{n}"') for n in range(draw.choice([1, 3]))]
    wanted = []
    for _ in range(draw.randrange(1, 30)):
        size = draw.choice([-1, 0, 1, 10, 100, 400])
        wanted.append(Extent(draw.choice(objects), draw.randrange(2500), size))
    gap, most = draw.choice([0, 20, 300]), draw.choice([50, 500, 3000])
    spans = coalesce(wanted, gap, most)
    assert spans == slow_coalesce(wanted, gap, most)
    assert sorted(part for span in spans for part in span.parts) == list(range(len(wanted)))
    for found, offset, size, parts in spans:
        assert size <= max(most, *(wanted[part].size for part in parts))
        if size > 0:
            assert all(offset <= wanted[p].offset and wanted[p].offset + wanted[p].size <= offset + size for p in parts)
            assert all(wanted[part].object == found for part in parts)


def test_nothing_is_wanted_of_nothing():
    assert coalesce([]) == []


@pytest.mark.parametrize("size", [1, 99, 100, 101, 250, 1000, -1, 0])
def test_long_ranges_are_asked_for_in_pieces(size):
    cuts = pieces(Span(Object("s3://b/k", 5000, ""), 7, size, (0,)), most=100)
    assert len(cuts) == max(1, -(-size // 100))
    assert cuts[0][0] == 7
    assert sum(length for _, length in cuts) == size
    assert all(begin + length == after for (begin, length), (after, _) in pairwise(cuts))
    assert all(length <= 100 for _, length in cuts)


def simulate(flight, seconds, latency, rate, cap, size=110_000, wanted=True):
    """A storage with a latency, a rate of the whole link and one of each connection; the bytes that came in the last
    quarter of the time, for each second."""
    now, came, free = 0.0, [], 0.0
    under_way = []
    while now < seconds:
        while len(under_way) < flight.limit:
            free = max(free, now + latency) + size / rate
            heappush(under_way, max(free, now + latency + size / cap))
        now = heappop(under_way)
        came.append((now, size))
        flight.answered(size, now, wanted)
    return sum(size for at, size in came if at > 0.75 * seconds) / (0.25 * seconds)


@pytest.mark.parametrize(
    ("latency", "rate", "cap"),
    [(0.05, 200e6, 1e9), (0.01, 500e6, 50e6), (0.05, 100e6, 10e6), (0.0005, 300e6, 1e9), (0.1, 20e6, 1e9)],
)
def test_requests_under_way_follow_latency_and_bandwidth(latency, rate, cap):
    most = min(rate, MOST * 110_000 / (latency + 110_000 / cap))  # what the highest limit gives
    assert simulate(Flight(), 60, latency, rate, cap) > 0.8 * most


def test_no_more_requests_than_pay():
    flight = Flight()
    simulate(flight, 60, 0.0005, 50e6, 1e9)  # one connection has most of the link, a few all of it
    assert flight.limit < 32


def test_a_slow_loader_says_nothing_of_the_storage():
    flight = Flight()
    first = flight.limit
    simulate(flight, 20, 0.05, 200e6, 1e9, wanted=False)
    assert flight.limit == first


def test_a_storage_that_asks_for_patience_gets_it():
    flight = Flight()
    first = flight.limit
    for request in range(30):  # all that were under way hear the same
        flight.throttled(10 + request / 100)
    assert flight.limit == first // 2
    for second in range(20):
        flight.throttled(20 + 2 * second)
    assert flight.limit == FEWEST
    assert simulate(flight, 120, 0.05, 100e6, 1e9) > 0.7 * 100e6  # and what it can give again, later


def test_patience_is_bounded(monkeypatch):
    patience = Patience(seconds=120)
    assert sum(patience.pause(number) for number in range(1, patience.tries)) > 60  # an outage of a minute is outlived
    assert max(patience.pause(number) for number in range(1, 100)) <= 10
    assert [patience.timeout(number) for number in range(5)] == [7.5, 15, 30, 30, 30]
    monkeypatch.setenv("GPUPIPE_STORAGE_SECONDS", "30")
    assert Patience().seconds == 30
    for text in ("soon", "0", "-1", "nan"):
        monkeypatch.setenv("GPUPIPE_STORAGE_SECONDS", text)
        with pytest.raises(ConfigError, match="GPUPIPE_STORAGE_SECONDS"):
            Patience()


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (404, "NoSuchKey", Kind.MISSING),
        (403, "AccessDenied", Kind.DENIED),
        (400, "ExpiredToken", Kind.EXPIRED),
        (401, "", Kind.EXPIRED),
        (412, "", Kind.REPLACED),
        (416, "InvalidRange", Kind.REPLACED),
        (429, "", Kind.BUSY),
        (503, "SlowDown", Kind.BUSY),
        (500, "InternalError", Kind.BUSY),
        (501, "NotImplemented", Kind.WRONG),
        (301, "PermanentRedirect", Kind.WRONG),
        (400, "AuthorizationHeaderMalformed", Kind.WRONG),
    ],
)
def test_faults_by_status_show_the_code_and_nothing_else(status, code, kind):
    body = f"<Code>{code}</Code><AWSAccessKeyId>AKIASECRET</AWSAccessKeyId>" if code else "SECRET"
    text = f"Error performing GET https://h/x?sig=SECRET - Server returned non-2xx status code: {status} Oh: {body}"
    fault = fault_of(Exception(text))
    assert fault.kind is kind
    assert fault.again == (kind is Kind.BUSY)
    assert str(status) in fault.text
    assert code in fault.text
    assert "SECRET" not in fault.text + fault.remedy


def test_errors_are_what_sources_take_them_for():
    from gpupipe.sources.reading import ChangedError

    assert issubclass(ReadError, ValueError)
    assert issubclass(ReplacedError, ChangedError)
