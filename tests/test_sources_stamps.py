"""Files that hold many samples: one that was written to or replaced is indexed again, whatever its size and time of
change say, and a copy with its index is not."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tars import jpeg, write_tar
from test_sources_archive import write_zip
from test_sources_lmdb import write
from videos import FIELDS, numbered

import gpupipe
from gpupipe.errors import DataError, SampleError
from gpupipe.sources import open_source
from gpupipe.sources.reading import Stamp
from gpupipe.sources.storage import open_index, write_index

NAMES = ("cat", "dog")


def shard(place: Path, labels: Sequence[int]) -> Path:
    images = [(f"{number}.jpg", jpeg(number)) for number in range(len(labels))]
    return write_tar(place / "a.tar", [*zip_labels(images, labels)])


def zip_labels(images: Sequence[tuple[str, bytes]], labels: Sequence[int]) -> list[tuple[str, bytes]]:
    """Each with the member that has its class number."""
    pairs = zip(images, labels, strict=True)
    return [one for image, label in pairs for one in (image, (image[0][:-3] + "cls", b"%d" % label))]


def videos(place: Path, labels: Sequence[int]) -> Path:
    frames = [(f"v{video}.{number}.jpg", numbered(video, number)) for video in range(len(labels)) for number in (1, 2)]
    numbers = [(f"v{video}.cls", b"%d" % label) for video, label in enumerate(labels)]
    return write_tar(place / "a.tar", sorted(frames + numbers))


def archive(place: Path, labels: Sequence[int]) -> Path:
    return write_zip(place / "a.zip", {f"{NAMES[label]}/{n}.jpg": jpeg(n) for n, label in enumerate(labels)})


def database(place: Path, labels: Sequence[int]) -> Path:
    keys = [f"{number:08d}_{NAMES[label]}/x.jpg" for number, label in enumerate(labels)]
    write(place / "a", {key.encode(): jpeg(number) for number, key in enumerate(keys)})
    return place / "a" / "data.mdb"


def table(place: Path, labels: Sequence[int]) -> Path:
    rows = [f"{number}.jpg,{label}" for number, label in enumerate(labels)]
    (place / "a.csv").write_text("\n".join(["image,label", *rows]))
    return place / "a.csv"


KINDS: dict[str, Callable[[Path, Sequence[int]], Path]] = {
    "shards": shard,
    "videos": videos,
    "archive": archive,
    "lmdb": database,
    "table": table,
}
READ = ("shards", "archive", "lmdb")
OLD, NEW = (0, 1, 1), (1, 0, 1)


def opened(file: Path) -> Any:
    data = file.parent if file.name == "data.mdb" else file
    return open_source(data, fields=FIELDS if "v0" in file.read_bytes()[:100].decode("latin-1") else None)


def told(file: Path) -> list[tuple[str, int]]:
    source = opened(file)
    return sorted(zip(map(source.key, range(len(source))), source.targets.tolist(), strict=True))


def made(tmp_path: Path, kind: str) -> tuple[Path, Path]:
    """A file, and another one of the same size with other labels, of which no time tells that it is another."""
    files = []
    for name, labels in (("old", OLD), ("new", NEW)):
        (tmp_path / name).mkdir()
        files.append(KINDS[kind](tmp_path / name, labels))
        os.utime(files[-1], (1, 1))
    assert files[0].stat().st_size == files[1].stat().st_size
    return files[0], files[1]


@pytest.mark.parametrize("how", ["replaced", "written"])
@pytest.mark.parametrize("kind", KINDS)
def test_another_one_of_the_same_size_and_time(tmp_path: Path, kind: str, how: str) -> None:
    file, other = made(tmp_path, kind)
    before, expected = told(file), told(other)
    assert before != expected
    if how == "replaced":
        os.replace(other, file)
    else:
        file.write_bytes(other.read_bytes())
        os.utime(file, (1, 1))
    assert told(file) == expected


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "table"])
def test_a_copy_with_its_index_is_not_indexed_again(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    file, other = made(tmp_path, kind)
    before = told(file)
    copied = shutil.copytree(tmp_path / "old", tmp_path / "copied") / file.relative_to(tmp_path / "old")
    index = Path(opened(copied).index_path)
    inode = index.stat().st_ino
    assert told(copied) == before
    assert (index.stat().st_ino, caplog.records) == (inode, [])
    if kind != "videos":
        assert pickle.loads(pickle.dumps(opened(copied)))[0][0].tobytes() == jpeg(0)
    shutil.copyfile(other, copied)
    assert told(copied) != before
    assert "was changed); it is built again" in caplog.text


@pytest.mark.parametrize("kind", KINDS)
def test_an_index_that_notes_less_is_made_again_once(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As earlier releases have left them."""
    file, _ = made(tmp_path, kind)
    before, place = told(file), Path(opened(file).index_path)
    index = open_index(place)
    info = index.info
    if "stamp" in info:
        info["stamp"] = info["stamp"][:2]
    else:
        info["shards"] = [{name: one[name] for name in ("name", "size", "mtime_ns")} for one in info["shards"]]
    write_index(place, index.fingerprint, info, index.arrays)
    assert [told(file), told(file)] == [before] * 2
    assert [record.message.count("is built again") for record in caplog.records] == [1]


