"""Shards that are cut, damaged, mislabelled or hostile: each is named with its shard, key and offset."""

from __future__ import annotations

import gzip
import os
import pickle
import re
import subprocess
import tarfile
import traceback
from pathlib import Path

import numpy as np
import pytest
from tars import jpeg, write_samples, write_tar

from gpupipe.errors import DataError, SampleError
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
        (
            [("k.jpg", jpeg(0)), ("k.json", b'{"class": 3}')],
            r"no field 'label' \(it has: \['class'\]\); pass label_field",
        ),
        ([("k.jpg", jpeg(0)), ("k.json", b'{"label": "cat"}')], "is 'cat', no class number"),
        ([("k.jpg", jpeg(0)), ("k.json", b'{"label": true}')], "is True, no class number"),
        ([("k.jpg", jpeg(0)), ("k.json", b"[1]")], "it is no object"),
        ([("k.jpg", jpeg(0)), ("k.json", b'{"\\u001b[31m": 1}')], r"it has: \['\\x1b\[31m'\]"),
        ([("k.jpg", jpeg(0)), ("k.json", b'{"label": "' + b"x" * 9999 + b'"}')], "is 'x{3,50}[.]{3}x{3,50}', no class"),
        ([("k.\x1b[31m", b""), ("k.\x1b[31m", b"")], r"has its member '\.\\x1b\[31m' twice"),
        ([("k.jpg", jpeg(0)), ("k.json", b"{")], "can't be parsed"),
        ([("k.jpg", jpeg(0)), ("k.json", b"[" * 100_000)], "can't be parsed"),
        ([("k.cls", b"1"), ("k.heic", b"x")], "has a label but no image.*'k.cls' and 'k.heic'"),
        ([("k.jpg", jpeg(0)), ("k.cls", b"1"), ("k.jpg", jpeg(1))], r"has its member '\.jpg' twice"),
        ([("k.jpg", jpeg(0)), ("k.cls", b"1"), ("k.JPG", jpeg(1))], r"has its member '\.jpg' twice"),
        (
            [("k.jpg", jpeg(0)), ("m.jpg", jpeg(1)), ("k.cls", b"1"), ("m.cls", b"2")],
            r"key 'k' in shard .*x\.tar at offset \d+ comes twice: its members must lie side by side",
        ),
        ([("k.jpg", jpeg(0)), ("k.cls", b"1"), ("m.txt", b""), ("k.jpg", jpeg(1)), ("k.cls", b"1")], "comes twice"),
        ([("about.txt", b"nothing else")], "no images"),
        (
            [("d/k.left.jpg", jpeg(0)), ("d/k.cls", b"1"), ("d/k.right.jpg", jpeg(1))],
            r"key 'd/k' in shard .*x\.tar at offset 512 has 2 images, 'd/k\.left\.jpg' and 'd/k\.right\.jpg': "
            r"name the one by gpupipe\.Image\('jpg'\), or leave the others out",
        ),
        ([("k.jpg", jpeg(0)), ("k.seg.png", jpeg(1)), ("k.cls", b"1")], r"'k\.jpg' and 'k\.seg\.png'"),
        ([("k.JPEG", jpeg(0)), ("k.jpg", jpeg(1)), ("k.cls", b"1")], r"'k\.JPEG' and 'k\.jpg'"),
        ([(f"img.{n}.jpg", jpeg(n)) for n in range(9)], r"'img\.3\.jpg' \.\.\.: .*a key ends at the first dot"),
        ([("k.jpg", jpeg(0)), ("k.a.cls", b"1"), ("k.b.cls", b"2")], "'k.a.cls' and 'k.b.cls', and nothing says"),
        ([("k.jpg", jpeg(0)), ("k.cls", b"1" * 4097)], r"'k\.cls' has 4,097 bytes, more than the 4,096.*\.cls"),
        ([("k.jpg", jpeg(0)), ("k.cls", b"1" * 4096)], "is no integer"),
        (
            [("k.jpg", jpeg(0)), ("k.json", b"[" + b" " * (1 << 20))],
            r"key 'k' .*'k\.json' has 1,048,577 bytes, more than the 1,048,576 .*a \.cls member",
        ),
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
    assert source[0][0].tobytes() == jpeg(0)
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


