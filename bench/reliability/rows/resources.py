"""Rows 27 to 33: too little shared memory, open files or memory, disks that can't be written, files that change."""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from PIL import Image

import gpupipe
from reliability.cached import MS_RDONLY, MS_REMOUNT, libc, mounted
from reliability.case import Case, Context, Failed, NoFunction, Row, expect, expect_equal
from reliability.contenders.base import Setup, Stored
from reliability.data import Numbered, pictures
from reliability.forms import file_of, write_folder
from reliability.rows.common import read_at_once
from reliability.rows.disturbed import LOOSE, SAMPLES, expect_right, files_of, laid, others, right_or_named, write
from reliability.rows.processes import AT_ONCE, Trap, error_of, expect_exact, expect_named, setup, somewhere
from reliability.traces import SHM
from reliability.victim import Report, Victim

__all__ = ["ROWS"]

CLONE_NEWNS = 0x20000
FILES = 64
ENTRIES, EPOCHS, STEPS = 1_000_000, 50, 4
PACKED = ("tar", "parquet", "snappy", "zip", "lmdb", "hdf5", "chunks", "mds")
SLOPE = 0.5  # MB an epoch, which are 25 MB over all; a wandering heap makes 0.2 of it

# Row 27


@contextmanager
def shared_memory(size: str) -> Iterator[None]:
    """A /dev/shm of the case's own with so much room, which ends with its process."""
    if libc().unshare(CLONE_NEWNS) or libc().mount(b"tmpfs", os.fsencode(SHM), b"tmpfs", 0, f"size={size}".encode()):
        raise NoFunction("only root may mount a disk")
    try:
        yield
        expect_equal(os.listdir(SHM), [], "what is left in /dev/shm")
    finally:
        libc().umount2(os.fsencode(SHM), 2)


def tiny(context: Context) -> None:
    """There is too little for the batches that are under way at a time."""
    where = laid(context, workers=2, size=224, batch=8)
    with shared_memory(f"{context.random.randint(1, 3)}m"):
        error = right_or_named(context, where, ("shm",))
        expect(error is None or bool(re.search(r"\d ?[MG]i?B.*--shm-size=\d", str(error), re.DOTALL)), f"{error}")


def filled(context: Context) -> None:
    """There was enough when the loader was built; others take it while it reads."""
    where = laid(context, workers=2, size=224, batch=2)
    with shared_memory("64m"):
        right_or_named(context, where, ("/dev/shm", "shm-size"), after=fill_shared_memory)
        (SHM / "filler").unlink()
        expect_right(list(context.contender.read(where)))


def fill_shared_memory() -> None:
    with suppress(OSError), (SHM / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


# Row 28


def few_files(context: Context, loaders: int = 1) -> None:
    """All comes, by one loader or by several at a time, or an error says what there are too few of."""
    where = laid(context, workers=context.random.randint(1, 2))
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES))
    opened = [context.contender.read(where) for _ in range(loaders - 1)]
    error = None
    try:
        for one in opened:
            next(one)
        error = right_or_named(context, where)
    except (NoFunction, Failed):
        raise
    except Exception as found:
        error = found
    finally:
        for one in opened:
            one.close()
    for found in (error, right_or_named(context, where)):  # the second when the others are closed
        if found is not None:
            expect_named(found, "open files", "ulimit -n")


def many_loaders(context: Context) -> None:
    """In a process of its own: where a fork gets one of its two pipes, Python leaves that open."""
    with Victim(few_for_eight, context, output=context.folder / "printed") as victim:
        found = victim.hear(28)
        expect(not found, str(found))
        expect_equal(victim.end(10), 0, "the exit code")


def few_for_eight(report: Report, context: Context) -> None:
    try:
        few_files(context, loaders=8)
        report("")
    except Failed as error:
        report(str(error))


# Row 29


