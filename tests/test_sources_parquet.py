"""Parquet with images in it: every value as pyarrow reads it, by itself where that can be, else by row groups."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import subprocess
import sys
import threading
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from images import encode, picture

import gpupipe
from gpupipe import Array, Bytes, ConfigError, DataError, Image, Key, Parquet, SampleError, Scalar, Text
from gpupipe.batch import MISSING, Coming
from gpupipe.order import BlockShuffled
from gpupipe.sources import check_source, open_source
from gpupipe.sources.tables import parquet
from gpupipe.sources.tables.row_groups import LocalFooter, RowGroup, chunks_of

FILE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
rng = np.random.default_rng(0)
NOISE = [rng.bytes(size) for size in (0, 1, 700, 65_535, 65_536, 65_537, 200_000, 9, 130_000, 40)]


def written(place: Path, columns: dict[str, Any], name: str = "data.parquet", **options: Any) -> Path:
    pq.write_table(pa.table(columns), place / name, **options)
    return place / name


def files(values: list[bytes | None], paths: list[str | None] | None = None) -> pa.Array:
    return pa.array([{"bytes": one, "path": None if paths is None else paths[i]} for i, one in enumerate(values)], FILE)


def places(path: Path, name: str) -> list[Any]:
    """Of each row group, the values that were found to lie by themselves; None where that can't be."""
    footer = LocalFooter.of(path)
    found = []
    for number in range(footer.metadata.num_row_groups):
        where = RowGroup(footer, number).places(name)
        if where is None:
            found.append(None)
            continue
        read: list[bytes | None] = []
        with path.open("rb") as file:
            for row, size in enumerate(where.sizes.tolist()):
                if size < 0:
                    read.append(None)
                    continue
                begin, length, head = where.span(row)
                part = head + os.pread(file.fileno(), length, begin)
                read.append(where.value(row, np.frombuffer(part, np.uint8)).tobytes())
        found.append(read)
    return found


class TestPlaces:
    """Where values lie is found in the file's bytes, without pyarrow."""

    @pytest.mark.parametrize("version", ["1.0", "2.0"])
    @pytest.mark.parametrize("dictionary", [True, False])
    @pytest.mark.parametrize("nulls", ["none", "values", "structs", "not nullable"])
    def test_uncompressed(self, tmp_path: Path, version: str, dictionary: bool, nulls: str) -> None:
        values: list[bytes | None] = [*NOISE, *NOISE[:5]]
        if nulls == "values":
            values[3] = values[7] = None
        cells = files(values).to_pylist()
        if nulls == "structs":
            cells[0] = cells[8] = None
        kind = pa.struct([pa.field("bytes", pa.binary(), nulls != "not nullable"), ("path", pa.string())])
        schema = pa.schema([pa.field("image", kind, nulls != "not nullable")])
        table = pa.Table.from_pylist([{"image": cell} for cell in cells], schema)
        options: dict[str, Any] = {"row_group_size": 8, "write_batch_size": 2, "data_page_size": 100_000}
        options |= {"data_page_version": version, "use_dictionary": dictionary, "compression": "none"}
        pq.write_table(table, tmp_path / "a", **options)
        expected = [cell and cell["bytes"] for cell in cells]
        assert list(itertools.chain(*places(tmp_path / "a", "image.bytes"))) == expected

    @pytest.mark.parametrize("dictionary", [True, False])
    @pytest.mark.parametrize("column", ["plain", "struct"])
    def test_snappy(self, tmp_path: Path, dictionary: bool, column: str) -> None:
        """Of noise, which it leaves as it is, with what repeats within 64 KiB and further away."""
        near = NOISE[6][:30_000]
        values: list[bytes | None] = [*NOISE, near + near[::-1] + near, NOISE[6], None, NOISE[8] + b"x" * 5_000]
        data = files(values) if column == "struct" else pa.array(values)
        path = written(tmp_path, {"image": data}, use_dictionary=dictionary, row_group_size=5)
        found = places(path, "image.bytes" if column == "struct" else "image")
        assert list(itertools.chain(*found)) == values

    @pytest.mark.parametrize("compression", ["zstd", "gzip", "brotli", "lz4"])
    def test_what_can_not_be_found(self, tmp_path: Path, compression: str) -> None:
        path = written(tmp_path, {"image": NOISE}, compression=compression)
        assert places(path, "image") == [None]
        source = open_source(path, fields={"image": Bytes()})
        assert source.column("key")[2] == "data.parquet row 2"
        assert [source[index]["image"] for index in range(10)] == NOISE

    def test_text_in_snappy_is_read_by_row_groups(self, tmp_path: Path) -> None:
        texts = [" ".join(map(str, rng.integers(0, 9999, 40_000))).encode() for _ in range(3)]
        path = written(tmp_path, {"image": texts}, use_dictionary=False)
        assert places(path, "image") == [None]
        source = open_source(path, fields={"image": Bytes()})
        assert [source[index]["image"] for index in range(3)] == texts

    @pytest.mark.parametrize("compression", ["none", "snappy"])
    def test_damage_is_named(self, tmp_path: Path, compression: str) -> None:
        """Whatever byte is another: a value, a SampleError, but no other exception and no endless loop."""
        values = [one[:300] for one in NOISE[2:]]
        path = written(tmp_path, {"image": values}, compression=compression, use_dictionary=compression == "snappy")
        whole = path.read_bytes()
        leaf = pq.read_metadata(path).row_group(0).column(0)
        begin = min(filter(None, (leaf.dictionary_page_offset, leaf.data_page_offset)))
        end, bad = begin + leaf.total_compressed_size, 0
        for at, flip in itertools.product([*range(begin, begin + 120), *range(end - 60, end)], (0xFF, 0x01)):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ flip]) + whole[at + 1 :])
            source = open_source(path, fields={"image": Bytes()})
            with suppress(SampleError):
                source.fetch(np.arange(len(values)))
                continue
            bad += 1
        assert bad > 35


