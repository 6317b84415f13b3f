"""WebDataset shards, against the webdataset library and the standard library's tarfile."""

from __future__ import annotations

import gc
import io
import json
import logging
import multiprocessing
import os
import pickle
import resource
import shutil
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset
from images import encode, picture
from tars import jpeg, write_samples, write_tar

from gpupipe.errors import ConfigError, DataError, SampleError
from gpupipe.sources import ShardSource, open_source, reading
from gpupipe.sources.patterns import expand_shards

FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]


def source_of(data: Any, **options: Any) -> ShardSource:
    source = open_source(data, **options)
    assert isinstance(source, ShardSource)
    return source


def by_webdataset(*shards: Path) -> list[dict[str, Any]]:
    """What the library reads, undecoded."""
    return list(webdataset.WebDataset([str(shard) for shard in shards], shardshuffle=False, empty_check=False))


def three_shards(folder: Path) -> list[Path]:
    folder.mkdir(exist_ok=True)
    return [write_samples(folder / f"train-{number:03d}.tar", 10 * number, 3 + number) for number in range(3)]


def check_against_webdataset(source: ShardSource, shards: list[Path], image: str = "jpg") -> None:
    expected = by_webdataset(*shards)
    assert len(source) == len(expected)
    for index, sample in enumerate(expected):
        assert source.key(index) == sample["__key__"]
        assert source[index][0].tobytes() == sample[image]
        assert source.targets[index] == int(sample["cls"])


@pytest.mark.parametrize("format", FORMATS)
def test_same_samples_as_webdataset(tmp_path: Path, format: int) -> None:
    shards = [write_samples(tmp_path / f"{number}.tar", 10 * number, 5, format) for number in range(2)]
    source = source_of(shards)
    check_against_webdataset(source, shards)
    columns = source.fetch(np.array([7, 0]))
    assert columns["image"].sizes.tolist() == [[40 + 12, 60, 1], [40, 60, 1]]
    assert columns["label"].tolist() == [2, 0]