@contextmanager
def memory_limit(context: Context, size: int) -> Iterator[Path]:
    """A group of processes that the kernel kills above so much memory; its file to which they are added."""
    folder = Path("/sys/fs/cgroup/memory")
    limit = "memory.limit_in_bytes"
    if not folder.exists():
        folder, limit = Path("/sys/fs/cgroup"), "memory.max"
    group = folder / f"reliability-{os.getpid()}-{context.random.getrandbits(32)}"
    try:
        group.mkdir()
        (group / limit).write_text(str(size))
    except OSError:
        with suppress(OSError):
            group.rmdir()
        raise NoFunction("only root may limit memory") from None
    try:
        yield group / "cgroup.procs"
    finally:
        group.rmdir()


def take_too_much(trap: Trap, group: Path) -> None:
    group.write_text(str(os.getpid()))
    bytearray(64 << 20)


def out_of_memory(context: Context) -> None:
    """The kernel kills the worker that takes too much."""
    with memory_limit(context, 16 << 20) as group:
        trap = Trap(somewhere(context), partial(take_too_much, group=group), context.folder, once=True)
        with context.contender(setup(context, trap)) as stream:
            expect_named(error_of(iter(stream), AT_ONCE), trap.pid, "memory")
            expect_exact(stream)


def little_address_space(context: Context) -> None:
    """An image that does not fit into what a process may take is named."""
    where = laid(context, LOOSE)
    path = context.random.choice(files_of(where))
    Image.new("RGB", (9000, 9000), (100, 50, 0)).save(path, "PNG", compress_level=1)
    used = psutil.Process().memory_info().vms
    resource.setrlimit(resource.RLIMIT_AS, (used + (230 << 20), resource.RLIM_INFINITY))
    number = int(path.stem)
    names = (path.name, f"sample {number} ", *(f"{a}{number}{b}" for a in "( " for b in ",)"))  # or its batch's numbers
    error = right_or_named(context, where, names)
    expect(error is not None, "a picture that is another was taken")


# Row 30


def slope(context: Context) -> None:
    """The memory of the process and its workers, epoch by epoch, from the tenth on."""
    workers = context.random.randint(0, 1)
    options = {"persistent_workers": True}
    settings = Setup(Numbered(ENTRIES), 32, context.folder, workers=workers, options=options)
    with context.contender(settings) as stream:
        expect_flat(over_epochs(stream, "Anon", "Shmem"))  # pages of files can be dropped at any time


def table_slope(context: Context) -> None:
    """Of what is found out about a table, pages of files among it: an index that is mapped grows as it is looked up."""
    os.environ["GPUPIPE_CACHE"] = str(context.folder / "found")
    recipe = gpupipe.Recipe((gpupipe.ResizeCenterCrop(8, 8),), dtype="uint8")
    workers = context.random.randint(0, 1)
    options = {"engine": context.contender.engine, "num_workers": workers, "persistent_workers": bool(workers)}
    with gpupipe.Loader(long_table(context.folder), recipe, 32, shuffle=True, device="cpu", **options) as loader:
        expect_flat(over_epochs(loader, "Anon", "Shmem", "File"))