class TestFiles:
    """Which files are meant."""

    def test_as_paths_patterns_and_folders(self, tmp_path: Path) -> None:
        (tmp_path / "data").mkdir()
        names = [f"data/train-0000{number}-of-00002.parquet" for number in range(2)]
        for number, name in enumerate(names):
            written(tmp_path, {"image": [b"%d" % number] * 3, "label": [number] * 3}, name)
        (tmp_path / "README.md").write_text("of a repository")
        ways: list[Any] = [
            tmp_path,
            str(tmp_path / "data"),
            tmp_path / "data/train-*.parquet",
            str(tmp_path / "data/train-0000{0..1}-of-00002.parquet"),
            [tmp_path / name for name in names],
            Parquet(tmp_path, memory=1 << 20),
        ]
        opened = [open_source(way) for way in ways]
        assert {source.fingerprint for source in opened} == {opened[0].fingerprint}
        assert opened[0].targets.tolist() == [0, 0, 0, 1, 1, 1]
        assert opened[0].key(4) == "train-00001-of-00002.parquet row 1"
        one = open_source(tmp_path / names[1])
        assert (len(one), one.fingerprint != opened[0].fingerprint) == (3, True)
        (tmp_path / names[0]).unlink()
        with pytest.raises(DataError, match=r"has 1 of the 2 files train-\*: fetch the others"):
            open_source(tmp_path)
        written(tmp_path, {"image": [b"1"], "label": [1]}, "data/test-00000-of-00001.parquet")
        with pytest.raises(ConfigError, match=rf"one split: pass .* as '{tmp_path}/data/test-\*\.parquet', "):
            open_source(tmp_path)

    def test_that_are_none(self, tmp_path: Path) -> None:
        path = written(tmp_path, {"image": NOISE, "label": range(10)})
        whole = path.read_bytes()
        path.write_bytes(whole[:-100])
        with pytest.raises(DataError, match=r"data\.parquet can't be read as Parquet, perhaps it is cut"):
            open_source(path)
        path.write_bytes(b"")
        with pytest.raises(DataError, match="can't be read as Parquet"):
            open_source(path)
        with pytest.raises(DataError, match=r"no shard at .*other\.parquet"):
            open_source(tmp_path / "other.parquet")
        with pytest.raises(DataError, match="no rows"):
            open_source(written(tmp_path, {"image": pa.array([], pa.binary()), "label": pa.array([], pa.int64())}))

    def test_of_other_columns(self, tmp_path: Path) -> None:
        written(tmp_path, {"image": [b"1"], "label": [1]}, "a.parquet")
        written(tmp_path, {"image": [b"1"], "label": ["one"]}, "b.parquet")
        with pytest.raises(DataError, match=r"column 'label' is int64 in .*a\.parquet, but string in .*b\.parquet"):
            open_source(tmp_path)
        assert len(open_source(tmp_path, fields={"image": Image()})) == 2
        written(tmp_path, {"image": [b"1"]}, "b.parquet")
        with pytest.raises(DataError, match=r"'label' is int64 in .*a\.parquet, but not there in .*b\.parquet"):
            open_source(tmp_path)
        with pytest.raises(ConfigError, match=r"'label'.* not there: .*has the columns image \(binary\)"):
            open_source(tmp_path / "b.parquet")

    def test_that_name_classes_differently(self, tmp_path: Path) -> None:
        """One label would mean two things. A file may name none."""
        for name, names in (("a", ["tabby", "pug"]), ("b", None), ("c", ["tabby", "pug"]), ("d", ["tabby"])):
            table = pa.table({"image": [b"1"], "label": [0]})
            feature = {"_type": "ClassLabel", "names": names}
            noted = {"huggingface": json.dumps({"info": {"features": {"label": feature}}})}
            pq.write_table(table.replace_schema_metadata(noted if names else None), tmp_path / f"{name}.parquet")
        alike = open_source([tmp_path / f"{name}.parquet" for name in "abc"])
        assert (alike.classes, len(alike)) == (["tabby", "pug"], 3)
        message = (
            r"the column 'label' has 2 names of classes in .*/a\.parquet and 1 in .*/d\.parquet, which differ at 'pug' "
            "and None: one label would mean two things"
        )
        with pytest.raises(DataError, match=message):
            open_source(tmp_path)
        with pytest.raises(DataError, match=r"in .*/a\.parquet and 1 in .*/d\.parquet"):
            open_source([tmp_path / f"{name}.parquet" for name in "bad"])
        assert len(open_source(tmp_path, fields={"image": Image()})) == 4

    def test_settings(self) -> None:
        with pytest.raises(ConfigError, match="Parquet: memory=0 must be an int of 1 or more"):
            Parquet("a.parquet", memory=0)
        for classes in ("cat", [], [1], ["a", "b", "a"]):
            with pytest.raises(ConfigError, match="Parquet: classes"):
                Parquet("a.parquet", classes=classes)  # type: ignore[arg-type]


