"""Rows 11, 15 to 17 and 59: shards and other files of many samples that are cut, zeroed, hostile, or not as indexed."""

from __future__ import annotations

import io
import os
import pickle
import shutil
import tarfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from reliability.case import Case, Context, NoFunction, Row, expect, expect_equal
from reliability.contenders.base import Stored
from reliability.data import encode, gray, picture, pictures
from reliability.forms import TABLES, TARS
from reliability.rows.images import SOUND
from reliability.rows.soundness import both, expect_sound, kinds, level_of, levels_of, make, read

__all__ = ["ROWS"]

SAMPLES = 16
DATA = (".tar", ".jpg", ".parquet", ".zip", ".lmdb", ".h5", ".bin", ".mds", *TABLES)

Members = list[tuple[tarfile.TarInfo, bytes]]


def in_first(samples: Mapping[int, bytes]) -> list[int]:
    """The numbers of the first shard's samples."""
    return list(samples)[::TARS]


def shards(context: Context, samples: Mapping[int, bytes], name: str = "data") -> tuple[Path, Path]:
    """A folder of shards, and the first of them."""
    folder = make(context, samples, "tar", name)
    return folder, folder / "0.tar"


# 11: cut.


def cut_place(context: Context, shard: Path, where: str) -> int:
    """Somewhere in a member's header, payload or padding, or behind the last one."""
    with tarfile.open(shard) as tar:
        members = tar.getmembers()
    member = context.random.choice(members)
    end = member.offset_data + member.size
    padded = -(-end // 512) * 512
    spans = {
        "header": (member.offset + 1, member.offset_data),
        "payload": (member.offset_data + 1, end),
        "padding": (end, padded),
        "end-of-archive": (-(-(members[-1].offset_data + members[-1].size) // 512) * 512, shard.stat().st_size),
    }
    begin, end = spans[where]
    return context.random.randrange(begin, max(begin + 1, end))


def whole_until(shard: Path, place: int) -> set[int]:
    """The samples of which all members lie before it."""
    with tarfile.open(shard) as tar:
        ends = {int(member.name.split(".")[0]): member.offset_data + member.size for member in tar}
    return {number for number, end in ends.items() if end <= place}


def cut(context: Context, where: str) -> None:
    """A shard that is cut may be refused as a whole, by an error."""
    samples = pictures(SAMPLES)
    folder, shard = shards(context, samples)
    place = cut_place(context, shard, where)
    whole = whole_until(shard, place)
    before = shard.read_bytes()
    os.truncate(shard, place)
    good, bad = left_of(samples, before, before[:place])
    lost = {number: level for number, level in bad.items() if number not in whole}
    good |= {number: gray(samples[number]) for number in whole}

    def refused_or_sound(skip: bool) -> None:
        found = read(context, folder, "tar", skip)
        if found.error is None or lost:
            expect_sound(found, good, lost)

    both(refused_or_sound)


# 15: members.


def members_of(samples: Mapping[int, bytes]) -> Members:
    """As they usually are."""
    each = ((number, (("jpg", image), ("cls", str(number).encode()))) for number, image in samples.items())
    return [member(f"{number:09d}.{ending}", content) for number, pair in each for ending, content in pair]


def member(name: str, content: bytes = b"", link: str = "", kind: bytes = tarfile.SYMTYPE) -> tuple[Any, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    if link:
        info.type, info.linkname = kind, link
    return info, content


def interleaved(samples: Mapping[int, bytes]) -> Members:
    """All images, then all labels."""
    found = members_of(samples)
    return found[::2] + found[1::2]


def repeated(samples: Mapping[int, bytes]) -> Members:
    """Another sample comes later under the same key."""
    found = members_of(samples)
    for at, ending in ((-2, "jpg"), (-1, "cls")):
        found[at][0].name = found[0][0].name[:-3] + ending
    return found


def twice(samples: Mapping[int, bytes]) -> Members:
    """Two images and two labels under one key, side by side."""
    found = members_of(samples)
    for at, ending in ((2, "jpg"), (3, "cls")):
        found[at][0].name = found[0][0].name[:-3] + ending
    return found


def no_label(samples: Mapping[int, bytes]) -> Members:
    found = members_of(samples)
    del found[3]
    return found


def linked(samples: Mapping[int, bytes]) -> Members:
    """Images that are links: to a member, and to a file beside the shard's folder."""
    found = members_of(samples)
    found[2] = member(found[2][0].name, link=found[0][0].name, kind=tarfile.LNKTYPE)
    found[4] = member(found[4][0].name, link="../secret.jpg")
    return found


def leading_out(samples: Mapping[int, bytes]) -> Members:
    found = members_of(samples)
    for info, _ in found[:4]:
        info.name = f"../../{info.name}"
    for info, _ in found[4:]:
        info.name = f"/absolute/{info.name}"
    return found


def long_names(samples: Mapping[int, bytes]) -> Members:
    found = members_of(samples)
    for info, _ in found:
        info.name = f"{'d' * 90}/{'e' * 200}/{info.name}"
    return found


def _first_shard(context: Context, members: Members, samples: Mapping[int, bytes], format: int) -> Path:
    folder, shard = shards(context, samples, f"data{format}")
    with tarfile.open(shard, "w", format=format) as tar:
        for info, content in members:
            tar.addfile(info, io.BytesIO(content))
    return folder


def strange(context: Context, members: Callable[[Mapping[int, bytes]], Members], whole: bool = False) -> None:
    """In GNU's form and in PAX's. Nothing is written elsewhere, and no file beside is read."""
    samples = pictures(SAMPLES)
    levels = levels_of(samples)
    number = in_first(samples)
    first = {key: samples[key] for key in number}
    for format in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        folder = _first_shard(context, members(first), samples, format)
        (folder.parent / "secret.jpg").write_bytes(encode(picture(45)))
        good = {key: level for key, level in levels.items() if whole or key not in first}
        bad = {} if whole else {key: levels[key] for key in first}
        if members is linked:
            bad |= {number[1]: levels[number[0]], number[2]: None}

        def sound(skip: bool, folder: Path = folder, good: Any = good, bad: Any = bad) -> None:
            expect_sound(read(context, folder, "tar", skip), good, bad, whole)

        both(sound)
    expect_equal(sorted(context.folder.rglob("0000000*")), [], "files that were written")
    expect(not Path("/absolute").exists(), "/absolute was written")


# 16: indexes.


def index_files(folder: Path) -> dict[Path, Path]:
    """What a contender has put beside the data, by where it lies in the folder."""
    found = [path for path in folder.rglob("*") if path.is_file() and path.suffix not in DATA]
    return {path.relative_to(folder): path for path in found}


def indexed(context: Context, samples: Mapping[int, bytes], kind: str, name: str) -> Path:
    """Written, and read once."""
    folder = make(context, samples, kind, name)
    expect_sound(read(context, folder, kind, workers=0), levels_of(samples), {}, whole=True)
    return folder


def with_index(context: Context) -> list[str]:
    """Two of the forms of data that the contender has an index of, or the only one. Raises NoFunction for none."""
    context.contender.kind_of("")
    known = [kind for kind in context.contender.kinds if index_files(indexed(context, pictures(4), kind, "tried"))]
    if not known:
        raise NoFunction("it keeps no index")
    return context.in_turn(known, 2)


def others(count: int = SAMPLES - 3) -> dict[int, bytes]:
    """Another data set: under each number another picture, of another length; not as many."""
    return {number: encode(picture(SAMPLES - number), quality=60) for number in range(count)}


def stale(context: Context) -> None:
    """The data is replaced, the index stays."""
    for kind in with_index(context):
        folder = indexed(context, pictures(SAMPLES), kind, "old")
        new = make(context, others(), kind, "new")
        kept = {place: path.read_bytes() for place, path in index_files(folder).items()}
        shutil.rmtree(folder)
        shutil.copytree(new, folder)
        for place, content in kept.items():
            (folder / place).write_bytes(content)
        right_or_refused(context, folder, kind, others())


def anothers(context: Context) -> None:
    """The index of another data set lies where this one's was."""
    for kind in with_index(context):
        folder = indexed(context, pictures(SAMPLES), kind, "this")
        other = index_files(indexed(context, others(), kind, "other"))
        for place in index_files(folder):
            if place in other:
                shutil.copy2(other[place], folder / place)
        right_or_refused(context, folder, kind, pictures(SAMPLES))


def damaged(context: Context) -> None:
    """Cut, emptied, or with other bytes somewhere."""
    for kind in with_index(context):
        folder = indexed(context, pictures(SAMPLES), kind, "this")
        path = context.random.choice(sorted(index_files(folder).values()))
        content = path.read_bytes()
        at = context.random.randrange(len(content))
        noise = context.random.randbytes(min(16, len(content) - at))
        path.write_bytes(context.random.choice((content[:at], b"", content[:at] + noise + content[at + len(noise) :])))
        right_or_refused(context, folder, kind, pictures(SAMPLES))


def right_or_refused(context: Context, folder: Path, kind: str, samples: Mapping[int, bytes]) -> None:
    """What is there now, or an error; with each sample's own picture in any case."""
    levels = levels_of(samples)
    found = read(context, folder, kind)
    if found.error is None:
        expect_sound(found, levels, {}, whole=True)
    else:
        expect_sound(found, {}, levels)


# 17: code.


class Runs:
    """What it is unpickled to leaves a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.marker),)


def pickled(context: Context) -> None:
    """Beside each image something that runs code when it is unpickled; nobody asks for it."""
    marker = context.folder / "ran"
    for kind in {"tar"} & set(context.contender.kinds) or kinds(context):
        folder = context.folder / f"data-{kind}"
        folder.mkdir()
        context.contender.write(folder, pictures(SAMPLES), kind, Runs(marker))
        read(context, folder, kind)
        expect(not marker.exists(), f"{kind}: a pickle of the data was run")
    pickle.loads(pickle.dumps(Runs(marker)))
    expect(marker.exists(), "the pickle does nothing")


def piped(context: Context) -> None:
    """A URL from a list of shards is a command."""
    folder, _ = shards(context, pictures(SAMPLES))
    marker = context.folder / "ran"
    with suppress(Exception):
        list(context.contender.read(Stored(urls=(f"pipe:touch {marker}; cat {folder / '0.tar'}",), kind="tar")))
    expect(not marker.exists(), "the command was run")


# 59: zeros.


def zeros(context: Context, hole: bool, opened: bool) -> None:
    """From somewhere on, or some blocks of a disk; before the data is first read, or after it was indexed."""
    for kind in kinds(context):
        samples = pictures(SAMPLES)
        folder = (indexed if opened else make)(context, samples, kind, "data")
        path, begin, end = zeroed(context, folder, hole)
        before = path.read_bytes()
        after = before[:begin] + bytes(end - begin) + before[end:]
        times = path.stat()
        path.write_bytes(after)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        good, bad = left_of_pages(samples, path) if kind == "snappy" else left_of(samples, before, after)

        def sound(skip: bool, kind: str = kind, folder: Path = folder, good: Any = good, bad: Any = bad) -> None:
            expect_sound(read(context, folder, kind, skip), good, bad)

        both(sound)


def zeroed(context: Context, folder: Path, hole: bool) -> tuple[Path, int, int]:
    """A file with samples in it, and the bytes that are to be zeros."""
    files = sorted(path for path in folder.rglob("*") if path.suffix in DATA and path.suffix not in TABLES)
    path = context.random.choice(files)
    size = path.stat().st_size
    padding = 0 if hole or path.suffix != ".tar" else 2 * tarfile.RECORDSIZE  # which any tar may have at its end
    begin = 512 * context.random.randrange(max(1, (size - padding) // 512))
    return path, begin, min(size, begin + 512 * context.random.randint(1, 16)) if hole else size


def left_of_pages(samples: Mapping[int, bytes], path: Path) -> tuple[dict[int, float], dict[int, Any]]:
    """Of images in compressed pages: what pyarrow has of each row group."""
    import pyarrow.parquet as pq

    bad: dict[int, Any] = dict.fromkeys(samples)
    with suppress(Exception), pq.ParquetFile(path) as file:
        left = iter(samples)
        for group in range(file.num_row_groups):
            numbers = [next(left) for _ in range(file.metadata.row_group(group).num_rows)]
            with suppress(Exception):
                images = file.read_row_group(group, ["image"])["image"].to_pylist()
                bad |= {number: level_of(image["bytes"]) for number, image in zip(numbers, images, strict=True)}
    return {}, bad


def left_of(samples: Mapping[int, bytes], before: bytes, after: bytes) -> tuple[dict[int, float], dict[int, Any]]:
    """What lies in other files, and what in this one, as the reference decoder has what is left of it."""
    good, bad = {}, {}
    for number, image in samples.items():
        at = before.find(image)
        if at < 0:
            good[number] = gray(image)
        else:
            bad[number] = level_of(after[at : at + len(image)])
    return good, bad


ROWS = (
    Row(
        11,
        "A shard that is cut",
        SOUND + "; or the shard is refused",
        tuple(
            Case(f"cut in {name}", partial(cut, where=where))
            for name, where in (
                ("a header", "header"),
                ("a payload", "payload"),
                ("padding", "padding"),
                ("the end of the archive", "end-of-archive"),
            )
        ),
    ),
    Row(
        15,
        "Keys and members of shards",
        SOUND + "; no file beside the shards is read or written",
        (
            Case("interleaved keys", partial(strange, members=interleaved)),
            Case("a key again later", partial(strange, members=repeated)),
            Case("a key twice in a row", partial(strange, members=twice)),
            Case("a missing label", partial(strange, members=no_label)),
            Case("long names", partial(strange, members=long_names, whole=True)),
            Case("links", partial(strange, members=linked)),
            Case("../ and absolute names", partial(strange, members=leading_out)),
        ),
    ),
    Row(
        16,
        "A stale or wrong index",
        "what is there now, or an error; never a sample with another's picture",
        (
            Case("the data was replaced", stale),
            Case("another data set's index", anothers),
            Case("a damaged index", damaged),
        ),
    ),
    Row(
        17,
        "Code in data",
        "it does not run",
        (
            Case("a pickle beside the image", pickled),
            Case("a pipe: URL", piped, only=("gpupipe", "gpupipe-dali", "webdataset")),
        ),
    ),
    Row(
        59,
        "A file of the right size with zeros in it",
        SOUND,
        tuple(
            Case(f"{what}, {when}", partial(zeros, hole=hole, opened=opened))
            for what, hole in (("zeros to the end", False), ("a hole", True))
            for when, opened in (("never read before", False), ("indexed before", True))
        ),
    ),
)
