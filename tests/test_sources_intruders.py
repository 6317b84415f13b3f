"""FIFOs, sockets, devices and folders where files belong: named at once, and nothing waits for them.

Each test would hang where one was opened as a file is, so all run under a limit of their own.
"""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import numpy as np
import pytest
from images import write_folder
from tars import jpeg, write_samples, write_tar

import gpupipe
from gpupipe.errors import ConfigError, DataError, SampleError
from gpupipe.host import cache
from gpupipe.host.files import open_regular, read_regular
from gpupipe.sources import folder, open_source
from gpupipe.tools import pack

SECONDS = 60


@pytest.fixture(autouse=True)
def limit() -> Iterator[None]:
    """A test that waits fails."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"waited for {SECONDS} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def fifo(path: Path) -> None:
    os.mkfifo(path)


def unix_socket(path: Path) -> None:
    server = socket.socket(socket.AF_UNIX)
    here = os.open(path.parent, os.O_RDONLY)
    try:
        server.bind(f"/proc/self/fd/{here}/{path.name}")  # a socket's own path has 107 bytes at most
    finally:
        os.close(here)
        server.close()


def zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def directory(path: Path) -> None:
    path.mkdir()


KINDS = [
    pytest.param(fifo, "it is a FIFO", id="fifo"),
    pytest.param(unix_socket, "it is a socket", id="socket"),
    pytest.param(zeros, "it is a character device", id="device"),
]
ALL_KINDS = [*KINDS, pytest.param(directory, "it is a folder", id="folder")]
Make = Callable[[Path], None]


@pytest.mark.parametrize(("make", "what"), ALL_KINDS)
def test_only_regular_files_are_opened(tmp_path: Path, make: Make, what: str) -> None:
    make(tmp_path / "x")
    (tmp_path / "link").symlink_to(tmp_path / "x")
    before = len(os.listdir("/proc/self/fd"))
    for path in (tmp_path / "x", tmp_path / "link"):
        with pytest.raises(OSError, match=f"{what}, not a regular file"):
            open_regular(path)
        with pytest.raises(OSError, match=what):
            read_regular(path, 100)
    assert len(os.listdir("/proc/self/fd")) == before


def test_regular_files_are_read_up_to_a_limit(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"123")
    (tmp_path / "link").symlink_to(tmp_path / "x")
    assert read_regular(tmp_path / "link", 3) == b"123"
    with pytest.raises(OSError, match="has 3 bytes, more than the 2"):
        read_regular(tmp_path / "x", 2)
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "nothing")


@pytest.mark.parametrize(("make", "what"), KINDS)
def test_as_images_of_a_folder_they_are_damaged(tmp_path: Path, make: Make, what: str) -> None:
    root = write_folder(tmp_path / "data")
    make(root / "class_1/img_1x.jpg")
    source = open_source(root)
    damaged = np.flatnonzero(source.shapes(np.arange(len(source)))[:, 0] == 0).tolist()
    assert [source.key(index) for index in damaged] == ["class_1/img_1x.jpg"]
    with pytest.raises(SampleError, match=rf"class_1/img_1x\.jpg.*can't be read: {what}"):
        source[damaged[0]][0]


def test_a_folder_named_as_an_image_is_a_folder(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "data")
    (root / "class_1/y.jpg").mkdir()
    (root / "class_1/y.jpg/z.jpg").write_bytes(jpeg(1))
    source = open_source(root)
    assert "class_1/y.jpg/z.jpg" in {source.key(index) for index in range(len(source))}
    assert (source.shapes(np.arange(len(source)))[:, 0] > 0).all()


@pytest.mark.parametrize(("make", "what"), ALL_KINDS)
def test_an_image_that_is_replaced_by_one_later(tmp_path: Path, make: Make, what: str) -> None:
    root = write_folder(tmp_path / "data")
    source = open_source(root)
    path = Path(source.location(2))
    path.unlink()
    make(path)
    with pytest.raises(SampleError, match=what) as caught:
        source[2][0]
    assert caught.value.remedy == "put the file back"  # indexing again would find the same


@pytest.mark.parametrize("options", [dict(engine="torch", num_workers=0), dict(engine="dali", num_workers=2)])
def test_engines_go_on_without_what_was_replaced(tmp_path: Path, options: dict[str, object]) -> None:
    root = write_folder(tmp_path / "data", classes=2, per_class=4)
    recipe = gpupipe.imagenet_train(32)
    with gpupipe.Loader(root, recipe, 4, device="cpu", on_error="skip", **options) as loader:
        victim = sorted(root.glob("*/*.jpg"))[5]
        victim.unlink()
        fifo(victim)
        assert sum(len(labels) for _, labels in loader) == 8
        assert [bad.index for bad in loader.bad_samples] == [5]
        assert "it is a FIFO" in loader.bad_samples[0].reason


@pytest.mark.parametrize(("make", "what"), KINDS)
def test_as_shards_they_are_refused(tmp_path: Path, make: Make, what: str) -> None:
    write_samples(tmp_path / "a.tar")
    make(tmp_path / "b.tar")
    make(tmp_path / "c")
    for data in (tmp_path / "b.tar", tmp_path / "c", tmp_path, str(tmp_path / "*.tar"), str(tmp_path / "{a,b}.tar")):
        with pytest.raises(DataError, match=rf"shard {tmp_path}/(b\.tar|c) can't be read: {what}"):
            open_source(data)


@pytest.mark.parametrize("target", ["nowhere", "b.tar"])
def test_a_shard_that_is_a_link_to_nothing_is_not_left_out(tmp_path: Path, target: str) -> None:
    write_samples(tmp_path / "a.tar")
    (tmp_path / "b.tar").symlink_to(tmp_path / target)
    for data in (tmp_path, str(tmp_path / "*.tar")):
        with pytest.raises(DataError, match=r"b\.tar"):
            open_source(data)


@pytest.mark.parametrize(("make", "what"), ALL_KINDS)
def test_a_shard_that_is_replaced_by_one_later(tmp_path: Path, make: Make, what: str) -> None:
    shard = write_samples(tmp_path / "a.tar")
    source = open_source(shard)
    shard.unlink()
    make(shard)
    with pytest.raises(SampleError, match=rf"s/0001.*a\.tar.*can't be read: {what}"):
        source[1][0]


@pytest.mark.parametrize(("make", "what"), KINDS)
def test_in_the_place_of_an_index(tmp_path: Path, make: Make, what: str, caplog: pytest.LogCaptureFixture) -> None:
    root = write_folder(tmp_path / "data")
    make(root / folder.INDEX_NAME)
    assert len(open_source(root)) == 12
    assert f"{folder.INDEX_NAME} is stale" in caplog.text
    assert what in caplog.text
    assert (root / folder.INDEX_NAME).is_file()


@pytest.mark.parametrize(("make", "what"), ALL_KINDS)
def test_in_the_place_of_class_names(tmp_path: Path, make: Make, what: str) -> None:
    shard = write_samples(tmp_path / "a.tar")
    make(tmp_path / "classes.json")
    source = open_source(shard)
    assert len(source) == 4
    assert source.classes is None


@pytest.mark.parametrize(("make", "what"), ALL_KINDS)
def test_in_the_place_of_what_is_remembered(
    tmp_path: Path, make: Make, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUPIPE_CACHE", str(tmp_path))
    key = {"gpu": "none"}
    kept = cache.remember("tuned", key, {"workers": 3})
    assert kept is not None
    assert cache.recall("tuned", key) == {"workers": 3}
    kept.unlink()
    make(kept)
    assert cache.recall("tuned", key) is None
    assert json.dumps(cache.recall("other", key)) == "null"


@pytest.mark.parametrize(("make", "what"), ALL_KINDS)
def test_in_the_place_of_a_plan_to_pack(tmp_path: Path, make: Make, what: str) -> None:
    source = open_source(write_folder(tmp_path / "data"))
    (tmp_path / "out").mkdir()
    make(tmp_path / "out" / pack.PLAN_NAME)
    with pytest.raises(ConfigError, match=f"can't be read .*{what}"):
        pack.pack(source, tmp_path / "out", pack.PackSettings(), workers=1)


def test_links_in_circles_beside_shards(tmp_path: Path) -> None:
    """Followed in turn they would make 2 ** 40 folders."""
    write_samples(tmp_path / "a.tar")
    (tmp_path / "notes").mkdir()
    for name in ("one", "two"):
        (tmp_path / "notes" / name).symlink_to(tmp_path / "notes")
    assert len(open_source(tmp_path)) == 4


def test_in_the_place_of_a_shard_that_is_being_written(tmp_path: Path) -> None:
    source = open_source(write_folder(tmp_path / "data"))
    (tmp_path / "out").mkdir()
    fifo(tmp_path / "out/shard-000000.tar.tmp")
    packed = pack.pack(source, tmp_path / "out", pack.PackSettings(), workers=1)
    assert len(packed.source) == 12


def test_links_within_a_shard_are_never_followed(tmp_path: Path) -> None:
    """A regular shard that names a device's path has nothing of the device."""
    shard = write_tar(tmp_path / "a.tar", [("/dev/zero.jpg", jpeg(2)), ("/dev/zero.cls", b"1")])
    assert open_source(shard)[0][0].tobytes() == jpeg(2)