class TestSamples:
    """What comes of the cells."""

    def test_bytes_paths_and_nothing(self, tmp_path: Path) -> None:
        """Bytes count before the path; a null struct is missing, one of two nulls is an error, with its row."""
        (tmp_path / "files").mkdir()
        (tmp_path / "files/c.jpg").write_bytes(b"of the file")
        pairs = [(b"a", "none.jpg"), None, (None, "c.jpg"), (None, None), (None, "d.jpg")]
        cells = [pair and {"bytes": pair[0], "path": pair[1]} for pair in pairs]
        path = written(tmp_path, {"image": pa.array(cells, FILE), "label": range(5)}, row_group_size=3)
        source = open_source(Parquet(path, root=tmp_path / "files"))
        columns = source.fetch(np.array([2, 0, 1]))
        assert [data.tobytes() for data in columns["image"].data[:2]] == [b"of the file", b"a"]
        assert columns["image"].data[2] is None
        for index, message in ((3, "'image'.*has neither bytes nor path"), (4, r"files/d\.jpg can't be read")):
            with pytest.raises(SampleError, match=message) as raised:
                source.fetch(np.array([0, index]))
            assert raised.value.index == index
            assert raised.value.location == f"{path} row {index} (row group 1)"
        loader = gpupipe.Loader(
            source, gpupipe.imagenet_eval(8), 1, order=gpupipe.Subset([1]), num_workers=0, device="cpu"
        )
        with pytest.raises(SampleError, match=r"has no 'image'.*the column 'image' is null there"):
            list(loader)

    def test_paths_alone(self, tmp_path: Path) -> None:
        (tmp_path / "a.jpg").write_bytes(b"a")
        only = pa.array([{"path": "a.jpg"}], pa.struct([("path", pa.string())]))
        for number, column in enumerate((only, ["a.jpg"])):
            path = written(tmp_path, {"image": column, "label": [1]}, f"{number}.parquet")
            assert open_source(path)[0][0].tobytes() == b"a"

    @pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
    def test_paths_and_bytes_in_a_dictionary(self, tmp_path: Path, compression: str) -> None:
        """As pandas writes a Categorical."""
        for name in "ab":
            (tmp_path / name).write_bytes(name.encode())
        numbers = pa.array([0, 1, None, 0])
        columns = {
            "path": pa.DictionaryArray.from_arrays(numbers, ["a", "b"]),
            "data": pa.DictionaryArray.from_arrays(numbers, [b"a", b"b"]),
            "inner": pa.StructArray.from_arrays([pa.DictionaryArray.from_arrays(numbers, ["a", "b"])], ["path"]),
            "view": pa.array(["a", "b", None, "a"], pa.string_view()),
        }
        path = written(tmp_path, columns, compression=compression)
        for name in columns:
            source = open_source(path, fields={"image": Image(name)})
            assert [data.tobytes() for data in source.fetch(np.array([3, 1, 0]))["image"].data] == [b"a", b"b", b"a"]
            if name != "inner":
                assert source.fetch(np.array([2, 0]))["image"].data[0] is None

    def test_null_labels(self, tmp_path: Path) -> None:
        source = open_source(written(tmp_path, {"image": [b"1"] * 3, "label": pa.array([1, None, 3])}))
        assert source.fetch(np.arange(3))["label"] == [1, MISSING, 3]
        with pytest.raises(DataError, match="labels of ParquetSource"):
            source.targets  # noqa: B018

    @pytest.mark.parametrize("known", [parquet.KNOWN, 0], ids=["known", "by row groups"])
    @pytest.mark.parametrize("kind", [pa.decimal128(38), pa.decimal256(76)], ids=str)
    def test_whole_decimals(self, tmp_path: Path, kind: Any, known: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """As int64, exactly; one that is too large for that is a bad sample."""
        monkeypatch.setattr(parquet, "KNOWN", known)
        numbers = [2**53 + 1, -(2**63), 2**63]
        fields = {"image": Image(), "id": Scalar(), "same": Scalar("id", dtype="int64")}
        columns = {"image": [b"1"] * 3, "id": pa.array(map(Decimal, numbers), kind)}
        source = open_source(written(tmp_path, columns), fields=fields)
        for made in (source.fetch(np.array([1, 0])), source.fetch(np.array([0, 1]))):
            assert made["id"].dtype == made["same"].dtype == np.int64
            assert sorted(made["id"].tolist()) == sorted(made["same"].tolist()) == sorted(numbers[:2])
        with pytest.raises(SampleError, match=r"row 2 .*'id'.*: 9223372036854775808 has no place in int64"):
            source.fetch(np.array([0, 2]))

    @pytest.mark.parametrize(
        ("labels", "kind", "whole"),
        [
            (["1", "0", "1"], pa.decimal128(38), True),
            (["1", "0", "1"], pa.decimal128(8, 2), True),
            (["1", "0.5", "1"], pa.decimal128(8, 2), False),
        ],
        ids=str,
    )
    def test_labels_that_are_decimals(self, tmp_path: Path, labels: list[str], kind: Any, whole: bool) -> None:
        columns = {"image": [b"1"] * 3, "label": pa.array(map(Decimal, labels), kind)}
        source = open_source(written(tmp_path, columns))
        assert source.fetch(np.arange(3))["label"].tolist() == list(map(float, labels))
        if whole:
            assert (source.targets.tolist(), source.targets.dtype) == ([1, 0, 1], np.int64)
            assert type(source[0][1]) is int
        else:
            with pytest.raises(DataError, match="not known"):
                _ = source.targets

    @pytest.mark.parametrize("known", [parquet.KNOWN, 0], ids=["known", "by row groups"])
    def test_fields_of_all_kinds(self, tmp_path: Path, known: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(parquet, "KNOWN", known)
        columns = {
            "image": files(NOISE, [f"{number}.jpg" for number in range(10)]),
            "other": pa.array(NOISE[::-1]),
            "text": [f"text {number}" for number in range(10)],
            "meta": [{"score": number / 4, "pairs": [[number, 1], [2, 3]]} for number in range(10)],
        }
        fields = {"image": Image(), "raw": Bytes("other"), "text": Text(), "name": Text("image.path"), "key": Key()}
        fields |= {"score": Scalar("meta.score"), "pairs": Array("meta.pairs")}
        source = open_source(written(tmp_path, columns, row_group_size=4), fields=fields)
        check_source(source)
        for index in range(10):
            sample = source[index]
            assert (sample["image"].tobytes(), sample["raw"]) == (NOISE[index], NOISE[9 - index])
            assert (sample["text"], sample["name"]) == (f"text {index}", f"{index}.jpg")
            assert (sample["score"], sample["key"]) == (index / 4, f"data.parquet row {index}")
            assert np.asarray(sample["pairs"]).tolist() == [[index, 1], [2, 3]]
        if known:
            assert source.column("text") == columns["text"]
            assert source.column("score").tolist() == [number / 4 for number in range(10)]
        with pytest.raises(DataError, match="'image' of all samples"):
            source.column("image")

    @pytest.mark.parametrize("packed", [False, True], ids=["plain", "dictionary"])
    def test_texts_that_are_not_utf8(self, tmp_path: Path, packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        """The file is refused; where the column is read by row groups, the sample is."""
        texts = pa.array([b"a", b"\xbc", b"c"]).view(pa.string())
        columns = {"image": NOISE[:3], "text": texts.dictionary_encode() if packed else texts}
        path, fields = written(tmp_path, columns), {"image": Image(), "text": Text()}
        with pytest.raises(DataError, match=r"data.parquet is damaged, or its texts are not UTF-8.*index 1"):
            open_source(path, fields=fields)
        monkeypatch.setattr(parquet, "KNOWN", 0)
        source = open_source(path, fields=fields)
        assert [source[index]["text"] for index in (0, 2)] == ["a", "c"]
        with pytest.raises(SampleError, match=r"sample 1 .*data.parquet row 1 .*'text'.*UTF8"):
            source.fetch(np.array([0, 1, 2]))

    def test_footers_that_tell_of_other_columns(self, tmp_path: Path) -> None:
        one = pq.read_metadata(written(tmp_path, {"image": [b"1"]}, "one"))
        two = written(tmp_path, {"image": [b"1"], "label": [1]}, "two")
        assert [leaf.of_bytes for leaf in chunks_of("two", two.read_bytes(), pq.read_metadata(two))[0]] == [True, False]
        with pytest.raises(DataError, match=r"two: its footer is damaged .*other columns"):
            chunks_of("two", two.read_bytes(), one)

    def test_classes(self, tmp_path: Path) -> None:
        """By names in the column, sorted, or as Hugging Face's datasets note them."""
        named = open_source(written(tmp_path, {"image": [b"1"] * 3, "label": ["bee", "ant", "bee"]}))
        assert (named.classes, named.targets.tolist()) == (["ant", "bee"], [1, 0, 1])
        datasets = pytest.importorskip("datasets")
        features = datasets.Features(image=datasets.Image(), label=datasets.ClassLabel(names=["x", "y"]))
        rows = [{"image": {"bytes": encode(picture(20, 20, n)), "path": None}, "label": n % 2} for n in range(4)]
        datasets.Dataset.from_list(rows, features=features).to_parquet(tmp_path / "hf.parquet")
        source = open_source(tmp_path / "hf.parquet")
        assert (source.classes, source.targets.tolist()) == (["x", "y"], [0, 1, 0, 1])
        assert [source[n][0].tobytes() for n in range(4)] == [row["image"]["bytes"] for row in rows]

    def test_classes_may_be_given(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        """So that a split which lacks some has the numbers of another."""
        path = written(tmp_path, {"image": [b"1"] * 2, "label": ["dog", "elk"]}, "val.parquet")
        with caplog.at_level("INFO", "gpupipe"):
            alone = open_source(path)
        assert f"{path}: 2 classes of 'label': 'dog' is 0, 'elk' is 1" in caplog.text
        assert alone.targets.tolist() == [0, 1]
        source = open_source(Parquet(path, classes=["cat", "dog", "elk"]))
        for one in (source, pickle.loads(pickle.dumps(source))):
            assert one.classes == ["cat", "dog", "elk"]
            assert one.class_to_idx == {"cat": 0, "dog": 1, "elk": 2}
            assert one.targets.tolist() == one.fetch(np.arange(2))["label"].tolist() == [1, 2]
            assert one.fingerprint == source.fingerprint != alone.fingerprint
        with pytest.raises(DataError, match=r"val\.parquet: \['elk'\] are not among the 2 names of classes="):
            open_source(Parquet(path, classes=["cat", "dog"]))
        numbers = written(tmp_path, {"image": [b"1"] * 2, "label": [0, 1]})
        with pytest.raises(ConfigError, match=r"classes= numbers the names .* 'label', which has none"):
            open_source(Parquet(numbers, classes=["cat", "dog"]))

    def test_classes_that_are_noted_already(self, tmp_path: Path) -> None:
        table = pa.table({"image": [b"1"], "label": [1]})
        features = {"label": {"_type": "ClassLabel", "names": ["cat", "dog"]}}
        noted = {"huggingface": json.dumps({"info": {"features": features}})}
        pq.write_table(table.replace_schema_metadata(noted), tmp_path / "a.parquet")
        source = open_source(Parquet(tmp_path / "a.parquet", classes=("cat", "dog")))
        assert (source.classes, source.targets.tolist()) == (["cat", "dog"], [1])
        with pytest.raises(ConfigError, match=r"differ from classes= at 'cat' and 'dog': one label would mean two"):
            open_source(Parquet(tmp_path / "a.parquet", classes=["dog", "cat"]))

    @pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
    def test_a_file_that_is_changed(self, tmp_path: Path, compression: str) -> None:
        path = written(tmp_path, {"image": NOISE, "label": range(10)}, compression=compression, row_group_size=5)
        source = open_source(path)
        source.fetch(np.array([0]))
        whole = path.read_bytes()
        path.write_bytes(whole[:8] + b"\0" + whole[9:])
        os.utime(path, ns=(0, 0))
        with pytest.raises(SampleError, match=r"data\.parquet row 7 .*written to, or touched"):
            source.fetch(np.array([7]))
        path.write_bytes(whole[:8] + bytes(len(whole) - 8))  # in which no page can be parsed
        with pytest.raises(SampleError, match="written to, or touched, since it was opened"):
            source.fetch(np.array([7]))


class TestRowGroups:
    """What a process keeps."""

    def counted(self, path: Path, monkeypatch: pytest.MonkeyPatch, memory: int) -> tuple[Any, list[int]]:
        read: list[int] = []
        column = RowGroup.column
        monkeypatch.setattr(RowGroup, "column", lambda self, name: read.append(self.number) or column(self, name))
        return open_source(Parquet(path, memory=memory)), read

    def written(self, place: Path) -> Path:
        """Ten groups of four rows of 10,000 bytes."""
        return written(
            place,
            {"image": [rng.bytes(10_000) for _ in range(40)], "label": range(40)},
            compression="zstd",
            row_group_size=4,
        )

    def test_within_its_memory(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The one used least recently goes, but of those that are needed that which is needed last."""
        source, read = self.counted(self.written(tmp_path), monkeypatch, 130_000)
        for index in (0, 4, 8, 1, 12, 5):
            source.fetch(np.array([index]))
        assert read == [0, 1, 2, 3, 1]
        assert sum(column.nbytes for column in source._groups._kept.values()) <= 130_000
        read.clear()
        source.ahead(Coming(np.array([12, 0, 4])))  # 3, 0 and 1 are kept; of these 3 is needed last
        source.fetch(np.array([20, 0, 4]))
        assert read == [5]

    def test_each_is_read_once_an_epoch(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """By an order of blocks, of whose window there is room."""
        source, read = self.counted(self.written(tmp_path), monkeypatch, 5 * 41_000)
        order = BlockShuffled.of_shards(source, window=2)
        assert source.samples_per_shard.tolist() == [4] * 10
        seen: list[int] = []
        for first in range(0, 40, 5):
            indices = order.indices(1, 0, np.arange(first, first + 5))
            coming = order.indices(1, 0, np.arange(first + 5, min(first + 10, 40)))
            if not first:
                source.ahead(Coming(indices))
            source.ahead(Coming(coming, turns=1))
            seen += source.fetch(indices)["label"].tolist()
        assert sorted(seen) == list(range(40))
        assert sorted(read) == list(range(10))

    def test_several_threads_and_a_fork(self, tmp_path: Path) -> None:
        path = self.written(tmp_path)
        source = open_source(Parquet(path, memory=50_000))
        expected = [source[index][0].tobytes() for index in range(40)]
        wrong: list[int] = []

        def read(seed: int) -> None:
            for index in np.random.default_rng(seed).permutation(40).tolist():
                if source[index][0].tobytes() != expected[index]:
                    wrong.append(index)

        threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        with source._groups._lock:  # as if another thread read a group while this one forks
            child = os.fork()
            if child == 0:
                read(9)
                os._exit(len(wrong))
        assert os.waitpid(child, 0)[1] == 0
        for thread in threads:
            thread.join()
        assert not wrong

    def test_large_ones_are_named(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        path = self.written(tmp_path)
        source = open_source(Parquet(path, memory=200_000))
        ((what, remedy),) = source.remarks()
        assert f"{what}: {remedy}" in caplog.text
        assert "10 of 10 row groups" in what
        assert "compressed by ZSTD" in what
        assert "gpupipe pack" in remedy
        assert open_source(path).remarks() == []
        plain = written(tmp_path, {"image": NOISE, "label": range(10)}, "plain.parquet", compression="none")
        assert open_source(Parquet(plain, memory=1)).remarks() == []

    def test_claims_beyond_the_memory(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("gpupipe.sources.tables.row_groups.memory_limit", lambda: 1000)
        source = open_source(Parquet(self.written(tmp_path), memory=1 << 20))
        with pytest.raises(SampleError, match=r"row group claims 40,.* bytes, and the machine has 1,000"):
            source.fetch(np.array([0]))


@pytest.mark.parametrize(("total", "warned"), [(2, False), (3, True)])
def test_a_pattern_that_lacks_files(tmp_path: Path, caplog: pytest.LogCaptureFixture, total: int, warned: bool) -> None:
    for number in range(2):
        written(tmp_path, {"image": [b"x"], "label": [0]}, f"train-{number:05d}-of-{total:05d}.parquet")
    assert len(open_source(str(tmp_path / "train-*.parquet"))) == 2
    assert (f"only 2 of its {total} files" in caplog.text) is warned


def test_pandas_is_not_imported(tmp_path: Path) -> None:
    """Which takes 0.3 s in each process, where it is installed."""
    columns = {"image": NOISE, "label": range(10), "flags": [[True, False]] * 10}
    path = written(tmp_path, columns)
    code = f"""
import sys, gpupipe
fields = {{"image": gpupipe.Image(), "label": gpupipe.Scalar(), "flags": gpupipe.Array()}}
source = gpupipe.open_source({str(path)!r}, fields=fields)
assert source[3]["flags"].tolist() == [True, False]
assert source.targets.tolist() == list(range(10))
assert "pandas" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