def claims(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    """A header of a member that claims so many bytes, in base 256 where they are many."""
    member = tarfile.TarInfo(name)
    member.size, member.type = size, kind
    return member.tobuf(tarfile.GNU_FORMAT)


@pytest.mark.parametrize("kind", ["cls", "json"])
def test_labels_of_gigabytes_are_not_read(tmp_path: Path, kind: str) -> None:
    shard = write_tar(tmp_path / "x.tar", [("k.jpg", jpeg(0))])
    with tarfile.open(shard) as tar:
        tar.getmembers()
        end = tar.offset
    size = 40 << 30
    with open(shard, "r+b") as file:
        file.seek(end)
        file.write(claims(f"k.{kind}", size))
        file.truncate(end + 512 + size + 1024)
    with pytest.raises(DataError, match=rf"'k\.{kind}' has 42,949,672,960 bytes, more than"):
        open_source(shard)


def test_images_of_gigabytes_are_damaged_and_not_read(tmp_path: Path) -> None:
    size = 40 << 30
    with open(tmp_path / "x.tar", "wb") as file:
        file.write(claims("k.jpg", size))
        file.seek(size, os.SEEK_CUR)
        file.write(claims("k.cls", 1) + b"1".ljust(512, b"\0") + bytes(1024))
    source = open_source(tmp_path / "x.tar")
    assert source.shapes(np.array([0]))[:, 0].tolist() == [0]
    with pytest.raises(SampleError, match=r"key 'k' .*x\.tar at offset 512\): has 42,949,672,960 bytes, more than"):
        source[0][0]


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK])
@pytest.mark.parametrize("size", [8 << 30, 70_000, -512, -(1 << 40)])
def test_headers_that_claim_too_much_are_not_read(tmp_path: Path, kind: bytes, size: int) -> None:
    with open(tmp_path / "x.tar", "wb") as file:
        file.write(claims("k.jpg", 0) + claims("long", size, kind))
        file.truncate(1024 + max(size, 0) + 4096)
    message = r"x\.tar has headers of more than 65,536 bytes .*near offset 1024: pack"
    if size < 0:  # of which newer releases of Python say that it is no header
        message += r"|x\.tar is damaged: no tar header at offset 512"
    with pytest.raises(DataError, match=message):
        open_source(tmp_path / "x.tar")


def pax(records: bytes, kind: bytes = tarfile.XHDTYPE) -> bytes:
    return claims("pax", len(records), kind) + records + bytes(-len(records) % 512)


@pytest.mark.parametrize(
    "links",
    [
        pytest.param(claims("long", 10, tarfile.GNUTYPE_LONGNAME) + b"k.jpg".ljust(512, b"\0"), id="long names"),
        pytest.param(claims("long", 0, tarfile.GNUTYPE_LONGNAME), id="empty long names"),
        pytest.param(pax(b"12 path=k.j\n"), id="pax"),
        pytest.param(pax(b"", tarfile.XGLTYPE), id="global pax"),
    ],
)
def test_headers_chained_by_the_thousand(tmp_path: Path, links: bytes) -> None:
    (tmp_path / "x.tar").write_bytes(links * 20_000 + claims("k.jpg", 0) + bytes(1024))
    message = r"x\.tar has headers of more than 65,536 bytes .* for the member near offset"
    with pytest.raises(DataError, match=message) as raised:
        open_source(tmp_path / "x.tar")
    assert len("".join(traceback.format_exception(raised.value))) < 10_000  # without a frame for each


def of_size(size: int) -> bytes:
    """A header of an image of so many bytes, in base 256, of which no library writes all."""
    header = bytearray(claims("k.jpg", 0))
    header[124:136] = (size if size < 0 else size | 1 << 95).to_bytes(12, "big", signed=size < 0)
    header[148:156] = b"%06o\0 " % (sum(header[:148]) + 8 * 32 + sum(header[156:]))
    return bytes(header)


