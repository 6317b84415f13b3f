"""Tables by URL, and URLs in tables: the samples are those of the same files on a disk; what can't be had is named."""

from __future__ import annotations

import json
import os
import pickle
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from images import encode, picture
from servers.buckets import Bucket
from servers.faults import FaultServer

import gpupipe
from gpupipe import ConfigError, DataError, Image, Manifest, Parquet, SampleError, Scalar
from gpupipe.sources import Source, check_source, open_source

rng = np.random.default_rng(0)
NOISE = [rng.bytes(size) for size in (0, 1, 700, 65_535, 65_536, 65_537, 200_000, 9, 130_000, 40)]


def written(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, **options)
    return path


def images(source: Source, indices: list[int]) -> list[bytes | None]:
    found = source.fetch(np.array(indices))["image"].data
    return [None if data is None else data.tobytes() for data in found]


WAYS: dict[str, dict[str, Any]] = {
    "plain": {"compression": "none", "use_dictionary": False},
    "pages": {"compression": "none", "data_page_size": 1000, "write_batch_size": 2, "data_page_version": "2.0"},
    "dictionary": {"compression": "none"},
    "snappy": {"compression": "snappy"},
    "zstd": {"compression": "zstd"},
}


class TestParquet:
    @pytest.mark.parametrize("way", WAYS)
    def test_values_are_those_of_the_files_on_a_disk(self, tmp_path: Path, s3_bucket: Bucket, way: str) -> None:
        structs = [None if number == 3 else {"bytes": data, "path": None} for number, data in enumerate(NOISE)]
        for name, label in (("data/a b.parquet", 0), ("data/b.parquet", 10)):
            columns = {"image": structs, "label": range(label, label + 10)}
            written(tmp_path / name, columns, row_group_size=4, **WAYS[way])
        s3_bucket.put_folder(tmp_path)
        local, remote = open_source(tmp_path / "data"), open_source(Parquet(f"{s3_bucket.url}/data"))
        assert (len(remote), remote.fingerprint) == (20, local.fingerprint)
        assert [remote.key(n) for n in range(20)] == [local.key(n) for n in range(20)]
        order = [7, 3, 12, 7, 0, 19, 5]
        assert images(remote, order) == images(local, order)
        assert remote.targets.tolist() == [*range(20)]
        assert pickle.loads(pickle.dumps(remote))[6][0].tobytes() == NOISE[6]
        check_source(remote)

    def test_behind_http(self, tmp_path: Path, fault_server: FaultServer) -> None:
        """By patterns and a list; there are no listings."""
        urls = []
        for number in range(2):
            path = written(tmp_path / f"{number} é.parquet", {"image": NOISE, "label": range(10)}, **WAYS["plain"])
            fault_server.put(path.name, path.read_bytes())
            urls.append(fault_server.url_of(path.name))
        local = open_source(tmp_path)
        for data in (urls, [urls[0].replace("/0%20", "/{0..1}%20")]):
            remote = open_source(Parquet(data))
            assert (len(remote), remote.fingerprint) == (20, local.fingerprint)
            assert images(remote, [17, 2]) == [NOISE[7], NOISE[2]]
        with pytest.raises(ConfigError, match="listing"):
            open_source(Parquet(urls[0].rpartition("/")[0] + "/*.parquet"))

    def test_classes_may_be_given(self, tmp_path: Path, fault_server: FaultServer) -> None:
        path = written(tmp_path / "a.parquet", {"image": NOISE[:2], "label": ["dog", "elk"]})
        fault_server.put("a.parquet", path.read_bytes())
        url, classes = fault_server.url_of("a.parquet"), ["cat", "dog", "elk"]
        source = open_source(Parquet(url, classes=classes))
        for one in (source, pickle.loads(pickle.dumps(source))):
            assert (one.classes, one.targets.tolist()) == (classes, [1, 2])
            assert one.fingerprint == open_source(Parquet(path, classes=classes)).fingerprint
        assert open_source(Parquet(url)).targets.tolist() == [0, 1]

    def test_only_what_is_wanted_is_read(self, tmp_path: Path, fault_server: FaultServer) -> None:
        """To find the values a small part, once; for a sample its own bytes."""
        values = [rng.bytes(300_000 + number) for number in range(20)]
        data = written(tmp_path / "a.parquet", {"image": values, "label": range(20)}, **WAYS["plain"]).read_bytes()
        fault_server.put("a.parquet", data)
        source = open_source(Parquet(fault_server.url_of("a.parquet")))
        assert fault_server.body_bytes < len(data) / 15
        before = fault_server.body_bytes
        again = open_source(Parquet(fault_server.url_of("a.parquet")))
        assert fault_server.body_bytes == before
        assert images(again, [3, 11]) == [values[3], values[11]]
        assert fault_server.body_bytes == before + 600_014
        assert source.stored_bytes(np.array([3, 11])).tolist() == [300_003, 300_011]

    @pytest.mark.parametrize("way", ["plain", "snappy", "zstd"])
    def test_an_object_that_is_replaced(self, tmp_path: Path, fault_server: FaultServer, way: str) -> None:
        """Before it is opened again it is indexed anew; while it is open its samples are bad."""
        first = written(tmp_path / "a.parquet", {"image": NOISE, "label": range(10)}, **WAYS[way]).read_bytes()
        other = written(tmp_path / "a.parquet", {"image": NOISE[::-1], "label": range(10)}, **WAYS[way]).read_bytes()
        fault_server.put("a.parquet", first)
        url = fault_server.url_of("a.parquet")
        source = open_source(Parquet(url))
        fault_server.put("a.parquet", other)
        with pytest.raises(SampleError, match=rf"sample 4 \({url} row 4 .*another one than the index saw") as raised:
            source[4]
        assert raised.value.index == 4
        assert images(open_source(Parquet(url)), [1, 2]) == [NOISE[8], NOISE[7]]

    def test_files_that_are_none(self, tmp_path: Path, s3_bucket: Bucket) -> None:
        path = written(tmp_path / "a.parquet", {"image": NOISE, "label": range(10)})
        s3_bucket.put("cut.parquet", path.read_bytes()[:-100])
        s3_bucket.put("empty.parquet", b"")
        for name in ("cut", "empty"):
            with pytest.raises(DataError, match=f"{s3_bucket.url}/{name}.parquet can't be read as Parquet, perhaps it"):
                open_source(Parquet(f"{s3_bucket.url}/{name}.parquet"))
        with pytest.raises(DataError, match=f"no file at {s3_bucket.url}/none.parquet"):
            open_source(Parquet(f"{s3_bucket.url}/none.parquet"))
        with pytest.raises(DataError, match=r"below s3://.*/nothing"):
            open_source(Parquet(f"{s3_bucket.url}/nothing"))
        with pytest.raises(ConfigError, match="is a URL, and others are not"):
            open_source(Parquet([f"{s3_bucket.url}/cut.parquet", path]))
        s3_bucket.put("a.parquet", written(tmp_path / "b.parquet", {"image": NOISE}).read_bytes())
        with pytest.raises(ConfigError, match=r"'label'.* not there: s3://.* has the columns"):
            open_source(Parquet(f"{s3_bucket.url}/a.parquet"))

    def test_splits(self, tmp_path: Path, bucket: Bucket) -> None:
        """On all kinds of storage."""
        data = written(tmp_path / "a.parquet", {"image": NOISE, "label": range(10)}).read_bytes()
        bucket.put("data/train-00000-of-00002.parquet", data)
        with pytest.raises(DataError, match=r"has 1 of the 2 files train-\*: fetch the others"):
            open_source(Parquet(f"{bucket.url}/data"))
        bucket.put("data/test-00000-of-00001.parquet", data)
        with pytest.raises(ConfigError, match=r"pass the files of one, as '[a-z0-9]+://.*/data/test-\*\.parquet', "):
            open_source(Parquet(f"{bucket.url}/data/"))
        source = open_source(Parquet(f"{bucket.url}/data/test-*.parquet"))
        assert (len(source), images(source, [7, 2])) == (10, [NOISE[7], NOISE[2]])


