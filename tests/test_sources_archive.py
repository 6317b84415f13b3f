"""Zip archives: what is in them as an image folder, and each kind of damage by name."""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from images import encode, picture, write_folder
from tars import jpeg

import gpupipe
from gpupipe.batch import Image, Key, Mask
from gpupipe.errors import DataError, SampleError
from gpupipe.sources import check_source, open_source
from gpupipe.sources.stores import archive

STORED, DEFLATED = zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED


def write_zip(path: Path, members: Mapping[str, bytes], method: int = STORED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def two(**more: bytes) -> dict[str, bytes]:
    return {"a/1.jpg": jpeg(1), "b/2.jpg": jpeg(2), **more}


def patched(path: Path, old: bytes, new: bytes, count: int = -1) -> Path:
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new, count))
    return path


@pytest.mark.parametrize("method", [STORED, DEFLATED])
@pytest.mark.parametrize("top", ["", "photos/"])
def test_it_is_the_folder_that_was_zipped(tmp_path: Path, method: int, top: str) -> None:
    root = write_folder(tmp_path / "folder", sizes=((40, 30), (20, 50)))
    (root / "class_1/deeper").mkdir()
    (root / "class_1/deeper/x.PNG").write_bytes(encode(picture(9, 8), "PNG"))
    (root / "class_0/notes.txt").write_text("none")
    files = [path for path in root.rglob("*") if path.is_file()]
    members = {f"{top}{file.relative_to(root)}": file.read_bytes() for file in files}
    members |= {"__MACOSX/class_0/._img_0.jpg": b"what macOS adds", f"{top}class_2/": b""}
    source = open_source(write_zip(tmp_path / "folder.zip", members, method))
    expected = open_source(root)
    check_source(source)
    assert source.classes == expected.classes
    assert source.fingerprint == expected.fingerprint
    indices = np.arange(len(expected))
    assert [source.key(index) for index in indices] == [expected.key(index) for index in indices]
    assert source.targets.tolist() == expected.targets.tolist()
    assert np.array_equal(source.shapes(indices), expected.shapes(indices))
    for one, other in zip(source, expected, strict=True):
        assert one[0].tobytes() == other[0].tobytes()
    assert source.location(0) == f"{tmp_path}/folder.zip/{top}{expected.key(0)}"


def test_other_fields_lie_in_parallel_folders(tmp_path: Path) -> None:
    members: dict[str, bytes] = {}
    for number in range(3):
        members[f"data/images/{number}.jpg"] = jpeg(number)
        members[f"data/masks/{number}.png"] = encode(picture(64, 64, number), "PNG", "L")
    fields = {"image": Image(folder="images", suffix=".jpg"), "mask": Mask(folder="masks", suffix=".png"), "key": Key()}
    source = open_source(write_zip(tmp_path / "a.zip", members), fields=fields)
    check_source(source)
    assert source[1]["mask"].tobytes() == members["data/masks/1.png"]
    assert [source.key(number) for number in range(3)] == ["0.jpg", "1.jpg", "2.jpg"]
    with pytest.raises(DataError, match=r"no sample .* has 'mask': the archive has none in folder='mask'"):
        open_source(tmp_path / "a.zip", fields=fields | {"mask": Mask(folder="mask", suffix=".png")})