def long_table(folder: Path) -> str:
    """Of so many lines about a few images."""
    samples = pictures(8)
    write_folder(folder / "data", samples)
    lines = [f"{file_of(number)},{number}\n" for number in samples] * (ENTRIES // len(samples))
    (folder / "data/train.csv").write_text("image,label\n" + "".join(lines))
    return str(folder / "data/train.csv")


def over_epochs(loader: Any, *kinds: str) -> list[float]:
    """The memory of these kinds after some steps of each epoch, from the tenth on."""
    found = []
    for epoch in range(EPOCHS):
        loader.set_epoch(epoch)
        for _ in islice(loader, STEPS):
            pass
        found.append(memory(*kinds))
    return found[10:]


def memory(*kinds: str) -> float:
    """Megabytes of these kinds that the process and its children have; for themselves it is Anon and Shmem."""
    process, total = psutil.Process(), 0
    wanted = re.compile(rf"^Rss(?:{'|'.join(kinds)}):\s+(\d+)", re.MULTILINE)
    for one in (process, *process.children(recursive=True)):
        with suppress(psutil.NoSuchProcess, OSError):
            total += sum(int(value) for value in wanted.findall(Path(f"/proc/{one.pid}/status").read_text()))
    return total / 1024


def expect_flat(megabytes: list[float]) -> None:
    """Not more from epoch to epoch, by least squares."""
    (rise, _) = np.polyfit(np.arange(len(megabytes)), megabytes, 1)
    expect(rise <= SLOPE, f"{rise:.2f} MB more an epoch: {megabytes[0]:.0f} to {megabytes[-1]:.0f} MB")


# Row 32


def read_only(context: Context) -> None:
    """The data, and at times the folder of what is found out, too, which is then named with the remedy."""
    name = context.random.choice(("data", "a**b", "a b", "[1]"))
    disk = context.folder / name
    with mounted(disk, "16m"):
        where = laid(context)
        assert where.local is not None
        inside = Stored(**(vars(where) | {"local": disk / "data"}))
        write(context, disk / "data", pictures(SAMPLES), where.kind)
        nowhere = context.random.random() < 0.5
        if nowhere:
            os.environ["GPUPIPE_CACHE"] = str(disk / "found")
        libc().mount(b"tmpfs", os.fsencode(disk), b"tmpfs", MS_REMOUNT | MS_RDONLY, None)
        for _ in range(2):
            error = right_or_named(context, inside, ("GPUPIPE_CACHE",))
            expect(error is None or nowhere, f"{error}")


def at_once(context: Context) -> None:
    """Four processes that find the same data for the first time."""
    read_at_once(context, laid(context, workers=0), expect_right)


# Row 33


def replaced(context: Context, kinds: tuple[str, ...] = ()) -> None:
    """A file is replaced by one with other pictures in another order: each sample has its old or its new picture."""
    where = laid(context, kinds, batch=2)
    assert where.local is not None
    new = context.folder / "new"
    write(context, new, others(), where.kind)
    files = context.random.sample(files_of(where), min(4, len(files_of(where))))

    def act() -> None:
        for file in files:
            os.replace(new / file.relative_to(where.local), file)

    right_or_named(context, where, tuple(file.name for file in files), after=act, other=True)


ROWS = (
    Row(
        27,
        "too little shared memory",
        "all samples come, or an error that says how much is needed and the docker flag",
        (Case("a tiny /dev/shm", tiny), Case("/dev/shm is filled while it reads", filled)),
    ),
    Row(
        28,
        "64 open files",
        "all samples come, or an error that says of what there are too few, and the remedy",
        (Case("one loader", few_files), Case("eight loaders", many_loaders, limit=40)),
    ),
    Row(
        29,
        "a limit on memory",
        "an error that names the process and memory, or the sample; the next iteration is whole",
        (
            Case("the kernel kills a worker", out_of_memory, only=("gpupipe", "torch", "stateful", "webdataset")),
            Case("an image beyond the address space", little_address_space),
        ),
    ),
    Row(
        30,
        "memory over 50 epochs of 10^6 entries",
        f"it rises by at most {SLOPE} MB an epoch",
        (
            Case("memory slope", slope, limit=240, only=("gpupipe", "gpupipe-dali", "torch", "stateful")),
            Case("with a table's index", table_slope, limit=240, only=("gpupipe", "gpupipe-dali")),
        ),
    ),
    Row(32, "a read-only data set", "all samples come", (Case("read-only", read_only), Case("four at once", at_once))),
    Row(
        33,
        "a file replaced in an epoch",
        "each sample with its old or its new picture, or an error that names the file",
        (
            Case("an image replaced", partial(replaced, kinds=LOOSE)),
            Case("a shard replaced", partial(replaced, kinds=PACKED)),
        ),
    ),
)
