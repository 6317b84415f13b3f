"""Rows 52 to 57: files that shrink, that are none, that others have written, and what their names may hold."""

from __future__ import annotations

import io
import logging
import os
import resource
import shutil
import socket
import tarfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from gpupipe.decode.tuned import Tuned, keep
from gpupipe.host.cache import cache_folder
from reliability.case import Case, Context, Failed, NoFunction, Row, expect
from reliability.contenders.base import Stored
from reliability.data import pictures
from reliability.rows.disturbed import LOOSE, SAMPLES, expect_right, files_of, laid, others, right_or_named, write

__all__ = ["ROWS"]

GPUPIPE = ("gpupipe", "gpupipe-dali")
WITH_INDEX = ("gpupipe", "gpupipe-dali", "litdata", "streaming")
INDEXED = ("tar", "folder", "manifest", "lines", "zip", "lmdb", "chunks", "mds")
STRANGER = 12345  # a user who is not there

# Row 52


def cut(file: Path, size: int) -> None:
    os.truncate(file, min(size, file.stat().st_size))


def shrinks(context: Context, least: float, most: float) -> None:
    """Files are cut where they stand to a part between these, once the first samples have come."""
    where = laid(context, batch=2)
    files = files_of(where)
    sizes = {file: int(context.random.uniform(least, most) * file.stat().st_size) for file in files}

    def act() -> None:
        for file, size in sizes.items():
            cut(file, size)

    # a dataset of the user's own reads its files itself: what is known of a sample is its place in it
    names = (f"Photos[{int(file.stem)}]" if where.kind == "dataset" else file.name for file in files)
    right_or_named(context, where, tuple(names), after=act)


def index_shrinks(context: Context) -> None:
    """What was found out about the data, which is mapped: the epoch goes on, or names it; the next one is right."""
    where = laid(context, INDEXED, batch=2)
    expect_right(list(context.contender.read(where)))
    files = index_files(context, where)

    def act() -> None:
        for file in files:
            cut(file, context.random.randrange(file.stat().st_size))

    right_or_named(context, where, tuple(file.name for file in files), after=act)
    right_or_named(context, where, tuple(file.name for file in index_files(context, where)))


def index_files(context: Context, where: Stored) -> list[Path]:
    """Of gpupipe beside the data or in its own folder; of others the one that they have written."""
    assert where.local is not None
    found = [*where.local.rglob(".gpupipe*.index"), *where.local.rglob("index.json")]
    found += (context.folder / "found").glob("*.index")
    if not found:
        raise NoFunction("it has no index")
    return sorted(found)


# Row 53


def fifo(path: Path) -> None:
    os.mkfifo(path)


def unix_socket(path: Path) -> None:
    here = os.open(path.parent, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"/proc/self/fd/{here}/{path.name}")  # a socket's own path has 107 bytes at most
    os.close(here)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def folder(path: Path) -> None:
    path.mkdir()


INTRUDERS = {"FIFO": fifo, "socket": unix_socket, "device": device, "folder": folder}


def put_in_place(path: Path, make: Callable[[Path], None]) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    make(path)


def intruder(context: Context, make: Callable[[Path], None], later: bool) -> None:
    """In the place of a file of the data, before the loader is built or while it reads.

    A dataset of the user's own is shown no device: it would read that until there is no memory left.
    """
    kinds = tuple(kind for kind in context.contender.kinds if (make, kind) != (device, "dataset"))
    where = laid(context, kinds, batch=2)
    file = context.random.choice(files_of(where))
    act = partial(put_in_place, file, make)
    if not later:
        act()
    names = (file.stem, f"sample {int(file.stem)} ") if where.kind in LOOSE else (file.name,)  # or its class's name
    error = right_or_named(context, where, names, after=act if later else None)
    expect(later or error is not None, f"an epoch without {file.name}")


def in_place_of_the_index(context: Context) -> None:
    """It is made again, or refused by its name."""
    where = laid(context, INDEXED)
    expect_right(list(context.contender.read(where)))
    for file in index_files(context, where):
        put_in_place(file, context.random.choice(list(INTRUDERS.values())))
        right_or_named(context, where, (file.name,))