@pytest.mark.parametrize("format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_and_odd_names(tmp_path: Path, format: int) -> None:
    names = ["x" * 180, "folder/" * 30 + "y", "ünï côdé", "with space", "./dot", "a/../up", "/absolute"]
    members = [(f"{name}.{kind}", data) for name in names for kind, data in (("jpg", jpeg(len(name))), ("cls", b"3"))]
    shard = write_tar(tmp_path / "a.tar", members, format)
    check_against_webdataset(source_of(shard), [shard])


def test_shards_written_by_webdataset(tmp_path: Path) -> None:
    shard = tmp_path / "w.tar"
    with webdataset.TarWriter(str(shard)) as writer:
        for number in range(5):
            sample = {"__key__": f"k{number}", "jpg": jpeg(number), "cls": number, "json": {"caption": "x"}}
            writer.write(sample)
    check_against_webdataset(source_of(shard), [shard])


def test_links_folders_hidden_and_meta_members_are_left_out(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name, kind, target in [("s", tarfile.DIRTYPE, ""), ("s/l.jpg", tarfile.SYMTYPE, "s/0000.jpg")]:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, target
            tar.addfile(member)
        extra = [("._a.jpg", b"mac"), ("__meta__/x.jpg", b"m"), ("README", b"r"), ("about.txt", b"t")]
        for name, data in [*extra, ("s/1.jpg", jpeg(1)), ("s/1.cls", b"1")]:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    source = source_of(tmp_path / "a.tar")
    assert [source.key(index) for index in range(len(source))] == ["s/1"]


@pytest.mark.parametrize("image", ["jpg", "img.jpg", "JPG", "a.b.webp", "png"])
def test_compound_extensions_and_other_members(tmp_path: Path, image: str) -> None:
    """One image beside members of any other kind is the sample's, whatever its extension is made of."""
    members = [
        ("txt", b"t"),
        (image, jpeg(1)),
        ("seg.gif", b"x"),
        ("meta.json", b"{}"),
        ("cls", b"4"),
        ("old.cls", b"5"),
    ]
    shard = write_tar(tmp_path / "a.tar", [(f"d.ir/k.{extension}", data) for extension, data in members])
    source = source_of(shard)
    assert source[0][0].tobytes() == by_webdataset(shard)[0][image.lower()]
    assert source.key(0) == by_webdataset(shard)[0]["__key__"] == "d.ir/k"
    assert source.targets.tolist() == [4]


def test_png_and_webp(tmp_path: Path) -> None:
    kinds = {"png": encode(picture(11, 22), "PNG"), "webp": encode(picture(13, 24), "WEBP")}
    members = [(f"{kind}.{end}", data) for kind in kinds for end, data in ((kind, kinds[kind]), ("cls", b"0"))]
    source = source_of(write_tar(tmp_path / "a.tar", members))
    assert source.shapes(np.arange(2))[:, 0].tolist() == [11, 13]


def test_labels_from_json(tmp_path: Path) -> None:
    record = json.dumps({"label": 7, "fine": 12}).encode()
    shard = write_tar(tmp_path / "a.tar", [("a.jpg", jpeg(0)), ("a.json", record)])
    assert source_of(shard).targets.tolist() == [7]
    assert source_of(shard, label_field="fine").targets.tolist() == [12]
    assert source_of(shard).targets.tolist() == [7]
    both = write_tar(tmp_path / "b.tar", [("a.jpg", jpeg(0)), ("a.json", record), ("a.cls", b" 5\n")])
    assert source_of(both).targets.tolist() == [5]
    assert source_of(both, label_field="fine").targets.tolist() == [12]


def test_every_way_to_name_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = three_shards(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    forms: list[Any] = [
        "data/train-{000..002}.tar",
        str(tmp_path / "data/train-{000,001,002}.tar"),
        "data/*.tar",
        "data/train-00[0-2].tar",
        [str(shard) for shard in shards],
        tuple(shards),
        ["data/train-{000..001}.tar", Path("data/train-002.tar")],
    ]
    sources = [source_of(form) for form in forms]
    assert {tuple(source.shards) for source in sources} == {tuple(str(shard) for shard in shards)}
    assert len({source.fingerprint for source in sources}) == 1
    assert len(list((tmp_path / "data").glob(".gpupipe*"))) == 1


def test_a_file_named_like_a_pattern_is_taken_as_it_is(tmp_path: Path) -> None:
    shard = write_samples(tmp_path / "odd[1]{a}.tar")
    assert expand_shards([str(shard)]) == [shard]


@pytest.mark.parametrize("url", ["pipe:touch ran; cat a.tar", "s3:/bucket/a.tar", "{pipe:touch ran,b}.tar"])
def test_commands_are_refused(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for form in (url, [url]):
        with pytest.raises(ConfigError, match="URL or command"):
            open_source(form)
    assert list(tmp_path.iterdir()) == []


def test_missing_shards(tmp_path: Path) -> None:
    three_shards(tmp_path)
    with pytest.raises(DataError, match=r"train-003\.tar \(from the pattern"):
        open_source(str(tmp_path / "train-{000..003}.tar"))
    with pytest.raises(DataError, match="no shard matches"):
        open_source(str(tmp_path / "val-*.tar"))
    with pytest.raises(DataError, match=r"no shard at .*/x\.tar"):
        open_source(tmp_path / "x.tar")
    with pytest.raises(DataError, match=r"train-000\.tar is listed twice"):
        open_source([tmp_path / "train-000.tar", str(tmp_path / "train-*.tar")])
    with pytest.raises(DataError, match="list of shards is empty"):
        open_source([])
    with pytest.raises(ConfigError, match="unbalanced"):
        open_source(str(tmp_path / "train-{000..001.tar"))


def open_shards_of_this_process(folder: Path) -> list[str]:
    links = [Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    names = [os.readlink(link) for link in links if link.is_symlink()]
    return sorted(name for name in names if name.startswith(str(folder)) and name.endswith(".tar"))


def test_few_shards_stay_open_and_none_without_the_source(tmp_path: Path) -> None:
    shards = [write_samples(tmp_path / f"{number:02d}.tar", number, 1) for number in range(60)]
    source = source_of(shards)
    assert open_shards_of_this_process(tmp_path) == []
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 64, hard))
    try:
        small = source_of(shards)
        for index in [*range(60), 3, *range(59, -1, -1)]:
            assert small[index][0].tobytes() == jpeg(index, 40 + index, 60)
        few = open_shards_of_this_process(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert 4 <= len(few) <= 32
    assert str(shards[0]) in few  # read last
    del small
    gc.collect()
    assert open_shards_of_this_process(tmp_path) == []
    source[7][0]
    assert open_shards_of_this_process(tmp_path) == [str(shards[7])]


def test_many_threads_read_many_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more shards than stay open: no thread gets the bytes of a file that another has closed and opened anew."""
    monkeypatch.setattr(reading, "MOST", 2)
    monkeypatch.setattr(reading, "FEWEST", 2)
    source = source_of([write_samples(tmp_path / f"{number:02d}.tar", number, 1) for number in range(12)])
    expected = [jpeg(index, 40 + index, 60) for index in range(12)]

    def read(seed: int) -> bool:
        order = np.random.default_rng(seed).integers(0, 12, 300).tolist()
        return all(source[index][0].tobytes() == expected[index] for index in order)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads take turns within a read
    try:
        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(read, range(8)))
    finally:
        sys.setswitchinterval(before)
    assert len(open_shards_of_this_process(tmp_path)) <= 2


def test_nothing_of_the_data_is_mapped(tmp_path: Path) -> None:
    source = source_of(three_shards(tmp_path / "data"))
    kept = source[0][0]
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    kept[0] ^= 1
    assert source[0][0].tobytes() == jpeg(0, 40, 60)


@pytest.mark.parametrize("left", [0, 100, 512, 3000])
def test_a_shard_that_is_cut_while_it_is_read(tmp_path: Path, left: int) -> None:
    shards = three_shards(tmp_path / "data")
    source = source_of(shards)
    first, size = source[0][0], shards[0].stat().st_size
    os.truncate(shards[0], left)
    expected = (
        rf"key 's/0001' in shard {shards[0]} at offset \d+.*has {left} bytes where the index says {size}: it was cut"
    )
    with pytest.raises(SampleError, match=expected) as caught:
        source[1][0]
    assert caught.value.index == 1
    assert first.tobytes() == jpeg(0, 40, 60)
    assert source[3][0].tobytes() == jpeg(10, 50, 60)


def test_a_shard_that_is_written_to_while_it_is_read(tmp_path: Path) -> None:
    """Of as many bytes as before: nobody sees the new ones as if they were indexed."""
    shards = three_shards(tmp_path / "data")
    source = source_of(shards)
    first = source[0][0]
    with open(shards[0], "r+b") as file:
        file.seek(700)
        file.write(bytes(5))
    touch(shards[0])
    for index in (0, 1):
        with pytest.raises(SampleError, match="written to, or touched, since it was indexed"):
            source[index][0]
    assert first.tobytes() == jpeg(0, 40, 60)
    with open(shards[0], "ab") as file:
        file.write(bytes(512))
    with pytest.raises(SampleError, match="it was changed since it was indexed"):
        source[2][0]


def test_storage_that_gives_too_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a network file system may within a file, in parts or for good."""
    source = source_of(three_shards(tmp_path / "data"))
    read = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, parts, at: read(fd, [parts[0][:100]], at))
    assert source[0][0].tobytes() == jpeg(0, 40, 60)
    monkeypatch.setattr(os, "preadv", lambda fd, parts, at: 0)
    with pytest.raises(SampleError, match=r"s/0000.*gave 0 of its \d+ bytes"):
        source[0][0]


def read_in_child(source: ShardSource, indices: list[int], queue: Any) -> None:
    queue.put([source[index][0].tobytes() for index in indices])


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_child_processes_read_the_same(tmp_path: Path, method: Any) -> None:
    source = source_of(three_shards(tmp_path / "data"))
    source[0][0]
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    child = context.Process(target=read_in_child, args=(source, [0, 4, 11], queue))
    child.start()
    got = queue.get(timeout=60)
    child.join(60)
    assert child.exitcode == 0
    assert got == [source[index][0].tobytes() for index in (0, 4, 11)]


def test_pickled_sources_carry_no_data(tmp_path: Path) -> None:
    source = source_of(three_shards(tmp_path / "data"))
    source[0][0]
    blob = pickle.dumps(source)
    assert len(blob) < 1000
    assert pickle.loads(blob)[4][0].tobytes() == source[4][0].tobytes()


def test_locations_and_class_names(tmp_path: Path) -> None:
    shards = three_shards(tmp_path / "data")
    source = source_of(shards)
    with tarfile.open(shards[1]) as tar:
        offset = tar.getmember("s/0011.jpg").offset_data
    assert source.location(4) == f"key 's/0011' in shard {shards[1]} at offset {offset}"
    assert source.classes is None
    (tmp_path / "data/classes.json").write_text(json.dumps(["cat", "dog"]))
    named = source_of(shards)
    assert named.class_to_idx == {"cat": 0, "dog": 1}
    assert named.fingerprint == source.fingerprint
    (tmp_path / "data/classes.json").write_text(json.dumps({"cat": 0}))
    assert source_of(shards).classes is None


def test_the_fingerprint_follows_content_not_place(tmp_path: Path) -> None:
    one = source_of(three_shards(tmp_path / "one"))
    shutil.copytree(tmp_path / "one", tmp_path / "two", ignore=shutil.ignore_patterns(".*"))
    assert source_of(str(tmp_path / "two/*.tar")).fingerprint == one.fingerprint
    assert source_of(one.shards[::-1]).fingerprint != one.fingerprint
    write_samples(tmp_path / "two/train-001.tar", 10, 3)
    assert source_of(str(tmp_path / "two/*.tar")).fingerprint != one.fingerprint


def test_a_changed_shard_makes_the_index_stale(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shards = three_shards(tmp_path / "data")
    assert len(source_of(shards)) == 12
    write_samples(shards[1], 50, 9)
    with caplog.at_level(logging.WARNING, "gpupipe"):
        assert len(source_of(shards)) == 17
    assert "train-001.tar was changed" in caplog.text
    os.utime(shards[2], (1, 1))
    with caplog.at_level(logging.WARNING, "gpupipe"):
        source_of(shards)
    assert "train-002.tar was changed" in caplog.text


def touch(path: Path) -> None:
    """Give a file a time of change that differs, whatever the file system's clock resolves."""
    stat = path.stat()
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1_000_000_000))


def test_a_shard_that_is_replaced_while_open(tmp_path: Path) -> None:
    shards = three_shards(tmp_path / "data")
    source = source_of(shards)
    first = source[0][0]
    replacement = write_samples(tmp_path / "new.tar", 70, 9)
    os.replace(replacement, shards[0])
    os.replace(write_samples(tmp_path / "new.tar", 70, 9), shards[1])
    shards[2].unlink()
    assert source[0][0].tobytes() == first.tobytes() == jpeg(0, 40, 60)
    with pytest.raises(SampleError, match=r"s/0010.*train-001\.tar.*was changed.*--rebuild"):
        source[3][0]
    with pytest.raises(SampleError, match=r"train-002\.tar.*No such file"):
        source[8][0]


def test_damaged_images_have_size_zero(tmp_path: Path) -> None:
    members = [
        ("a.jpg", b"<html>"),
        ("a.cls", b"1"),
        ("b.jpg", jpeg(1)),
        ("b.cls", b"2"),
        ("c.png", b""),
        ("c.cls", b"3"),
    ]
    source = source_of(write_tar(tmp_path / "a.tar", members))
    assert source.shapes(np.arange(3))[:, 0].tolist() == [0, 40, 0]
    assert source[0][0].tobytes() == b"<html>"
    assert source[2][0].size == 0
