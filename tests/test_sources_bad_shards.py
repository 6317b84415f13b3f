"""Shards that are cut, damaged, mislabelled or hostile: each is named with its shard, key and offset."""

from __future__ import annotations

import gzip
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
from tars import jpeg, write_samples, write_tar

from gpupipe.errors import DataError
from gpupipe.sources import open_source

Members = list[tuple[str, bytes]]


def test_a_shard_cut_anywhere_is_refused(tmp_path: Path) -> None:
    whole = write_samples(tmp_path / "whole.tar", 0, 2).read_bytes()
    with tarfile.open(tmp_path / "whole.tar") as tar:
        last = tar.getmembers()[-1]
    end = last.offset_data + 512  # where the end mark begins
    places = {0, 1, 100, 511, 512, 700, last.offset, last.offset + 300, last.offset_data, end - 1, end, end + 511}
    rng = np.random.default_rng(0)
    for place in sorted(places | set(rng.integers(0, end, 30).tolist())):
        cut = tmp_path / "cut.tar"
        cut.write_bytes(whole[:place])
        with pytest.raises(DataError, match=r"cut\.tar"):
            open_source(cut)
    cut.write_bytes(whole[: end + 512])  # one block of zeros is an end mark
    assert len(open_source(cut)) == 2


def test_a_cut_shard_among_others_is_named(tmp_path: Path) -> None:
    for number in range(3):
        write_samples(tmp_path / f"{number}.tar", number, 3)
    with tarfile.open(tmp_path / "1.tar") as tar:
        place = tar.getmembers()[2].offset_data + 10
    (tmp_path / "1.tar").write_bytes((tmp_path / "1.tar").read_bytes()[:place])
    with pytest.raises(DataError, match=r"shard .*/1\.tar is cut or damaged near offset \d+.*again"):
        open_source(str(tmp_path / "*.tar"))
    assert not list(tmp_path.glob(".gpupipe*"))


def test_a_damaged_header_inside_is_refused(tmp_path: Path) -> None:
    shard = write_samples(tmp_path / "a.tar", 0, 3)
    with tarfile.open(shard) as tar:
        place = tar.getmembers()[2].offset
    data = bytearray(shard.read_bytes())
    data[place + 150] ^= 0xFF  # in the checksum
    shard.write_bytes(bytes(data))
    with pytest.raises(DataError, match=rf"a\.tar is damaged: no tar header at offset {place}"):
        open_source(shard)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"just some text", "not a tar file: no tar header at offset 0"),
        (jpeg(0), "not a tar file"),
        (gzip.compress(bytes(2000), mtime=0), "compressed .gzip."),
        (bytes(100), "not a tar file"),
        (bytes(10240), "no images"),
    ],
)
def test_files_that_are_no_tar(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "a.tar").write_bytes(data)
    with pytest.raises(DataError, match=message):
        open_source(tmp_path / "a.tar")


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([("a/k.jpg", jpeg(0))], r"key 'a/k' in shard .*x\.tar at offset 512 has no label"),
        ([("k.jpg", jpeg(0)), ("k.cls", b"cat")], r"key 'k' .* the label b'cat' is no integer"),
        ([("k.jpg", jpeg(0)), ("k.cls", b"")], "no integer"),
        ([("k.jpg", jpeg(0)), ("k.cls", b"1.5")], "no integer"),
        ([("k.jpg", jpeg(0)), ("k.cls", b"9" * 30)], "no integer"),
        ([("k.jpg", jpeg(0)), ("k.json", b'{"class": 3}')], r"no field 'label' \(it has: class\); pass label_field"),
        ([("k.jpg", jpeg(0)), ("k.json", b'{"label": "cat"}')], "is 'cat', no class number"),
        ([("k.jpg", jpeg(0)), ("k.json", b'{"label": true}')], "is True, no class number"),
        ([("k.jpg", jpeg(0)), ("k.json", b"[1]")], "it is no object"),
        ([("k.jpg", jpeg(0)), ("k.json", b"{")], "can't be parsed"),
        ([("k.jpg", jpeg(0)), ("k.json", b"[" * 100_000)], "can't be parsed"),
        ([("k.cls", b"1"), ("k.gif", b"x")], "has a label but no image.*cls, gif"),
        ([("k.jpg", jpeg(0)), ("k.cls", b"1"), ("k.jpg", jpeg(1))], r"has its member \.jpg twice"),
        ([("k.jpg", jpeg(0)), ("k.cls", b"1"), ("k.JPG", jpeg(1))], r"has its member \.jpg twice"),
        (
            [("k.jpg", jpeg(0)), ("m.jpg", jpeg(1)), ("k.cls", b"1"), ("m.cls", b"2")],
            r"key 'k' in shard .*x\.tar at offset \d+ comes twice: its members must lie side by side",
        ),
        ([("k.jpg", jpeg(0)), ("k.cls", b"1"), ("m.txt", b""), ("k.jpg", jpeg(1)), ("k.cls", b"1")], "comes twice"),
        ([("about.txt", b"nothing else")], "no images"),
    ],
)
def test_bad_samples_are_named(tmp_path: Path, members: Members, message: str) -> None:
    with pytest.raises(DataError, match=message):
        open_source(write_tar(tmp_path / "x.tar", members))


def test_the_offset_in_the_message_is_that_of_the_member(tmp_path: Path) -> None:
    shard = write_tar(tmp_path / "x.tar", [("a.jpg", jpeg(0)), ("a.cls", b"1"), ("b.jpg", jpeg(1)), ("b.cls", b"x")])
    with tarfile.open(shard) as tar:
        offset = tar.getmember("b.cls").offset_data
    with pytest.raises(DataError, match=f"key 'b' .* at offset {offset}:"):
        open_source(shard)


class Bomb:
    """Unpickling this makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.touch, (self.path,)


def test_pickled_members_are_never_loaded(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    bomb = pickle.dumps(Bomb(mark))
    members = [(f"k.{extension}", bomb) for extension in ("pyd", "pkl", "pth", "pickle", "npy")]
    source = open_source(write_tar(tmp_path / "x.tar", [*members, ("k.jpg", jpeg(0)), ("k.cls", b"1")]))
    assert source.read(0).tobytes() == jpeg(0)
    assert not mark.exists()
    pickle.loads(bomb)
    assert mark.exists()


def test_a_sparse_member_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        member = tarfile.TarInfo("k.jpg")
        member.pax_headers = {"GNU.sparse.map": "0,1", "GNU.sparse.size": "100"}
        tar.addfile(member)
    with pytest.raises(DataError, match=r"sparse member, 'k\.jpg'"):
        open_source(tmp_path / "x.tar")