def in_place_of_a_tuning(context: Context) -> None:
    """Settings that were kept: those that were there are not used."""
    where = laid(context)
    engine = context.contender.engine
    expect(keep(torch.device("cpu"), Tuned(engine, 1, 2)), "nothing is kept")
    (file,) = cache_folder().glob("tuned-*")
    put_in_place(file, context.random.choice(list(INTRUDERS.values())))
    expect_right(list(context.contender.read(Stored(**(vars(where) | {"options": {"num_workers": None}})))))


# Row 54


def flipped_index(context: Context) -> None:
    """A bit of it, at places of its own each time: made again or refused, never other labels or pictures."""
    where = laid(context, INDEXED, workers=0)
    expect_right(list(context.contender.read(where)))
    for file in index_files(context, where):
        good, at = file.read_bytes(), file.stat()
        for _ in range(6):
            place = context.random.randrange(len(good))
            bad = bytearray(good)
            bad[place] ^= 1 << context.random.randrange(8)
            file.write_bytes(bad)
            os.utime(file, ns=(at.st_atime_ns, at.st_mtime_ns))
            right_or_named(context, where, (file.name,))


# Row 55


def planted_index(context: Context) -> None:
    """Of other data under the same names, by another user: as if it were not there, or refused by its name."""
    where = laid(context, INDEXED, workers=0)
    assert where.local is not None
    expect_right(list(context.contender.read(where)))
    (file, *_) = index_files(context, where)
    real = context.folder / "real"
    where.local.rename(real)
    where.local.mkdir()
    forged = pictures(SAMPLES)
    write(context, where.local, {SAMPLES - 1 - number: image for number, image in forged.items()}, where.kind)
    for path in files_of(where):
        at = (real / path.relative_to(where.local)).stat()
        os.utime(path, ns=(at.st_atime_ns, at.st_mtime_ns))
    list(context.contender.read(where))
    planted = index_files(context, where)[0].read_bytes()
    shutil.rmtree(where.local)
    real.rename(where.local)
    if os.geteuid() != 0:
        raise NoFunction("only root may give files away")
    file.unlink(missing_ok=True)
    file.write_bytes(planted)
    os.chown(file, STRANGER, STRANGER)
    right_or_named(context, where, (file.name,))


def leaves_the_root(context: Context) -> None:
    """A link in a shard, or a member's name, to a file elsewhere: what is there is not read."""
    where = laid(context, ("tar",))
    assert where.local is not None
    secret = context.folder / "secret.jpg"
    secret.write_bytes(others()[0])
    (first, *_) = files_of(where)
    with tarfile.open(first, "a") as tar:
        for name, kind in (("000000099.jpg", tarfile.SYMTYPE), ("../../000000098.jpg", tarfile.LNKTYPE)):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, str(secret)
            tar.addfile(member)
    error = right_or_named(context, where, (first.name,))
    expect(error is None or secret.name not in str(error) or "link" in str(error), f"{error}")


# Row 56

MOST = 500  # megabytes that are allowed; some take as many as a header says


