"""Tables by URL, and URLs in tables: the samples are those of the same files on a disk; what can't be had is named."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from servers.buckets import Bucket
from servers.faults import FaultServer

from gpupipe import ConfigError, DataError, Manifest, Parquet, SampleError
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

    def test_splits(self, tmp_path: Path, s3_bucket: Bucket) -> None:
        data = written(tmp_path / "a.parquet", {"image": NOISE, "label": range(10)}).read_bytes()
        s3_bucket.put("data/train-00000-of-00002.parquet", data)
        with pytest.raises(DataError, match=r"has 1 of the 2 files train-\*: fetch the others"):
            open_source(Parquet(f"{s3_bucket.url}/data"))
        s3_bucket.put("data/test-00000-of-00001.parquet", data)
        with pytest.raises(ConfigError, match=r"pass the files of one, as 's3://.*/data/test-\*\.parquet', "):
            open_source(Parquet(f"{s3_bucket.url}/data/"))
        assert len(open_source(Parquet(f"{s3_bucket.url}/data/test-*.parquet"))) == 10


class TestPaths:
    """Cells that name objects."""

    @pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet", "struct"])
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
            cells = [{"path": name} if kind == "struct" else name for name in names]
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
