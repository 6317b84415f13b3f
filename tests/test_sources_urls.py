"""Tar shards and image folders by URL: what is asked of a server to index them, what is kept, and what is told."""

from __future__ import annotations

import fcntl
import json
import os
import pickle
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from images import encode, picture
from servers.buckets import Bucket
from servers.faults import Fault, FaultServer
from tars import jpeg, write_samples, write_tar

import gpupipe
from gpupipe.errors import ConfigError, DataError, SampleError
from gpupipe.sources import Source, open_source
from gpupipe.sources.remote import finding, indexing, once, opening, shards
from gpupipe.sources.remote.client import Client
from gpupipe.sources.remote.hops import FAR, NEAR
from gpupipe.tools.cli import main
from gpupipe.tools.pack import PackSettings, pack

APART = {"gpupipe.sources.remote.finding:found": finding.found}
APART["gpupipe.sources.remote.indexing:extensions"] = indexing.extensions


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is done apart is done in this process, which is faster, and with a cache folder of the test's own."""
    for module in (opening, shards):
        monkeypatch.setattr(module, "apart", lambda what, **arguments: APART[what](**arguments))
    monkeypatch.setenv("GPUPIPE_CACHE", str(tmp_path / "gpupipe-cache"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Three shards with four samples each."""
    (tmp_path / "data").mkdir()
    for number in range(3):
        write_samples(tmp_path / "data" / f"train-{number}.tar", 4 * number)
    return tmp_path / "data"


@pytest.fixture
def server(fault_server: FaultServer, data: Path) -> FaultServer:
    fault_server.put_folder(data)
    return fault_server


def images_of(source: Source) -> list[bytes]:
    return [image.tobytes() for image in source.fetch(np.arange(len(source)))["image"].data]


def assert_same(source: Source, other: Source) -> None:
    assert source.fingerprint == other.fingerprint
    assert images_of(source) == images_of(other)
    assert [source.key(index) for index in range(len(source))] == [other.key(index) for index in range(len(other))]
    assert source.targets.tolist() == other.targets.tolist()
    assert source.classes == other.classes


def reads(server: FaultServer, begin: int = 0) -> list[str]:
    """The shards of which something was read since so many requests."""
    return [request.path for request in server.requests()[begin:] if request.method == "GET" and request.status == 206]


class TestPatterns:
    FOLDER = "a b/ü %20 [x]"

    @pytest.fixture
    def url(self, bucket: Bucket, data: Path) -> str:
        bucket.put_folder(data, f"{self.FOLDER}/")
        bucket.put(f"{self.FOLDER}/.hidden.tar", b"")
        bucket.put(f"{self.FOLDER}/deeper/train-9.tar", b"")
        return bucket.url

    def test_all_forms_are_the_same_data(self, url: str, data: Path) -> None:
        expected = open_source(data)
        plain, quoted = f"{url}/{self.FOLDER}", f"{url}/a b/ü %20 [[]x]"
        forms: list[Any] = [plain, f"{plain}/", f"{quoted}/train-*.tar", f"{url}/a*/ü*/train-[0-2].tar"]
        forms += [[f"{plain}/train-0.tar", f"{plain}/train-1.tar", f"{quoted}/train-[!01].tar"]]
        for form in forms:
            assert_same(open_source(form), expected)

    def test_braces(self, s3_bucket: Bucket, data: Path) -> None:
        s3_bucket.put_folder(data, "x/")
        assert_same(open_source(f"{s3_bucket.url}/x/train-{{0..2}}.tar"), open_source(data))
        with pytest.raises(
            DataError, match=r"no shard at s3://.*/x/train-3\.tar \(from the pattern .*check the bucket"
        ):
            open_source(f"{s3_bucket.url}/x/train-{{2..3}}.tar")
        with pytest.raises(DataError, match=r"x/train-1\.tar is listed twice"):
            open_source([f"{s3_bucket.url}/x/train-1.tar", f"{s3_bucket.url}/x/train-*.tar"])
        with pytest.raises(DataError, match=r"no shard matches 's3://.*/x/val-\*\.tar'"):
            open_source(f"{s3_bucket.url}/x/val-*.tar")
        with pytest.raises(DataError, match=r"no shard at s3://.*/y: check the bucket"):
            open_source(f"{s3_bucket.url}/y")
        with pytest.raises(ConfigError, match="is a glob for buckets"):
            open_source("s3://bucket-*/x.tar")

    def test_an_object_with_brackets_in_its_name(self, s3_bucket: Bucket, data: Path) -> None:
        for name in ("train-[1].tar", "train-1.tar"):
            s3_bucket.put(name, (data / f"train-{'[' in name:d}.tar").read_bytes())
        assert_same(open_source(f"{s3_bucket.url}/train-[1].tar"), open_source(renamed(data, 1, "train-[1].tar")))

    def test_the_same_names_in_two_buckets(self, moto: Any, s3_bucket: Bucket, data: Path) -> None:
        other = moto.bucket()
        s3_bucket.put("x.tar", (data / "train-0.tar").read_bytes())
        other.put("x.tar", (data / "train-1.tar").read_bytes())
        first, second = f"{s3_bucket.url}/x.tar", f"{other.url}/x.tar"
        expected = images_of(open_source(data))
        assert images_of(open_source([first, second])) == expected[:8]
        assert images_of(open_source([second, first])) == expected[4:8] + expected[:4]
        assert images_of(open_source(first)) == expected[:4]

    def test_where_nothing_is(self, s3_bucket: Bucket) -> None:
        for url in (s3_bucket.url, f"{s3_bucket.url}/y/"):
            with pytest.raises(DataError, match=rf"nothing below {url}: check the bucket"):
                open_source(url)

    def test_the_web(self, server: FaultServer, data: Path) -> None:
        assert_same(open_source(f"{server.url}/train-{{0..2}}.tar"), open_source(data))
        server.put("a b/ü.tar", (data / "train-0.tar").read_bytes())
        signed = server.url_of("a b/ü.tar") + "?signature=secret"
        source = open_source(signed)
        assert images_of(source) == images_of(open_source(data / "train-0.tar"))
        told = f"{source!r} {source.location(0)}"
        assert "ü.tar?..." in told or "%C3%BC.tar?..." in told
        assert "secret" not in told
        kept = [path.read_bytes() for path in (data.parent / "gpupipe-cache").rglob("*") if path.is_file()]
        assert kept
        assert not any(b"secret" in content for content in kept)
        for url in (f"{server.url}/", f"{server.url}/train-*.tar"):
            with pytest.raises(ConfigError, match=r"the web has no listing of folders: write a brace pattern, 'https:"):
                open_source(url)
        with pytest.raises(DataError, match=r"no shard at http://.*/none\.tar: check the bucket, the name"):
            open_source(f"{server.url}/none.tar")


def renamed(data: Path, number: int, name: str) -> Path:
    place = data.parent / "renamed"
    place.mkdir()
    return (data / f"train-{number}.tar").rename(place / name)


class TestIndex:
    def test_images_are_not_read_for_it(self, fault_server: FaultServer, tmp_path: Path) -> None:
        """One request for each large sample, of the same few bytes; many small samples for one."""
        large = [(f"{n:03}.jpg", encode(picture(4, 4)) + bytes(200_000)) for n in range(20)]
        small = [(f"{n:03}.jpg", encode(picture(4, 4)) + bytes(3_000 + n)) for n in range(300)]
        for name, images in (("large.tar", large), ("small.tar", small)):
            members = [part for n, image in enumerate(images) for part in (image, (f"{n:03}.cls", b"%d" % n))]
            write_tar(tmp_path / name, members)
            fault_server.put(name, (tmp_path / name).read_bytes())
            assert_same_index(open_source(fault_server.url_of(name)), open_source(tmp_path / name))
        asked = {name: [one.sent for one in fault_server.requests(name, "GET")] for name in ("large.tar", "small.tar")}
        assert len(asked["large.tar"]) == 22
        assert sum(asked["large.tar"]) <= 24 * NEAR
        assert len(asked["small.tar"]) <= 6
        assert max(asked["small.tar"]) <= FAR

    def test_a_storage_without_etags(
        self, server: FaultServer, data: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """As other bytes of the same size would go unnoticed, headers are read at each opening."""
        head = Client.head
        monkeypatch.setattr(
            Client, "head", lambda self, urls: [found and found._replace(etag="") for found in head(self, urls)]
        )
        for _ in range(2):
            begin = len(server.requests())
            source = open_source(f"{server.url}/train-{{0..2}}.tar")
            assert {*reads(server, begin)} == {f"train-{number}.tar" for number in range(3)}
        assert_same(source, open_source(data))
        assert "train-0.tar has no ETag" in caplog.text
        begin = len(server.requests())
        given = source.index_path  # type: ignore[attr-defined]
        trusted = open_source(f"{server.url}/train-{{0..2}}.tar", index=given)
        assert not reads(server, begin)
        assert_same(trusted, source)

    def test_it_is_made_once(self, server: FaultServer, data: Path) -> None:
        url = f"{server.url}/train-{{0..2}}.tar"
        first = open_source(url)
        begin = len(server.requests())
        second = open_source(url)
        assert not reads(server, begin)
        assert second.index_path == first.index_path  # type: ignore[attr-defined]
        assert_same(second, open_source(data))
        open_source(url, rebuild=True)
        assert {*reads(server, begin)} == {f"train-{number}.tar" for number in range(3)}

    def test_of_a_shard_that_was_replaced_the_headers_are_read_again(self, server: FaultServer, data: Path) -> None:
        url = f"{server.url}/train-{{0..2}}.tar"
        open_source(url)
        write_samples(data / "train-1.tar", 50, 6)
        server.put("train-1.tar", (data / "train-1.tar").read_bytes())
        begin = len(server.requests())
        source = open_source(url)
        assert {*reads(server, begin)} == {"train-1.tar"}
        assert_same(source, open_source(data))

    def test_a_shard_of_the_same_size_with_other_labels(self, fault_server: FaultServer, tmp_path: Path) -> None:
        for label in (b"1", b"2"):
            path = write_tar(tmp_path / f"{label.decode()}.tar", [("a.jpg", jpeg(0)), ("a.cls", label)])
            fault_server.put("a.tar", path.read_bytes())
            assert open_source(fault_server.url_of("a.tar")).targets.tolist() == [int(label)]

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            (b"", "shard http://.*/a.tar is empty"),
            (b"\x1f\x8b" + bytes(600), "compressed .gzip."),
            (None, r"key 'a' in shard http://.*/a\.tar at offset 512 has no label"),
            (b"cut", "is cut"),
        ],
        ids=["empty", "gzip", "no label", "cut"],
    )
    def test_unfit_shards(self, fault_server: FaultServer, tmp_path: Path, data: bytes | None, message: str) -> None:
        members = [("a.jpg", jpeg(0))] + [("a.cls", b"1")] * (data == b"cut")
        whole = write_tar(tmp_path / "a.tar", members).read_bytes()
        data = whole[:2500] if data == b"cut" else data
        fault_server.put("a.tar", whole if data is None else data)
        with pytest.raises(DataError, match=message) as raised:
            open_source(fault_server.url_of("a.tar"))
        assert "truncate" not in str(raised.value)

    def test_what_may_not_be_read_is_told(self, server: FaultServer) -> None:
        server.script("train-1.tar", Fault(403), forever=True, methods="GET HEAD")
        with pytest.raises(DataError, match=r"train-1\.tar.* 403"):
            open_source(f"{server.url}/train-{{0..2}}.tar")

    def test_who_may_read_but_not_list(self, server: FaultServer, data: Path) -> None:
        """A storage says 403 of what is not there, then."""
        for name in ("classes.json", ".gpupipe-ecd3b9ed4d1dd5c2.index"):
            server.script(name, Fault(403), forever=True, methods="GET HEAD")
        assert_same(open_source(f"{server.url}/train-{{0..2}}.tar"), open_source(data))


def assert_same_index(source: Source, other: Source) -> None:
    assert source.fingerprint == other.fingerprint
    assert source._offsets.tolist() == other._offsets.tolist()  # type: ignore[attr-defined]


class TestIndexFile:
    """What `gpupipe index --out` writes."""

    URL = "/train-{0..2}.tar"

    def write(self, server: FaultServer, path: Path, capsys: pytest.CaptureFixture[str]) -> str:
        """The path at which it is found on the server."""
        assert main(["index", server.url + self.URL, "--out", str(path)]) == 0
        found = re.search(rf"copy it to {server.url}/(\S+), where", capsys.readouterr().out)
        assert found is not None
        return found[1]

    def test_beside_the_shards(
        self, server: FaultServer, data: Path, tmp_path: Path, capsys: Any, monkeypatch: Any, caplog: Any
    ) -> None:
        name = self.write(server, tmp_path / "an.index", capsys)
        server.put(name, (tmp_path / "an.index").read_bytes())
        monkeypatch.setenv("GPUPIPE_CACHE", str(tmp_path / "another"))
        begin = len(server.requests())
        source = open_source(server.url + self.URL)
        assert not reads(server, begin)
        assert_same(source, open_source(data))
        write_samples(data / "train-1.tar", 50)
        server.put("train-1.tar", (data / "train-1.tar").read_bytes())
        assert_same(open_source(server.url + self.URL), open_source(data))
        assert f"index {server.url}/{name} is of no use ({server.url}/train-1.tar was changed)" in caplog.text

    def test_one_that_is_given(
        self, server: FaultServer, data: Path, tmp_path: Path, capsys: Any, monkeypatch: Any
    ) -> None:
        self.write(server, tmp_path / "an.index", capsys)
        server.put("indices/an.index", (tmp_path / "an.index").read_bytes())
        local = open_source(data)
        for given in (tmp_path / "an.index", server.url_of("indices/an.index"), local.index_path):
            monkeypatch.setenv("GPUPIPE_CACHE", str(tmp_path / f"another {Path(given).name}"))
            begin = len(server.requests())
            source = open_source(server.url + self.URL, index=given)
            assert not reads(server, begin) or "indices" in str(given)
            assert_same(source, local)
        assert source.shapes(np.arange(12)).tolist() == local.shapes(np.arange(12)).tolist()

    def test_one_of_other_data(self, server: FaultServer, data: Path, tmp_path: Path) -> None:
        other = open_source(write_samples(tmp_path / "train-0.tar"))
        (tmp_path / "no.index").write_bytes(b"PK")
        fields = {"image": gpupipe.Image(), "text": gpupipe.Text("cls")}
        for given, reason in (
            (other.index_path, "it belongs to other data"),
            (tmp_path / "no.index", "it is damaged"),
            (tmp_path / "none.index", "can't be read .*check it"),
        ):
            with pytest.raises(DataError, match=f"index.*{reason}"):
                open_source(server.url + self.URL, index=given)
        with pytest.raises(DataError, match="it belongs to other data"):
            open_source(server.url + self.URL, index=open_source(data / "train-0.tar").index_path, fields=fields)
        with pytest.raises(ConfigError, match=r"index=.* is for \.tar shards by URL"):
            open_source(data, index=other.index_path)
        with pytest.raises(ConfigError, match=r"cache='1G' is for data by URL"):
            open_source(data, cache="1G")

    def test_out_is_for_shards_by_url(self, data: Path, tmp_path: Path, capsys: Any) -> None:
        assert main(["index", str(data), "--out", str(tmp_path / "x")]) == 2
        assert "is for .tar shards by URL" in capsys.readouterr().err
        assert main(["index", "s3://bucket/a.tar", "--task", "1/2"]) == 2
        assert "can't be indexed in shares" in capsys.readouterr().err


def test_what_is_replaced_meanwhile_is_an_error_that_names_it(server: FaultServer, data: Path) -> None:
    source = open_source(f"{server.url}/train-{{0..2}}.tar", cache=None)
    size = (data / "train-1.tar").stat().st_size
    server.put("train-1.tar", bytes(size))
    assert source[3][1] == 3
    told = r"train-1\.tar, bytes [\d,]+ to [\d,]+: .* than the index saw; index the data anew"
    with pytest.raises(SampleError, match=told) as raised:
        source.fetch(np.array([2, 5, 1]))
    assert raised.value.index == 5
    assert "'s/0005'" in raised.value.location
    assert f"{server.url}/train-1.tar at offset" in raised.value.location


def test_who_opens_it_later_in_a_run_gets_the_same_objects(server: FaultServer, data: Path) -> None:
    """Not others of the same sizes and labels, of which an index was made meanwhile."""
    url = f"{server.url}/train-{{0..2}}.tar"
    sent = pickle.dumps(open_source(url))
    assert_same(pickle.loads(sent), open_source(data))
    whole = bytearray((data / "train-1.tar").read_bytes())
    whole[600] ^= 1  # in an image
    server.put("train-1.tar", bytes(whole))
    assert open_source(url).fingerprint == open_source(data).fingerprint
    with pytest.raises(DataError, match=r"objects of .* were replaced, and it was indexed again"):
        pickle.loads(sent)


FIELDS = {
    "image": gpupipe.Image("jpg"),
    "mask": gpupipe.Mask("seg.png", missing="default"),
    "text": gpupipe.Text("txt"),
    "label": gpupipe.Scalar("cls"),
    "key": gpupipe.Key(),
}


def with_fields(path: Path) -> Path:
    """Of eight samples some have far apart what others have side by side, and some lack a mask."""
    members = []
    for number in range(8):
        parts = [("jpg", jpeg(number)), ("txt", b"text %d" % number), ("cls", b"%d" % number)]
        parts += [("seg.png", encode(picture(9, 9)[..., 0], "png"))] * (number % 3 > 0)
        parts.insert(number % 3, ("other", bytes(40_000 * (number % 2))))
        members += [(f"{number}.{name}", data) for name, data in parts]
    return write_tar(path, members)


def test_fields(fault_server: FaultServer, tmp_path: Path) -> None:
    local = open_source(with_fields(tmp_path / "a.tar"), fields=FIELDS)
    fault_server.put("a.tar", (tmp_path / "a.tar").read_bytes())
    source = open_source(fault_server.url_of("a.tar"), fields=FIELDS, cache=None)
    assert source.fingerprint == local.fingerprint
    order = np.array([5, 0, 7, 3, 3, 1])
    mine, theirs = source.fetch(order), local.fetch(order)
    for name in ("text", "key"):
        assert mine[name] == theirs[name]
    assert mine["label"].tolist() == theirs["label"].tolist()
    assert [data.tobytes() for data in mine["image"].data] == [data.tobytes() for data in theirs["image"].data]
    pairs = zip(mine["mask"], theirs["mask"], strict=True)
    assert all(one is other or one.tobytes() == other.tobytes() for one, other in pairs)
    every = np.arange(8)
    expected = [sum(part.size for part in source.extents(index)) for index in every.tolist()]  # type: ignore[attr-defined]
    assert source.stored_bytes(every).tolist() == expected
    assert local.stored_bytes(every) is None


def test_a_field_that_no_sample_has(fault_server: FaultServer, tmp_path: Path) -> None:
    fault_server.put("a.tar", write_samples(tmp_path / "a.tar").read_bytes())
    with pytest.raises(DataError, match=r"has 'text': there is no member \.txt, but \.cls, \.jpg|\.jpg, \.cls"):
        open_source(fault_server.url_of("a.tar"), fields={"image": gpupipe.Image(), "text": gpupipe.Text("txt")})


def test_names_of_classes(server: FaultServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexing, "client", Client)  # each process apart has one of its own
    url = f"{server.url}/train-{{0..2}}.tar"
    for names in (["cat", "dog"], ["bird", "fish"], None):
        if names is None:
            server.remove("classes.json")
        else:
            server.put("classes.json", json.dumps(names).encode())
        assert open_source(url).classes == names


def test_what_was_packed(s3_bucket: Bucket, data: Path, tmp_path: Path) -> None:
    fields = {"image": gpupipe.Image(), "number": gpupipe.Scalar("cls")}
    pack(open_source(data, fields=fields), tmp_path / "packed", PackSettings(samples_per_shard=5))
    s3_bucket.put_folder(tmp_path / "packed", "packed/")
    source, local = open_source(f"{s3_bucket.url}/packed"), open_source(tmp_path / "packed")
    assert dict(source.fields) == dict(local.fields)
    assert source.fingerprint == local.fingerprint
    numbers = [each.fetch(np.arange(12))["number"].tolist() for each in (source, local)]
    assert numbers[0] == numbers[1]
    with pytest.raises(ConfigError, match=r"s3://.*/packed is a URL, and files are written on a disk"):
        pack(source, f"{s3_bucket.url}/packed")
    s3_bucket.delete("packed/shard-000001.tar")
    with pytest.raises(DataError, match=r"s3://.*/packed lacks 1 of its 3 files, the first shard-000001\.tar"):
        open_source(f"{s3_bucket.url}/packed")


IN_FOLDERS = {
    "image": gpupipe.Image(),
    "mask": gpupipe.Mask(folder="masks", suffix=".png", missing="default"),
    "label": gpupipe.Scalar(),
}


class TestFolder:
    @pytest.fixture
    def images(self, tmp_path: Path) -> Path:
        for number in range(9):
            place = tmp_path / "images" / f"class {number // 3}" / ("deeper" if number % 3 else "")
            place.mkdir(parents=True, exist_ok=True)
            (place / f"ü %20 {number}.jpg").write_bytes(jpeg(number))
            mask = tmp_path / "images" / "masks" / place.relative_to(tmp_path / "images")
            mask.mkdir(parents=True, exist_ok=True)
            if number != 4:
                (mask / f"ü %20 {number}.png").write_bytes(encode(picture(9, 9, number)[..., 0], "png"))
        return tmp_path / "images"

    def test_it_is_that_of_the_disk(self, bucket: Bucket, images: Path) -> None:
        bucket.put_folder(images, "a b/")
        source, local = (open_source(data, fields=IN_FOLDERS) for data in (f"{bucket.url}/a b/", images))
        assert_same(source, local)
        assert source.class_to_idx == local.class_to_idx == {"class 0": 0, "class 1": 1, "class 2": 2}
        pairs = zip(*(each.fetch(np.arange(9))["mask"] for each in (source, local)), strict=True)
        assert all(one is other or one.tobytes() == other.tobytes() for one, other in pairs)
        assert source.location(1) == f"{bucket.url}/a b/class 0/deeper/ü %20 1.jpg"
        sizes = [sum(extent.size for extent in source.extents(index)) for index in range(9)]  # type: ignore[attr-defined]
        assert source.stored_bytes(np.arange(9)).tolist() == sizes

    @pytest.mark.parametrize("fields", [None, {"image": gpupipe.Image()}])
    def test_objects_that_stand_for_folders(self, fields: Any, bucket: Bucket, images: Path) -> None:
        """As consoles make them: they are no samples, nor classes."""
        bucket.put_folder(images / "class 0", "x/a/")
        bucket.put_folder(images / "class 1", "x/b/")
        for folder in ("x/", "x/a/", "x/b/", "x/b/deeper/"):
            bucket.put(folder, b"")
        source = open_source(f"{bucket.url}/x", fields=fields)
        assert sorted({source.key(index).split("/")[0] for index in range(len(source))}) == ["a", "b"]
        assert len(source) == 6
        if fields is None:
            assert source.classes == ["a", "b"]

    def test_what_was_replaced(self, s3_bucket: Bucket, images: Path) -> None:
        s3_bucket.put_folder(images / "class 0", "x/a/")
        source = open_source(f"{s3_bucket.url}/x", cache=None)
        s3_bucket.put("x/a/deeper/ü %20 1.jpg", (images / "class 0/ü %20 0.jpg").read_bytes())
        with pytest.raises(SampleError, match=r"deeper/ü %20 1\.jpg, bytes .* than the index saw") as raised:
            source.fetch(np.arange(3))
        assert raised.value.index == 1
        again = open_source(f"{s3_bucket.url}/x")
        assert len(again) == 3
        assert again.fingerprint != source.fingerprint
        s3_bucket.put("x/a/new.jpg", jpeg(7))
        assert len(open_source(f"{s3_bucket.url}/x")) == 4

    def test_what_is_no_image_folder(self, s3_bucket: Bucket, images: Path, data: Path) -> None:
        s3_bucket.put_folder(images, "x/")
        s3_bucket.put_folder(data, "x/")
        with pytest.raises(ConfigError, match=r"holds \.tar files \(train-0\.tar\) and folders with images \(class 0/"):
            open_source(f"{s3_bucket.url}/x")
        s3_bucket.put("y/a.jpg", b"")
        with pytest.raises(DataError, match=r"no class folders in s3://.*/y: images belong"):
            open_source(f"{s3_bucket.url}/y")
        for folder in ("../masks", "/masks", "s3://other/masks"):
            fields = IN_FOLDERS | {"mask": gpupipe.Mask(folder=folder, suffix=".png")}
            with pytest.raises(ConfigError, match=f"folder='{folder}' does not lie below"):
                open_source(f"{s3_bucket.url}/x/masks", fields=fields)
        with pytest.raises(ConfigError, match=r"is for \.tar shards"):
            open_source(f"{s3_bucket.url}/x/masks", index="a.index")


OPEN = """
import sys
from gpupipe.sources import open_source
print(open_source(sys.argv[1]).fingerprint)
"""


class TestTogether:
    """Several processes of a machine that open the same."""

    @pytest.fixture
    def url(self, server: FaultServer) -> str:
        return f"{server.url}/train-{{0..2}}.tar"

    def start(self, url: str) -> subprocess.Popen[str]:
        return subprocess.Popen([sys.executable, "-c", OPEN, url], stdout=subprocess.PIPE, text=True)

    def test_one_asks_for_all(self, server: FaultServer, url: str, data: Path) -> None:
        server.script("train-0.tar", Fault(delay=2.0), methods="HEAD")  # by then all have begun
        processes = [self.start(url) for _ in range(4)]
        found = {process.communicate()[0].strip() for process in processes}
        assert found == {open_source(data).fingerprint}
        assert [len(server.requests(f"train-{number}.tar", "HEAD")) for number in range(3)] == [1, 1, 1]

    def test_one_that_is_killed_leaves_it_to_others(self, server: FaultServer, url: str, data: Path) -> None:
        server.script("train-0.tar", Fault(silent=True), methods="HEAD")
        process = self.start(url)
        while not server.requests("train-0.tar", "HEAD"):
            time.sleep(0.01)
        process.kill()
        process.communicate()
        assert_same(open_source(url), open_source(data))

    def test_others_do_not_wait_for_a_stopped_one(
        self, server: FaultServer, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source = open_source(url)
        folder = Path(source.index_path).parents[1]  # type: ignore[attr-defined]
        monkeypatch.setattr(once, "PATIENCE", 0.3)
        descriptor = os.open(folder, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with pytest.raises(DataError, match=r"process .* looks at http.* no sign of life for 0 s .*: end it"):
            open_source(url)
        os.close(descriptor)
        assert open_source(url).fingerprint == source.fingerprint