def test_images_without_class_folders_have_no_labels(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.zip", {"b.jpg": jpeg(1), "a.jpg": jpeg(2)})
    with pytest.raises(
        DataError, match=r"no class folders in .*a\.zip: .* pass fields=\{'image': gpupipe\.Image\(\)\}"
    ):
        open_source(path)
    source = open_source(path, fields={"image": Image()})
    assert [source.key(index) for index in range(2)] == ["a.jpg", "b.jpg"]


def test_an_empty_class_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no images in 1 of 3 class folders of .*: c;"):
        open_source(write_zip(tmp_path / "a.zip", two() | {"c/": b""}))


def test_an_archive_of_64_bits(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for name, data in two().items():
            with archive.open(zipfile.ZipInfo(name), "w", force_zip64=True) as member:
                member.write(data)
    source = open_source(tmp_path / "a.zip")
    assert [sample[0].tobytes() for sample in source] == list(two().values())


def test_more_stands_before_a_member_than_is_guessed(tmp_path: Path) -> None:
    info = zipfile.ZipInfo("a/1.jpg")
    info.extra = struct.pack("<HH", 0x9999, 5000) + bytes(5000)
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(info, jpeg(1))
    assert open_source(tmp_path / "a.zip")[0][0].tobytes() == jpeg(1)


@pytest.mark.parametrize("name", ["../a/1.jpg", "/a/1.jpg", "a/../../1.jpg", "a//1.jpg", "./a/1.jpg"])
def test_a_name_that_leads_out(tmp_path: Path, name: str) -> None:
    path = write_zip(tmp_path / "a.zip", {"b/1.jpg": jpeg(1), name: jpeg(2)})
    with pytest.raises(DataError, match=rf"a\.zip: its member '{name}' has a name that leads out"):
        open_source(path)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_that_comes_twice(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.zip", two() | {"a/3.jpg": jpeg(3)})
    with pytest.raises(DataError, match=r"its member 'a/1\.jpg' comes twice"):
        open_source(patched(path, b"a/3.jpg", b"a/1.jpg"))


def test_members_that_are_not_read(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.zip", two(), zipfile.ZIP_BZIP2)
    with pytest.raises(DataError, match=r"'a/1\.jpg' is compressed by method 12"):
        open_source(path)
    for bit, message in ((0, "is encrypted"), (5, "is a patch of another file"), (6, "is encrypted")):
        path = write_zip(tmp_path / "b.zip", two())
        data = bytearray(path.read_bytes())
        data[data.index(b"PK\1\2") + 8] |= 1 << bit  # the flags of the first entry
        path.write_bytes(data)
        with pytest.raises(DataError, match=rf"'a/1\.jpg' {message}"):
            open_source(path, rebuild=True)


@pytest.mark.parametrize("cut", [0, 10, -1, -30])
def test_an_archive_that_is_cut(tmp_path: Path, cut: int) -> None:
    path = write_zip(tmp_path / "a.zip", two())
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(DataError, match=r"a\.zip is no zip archive, or is cut or damaged"):
        open_source(path)


def test_one_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.zip can't be read: No such file"):
        open_source(tmp_path / "a.zip")


def entry(path: Path, number: int, **change: int) -> Path:
    """The archive with other numbers in an entry of its directory."""
    data = bytearray(path.read_bytes())
    at = -1
    for _ in range(number + 1):
        at = data.index(b"PK\1\2", at + 1)
    places = {"crc": 16, "packed": 20, "size": 24, "begin": 42}
    for name, value in change.items():
        struct.pack_into("<I", data, at + places[name], value)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"crc": 7}, "is damaged: its bytes don't give the sum"),
        ({"size": 200_000_000}, "claims to have 200,000,000 bytes in .*, as in a zip bomb"),
        ({"size": 4_000_000_000}, "has 4,000,000,000 bytes, more than the 1,073,741,824 of any image"),
        ({"size": 100}, "is damaged: its bytes don't give the sum"),
        ({"begin": 3}, "has no header at offset 3"),
    ],
    ids=str,
)
def test_a_bad_member_is_a_bad_sample(tmp_path: Path, change: dict[str, int], reason: str) -> None:
    members = {f"a/{number}.jpg": jpeg(number) for number in range(3)}
    path = entry(write_zip(tmp_path / "a.zip", members, DEFLATED), 0, **change)
    source = open_source(path)
    assert source.shapes(np.arange(3))[:, 0].tolist() == [0, 40, 40]
    with pytest.raises(SampleError, match=rf"a\.zip/a/0\.jpg.*{reason}"):
        source[0]
    assert source[1][0].tobytes() == jpeg(1)


def test_a_stored_member_that_is_damaged(tmp_path: Path) -> None:
    path = patched(write_zip(tmp_path / "a.zip", two()), jpeg(1)[-40:-20], bytes(20))
    with pytest.raises(SampleError, match="is damaged: its bytes"):
        open_source(path)[0]


def test_a_member_that_unpacks_to_more_than_it_says(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.zip", {"a/1.bmp": bytes(50_000_000), "a/2.jpg": jpeg(2)}, DEFLATED)
    assert path.stat().st_size < 60_000
    entry(path, 0, size=1_000_000, crc=zlib.crc32(bytes(1_000_000)))
    with pytest.raises(SampleError, match="is damaged"):
        open_source(path)[0]


def test_a_member_that_unpacks_to_more_than_an_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noise = jpeg(3) + np.random.default_rng(0).bytes(1_000_000)
    members = {"a/1.jpg": jpeg(1) + bytes(900_000), "a/2.jpg": jpeg(2) + bytes(1_100_000), "a/3.jpg": noise}
    path = write_zip(tmp_path / "a.zip", members, DEFLATED)
    monkeypatch.setattr(archive, "MOST_UNPACKED", 1_000_000)
    source = open_source(path)
    assert source.shapes(np.arange(3))[:, 0].tolist() == [40, 0, 40]
    assert [source[row][0].tobytes() for row in (0, 2)] == [members["a/1.jpg"], noise]
    with pytest.raises(SampleError, match=r"a/2\.jpg.* unpacks to 1,10\d,\d+ bytes from \d,\d+, as a zip bomb does"):
        source[1]


def test_members_that_share_bytes(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.zip", two())
    with pytest.raises(DataError, match=r"its members 'a/1\.jpg' and 'b/2\.jpg' overlap, as in a zip bomb"):
        open_source(entry(path, 1, begin=0))


def test_an_archive_that_changes_meanwhile(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write_zip(tmp_path / "a.zip", two())
    source = open_source(path)
    os.utime(path, (1, 1))
    with pytest.raises(SampleError, match=r"the archive was written to.*gpupipe index .*a\.zip --rebuild"):
        source[0]
    write_zip(path, two() | {"c/3.jpg": jpeg(3)})
    assert len(open_source(path)) == 3
    assert "was changed); it is built again" in caplog.text


def test_it_can_be_packed(tmp_path: Path) -> None:
    from gpupipe.tools.cli import main

    path = write_zip(tmp_path / "a.zip", two())
    assert main(["pack", str(path), str(tmp_path / "packed")]) == 0
    packed: Any = gpupipe.open_source(tmp_path / "packed")
    assert [sample[0].tobytes() for sample in packed] == list(two().values())
    assert packed.classes == ["a", "b"]