def sparse(more: bytes) -> bytes:
    return pax(b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n" + more) + claims("k.jpg", 512)


@pytest.mark.parametrize(
    "start",
    [
        *(pytest.param(of_size(size), id=str(size)) for size in (2**80, 2**63, 2**62, -1, -512, -(2**70))),
        *(
            pytest.param(pax(record, kind) + claims("k.jpg", 0), id=f"{record[:14]!r} {kind!r}")
            for kind in (tarfile.XHDTYPE, tarfile.XGLTYPE)
            for record in (
                b"11 size=-5\n",
                b"40 size=" + b"9" * 31 + b"\n",
                b"5010 size=" + b"9" * 4999 + b"\n",
                b"0 path=a\n",
                b"1" + b"0" * 25 + b" path=a\n",
                b"9" * 5000 + b" path=a\n",
            )
        ),
        pytest.param(claims("k.jpg", 0, tarfile.GNUTYPE_SPARSE), id="old sparse"),
        pytest.param(pax(b"24 GNU.sparse.map=0,abc\n23 GNU.sparse.size=100\n") + claims("k.jpg", 0), id="map"),
        pytest.param(sparse(b"28 GNU.sparse.realsize=100\n") + b"abc\n".ljust(512, b"\0"), id="map in the data"),
        pytest.param(sparse(b"26 GNU.sparse.realsize=x\n") + b"1\n0\n1\n".ljust(512, b"\0"), id="size of a map"),
    ],
)
def test_numbers_beyond_reason_are_refused_by_the_shards_name(tmp_path: Path, start: bytes) -> None:
    (tmp_path / "x.tar").write_bytes(start + claims("k.cls", 1) + b"x".ljust(512, b"\0") + bytes(1024))
    with pytest.raises(DataError, match=r"shard .*/x\.tar") as raised:
        open_source(tmp_path / "x.tar")
    assert len("".join(traceback.format_exception(raised.value))) < 10_000


def test_what_all_members_share_is_bounded_too(tmp_path: Path) -> None:
    """Global headers, each of another name, one with every member."""
    parts = []
    for number in range(100):
        record = b"%d comment%d=" % (2000, number)
        parts.append(pax(record.ljust(1999, b"x") + b"\n", tarfile.XGLTYPE) + claims(f"{number}.txt", 0))
    (tmp_path / "x.tar").write_bytes(b"".join(parts) + bytes(1024))
    with pytest.raises(DataError, match="headers of more than 65,536 bytes"):
        open_source(tmp_path / "x.tar")


def test_any_header_of_random_bytes_is_refused_by_name(tmp_path: Path) -> None:
    """Whatever tarfile raises of them: ValueError, OverflowError, UnicodeError."""
    good = write_tar(tmp_path / "g.tar", [(f"{'n' * 120}{n}.txt", b"x" * 50) for n in range(3)], tarfile.PAX_FORMAT)
    data, rng = good.read_bytes(), np.random.default_rng(2)
    shard = tmp_path / "x.tar"
    for _ in range(300):
        broken = bytearray(data)
        at = int(rng.integers(0, 3 * 512))
        length = int(rng.integers(1, 30))
        broken[at : at + length] = rng.integers(0, 256, length).astype(np.uint8).tobytes()
        for begin in range(0, len(broken), 512):
            if broken[begin + 257 : begin + 262] == b"ustar":  # the checksum as it should be
                block = bytes(broken[begin : begin + 148]) + b" " * 8 + bytes(broken[begin + 156 : begin + 512])
                broken[begin + 148 : begin + 156] = b"%06o\0 " % sum(block)
        shard.write_bytes(bytes(broken))
        with pytest.raises(DataError, match=r"x\.tar"):
            open_source(shard)


def end_of(shard: Path) -> int:
    """Where the last member ends."""
    with tarfile.open(shard) as tar:
        last = tar.getmembers()[-1]
        return last.offset_data + -(-last.size // 512) * 512


@pytest.mark.parametrize("count", range(1, 12))
@pytest.mark.parametrize("pad", ["tarfile", "gnu", "gnu -b1", "one block", "two blocks", "cut in the padding"])
def test_every_usual_end_is_taken(tmp_path: Path, count: int, pad: str) -> None:
    shard = tmp_path / "x.tar"
    members = [(f"{n:02d}.{kind}", data) for n in range(count) for kind, data in (("jpg", jpeg(n)), ("cls", b"1"))]
    write_tar(shard, members)
    end = end_of(shard)
    if pad.startswith("gnu"):
        for name, data in members:
            (tmp_path / name).write_bytes(data)
        options = pad.split()[1:]
        subprocess.run(["tar", *options, "-cf", shard, *(name for name, _ in members)], cwd=tmp_path, check=True)
        assert end_of(shard) == end
    elif pad != "tarfile":
        size = {"one block": end + 512, "two blocks": end + 1024}.get(pad, (end + shard.stat().st_size) // 2 + 600)
        os.truncate(shard, min(size, shard.stat().st_size))
    assert len(open_source(shard)) == count


def test_zeros_in_a_shard_of_the_right_size(tmp_path: Path) -> None:
    """A download into a file that was allocated first: from anywhere on, and only within."""
    shard = write_samples(tmp_path / "whole.tar", 0, 20)
    whole = shard.read_bytes()
    with tarfile.open(shard) as tar:
        members = tar.getmembers()
    half = tmp_path / "half.tar"
    for place in [0, 512, members[5].offset, members[20].offset + 512, members[21].offset, len(whole) // 2]:
        half.write_bytes(whole[:place].ljust(len(whole), b"\0"))
        with pytest.raises(DataError, match=r"half\.tar"):
            open_source(half)
    for member in [members[0], members[1], members[7], members[-6], members[-1]]:
        half.write_bytes(whole[: member.offset] + bytes(512) + whole[member.offset + 512 :])
        message = rf"half\.tar has its end mark at offset {member.offset} but goes on to {len(whole)}: samples there"
        with pytest.raises(DataError, match=message):
            open_source([shard, half])


def test_a_shard_of_zeros_among_others_is_named(tmp_path: Path) -> None:
    write_samples(tmp_path / "a.tar")
    (tmp_path / "b.tar").write_bytes(bytes(102_400))
    with pytest.raises(DataError, match=r"b\.tar has its end mark at offset 0 but goes on to 102400"):
        open_source(str(tmp_path / "*.tar"))
    (tmp_path / "b.tar").write_bytes(bytes(10_240))  # what tar writes of nothing
    assert len(open_source(str(tmp_path / "*.tar"))) == 4


def test_what_follows_the_end_mark_is_refused_unread(tmp_path: Path) -> None:
    shard = write_samples(tmp_path / "x.tar", 0, 3)
    whole, end = shard.read_bytes(), end_of(shard)
    joined = tmp_path / "joined.tar"
    joined.write_bytes(whole + write_samples(tmp_path / "y.tar", 3, 3).read_bytes())
    with pytest.raises(DataError, match=rf"end mark at offset {end} .*archives were joined; .*pack it again \(docs"):
        open_source(joined)  # and no word of a command that would cut off what follows
    joined.write_bytes(whole[: end + 512] + b"x" + whole[end + 513 :])
    with pytest.raises(DataError, match="goes on to"):
        open_source(joined)
    joined.write_bytes(whole)
    os.truncate(joined, 1 << 40)
    with pytest.raises(DataError, match=f"goes on to {1 << 40}: .*pack it again \\(docs"):
        open_source(joined)
    os.truncate(joined, 1 << 20)  # as by tar --blocking-factor=2048
    with pytest.raises(DataError, match=f"goes on to {1 << 20}") as caught:
        open_source(joined)
    # and what the message says mends it
    command = re.search(r"truncate -s \d+ \S+joined\.tar", str(caught.value))
    assert command is not None
    subprocess.run(command[0].split(), check=True)
    assert len(open_source(joined)) == 3
