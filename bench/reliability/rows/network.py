"""Rows 34 to 40, a storage that fails; 31 and 41 to 50 as a loader meets them: what it keeps, replaced data, names."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any

from reliability.cached import MS_RDONLY, MS_REMOUNT, libc, mounted
from reliability.case import Case, Context, NoFunction, Row, expect, expect_equal
from reliability.contenders.base import Stored
from reliability.contenders.stores import KEY, PATIENCE
from reliability.data import gray_jpegs
from reliability.rows.common import read_at_once
from reliability.victim import Victim

sys.path.append(str(Path(__file__).parents[3] / "tests"))

from servers.faults import Fault, FaultServer, Request, deaf_server

__all__ = ["ROWS"]

SAMPLES, STEP, APART = 48, 5, 3.0  # gray levels between samples, and that JPEG may be off

BUCKET = "first"
LIFE = 4.0  # seconds of credentials
NOTES = 4096  # bytes that a cache may have beside the data: LitData counts readers in files of some bytes


def levels(other: bool = False) -> list[int]:
    """The gray level of each sample; in the other data set none is that of the same number."""
    found = [STEP * number for number in range(SAMPLES)]
    return found[::-1] if other else found


@contextmanager
def storage(context: Context, **buckets: bool) -> Iterator[FaultServer]:
    """A server with data in these buckets, by default one: of the other data set where it is True."""
    os.environ |= {"GPUPIPE_STORAGE_SECONDS": str(PATIENCE), "GPUPIPE_CACHE": str(context.folder / "found")}
    with FaultServer() as server:
        for name, other in (buckets or {BUCKET: False}).items():
            fill(context, server, name, other)
        yield server


def fill(context: Context, server: FaultServer, bucket: str, other: bool = False) -> list[str]:
    """Put what the contender writes into a bucket; the paths of all objects."""
    folder = context.folder / f"{bucket}-{other}"
    folder.mkdir()
    context.contender.write(folder, gray_jpegs(levels(other)))
    return server.put_folder(folder, f"{bucket}/")


def stored(context: Context, server: FaultServer, bucket: str = BUCKET, **values: Any) -> Stored:
    """Read by one or two workers."""
    return Stored(server.url, bucket, **({"workers": context.random.randint(1, 2)} | values))


def cache_of(context: Context) -> Path:
    """A folder for what a contender keeps."""
    folder = context.folder / "cache"
    folder.mkdir(exist_ok=True)
    return folder


def objects(server: FaultServer, bucket: str = BUCKET) -> list[str]:
    """Paths of those with samples in them: not of what is an index."""
    return [path for path in sorted(server._objects) if path.startswith(f"{bucket}/") and is_data(path)]


def is_data(path: str) -> bool:
    """Whether samples lie there."""
    return path.endswith((".tar", ".bin", ".mds", ".jpg"))


def expect_right(found: Sequence[tuple[int, float]], other: bool = False, whole: bool = True) -> None:
    """Each sample once, with its own picture; all of them where `whole`."""
    wanted = levels(other)
    for number, level in found:
        expect(
            abs(level - wanted[number]) <= APART, f"sample {number} came with gray {level:.0f}, not {wanted[number]}"
        )
    numbers = sorted(number for number, _ in found)
    if whole:
        expect_equal(numbers, list(range(SAMPLES)), "the samples of an epoch")
    else:
        expect_equal(numbers, sorted(set(numbers)), "the samples so far")


def read_all(context: Context, where: Stored, other: bool = False) -> None:
    """An epoch that has to be right."""
    expect_right(list(context.contender.read(where)), other)


def read_or_say(context: Context, where: Stored, path: str | None = None) -> Exception | None:
    """An epoch that is right, or right until an error, which names the object if one is given."""
    found: list[tuple[int, float]] = []
    try:
        for one in context.contender.read(where):
            found.append(one)
    except NoFunction:
        raise
    except Exception as error:
        expect_right(found, whole=False)
        name = path and path.rpartition("/")[2]
        expect(name is None or name in str(error), f"{name} is not named: {type(error).__name__}: {error}")
        return error
    expect_right(found)
    return None


# 34 to 40.


def passing(context: Context, faults: Callable[[Context, str, int], list[Fault]]) -> None:
    """Faults that go by come before what is right, at each object."""
    with storage(context) as server:
        for path in objects(server):
            found = faults(context, path, len(server._objects[path]))
            server.script(path, *found, methods="GET HEAD" if all(fault.status for fault in found) else "GET")
        read_all(context, stored(context, server))


def no_faults(context: Context, path: str, size: int) -> list[Fault]:
    return []


def unavailable(context: Context, path: str, size: int) -> list[Fault]:
    return [Fault(503)] * context.random.randint(1, 2)


def short(context: Context, path: str, size: int) -> list[Fault]:
    return [Fault(cut=context.random.randrange(1, 500))]


def reset(context: Context, path: str, size: int) -> list[Fault]:
    return [Fault(cut=context.random.randrange(1, 500), reset=True)]


def silent(context: Context, path: str, size: int) -> list[Fault]:
    return [Fault(silent=True)] if context.random.random() < 0.2 else []


def slow(context: Context, path: str, size: int) -> list[Fault]:
    return [Fault(pace=1.0)] if context.random.random() < 0.2 else []


def retry_after(context: Context) -> None:
    """It is waited for as long as the server says."""
    with storage(context) as server:
        path = context.random.choice(objects(server))
        busy = Fault(context.random.choice((429, 503)), {"Retry-After": "2"})
        server.script(path, busy, busy, methods="GET HEAD")
        read_all(context, stored(context, server))
        first, *others = server.requests(path)
        again = [one for one in others if (one.method, one.range) == (first.method, first.range) and one.status < 300]
        expect(again[0].start - first.start >= 1.9, f"asked again after {again[0].start - first.start:.2f} s")


def ranges_ignored(context: Context) -> None:
    """The right part of all that comes, or an error."""
    with storage(context) as server:
        server.script("*", Fault(whole=True), forever=True)
        read_or_say(context, stored(context, server))


def no_connection(context: Context) -> None:
    """An error in time."""
    with storage(context) as server, deaf_server() as url:
        where = stored(context, server)
        error = read_or_say(context, Stored(url, BUCKET, workers=where.workers))
        expect(error is not None, "there was nothing to read")


def wrong_bytes(context: Context) -> None:
    """Nothing wrong is given: the decoder finds out, and who reads again gets the right ones."""
    with storage(context) as server:
        server.script(context.random.choice(objects(server)), Fault(wrong=True), forever=context.random.random() < 0.5)
        read_or_say(context, stored(context, server))


def refused(context: Context, status: int) -> None:
    """An error that names the object, and no second try."""
    with storage(context) as server:
        path = context.random.choice(objects(server))
        where = stored(context, server, workers=1)
        server.script(path, Fault(status), forever=True, methods="GET HEAD")

        error = read_or_say(context, where, path)
        expect(error is not None, "an epoch without an object")
        expect(len(server.requests(path, "GET")) <= 2, f"{len(server.requests(path, 'GET'))} tries")


def never_available(context: Context) -> None:
    """Tries are bounded in number and time, and the error names the object."""
    with storage(context) as server:
        path = context.random.choice(objects(server))
        server.script(path, Fault(503), forever=True, methods="GET HEAD")
        error = read_or_say(context, stored(context, server, workers=1), path)
        expect(error is not None, "an epoch without an object")
        expect(len(server.requests(path)) <= 50, f"{len(server.requests(path))} tries")


def to_a_file(context: Context) -> None:
    """A redirect that leaves the web is an error."""
    secret = context.folder / "secret"
    secret.write_bytes(gray_jpegs([77])[0])
    with storage(context) as server:
        server.script(context.random.choice(objects(server)), Fault(302, {"Location": secret.as_uri()}), forever=True)
        error = read_or_say(context, stored(context, server))
        expect(error is not None, "an epoch with what a file: URL names")


def no_secret(context: Context) -> None:
    """Neither the error nor anything printed has the right to read the objects in it."""
    secret = f"{context.random.getrandbits(64):016x}"
    with storage(context) as server:
        server.script("*", *[None] * context.random.randint(0, 6), *[Fault(403)] * 100, methods="GET HEAD")
        where = stored(context, server, query=f"?X-Amz-Signature={secret}")
        error = read_or_say(context, where)
    printed = (context.folder.parent / "log").read_text(errors="replace")
    for one in (secret, KEY):
        expect(one not in f"{error} {printed}", "the secret is in what was said")


# 41 to 50: a cache folder between two epochs, each of a loader of its own.


def two_epochs(context: Context, between: Callable[[Context, FaultServer, Path], bool | None]) -> None:
    """The second is right after what happens between them, which says whether the data are others now."""
    with storage(context) as server:
        folder = cache_of(context)
        where = stored(context, server, cache=folder)
        read_all(context, where)
        read_all(context, where, bool(between(context, server, folder)))


def replaced(context: Context, server: FaultServer, folder: Path) -> bool:
    """Other data lie under the same names now."""
    for path in list(server._objects):
        server.remove(path)
    fill(context, server, BUCKET, other=True)
    return True


def damaged(context: Context, server: FaultServer, folder: Path) -> None:
    """A bit turns in each file that is kept, in the second half of it."""
    for file in large_files(folder):
        place = context.random.randrange(file.stat().st_size // 2, file.stat().st_size - 600)
        with file.open("r+b") as opened:
            opened.seek(place)
            byte = opened.read(1)[0]
            opened.seek(place)
            opened.write(bytes([byte ^ 1 << context.random.randrange(8)]))


def large_files(folder: Path) -> list[Path]:
    """Those with samples in them."""
    return [file for file in sorted(folder.rglob("*")) if file.is_file() and file.stat().st_size > 3000 and kept(file)]


def kept(file: Path) -> bool:
    """Not what lists the others."""
    return not file.name.startswith("index") and ".sqlite" not in file.name and ".db" not in file.name


def deleted_midway(context: Context) -> None:
    """Files of the cache go while a loader reads."""
    with storage(context) as server:
        folder, found = cache_of(context), []
        where = stored(context, server, cache=folder)
        read_all(context, where)
        for one in context.contender.read(where):
            found.append(one)
            if len(found) == 9:
                for file in large_files(folder):
                    file.unlink(missing_ok=True)
        expect_right(found)


def unwritable(context: Context, size: str, read_only: bool) -> None:
    """All comes from the storage where nothing can be kept, or the folder is named."""
    folder = context.folder / "cache"
    with mounted(folder, size), storage(context) as server:
        if read_only:
            libc().mount(b"tmpfs", os.fsencode(folder), b"tmpfs", MS_REMOUNT | MS_RDONLY, None)
        read_or_say(context, stored(context, server, cache=folder), str(folder))


def taken(folder: Path) -> int:
    """Bytes of files on the disk."""
    total = 0
    for file in folder.rglob("*"):
        try:
            total += file.stat().st_size if file.is_file() and kept(file) else 0
        except OSError:
            continue  # deleted meanwhile
    return total


def limited(context: Context, part: float) -> None:
    """The cache has room for a part of the data: all comes, and it never takes more; or too small a part is refused."""
    with storage(context) as server:
        folder = cache_of(context)
        data = sum(len(server._objects[path]) for path in objects(server))
        where = stored(context, server, cache=folder, limit=round(part * data), workers=1)
        most = 0
        for _ in range(2):
            found: list[tuple[int, float]] = []
            try:
                for one in context.contender.read(where):
                    found.append(one)
                    most = max(most, taken(folder))
            except NoFunction:
                raise
            except Exception as error:
                expect(not found and "limit" in str(error), f"after {len(found)} samples: {error}")
                return  # refused by name
            expect_right(found)
        expect(most <= 1.1 * part * data + 4096, f"{most} bytes in a cache for {part * data:.0f}")


def same_names(context: Context) -> None:
    """Objects of the same name in two buckets are two."""
    with storage(context, first=False, second=True) as server:
        folder = cache_of(context)
        read_all(context, stored(context, server, "first", cache=folder))
        read_all(context, stored(context, server, "second", cache=folder), other=True)


def the_only_copy(context: Context) -> None:
    """Data on this disk are no cache, whatever the limit of one is."""
    folder = context.folder / "data"
    folder.mkdir()
    context.contender.write(folder, gray_jpegs(levels()))
    before = {file: file.read_bytes() for file in large_files(folder)}
    where = Stored("", "", limit=round(0.4 * sum(map(len, before.values()))), local=folder)
    for _ in range(2):
        refused = None
        try:
            expect_right(list(context.contender.read(where)))
        except (RuntimeError, ValueError) as error:
            refused = error
        gone = [file.name for file in before if not file.exists() or file.read_bytes() != before[file]]
        expect(not gone, f"{gone} were deleted{'' if refused is None else f'; {refused}'}")
        expect(refused is None or "limit" in str(refused), f"{refused}")


def credentials_end(context: Context) -> None:
    """They are good for some seconds, as they say; in the middle of an epoch those that were there first have ended."""
    given: list[float] = []

    def guard(request: Request) -> Fault | None:
        if request.path == "role":
            given.append(time.monotonic())
            until = datetime.now(timezone.utc) + timedelta(seconds=LIFE)
            keys = {"AccessKeyId": f"N{len(given)}", "SecretAccessKey": KEY, "Token": "token"}
            return Fault(200, body=json.dumps(keys | {"Expiration": until.strftime("%Y-%m-%dT%H:%M:%SZ")}).encode())
        headers = {name.lower(): value for name, value in request.headers.items()}
        found = re.search(r"Credential=N(\d+)/", headers.get("authorization", ""))
        if found is not None and time.monotonic() - given[int(found[1]) - 1] < LIFE:
            return None
        return Fault(400, body=b"<Error><Code>ExpiredToken</Code></Error>")

    with storage(context) as server:
        server.guard = guard
        found = []
        for one in context.contender.read(stored(context, server, role=f"{server.url}/role", workers=1)):
            found.append(one)
            if len(found) == 1:
                time.sleep(LIFE + 1.0)
        expect_right(found)
        expect(len(given) > 1, "credentials were asked for once")


def replaced_midway(context: Context) -> None:
    """Samples of one data set, or an error: never of both."""
    with storage(context) as server:
        other = context.folder / "new"
        other.mkdir()
        context.contender.write(other, gray_jpegs(levels(other=True)))
        for path in objects(server):
            server.script(path, *[None] * context.random.randint(1, 3), Fault(replace=new_bytes(other, path)))
        read_or_say(context, stored(context, server))


def new_bytes(folder: Path, path: str) -> bytes:
    return (folder / path.partition("/")[2]).read_bytes()


def killed(context: Context) -> None:
    """kill -9 while it reads: the next loader has all, and no file stays for ever that nobody reads."""
    folder = cache_of(context)
    with Victim(read_for_ever, context, folder, output=context.folder / "printed") as victim:
        victim.hear(25)
        time.sleep(context.random.uniform(0.0, 0.3))
    with storage(context) as server:
        read_all(context, stored(context, server, cache=folder))
        data = sum(len(server._objects[path]) for path in objects(server))
        most = 2 * data + NOTES
        expect(taken(folder) <= most, f"{taken(folder)} bytes are kept of {data}")


def read_for_ever(report: Callable[[Any], None], context: Context, folder: Path) -> None:
    """From a slow server, so that it is killed in the middle of it."""
    with storage(context, victims=False) as server:
        server.script("*", Fault(pace=200_000.0), forever=True)
        while True:
            for number, _ in context.contender.read(stored(context, server, "victims", cache=folder)):
                report(number)


def shared(context: Context) -> None:
    """Runs that begin at the same time with one cache."""
    with storage(context) as server:
        # Forked while the server's threads run: they are not there in the children, and hold nothing but its own lock.
        read_at_once(context, stored(context, server, cache=cache_of(context)), expect_right)


ALL = "all samples come, each with its own picture"

ROWS = (
    Row(
        34,
        "The storage is busy",
        ALL,
        (Case("503, then 200", partial(passing, faults=unavailable)), Case("Retry-After", retry_after)),
    ),
    Row(35, "Short bodies", ALL, (Case("short body", partial(passing, faults=short)),)),
    Row(
        36,
        "Resets, and ranges that are ignored",
        f"{ALL}, or an error",
        (Case("reset", partial(passing, faults=reset)), Case("200 to a range", ranges_ignored)),
    ),
    Row(
        37,
        "A storage that stalls",
        f"{ALL}; an error where it never answers",
        (
            Case("one byte a second", partial(passing, faults=slow)),
            Case("no answer", partial(passing, faults=silent)),
            Case("no connection", no_connection),
        ),
    ),
    Row(38, "Wrong bytes of the right length", "none is given", (Case("wrong bytes", wrong_bytes),)),
    Row(
        39,
        "403 and 404",
        "an error that names the object, no second try",
        (Case("403", partial(refused, status=403)), Case("404", partial(refused, status=404))),
    ),
    Row(
        40,
        "An end of trying",
        "an error that names the object, at most 50 tries; no file is read, no secret told",
        (Case("503 for ever", never_available), Case("redirect to file:", to_a_file), Case("no secret", no_secret)),
    ),
    Row(
        31,
        "A cache folder that can't be written",
        f"{ALL}, or an error that names the folder",
        (
            Case("a loader's, read-only", partial(unwritable, size="4m", read_only=True)),
            Case("a loader's, on a full disk", partial(unwritable, size="32k", read_only=False)),
        ),
    ),
    Row(41, "Kept data deleted while they are read", ALL, (Case("deleted midway", deleted_midway),)),
    Row(42, "A cache that never shrinks", f"{ALL}; the limit holds", (Case("limit", partial(limited, part=0.4)),)),
    Row(
        43,
        "A limit below one file's size",
        f"{ALL}; the limit holds",
        (Case("small limit", partial(limited, part=0.1)),),
    ),
    Row(44, "The only copy", f"{ALL}; no file of it is deleted", (Case("limit on a disk", the_only_copy),)),
    Row(45, "Leftovers of killed runs", ALL, (Case("killed", killed),)),
    Row(46, "Runs that share a cache", ALL, (Case("four runs", shared),)),
    Row(47, "The same names in two buckets", ALL, (Case("two buckets", same_names),)),
    Row(48, "Credentials that end", ALL, (Case("an epoch longer than they are good for", credentials_end),)),
    Row(
        49,
        "Data replaced under the same URL",
        "the new ones, or an error: never a mixture",
        (Case("replaced", partial(two_epochs, between=replaced)), Case("replaced midway", replaced_midway)),
    ),
    Row(50, "Kept data are damaged", f"{ALL}: fetched again", (Case("damaged", partial(two_epochs, between=damaged)),)),
)
