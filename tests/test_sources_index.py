"""The index file: its format, where it lies, and several processes at once."""

from __future__ import annotations

import io
import json
import logging
import multiprocessing
import os
import pickle
import struct
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from images import write_folder
from tars import write_samples

from gpupipe.errors import DataError
from gpupipe.host.cache import cache_folder
from gpupipe.sources import building, folder, headers, open_source
from gpupipe.sources.storage import VERSION, BadIndexError, Strings, open_index, pack_strings, write_index


def some_arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "a": rng.integers(0, 9, 7).astype(np.int64),
        "b": rng.integers(0, 255, (3, 5)).astype(np.uint8),
        "none": np.empty(0, np.int32),
        "c": rng.normal(size=(2, 2)).astype(np.float32),
    }


def test_arrays_come_back_aligned_and_read_only(tmp_path: Path) -> None:
    write_index(tmp_path / "i", "print", {"x": ["ä", 1]}, some_arrays())
    index = open_index(tmp_path / "i")
    assert index.fingerprint == "print"
    assert index.info == {"x": ["ä", 1]}
    for name, array in some_arrays().items():
        np.testing.assert_array_equal(index.arrays[name], array)
        assert index.arrays[name].dtype == array.dtype
        assert not index.arrays[name].flags.writeable
        assert index.arrays[name].flags.aligned
    assert [path.name for path in tmp_path.iterdir()] == ["i"]


@pytest.mark.parametrize("strings", [[], [""], ["a", "", "bc"], ["ü" * 9, "\udcff\udc80", "x/y z"]])
def test_strings(strings: list[str]) -> None:
    packed = Strings(*pack_strings(strings))
    assert list(packed) == strings
    assert len(packed) == len(strings)


def test_a_cut_file_is_no_index(tmp_path: Path) -> None:
    write_index(tmp_path / "i", "print", {}, some_arrays())
    whole = (tmp_path / "i").read_bytes()
    for length in [*range(0, len(whole), 7), len(whole) - 1]:
        (tmp_path / "cut").write_bytes(whole[:length])
        with pytest.raises(BadIndexError):
            open_index(tmp_path / "cut")


HEADER = {"version": VERSION, "fingerprint": "print", "info": {}, "arrays": []}


def write_members(path: Path, header: Any = HEADER, compression: int = zipfile.ZIP_STORED, **members: bytes) -> None:
    """An archive with the header and members of any content."""
    file = io.BytesIO()
    np.save(file, np.frombuffer(json.dumps(header).encode(), np.uint8))
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in {"header": file.getvalue(), **members}.items():
            archive.writestr(f"{name}.npy", data)


def pickled() -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([os.system], object), allow_pickle=True)
    return file.getvalue()


def claiming(shape: str) -> bytes:
    """An .npy file whose header claims more than there is."""
    text = f"{{'descr': '<i8', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(64)


@pytest.mark.parametrize(
    ("header", "members", "message"),
    [
        ([], {}, "TypeError"),
        ({}, {}, "KeyError"),
        (HEADER | {"version": 99}, {}, f"version is 99, not {VERSION}"),
        ({"version": VERSION, "arrays": []}, {}, "fingerprint"),
        (HEADER | {"arrays": ["a"]}, {}, r"arrays are \[\], not \['a'\]"),
        (HEADER, {"a": b"text"}, "header that can't be read"),
        (HEADER, {"a": claiming("(9,)")}, "64 bytes of values where its header says 72"),
        (HEADER, {"a": claiming("(1 << 40,)")}, "header"),
        (HEADER, {"a": pickled()}, "pickles are never loaded"),
    ],
)
def test_hostile_content_is_refused(tmp_path: Path, header: Any, members: dict[str, bytes], message: str) -> None:
    write_members(tmp_path / "i", header, **members)
    with pytest.raises(BadIndexError, match=message):
        open_index(tmp_path / "i")


def test_no_more_memory_is_taken_than_the_file_has(tmp_path: Path) -> None:
    write_members(tmp_path / "i", compression=zipfile.ZIP_DEFLATED, a=bytes(1 << 20))
    with pytest.raises(BadIndexError, match="compressed, or larger than the file"):
        open_index(tmp_path / "i")


@pytest.mark.parametrize("start", [b"", b"gpupipe", b"gpupipe\n" + b"\xff" * 8, b"gpupipe\n" + bytes(8) + b"nothing"])
def test_what_does_not_begin_as_an_index_is_refused(tmp_path: Path, start: bytes) -> None:
    (tmp_path / "i").write_bytes(start)
    with pytest.raises(BadIndexError):
        open_index(tmp_path / "i")


def contents(path: Path) -> list[range]:
    """Where the bytes of an archive's members lie."""
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        found = []
        for member in archive.infolist():
            file.seek(member.header_offset + 26)
            start = member.header_offset + 30 + sum(struct.unpack("<HH", file.read(4)))
            found.append(range(start, start + member.file_size))
    return found