class TestPaths:
    """Cells that name objects."""

    @pytest.mark.parametrize("kind", ["csv", "parquet", "struct"])
    def test_relative_ones_are_below_the_table(self, tmp_path: Path, s3_bucket: Bucket, kind: str) -> None:
        names = [f"images/é %{number}?.jpg" for number in range(5)]
        for number, name in enumerate(names):
            s3_bucket.put(f"lists/{name}", NOISE[number + 1])
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_bytes(NOISE[number + 1])
        table = tmp_path / ("train." + {"struct": "jsonl"}.get(kind, kind))
        if kind == "csv":
            table.write_text("".join(["image,label\n", *(f"{name},{number}\n" for number, name in enumerate(names))]))
        elif kind == "parquet":
            written(table, {"image": names, "label": range(5)})
        else:
            cells = [{"path": name} for name in names]
            lines = [json.dumps({"image": cell, "label": number}) for number, cell in enumerate(cells)]
            table.write_text("\n".join(lines))
        s3_bucket.put(f"lists/{table.name}", table.read_bytes())
        local = open_source(table)
        remote = (
            open_source(f"{s3_bucket.url}/lists/{table.name}")
            if kind != "parquet"
            else open_source(Parquet(f"{s3_bucket.url}/lists/{table.name}"))
        )
        rooted = open_source((Parquet if kind == "parquet" else Manifest)(table, root=f"{s3_bucket.url}/lists"))
        for source in (remote, rooted):
            assert source.fingerprint == local.fingerprint
            assert images(source, [4, 0, 2]) == images(local, [4, 0, 2])
            assert source.stored_bytes(np.arange(2)).tolist() == [len(NOISE[1]), len(NOISE[2])]
            assert source.key(3) == local.key(3)
            assert pickle.loads(pickle.dumps(source))[1][0].tobytes() == NOISE[2]
            check_source(source)

    def test_of_all_places(self, tmp_path: Path, s3_bucket: Bucket, fault_server: FaultServer) -> None:
        """Files, objects of a bucket, which are asked for when the table is opened, and of the web, which are not; bad
        ones are named, each for itself."""
        (tmp_path / "0.jpg").write_bytes(NOISE[2])
        s3_bucket.put("1.jpg", NOISE[4])
        fault_server.put("2.jpg", NOISE[6])
        web = fault_server.url_of("2.jpg")
        paths = ["0.jpg", f"{s3_bucket.url}/1.jpg", web, f"{s3_bucket.url}/gone.jpg", f"{web}.gone", "none.jpg", None]
        expected = [NOISE[2], NOISE[4], NOISE[6], None]
        lines = [json.dumps({"image": path, "label": number}) for number, path in enumerate(paths)]
        (tmp_path / "a.jsonl").write_text("\n".join(lines))
        written(tmp_path / "a.parquet", {"image": paths, "label": range(7)})
        for name in ("a.jsonl", "a.parquet"):
            before = len(fault_server.requests())
            source = open_source(tmp_path / name, fields={"image": Image(missing="skip"), "label": Scalar()})
            assert len(fault_server.requests()) == before
            assert images(source, [1, 2, 0, 6]) == [*expected[1:3], expected[0], None]
            assert source.stored_bytes(np.arange(2)) is None
            for index, message in (
                (3, "/gone.jpg"),
                (4, "2.jpg.gone.*404"),
                (5, "none.jpg can't be read: No such file"),
            ):
                with pytest.raises(SampleError, match=f"sample {index} .*{message}") as raised:
                    source.fetch(np.array([0, 1, index, 2]))
                assert raised.value.index == index
            how = {"num_workers": 0, "device": "cpu", "on_error": "skip", "max_bad": 1.0}
            loader = gpupipe.Loader(source, gpupipe.imagenet_eval(8), 1, **how)
            with loader, pytest.raises(gpupipe.GpupipeError):
                list(loader)  # nothing of it is an image
            assert {error.index for error in loader.bad_samples} >= {3, 4, 5}

    def test_keys_have_no_signature_and_no_password(self, tmp_path: Path) -> None:
        """They are the same when URLs are signed anew; rows, where the same object is signed twice."""
        plain = ["https://host/a.jpg", "https://host/b.jpg?id=1", "b.jpg"]

        def keys(*urls: str) -> list[str]:
            (tmp_path / "a.csv").write_text("\n".join(["image", *urls]))
            source = open_source(tmp_path / "a.csv", fields={"image": Image()})
            assert "secret" not in "".join(source.location(index) for index in range(len(source)))
            return [source.key(index) for index in range(len(source))]

        for day in ("1", "2"):
            signed = f"{plain[0]}?X-Amz-Date={day}&X-Amz-Signature=secret{day}"
            assert keys(signed, plain[1].replace("//", "//me:secret@"), plain[2]) == plain
        assert keys(signed, signed.replace("=2", "=1")) == ["0", "1"]
        assert keys(*plain[1:], "https://host/b.jpg?id=2") == [*plain[1:], "https://host/b.jpg?id=2"]

    def test_that_leave_the_root(self, tmp_path: Path, s3_bucket: Bucket) -> None:
        (tmp_path / "a.csv").write_text("image\n../secret.jpg\na.jpg\n")
        s3_bucket.put("b/a.jpg", b"a")
        source = open_source(Manifest(tmp_path / "a.csv", root=f"{s3_bucket.url}/b"), fields={"image": Image()})
        assert images(source, [1]) == [b"a"]
        with pytest.raises(SampleError, match=r"'\.\./secret\.jpg' is no path below s3://"):
            source[0]

    def test_one_that_is_replaced(self, tmp_path: Path, s3_bucket: Bucket, fault_server: FaultServer) -> None:
        """What the bucket listed is what is read, or an error; of the web what was read first."""
        s3_bucket.put("a.jpg", b"first")
        fault_server.put("a.jpg", b"first")
        urls = [f"{s3_bucket.url}/a.jpg", fault_server.url_of("a.jpg")]
        (tmp_path / "a.csv").write_text("\n".join(["image", *urls]))
        source = open_source(tmp_path / "a.csv", fields={"image": Image()})
        assert images(source, [1]) == [b"first"]
        s3_bucket.put("a.jpg", b"other")
        fault_server.put("a.jpg", b"other")
        for index in range(2):
            with pytest.raises(SampleError, match=f"sample {index} .*(another one than|its ETag is)"):
                source[index]
        again = open_source(tmp_path / "a.csv", fields={"image": Image()})
        assert images(again, [0]) == [b"other"]

    def test_of_a_query(self, tmp_path: Path, s3_bucket: Bucket) -> None:
        s3_bucket.put("photos/a.jpg", b"a")
        with closing(sqlite3.connect(tmp_path / "a.db")) as database:
            database.execute("CREATE TABLE photos (id INTEGER PRIMARY KEY, image TEXT, label INTEGER)")
            database.execute("INSERT INTO photos VALUES (1, 'a.jpg', 3)")
            database.commit()
        text = "SELECT image, label FROM photos ORDER BY id"
        source = open_source(gpupipe.Query(f"sqlite:///{tmp_path}/a.db", text, root=f"{s3_bucket.url}/photos"))
        assert (images(source, [0]), source.targets.tolist()) == ([b"a"], [3])