def unending(context: Context, header: tarfile.TarInfo, size: int, times: int = 1) -> None:
    """A shard that begins with a header of so many bytes, which are holes or a name, so many times."""
    where = laid(context, ("tar",))
    first = files_of(where)[0]
    good = first.read_bytes()
    header.size = size
    with first.open("wb") as file:
        for _ in range(times):
            file.write(header.tobuf(tarfile.GNU_FORMAT) + b"a")
            file.seek(min(-(-size // 512) * 512, 1 << 33) - 1, os.SEEK_CUR)
        file.write(good)
    allow_memory(MOST)
    right_or_named(context, where, (first.name,))


def header_of(kind: bytes, name: str = "././@LongLink") -> tarfile.TarInfo:
    header = tarfile.TarInfo(name)
    header.type = kind
    return header


LONG_NAME, FIELDS = header_of(tarfile.GNUTYPE_LONGNAME), header_of(tarfile.XHDTYPE)


def allow_memory(megabytes: int) -> None:
    """So much more than the process has now, for it and for each of its children; files that are mapped don't count."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmData")]
    most = (int(line.split()[1]) << 10) + (megabytes << 20)
    resource.setrlimit(resource.RLIMIT_DATA, (most, resource.RLIM_INFINITY))


def loops(context: Context) -> None:
    """Links to the folder itself and to each other: each sample once, or an error that names the link."""
    where = laid(context, ("folder",))
    assert where.local is not None
    classes = sorted(where.local.iterdir())
    kind = context.random.choice(("to its own folder", "to the root", "to itself"))
    link = classes[3] / "loop"
    link.symlink_to({"to its own folder": classes[3], "to the root": where.local, "to itself": link}[kind])
    right_or_named(context, where, ("loop",))


# Row 57

ESCAPES = ("\x1b]0;owned\x07", "\x1b[2J", "\u202e", "\nforged: all is well")


def named(context: Context, what: str) -> None:
    """What is damaged, or the folder in which it lies, has such a name: it is told in printable characters."""
    where = laid(context, {"file": LOOSE, "class": ("folder",), "member": ("tar",)}[what])
    name = "00040" + "".join(context.random.sample(ESCAPES, len(ESCAPES)))
    file = context.random.choice(files_of(where))
    if what == "member":
        add_damaged(file, name)
    else:
        file.write_bytes(file.read_bytes()[:20])
        place = file if what == "file" else file.parent
        place.rename(place.with_name(name + (file.suffix if what == "file" else "")))
    logging.basicConfig()  # onto the case's log
    try:
        list(context.contender.read(where))
    except (NoFunction, Failed):
        raise
    except Exception as error:
        told = str(error)
    else:
        raise NoFunction("it says nothing of it")
    told += (context.folder.parent / "log").read_text(errors="replace")
    for escape in ESCAPES:
        expect(escape not in told, f"{escape!r} is told as it is: {told[:500]!r}")


def add_damaged(shard: Path, name: str) -> None:
    """A sample that is no image."""
    with tarfile.open(shard, "a") as tar:
        for ending, content in (("jpg", b"\xff\xd8\xff"), ("cls", b"1")):
            member = tarfile.TarInfo(f"{name}.{ending}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


ROWS = (
    Row(
        52,
        "a file shrinks while it is read",
        "right samples, or an error that names the file",
        (
            Case("to a part", partial(shrinks, least=0.1, most=0.9)),
            Case("to nothing", partial(shrinks, least=0.0, most=0.0)),
            Case("the index", index_shrinks, only=WITH_INDEX),
        ),
    ),
    Row(
        53,
        "something that is no file",
        "an error that names it; an index and a tuning are made anew",
        (
            *(
                Case(f"a {name} for a file", partial(intruder, make=make, later=False))
                for name, make in INTRUDERS.items()
            ),
            *(Case(f"a {name} later", partial(intruder, make=make, later=True)) for name, make in INTRUDERS.items()),
            Case("for the index", in_place_of_the_index, only=WITH_INDEX),
            Case("for a tuning", in_place_of_a_tuning, only=GPUPIPE),
        ),
    ),
    Row(
        54,
        "A bit of an index flips",
        "made anew or refused, never other samples",
        (Case("a bit of the index", flipped_index, only=WITH_INDEX),),
    ),
    Row(
        55,
        "What others have planted",
        "never read",
        (Case("an index of another user", planted_index, only=GPUPIPE), Case("links in a shard", leaves_the_root)),
    ),
    Row(
        56,
        "Headers without end",
        f"an error that names the file, or right samples; at most {MOST} MB",
        (
            Case("a name of a terabyte", partial(unending, header=LONG_NAME, size=1 << 40)),
            Case("a name of 2 GB", partial(unending, header=LONG_NAME, size=1 << 31)),
            Case("fields of 2 GB", partial(unending, header=FIELDS, size=1 << 31)),
            Case("5,000 headers in a chain", partial(unending, header=LONG_NAME, size=2, times=5000)),
            Case(
                "a gigabyte of JSON",
                partial(unending, header=header_of(tarfile.REGTYPE, "000000035.json"), size=1 << 30),
            ),
            Case("links in a circle", loops),
        ),
    ),
    Row(
        57,
        "Names with escape sequences",
        "told in printable characters",
        tuple(Case(f"of a {one}", partial(named, what=one)) for one in ("file", "class", "member")),
    ),
)