def test_no_flipped_bit_gives_other_content(tmp_path: Path) -> None:
    write_index(tmp_path / "i", "print", {"x": 1}, some_arrays())
    whole, expected = (tmp_path / "i").read_bytes(), some_arrays()
    inner = {place for span in contents(tmp_path / "i") for place in span}
    for place in range(len(whole)):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << place % 8
        (tmp_path / "i").write_bytes(bytes(flipped))
        try:
            index = open_index(tmp_path / "i")
        except (BadIndexError, OSError):
            continue
        assert place not in inner  # it is one of what the archive says of itself, such as a member's date
        assert (index.fingerprint, index.info) == ("print", {"x": 1})
        assert all(np.array_equal(index.arrays[name], array) for name, array in expected.items())


@pytest.mark.parametrize("kind", ["folder", "shards"])
def test_after_a_flipped_bit_it_is_built_again(tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """With one line in the log, and what comes then is the truth."""
    data = write_folder(tmp_path / "data") if kind == "folder" else write_samples(tmp_path / "a.tar", 0, 12)
    truth = facts(open_source(data))
    place = Path(open_source(data).index_path)
    whole = place.read_bytes()
    rng = np.random.default_rng(5)
    for at in [int(rng.choice(span)) for span in contents(place) for _ in range(4)]:
        flipped = bytearray(whole)
        flipped[at] ^= 1 << int(rng.integers(8))
        place.write_bytes(bytes(flipped))
        caplog.clear()
        with caplog.at_level(logging.INFO, "gpupipe"):
            again = open_source(data)
        assert facts(again) == truth
        assert len(caplog.records) == 1
        assert "is stale (BadIndexError: " in caplog.text
        caplog.clear()
        assert facts(open_source(data)) == truth
        assert not caplog.records


def facts(source: Any) -> list[Any]:
    """All that an index says."""
    everything = np.arange(len(source))
    places = [(source.key(index), source.location(index), source[index][0].tobytes()) for index in everything]
    arrays = [source.targets, source.sizes, source.shapes(everything)]
    return [source.fingerprint, source.classes, places, *(array.tolist() for array in arrays)]


@pytest.mark.parametrize("of", ["a later one", "before it was an archive"])
def test_an_index_of_another_version_is_built_again(tmp_path: Path, of: str, caplog: pytest.LogCaptureFixture) -> None:
    root = write_folder(tmp_path / "data")
    truth = facts(open_source(root))
    index = root / folder.INDEX_NAME
    if of == "a later one":
        write_members(index, HEADER | {"version": 99})
    else:
        index.write_bytes(b"gpupipe\n" + bytes(2000))
    with caplog.at_level(logging.INFO, "gpupipe"):
        assert facts(open_source(root)) == truth
    assert len(caplog.records) == 1
    assert ("its version is 99" if of == "a later one" else "none of this release") in caplog.text


@pytest.mark.parametrize("kind", ["folder", "shards"])
def test_an_index_without_what_is_needed_is_built_again(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Whole and fresh, as another release may have written it."""
    data = write_folder(tmp_path / "data") if kind == "folder" else write_samples(tmp_path / "a.tar", 0, 12)
    truth, place = facts(open_source(data)), Path(open_source(data).index_path)
    index = open_index(place)
    for name in index.arrays:
        write_index(place, index.fingerprint, index.info, {n: a for n, a in index.arrays.items() if n != name})
        caplog.clear()
        assert facts(open_source(data)) == truth
        assert len(caplog.records) == 1
        assert f"is stale (it lacks {name})" in caplog.text
    for name in index.info:
        write_index(place, index.fingerprint, {n: a for n, a in index.info.items() if n != name}, index.arrays)
        assert facts(open_source(data)) == truth


def test_an_index_that_is_cut_while_it_is_open(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "data")
    source = open_source(root)
    truth = facts(source)
    os.truncate(source.index_path, 0)
    assert facts(source) == truth
    with pytest.raises(DataError, match=r"can't be opened any more.*make the loader again"):
        pickle.loads(pickle.dumps(source))


def test_a_broken_index_is_built_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = write_folder(tmp_path / "data")
    expected = open_source(root).fingerprint
    index = root / folder.INDEX_NAME
    for broken in (b"", b"text", index.read_bytes()[:-1]):
        index.write_bytes(broken)
        caplog.clear()
        with caplog.at_level(logging.WARNING, "gpupipe"):
            assert open_source(root).fingerprint == expected
        assert "is stale" in caplog.text
    index.write_bytes(index.read_bytes().replace(b'"directories"', b'"something__"'))
    assert open_source(root).fingerprint == expected


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(KeyboardInterrupt):
        write_index(tmp_path / "i", "print", {}, some_arrays())
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_scan_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_folder(tmp_path / "data")
    shard = write_samples(tmp_path / "s.tar")

    def fail(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(headers, "_may_be_cut", fail)
    before = sorted(tmp_path.rglob("*"))
    for data in (root, shard):
        with pytest.raises(KeyboardInterrupt):
            open_source(data)
    assert sorted(tmp_path.rglob("*")) == before


def test_what_killed_processes_left_is_removed_when_old(tmp_path: Path) -> None:
    old, young = tmp_path / "i.aa.tmp", tmp_path / "i.bb.tmp"
    for path in (old, young):
        path.write_bytes(b"part")
    os.utime(old, (time.time() - 7200,) * 2)
    write_index(tmp_path / "i", "print", {}, {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["i", "i.bb.tmp"]


def refuse_below(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make index files below `root` impossible to write, as on a read-only disk."""
    write = write_index

    def refuse(path: Path, *args: Any) -> None:
        if path.is_relative_to(root):
            raise OSError(30, "Read-only file system")
        write(path, *args)

    monkeypatch.setattr(building, "write_index", refuse)


def test_read_only_data_is_indexed_in_the_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, other = write_folder(tmp_path / "ro/a**b[1]?"), write_folder(tmp_path / "ro/else/data", per_class=2)
    shard = write_samples(tmp_path / "ro/s.tar")
    refuse_below(tmp_path / "ro", monkeypatch)
    monkeypatch.setenv("GPUPIPE_CACHE", str(tmp_path / "cache"))
    before = sorted((tmp_path / "ro").rglob("*"))
    sizes = [len(open_source(data)) for data in (root, other, shard)]
    assert sizes == [12, 6, 4]
    assert sorted((tmp_path / "ro").rglob("*")) == before
    assert len(list((tmp_path / "cache").glob("*.index"))) == 3
    monkeypatch.delattr(folder, "_scan")
    assert [len(open_source(data)) for data in (root, other, shard)] == sizes


def test_no_place_for_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_folder(tmp_path / "data")
    refuse_below(tmp_path, monkeypatch)
    monkeypatch.setenv("GPUPIPE_CACHE", str(tmp_path / "cache"))
    with pytest.raises(DataError, match=r"written to .*data.* nor to .*cache.*set GPUPIPE_CACHE"):
        open_source(root)


def test_the_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUPIPE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_folder() == Path("/x/gpupipe")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache_folder() == Path("/home/someone/.cache/gpupipe")
    monkeypatch.setenv("GPUPIPE_CACHE", "~/own")
    assert cache_folder() == Path("/home/someone/own")


def open_and_count(root: Path, barrier: Any, queue: Any) -> None:
    """Open the folder at the same time as others; tells the fingerprint and whether this process scanned."""
    scans, scan = [], folder._scan

    def counted(*what: Any) -> Any:
        scans.append(what)
        time.sleep(0.3)
        return scan(*what)

    folder._scan = counted
    barrier.wait(60)
    source = open_source(root)
    queue.put((source.fingerprint, len(source[0][0]), len(scans)))


def test_of_several_processes_one_scans(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "data")
    context = multiprocessing.get_context("spawn")
    barrier, queue = context.Barrier(4), context.Queue()
    children = [context.Process(target=open_and_count, args=(root, barrier, queue)) for _ in range(4)]
    for child in children:
        child.start()
    answers = [queue.get(timeout=60) for _ in children]
    for child in children:
        child.join(60)
    assert len({answer[:2] for answer in answers}) == 1
    assert sum(scans for _, _, scans in answers) == 1
    assert sorted(path.name for path in root.iterdir()) == [folder.INDEX_NAME, "class_0", "class_1", "class_2"]


def bench_open(*options: object) -> list[list[str]]:
    """The rows of its table."""
    script = Path(__file__).parent.parent / "bench/sources_open.py"
    command = [sys.executable, str(script), *map(str, options)]
    run = subprocess.run(command, check=True, capture_output=True, text=True, env=environment())
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in run.stdout.splitlines()[2:]]


def test_bench_sources_open(tmp_path: Path) -> None:
    rows = bench_open("--samples", 200_000, "--classes", 20, "--folder", tmp_path, "--only", "folder")
    # the index has 12 MiB: whoever copied it twice would have grown by as much more
    assert all(float(row[-1]) < 18 for row in rows)
    assert [row[:3] for row in rows] == [["folder", when, "200,000"] for when in ("first", "again")]
    rows = bench_open("--samples", 300, "--classes", 20, "--folder", tmp_path, "--only", "csv,jsonl,sqlite")
    assert [row[:3] for row in rows[::2]] == [[kind, "first", "300"] for kind in ("csv", "jsonl", "sqlite")]
    assert list(tmp_path.iterdir()) == []


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}


def test_the_index_holds_plain_json_and_numbers(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "data")
    open_source(root)
    with np.load(root / folder.INDEX_NAME) as index:
        header = json.loads(index["header"].tobytes())
        assert header["info"]["classes"] == ["class_0", "class_1", "class_2"]
        assert index["labels"].tolist() == [0] * 4 + [1] * 4 + [2] * 4