class TestManifest:
    def test_a_file_in_a_storage(self, s3_bucket: Bucket) -> None:
        """It is read once, and again when it is replaced; what is wrong in it is named by its URL."""
        url = f"{s3_bucket.url}/a.csv"
        with pytest.raises(DataError, match=f"there is no object {url}"):
            open_source(url)
        s3_bucket.put("a.csv", b"image,label\nx.jpg,1\n")
        s3_bucket.put("x.jpg", b"x")
        assert open_source(url)[0][1] == 1
        s3_bucket.put("a.csv", b"image,label\nx.jpg,2\n")
        assert open_source(url)[0][1] == 2
        s3_bucket.put("a.csv", b"x.jpg,2\n")
        with pytest.raises(ConfigError, match=rf"pass gpupipe.Manifest\('{url}', columns="):
            open_source(url)
        with pytest.raises(ConfigError, match="is for data by URL"):
            open_source([(b"", 0)], cache="1G")


class TestComposed:
    """Made of others."""

    def test_sizes(self, tmp_path: Path, s3_bucket: Bucket) -> None:
        path = written(tmp_path / "a.parquet", {"image": NOISE, "label": range(10)}, **WAYS["plain"])
        s3_bucket.put("a.parquet", path.read_bytes())
        local, remote = open_source(path), open_source(f"{s3_bucket.url}/a.parquet")
        sizes = [*map(len, NOISE)]
        assert remote.select([3, 2]).stored_bytes(np.arange(2)).tolist() == [sizes[3], sizes[2]]
        mixture = open_source(gpupipe.Mixture({"local": (local, 0.5), "remote": (remote, 0.5)}))
        assert mixture.stored_bytes(np.array([3, 12, 13])).tolist() == [0, sizes[2], sizes[3]]
        texts = open_source(path, fields={"text": Scalar("label"), "number": Scalar("label")})
        joined = texts.join(open_source(f"{s3_bucket.url}/a.parquet"), on=("number", "label"), fields=["image"])
        assert joined.stored_bytes(np.array([5])).tolist() == [sizes[5]]
        assert local.stored_bytes(np.arange(2)) is None
        assert local.select([1]).stored_bytes(np.arange(1)) is None