@pytest.mark.parametrize("kind", READ)
def test_permissions_end_no_run(tmp_path: Path, kind: str) -> None:
    file, _ = made(tmp_path, kind)
    source = opened(file)
    os.chmod(file, 0o400)
    os.link(file, tmp_path / "link")
    assert source[0][0].tobytes() == pickle.loads(pickle.dumps(source))[0][0].tobytes() == jpeg(0)


@pytest.mark.parametrize("kind", READ)
def test_one_that_is_replaced_meanwhile_has_bad_samples(tmp_path: Path, kind: str) -> None:
    file, other = made(tmp_path, kind)
    source = opened(file)
    os.replace(other, file)
    with pytest.raises(SampleError, match=r"was replaced since it was indexed, by another one .* index again"):
        pickle.loads(pickle.dumps(source))[0]


def test_arrays_that_are_replaced_meanwhile(tmp_path: Path) -> None:
    for name, value in (("old", 1), ("new", 2)):
        np.save(tmp_path / f"{name}.npy", np.full((3, 8, 8, 3), value, np.uint8))
        os.utime(tmp_path / f"{name}.npy", (1, 1))
    source = open_source(tmp_path / "old.npy", fields={"image": gpupipe.Image("old")})
    os.chmod(tmp_path / "old.npy", 0o400)
    blob = pickle.dumps(source)
    assert pickle.loads(blob)[0]["image"].max() == 1
    os.replace(tmp_path / "new.npy", tmp_path / "old.npy")
    with pytest.raises(DataError, match="was changed while a loader used it"):
        pickle.loads(blob)


def test_what_tells_files_apart() -> None:
    one = Stamp(5, 1, 10, 77)
    assert (one.is_of(one), one.difference(one, "file")) == (True, "")
    assert one.is_of(Stamp(5, 1, 10, 78))
    for other, reason in ((Stamp(4, 1, 11, 77), "was cut"), (Stamp(5, 2, 11, 77), "written to, or touched")):
        assert not one.is_of(other)
        assert reason in one.difference(other, "file")
    changed, replaced, renumbered = Stamp(5, 1, 11, 77), Stamp(5, 1, 11, 78), Stamp(5, 1, 10, 78)
    assert [one.is_of(now) for now in (changed, replaced, renumbered)] == [False, False, True]
    assert [bool(one.difference(now, "file")) for now in (changed, replaced, renumbered)] == [False, True, False]
    copied = Stamp.noted(list(one), False)
    assert copied.is_of(replaced)
    assert not copied.difference(replaced, "file")