@pytest.mark.parametrize("kind", ["urls", "folder", "parquet"])
def test_sizes_of_objects_that_were_replaced_are_read_again(tmp_path: Path, s3_bucket: Bucket, kind: str) -> None:
    """By others of as many bytes."""

    def opened(*size: int) -> Source:
        image = encode(picture(*size), "BMP")
        (tmp_path / "data/a").mkdir(parents=True, exist_ok=True)
        if kind == "parquet":
            written(tmp_path / "data/0.parquet", {"image": [image], "label": [0]}, **WAYS["plain"])
        else:
            (tmp_path / "data/a/0.bmp").write_bytes(image)
        s3_bucket.put_folder(tmp_path / "data")
        (tmp_path / "data.csv").write_text(f"image,label\n{s3_bucket.url}/a/0.bmp,0\n")
        places = {
            "urls": tmp_path / "data.csv",
            "folder": s3_bucket.url,
            "parquet": Parquet(f"{s3_bucket.url}/0.parquet"),
        }
        return open_source(places[kind])

    before = opened(20, 40)
    assert before.image_sizes().tolist() == [[20, 40]]
    after = opened(40, 20)
    assert after.fingerprint == before.fingerprint
    assert after.image_sizes().tolist() == [[40, 20]]


def test_no_secret_is_told(tmp_path: Path, fault_server: FaultServer) -> None:
    """Of a URL's query and of what stands before its host: in no name, message or readable file."""
    path = written(tmp_path / "a.parquet", {"image": NOISE, "label": range(10)})
    fault_server.put("a.parquet", path.read_bytes())
    url = fault_server.url_of("a.parquet").replace("://", "://me:SECRET@") + "?signature=SECRET"
    (tmp_path / "a.csv").write_text(f"image,label\n{url}.gone,1\n")
    for data in (
        url,
        tmp_path / "a.csv",
        url.replace("a.parquet", "b.parquet"),
        Manifest(url.replace("parquet", "csv")),
    ):
        told = ""
        try:
            source = open_source(data)
            told += repr(source) + source.location(0)
            fault_server.remove("a.parquet") if data == url else None
            source[0]
        except (gpupipe.GpupipeError, ValueError) as error:
            told += str(error)
        assert "a.parquet" in told or "b.parquet" in told or "a.csv" in told
        assert "SECRET" not in told
    cache = Path(os.environ["GPUPIPE_CACHE"])
    kept = [file for file in (cache / "urls").rglob("*") if file.is_file()]
    assert kept
    assert not [file for file in kept if b"SECRET" in file.read_bytes()]
