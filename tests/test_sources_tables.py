"""Manifests: tables of paths in CSV, and JSON lines, against what Python's own readers find in them."""

from __future__ import annotations

import csv
import json
import os
import pickle
import re
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterable
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch
from images import encode, picture
from tars import jpeg

import gpupipe
from gpupipe import Array, Boxes, Bytes, Image, Index, Key, Manifest, Mask, Points, Scalar, Text
from gpupipe.batch import MISSING
from gpupipe.errors import ConfigError, DataError, SampleError
from gpupipe.sources import check_source, open_source
from gpupipe.sources.tables import columns

PATH = {"image": Image("path")}
LABELLED = PATH | {"label": Scalar()}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six images and masks."""
    root = tmp_path_factory.mktemp("files")
    for number in range(6):
        (root / f"{number}.jpg").write_bytes(jpeg(number, 40 + number, 60))
        (root / f"{number}.png").write_bytes(encode(np.full((40 + number, 60), number, np.uint8), "PNG", "L"))
    return root


@pytest.fixture
def root(files: Path, tmp_path: Path) -> Path:
    """The same, where a test may write."""
    return Path(shutil.copytree(files, tmp_path / "root"))


def write_csv(path: Path, rows: Iterable[Iterable[Any]], **options: Any) -> Path:
    with open(path, "w", newline="") as file:
        csv.writer(file, **options).writerows(rows)
    return path


def write_json(path: Path, rows: Iterable[Any]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def everything(source: gpupipe.Source) -> dict[str, Any]:
    return source.fetch(np.arange(len(source)))


RECORDS = [
    {
        "path": f"{number}.jpg",
        "mask": f"{number}.png",
        "score": number / 4,
        "count": number,
        "good": number % 2 == 0,
        "caption": f'picture {number}, "ü"\nof two lines',
        "embedding": [number * 1.5, -1.0, 2.0],
        "target": {"boxes": [[1, 2, 3 + row, 4.5] for row in range(number % 3)], "classes": list(range(number % 3))},
        "objects": [{"at": [row, number], "kind": "ab"[row % 2]} for row in range(number % 4)],
        "when": "2026-01-02",
        "code": f"00{number}",
    }
    for number in range(6)
]
FIELDS = {
    "image": Image("path"),
    "mask": Mask("mask"),
    "png": Bytes("mask"),
    "score": Scalar(),
    "count": Scalar("count"),
    "good": Scalar(),
    "caption": Text(),
    "embedding": Array(),
    "boxes": Boxes("target.boxes", labels="classes"),
    "classes": Array("target.classes"),
    "points": Points("objects.at"),
    "kinds": Array("objects.kind"),
    "when": Text(),
    "code": Text(),
    "key": Key(),
    "index": Index(),
}


def test_fields_of_every_kind_out_of_json(root: Path) -> None:
    source = open_source(write_json(root / "data.jsonl", RECORDS), fields=FIELDS)
    check_source(source)
    made = everything(source)
    for number, record in enumerate(RECORDS):
        assert made["image"].data[number].tobytes() == (root / record["path"]).read_bytes()
        assert made["mask"][number].tobytes() == made["png"][number] == (root / record["mask"]).read_bytes()
        for name in ("score", "count", "good", "caption", "when", "code"):
            assert made[name][number] == record[name]
        np.testing.assert_array_equal(made["embedding"][number], record["embedding"])
        np.testing.assert_array_equal(made["boxes"][number], np.reshape(record["target"]["boxes"], (-1, 4)))
        np.testing.assert_array_equal(made["classes"][number], record["target"]["classes"])
        np.testing.assert_array_equal(made["points"][number], np.reshape([o["at"] for o in record["objects"]], (-1, 2)))
        np.testing.assert_array_equal(made["kinds"][number], ["ab".index(one["kind"]) for one in record["objects"]])
    assert made["count"].dtype == np.int64
    assert made["good"].dtype == bool
    assert made["key"] == [record["path"] for record in RECORDS]
    assert made["index"].tolist() == list(range(6))


def test_known_columns_need_no_image(root: Path) -> None:
    source = open_source(write_json(root / "data.jsonl", RECORDS), fields=FIELDS)
    shutil.rmtree(root)
    assert source.column("score").tolist() == [record["score"] for record in RECORDS]
    assert source.column("caption") == [record["caption"] for record in RECORDS]
    assert source.column("key") == [record["path"] for record in RECORDS]
    for name in ("image", "mask", "png"):
        with pytest.raises(DataError, match=f"'{name}' of all samples .* known only by reading"):
            source.column(name)


def test_texts_of_csv_are_as_they_stand(root: Path) -> None:
    texts = ["NA", "null", "2026-01-02", "007", 'with "quotes", commas', "two\nlines"]
    rows = [("path", "text", "number"), *((f"{n}.jpg", text, n / 2) for n, text in enumerate(texts))]
    fields = PATH | {"text": Text(), "number": Scalar()}
    for name, options in {"a.csv": {}, "a.tsv": {"delimiter": "\t"}}.items():
        source = open_source(write_csv(root / name, rows, **options), fields=fields)
        assert everything(source)["text"] == texts
        assert source.column("number").tolist() == [0, 0.5, 1, 1.5, 2, 2.5]
        assert source[3]["image"].tobytes() == (root / "3.jpg").read_bytes()


def test_a_list_without_names_in_its_first_line(root: Path) -> None:
    (root / "train.txt").write_text("0.jpg 4\n1.jpg 2\n", "utf-8")
    source = open_source(Manifest(root / "train.txt", delimiter=" ", columns=["image", "label"]))
    assert source.targets.tolist() == [4, 2]
    assert source[1][0].tobytes() == (root / "1.jpg").read_bytes()


def test_paths_are_below_the_root_or_absolute(root: Path, tmp_path: Path) -> None:
    lists = tmp_path / "lists"
    lists.mkdir()
    path = write_csv(lists / "a.csv", [["path"], ["1.jpg"], [root / "2.jpg"]])
    source = open_source(Manifest(path, root=root), fields=PATH)
    assert [source[row]["image"].tobytes() for row in range(2)] == [(root / f"{n}.jpg").read_bytes() for n in (1, 2)]
    with pytest.raises(
        SampleError, match=rf"a\.csv row 0 \(1\.jpg\)\): {lists}/1\.jpg can't be read: No such file.*root"
    ):
        open_source(path, fields=PATH)[0]
    with pytest.raises(DataError, match=r"no folder at /nowhere.*check root"):
        open_source(Manifest(path, root="/nowhere"), fields=PATH)


with pytest.raises(ValueError, match="embedded null") as refused:
    os.open("a\0b", os.O_RDONLY)
NULL = str(refused.value)  # versions of Python word it differently


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("gone.jpg", "gone.jpg can't be read: No such file"),
        (".", "it is a folder, not a regular file"),
        ("a\\u0000b", f"can't be read: {NULL}"),
    ],
)
def test_a_file_that_can_not_be_read_is_named(root: Path, path: str, message: str) -> None:
    (root / "a.jsonl").write_text(f'{{"path": "0.jpg"}}\n{{"path": "{path}"}}\n')
    source = open_source(root / "a.jsonl", fields=PATH)
    assert source[0]["image"].size
    with pytest.raises(SampleError, match=f"sample 1 .*{message}") as raised:
        source[1]
    assert raised.value.index == 1


@pytest.mark.parametrize("kind", ["csv", "parquet", "query"])
def test_relative_paths_that_lead_out_of_the_root(root: Path, tmp_path: Path, kind: str) -> None:
    """Are bad samples, though what they lead to is there; those that stay below it, and absolute ones, are read."""
    (root / "inner").mkdir()
    shutil.copy(root / "0.jpg", root / "inner")
    paths = ["../0.jpg", "a/../../0.jpg", "..", "../inner/0.jpg", "a/../0.jpg", "..0.jpg", f"{root}/inner/../0.jpg"]
    (root / "inner/a").mkdir()
    shutil.copy(root / "0.jpg", root / "inner/..0.jpg")
    data: Any = Manifest(write_csv(tmp_path / "a.csv", [["path"], *zip(paths)]), root=root / "inner")
    if kind == "parquet":
        pa.parquet.write_table(pa.table({"path": paths}), tmp_path / "a.parquet")
        data = gpupipe.Parquet(tmp_path / "a.parquet", root=root / "inner")
    elif kind == "query":
        with closing(sqlite3.connect(tmp_path / "a.db")) as connection, connection:
            connection.execute("CREATE TABLE rows (path TEXT)")
            connection.executemany("INSERT INTO rows VALUES (?)", list(zip(paths)))
        query = "SELECT path FROM rows ORDER BY rowid"
        data = gpupipe.Query(f"sqlite:///{tmp_path / 'a.db'}", query, root=root / "inner")
    source = open_source(data, fields=PATH)
    for row, path in enumerate(paths[:4]):
        with pytest.raises(SampleError, match=rf"'{re.escape(path)}' is no path below {root}/inner: .*on_error='skip'"):
            source[row]
    for row in range(4, len(paths)):
        assert source[row]["image"].tobytes() == (root / "0.jpg").read_bytes()


class TestClasses:
    def rows(self, labels: Iterable[Any]) -> list[Any]:
        return [("image", "label"), *((f"{n}.jpg", label) for n, label in enumerate(labels))]

    def test_names_are_numbered_as_they_are_sorted(self, root: Path, caplog: pytest.LogCaptureFixture) -> None:
        path = write_csv(root / "a.csv", self.rows(["dog", "cat", "NA", "dog"]))
        with caplog.at_level("INFO", "gpupipe"):
            source = open_source(path)
        assert "3 classes of 'label': 'NA' is 0, 'cat' is 1, 'dog' is 2" in caplog.text
        for one in (source, open_source(path), pickle.loads(pickle.dumps(source))):
            assert one.classes == ["NA", "cat", "dog"]
            assert one.class_to_idx == {"NA": 0, "cat": 1, "dog": 2}
            assert one.targets.tolist() == everything(one)["label"].tolist() == [2, 1, 0, 2]
            assert one.targets.dtype == np.int64

    def test_they_may_be_given(self, root: Path) -> None:
        path = write_csv(root / "a.csv", self.rows(["dog", "cat"]))
        source = open_source(Manifest(path, classes=["dog", "bird", "cat"]))
        assert source.targets.tolist() == [0, 2]
        assert source.classes == ["dog", "bird", "cat"]
        numbers = write_csv(root / "b.csv", self.rows([1, 0]))
        with pytest.raises(ConfigError, match=r"b\.csv: classes= numbers the names .* 'label', which has none"):
            open_source(Manifest(numbers, classes=["dog", "bird"]))
        with pytest.raises(DataError, match=r"\['cat'\] are not among the 2 names of classes="):
            open_source(Manifest(path, classes=["dog", "bird"]))

    def test_numbers_as_text_are_numbers(self, root: Path) -> None:
        path = write_json(root / "a.jsonl", [{"image": f"{n}.jpg", "label": str(10 - n)} for n in range(3)])
        source = open_source(path)
        assert source.targets.tolist() == [10, 9, 8]
        assert source.classes is None
        lists = [{"path": f"{n}.jpg", "labels": [str(n), "7"][:n]} for n in range(3)]
        source = open_source(write_json(root / "b.jsonl", lists), fields=PATH | {"labels": Array()})
        assert [array.tolist() for array in everything(source)["labels"]] == [[], [1], [2, 7]]

    def test_numbers_among_names_are_a_mistake(self, root: Path) -> None:
        path = write_csv(root / "a.csv", self.rows(["1", "0", "x1", "2"]))
        with pytest.raises(DataError, match=r"a\.csv: 'label' has numbers, such as '0', and names, such as 'x1'"):
            open_source(path)

    def test_other_labels_are_no_targets(self, root: Path) -> None:
        path = write_csv(root / "a.csv", self.rows([0.5, 1.5]))
        with pytest.raises(DataError, match=r"labels of TableSource.* are not known"):
            _ = open_source(path).targets
        assert open_source(path).column("label").tolist() == [0.5, 1.5]

    def test_parquet_is_none_here(self) -> None:
        with pytest.raises(ConfigError, match=r"is Parquet: pass gpupipe\.Parquet\('a\.parquet', root=\.\.\.\)"):
            Manifest("a.parquet")

    @pytest.mark.parametrize("classes", ["cat", [], [1], ["a", "b", "a"]])
    def test_wrong_names_are_refused(self, classes: Any) -> None:
        with pytest.raises(ConfigError, match="Manifest: classes"):
            Manifest("a.csv", classes=classes)


ROWS = [("path", "mask", "score", "text"), ("0.jpg", "0.png", 1, "a"), ("", "", "", ""), ("2.jpg", "2.png", 3, "c")]


class TestNulls:
    def test_they_are_what_the_sample_lacks(self, root: Path) -> None:
        fields = PATH | {"mask": Mask(), "score": Scalar(), "text": Text()}
        source = open_source(write_csv(root / "a.csv", ROWS), fields=fields)
        made = everything(source)
        assert made["image"].data[1] is None
        assert made["mask"][1] is made["score"][1] is made["text"][1] is MISSING
        assert (made["score"][2], made["text"][0]) == (3, "a")
        assert source.lacks(1, "score") == "the column 'score' is null there"
        check_source(source)

    @pytest.mark.parametrize(("missing", "rows"), [("skip", [1, 3]), ("default", [1, -1, 3])])
    def test_a_field_says_what_becomes_of_them(self, root: Path, missing: Any, rows: list[int]) -> None:
        default = -1 if missing == "default" else None
        fields = PATH | {"score": Scalar(missing=missing, default=default)}
        path = write_csv(root / "a.csv", [("path", "score"), ("0.jpg", 1), ("1.jpg", ""), ("2.jpg", 3)])
        options = {"engine": "torch", "num_workers": 0, "device": "cpu", "fields": fields}
        with gpupipe.Loader(path, gpupipe.imagenet_eval(16), 3, **options) as loader:
            (batch,) = loader
        assert batch["score"].tolist()[: len(rows)] == rows

    def test_else_they_are_errors_that_name_the_row(self, root: Path) -> None:
        fields = PATH | {"score": Scalar()}
        path = write_csv(root / "a.csv", [("path", "score"), ("0.jpg", 1), ("1.jpg", "")])
        options = {"engine": "torch", "num_workers": 0, "device": "cpu", "fields": fields}
        with (
            gpupipe.Loader(path, gpupipe.imagenet_eval(16), 2, **options) as loader,
            pytest.raises(SampleError, match=r"a\.csv row 1 \(1\.jpg\).*'score'.*the column 'score' is null there"),
        ):
            list(loader)

    @pytest.mark.parametrize("labels", [[0.0, None, 2.0], [True, None, False], [0.5, None, 1.0], ["b", None, "a"]])
    def test_labels_are_class_numbers(self, root: Path, labels: list[Any]) -> None:
        rows = [{"path": f"{number}.jpg", "label": label} for number, label in enumerate(labels)]
        path = write_json(root / "a.jsonl", rows)
        pa.parquet.write_table(pa.table({"path": [row["path"] for row in rows], "label": labels}), root / "a.parquet")
        names = {"b": 1, "a": 0}
        expected = [-100 if label is None else names.get(label, label) for label in labels]
        for data in (path, root / "a.parquet"):
            source = open_source(data, fields=PATH | {"label": Scalar(missing="default", default=-100)})
            assert [source[index][1] for index in range(3)] == expected
            with gpupipe.Loader(source, gpupipe.imagenet_eval(16), 3, engine="torch", num_workers=0) as loader:
                ((_, batch),) = loader
            assert batch.tolist() == expected
            assert batch.dtype == (torch.float64 if 0.5 in labels else torch.int64)
            if 0.5 in labels:
                with pytest.raises(DataError, match="not known"):
                    _ = source.targets
            else:
                assert (source.targets.tolist(), source.targets.dtype) == (expected, np.int64)
        as_floats = open_source(path, fields=PATH | {"label": Scalar(dtype="float32", missing="skip")})
        if labels[0] == 0.0:
            assert isinstance(as_floats[0][1], float)

    def test_all_of_a_column(self, root: Path) -> None:
        source = open_source(
            write_csv(root / "a.csv", [("path", "score"), ("0.jpg", "")]), fields=PATH | {"score": Scalar()}
        )
        assert everything(source)["score"] == [MISSING]


def text(path: Path, content: bytes | str) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


WRONG: dict[str, tuple[Callable[[Path], Path], type[Exception], str]] = {
    "no file": (lambda root: root / "gone.csv", DataError, "gone.csv can't be read: No such file.*check the path"),
    "too many": (lambda root: text(root / "a.csv", "path,b\n0.jpg,1\n1.jpg,2,3\n"), DataError,
                 r"a\.csv line 3 has 3 columns where the first has 2: '1\.jpg,2,3'"),
    "too few": (lambda root: text(root / "a.csv", "path,b\n0.jpg\n"), DataError, "line 2 has 1 columns"),
    "no UTF-8": (lambda root: text(root / "a.csv", "path\n0.jpg\nü.jpg\n".encode("latin-1")), DataError,
                 r"a\.csv line 3 \(b'\\xfc\.jpg.*is not UTF-8, and can't be read as CSV: .*encoding='latin-1'"),
    "no UTF-8 among names of classes": (
        lambda root: text(root / "a.csv", "path,label\n0.jpg,a\n1.jpg,café\n".encode("latin-1")), DataError,
        r"a\.csv line 3 \(b'1\.jpg.*is not UTF-8.*gpupipe\.Manifest\(.*a\.csv', encoding='latin-1'\)"),
    "an open quote": (lambda root: text(root / "a.csv", 'path,b\n0.jpg,"x\ny"\n1.jpg,"z\n2.jpg,c\n'), DataError,
                      r"^/\S*a\.csv line 4: a quote that is opened there is not closed; .*twice"),
    "two open quotes": (lambda root: text(root / "a.csv", 'path,b\n0.jpg,"x\n1.jpg,y\n2.jpg,"z\n3.jpg,d\n'), DataError,
                        r"a\.csv line 2: a quote that is opened there is not closed"),
    "no names in the first line": (
        lambda root: text(root / "a.csv", "0.jpg,cat\n1.jpg,dog\n"), ConfigError,
        r"look like a sample, .*gpupipe\.Manifest\(.*a\.csv', columns=\['column_0', 'column_1'\]"),
    "numbers in the first line": (lambda root: text(root / "a.csv", "x.jpg,0\n1.jpg,1\n"), ConfigError, "columns=\\["),
    "beyond 64 bits": (lambda root: text(root / "a.csv", f"path,label\n0.jpg,1\n1.jpg,{2**63}\n"), DataError,
                       r"a\.csv line 3: '9223372036854775808' in the column 'label' has no place in int64"),
    "beyond 64 bits in JSON": (
        lambda root: write_json(root / "a.jsonl", [{"path": "0.jpg", "label": 1}, {"path": "1.jpg", "label": 10**400}]),
        DataError, r"a\.jsonl line 2: '1000.*000' in the column 'label' has no place in int64"),
    "beyond 64 bits in a list": (
        lambda root: write_json(root / "a.jsonl", [{"path": "a", "label": [1.5]}, {"path": "a", "label": [-(2**64)]}]),
        DataError, r"a\.jsonl line 2: '-18446744073709551616' in the column 'label\.\[\]' has no place in int64"),
    "a pattern": (lambda root: root / "*.csv", DataError, "a table is one file, not a pattern"),
    "a key twice": (lambda root: text(root / "a.jsonl", '{"path": "0.jpg"}\n{"path": "a", "path": "b"}\n'), DataError,
                    r"a\.jsonl line 2: the key 'path' is there twice"),
    "types in a key of objects": (
        lambda root: write_json(root / "a.jsonl", [{"path": "a", "o": [{"n": 1}, {"n": 2.5}]}, {"o": [{"n": "x"}]}]),
        DataError, r"line 2: 'o\.\[\]\.n' is text \('x'\), but a number in line 1; write one type"),
    "empty": (lambda root: text(root / "a.csv", ""), DataError, "can't be read as CSV: Empty CSV file"),
    "no rows": (lambda root: text(root / "a.csv", "path\n"), DataError, r"a\.csv has no rows"),
    "no such column": (lambda root: text(root / "a.csv", "file,n\n0.jpg,1\n"), ConfigError,
                       r"'image' is to be in the column 'path', which is not there: .*a\.csv has the columns file "
                       r"\(string\), n \(int64\).* fields=\{'image': gpupipe\.Image\('file'\)\}"),
    "twice": (lambda root: text(root / "a.csv", "path,path\na,b\n"), ConfigError, "has 2 columns 'path'"),
    "no path": (lambda root: write_json(root / "a.jsonl", [{"path": {"a": 1}}]), ConfigError,
                "made of the column 'path', struct<a"),
    "no JSON": (lambda root: text(root / "a.jsonl", '{"path": "a"}\n\n{"path": \n'), DataError,
                r"a\.jsonl line 3 \(b'\{\"path\": \\n'\) can't be read as JSON lines"),
    "nested lists": (lambda root: text(root / "a.jsonl", f'{{"path": "a"}}\n{{"path": {"[" * 2000}{"]" * 2000}}}'),
                     DataError, r"a\.jsonl line 2 can't be read: its JSON is nested more than 1000 deep"),
    "nested without an end": (lambda root: text(root / "a.jsonl", '{"a":' * 200_000), DataError, "line 1 .* nested"),
    "JSON of another type": (lambda root: write_json(root / "a.jsonl", [{"path": "a"}, {"path": 1}]), DataError,
                             r"line 2: 'path' is a number \('1'\), but text in line 1; .*can't be read as JSON lines"),
    "a folder in a Manifest": (lambda root: root, DataError, "can't be read: it is a folder"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named(root: Path, name: str) -> None:
    write, kind, message = WRONG[name]
    with pytest.raises(kind, match=message):
        open_source(Manifest(write(root)), fields=LABELLED if "label" in message or "names" in name else PATH)


@pytest.mark.parametrize(
    ("line", "warned"),
    [('"a\nb, or c\n"', False), ('"a\n1.jpg,b\n2.jpg,c\nd"', True), ('5" nail', False), (f'"{"a" * 200_000}"', False)],
)
def test_quotes_that_are_closed(root: Path, line: str, warned: bool, caplog: pytest.LogCaptureFixture) -> None:
    path = text(root / "a.csv", f'path,text\n0.jpg,{line}\n"1.jpg",x\n')
    with path.open(newline="") as file:
        limit = csv.field_size_limit(1 << 20)
        expected = [row["text"] for row in csv.DictReader(file)]
        csv.field_size_limit(limit)
    assert open_source(path, fields=PATH | {"text": Text()}).column("text") == expected
    assert ("a.csv line 2: the lines up to 5 are one cell" in caplog.text) is warned


def test_many_brackets_are_not_deep(root: Path) -> None:
    rows = [{"path": "0.jpg", "text": '"[' * 2000 + "\\", "boxes": [[0, 0, 1, n] for n in range(2000)]}]
    fields = PATH | {"text": Text(), "boxes": Boxes()}
    source = open_source(write_json(root / "a.jsonl", rows), fields=fields)
    assert (source[0]["text"], source[0]["boxes"].tolist()) == (rows[0]["text"], rows[0]["boxes"])


def test_another_encoding(root: Path) -> None:
    (root / "ü.jpg").write_bytes(jpeg(0))
    path = text(root / "a.csv", "path\nü.jpg\n".encode("latin-1"))
    assert open_source(Manifest(path, encoding="latin-1"), fields=PATH)[0]["image"].tobytes() == jpeg(0)
    with pytest.raises(DataError, match=r"can't be read as CSV: .*klingon"):
        open_source(Manifest(path, encoding="klingon"), fields=PATH)
    marked = text(root / "b.csv", "\ufeffpath\nü.jpg\n")
    assert len(open_source(marked, fields=PATH)) == 1


@pytest.mark.parametrize(
    ("field", "column", "message"),
    [
        (Image(), "score", "'x' is Image, which can't be made of the column 'score', double: it must be the bytes"),
        (Text(), "score", "'x' is Text"),
        (Boxes(), "score", "'x' is Boxes, .* it must be lists of numbers"),
        (Scalar(), "embedding", "'x' is Scalar, .* it must be numbers, or names"),
        (Array(), "target", "'x' is Array, .*struct<boxes"),
        (
            Array(),
            "caption",
            "'x' is Array, .*'caption', string: .*'\\[1, 2\\]' is not parsed: write lists, in JSON lines",
        ),
        (Scalar(), "target.area", "'x' is to be in the column 'target.area', which is not there"),
    ],
)
def test_types_that_do_not_fit(root: Path, field: gpupipe.Field, column: str, message: str) -> None:
    path = write_json(root / "a.jsonl", RECORDS)
    fields = PATH | {"x": type(field)(column)}
    with pytest.raises(ConfigError, match=message):
        open_source(path, fields=fields)
    for wrong in (Scalar(0), Mask(folder="masks", suffix=".png")):
        with pytest.raises(ConfigError, match="columns are found by their names"):
            open_source(path, fields=PATH | {"x": wrong})


class TestKept:
    """What was read once is opened quickly after that."""

    def test_it_is_read_again_when_it_was_changed(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = write_csv(root / "a.csv", [("image", "label"), ("0.jpg", 1)])
        first = open_source(path)
        read, calls = pa.csv.read_csv, []
        monkeypatch.setattr(pa.csv, "read_csv", lambda *args: calls.append(1) or read(*args))
        again = open_source(path)
        assert (again.fingerprint, again.targets.tolist(), calls) == (first.fingerprint, [1], [])
        write_csv(path, [("image", "label"), ("0.jpg", 1), ("1.jpg", 2)])
        other = open_source(path)
        assert (other.targets.tolist(), calls) == ([1, 2], [1])
        assert other.fingerprint != first.fingerprint
        assert open_source(path, rebuild=True).fingerprint == other.fingerprint
        assert calls == [1, 1]
        assert first.targets.tolist() == [1]
        with pytest.raises(DataError, match=r"describes other content.*make the loader again"):
            pickle.loads(pickle.dumps(first))

    def test_the_fingerprint_is_of_the_content(self, root: Path, tmp_path: Path) -> None:
        rows = [("image", "label", "more"), ("0.jpg", "cat", 1), ("1.jpg", "dog", 2)]
        first = open_source(write_csv(root / "a.csv", rows))
        copy = Path(shutil.copytree(root, tmp_path / "copy"))
        assert open_source(copy / "a.csv").fingerprint == first.fingerprint
        assert open_source(Manifest(root / "a.csv", root=copy)).fingerprint == first.fingerprint
        assert open_source(write_csv(copy / "a.csv", [row[:2] for row in rows])).fingerprint == first.fingerprint
        changed = [
            [("image", "label"), ("0.jpg", "cat"), ("2.jpg", "dog")],
            [("image", "label"), ("0.jpg", "cat"), ("1.jpg", "cat")],
        ]
        for other in changed:
            assert open_source(write_csv(copy / "a.csv", other)).fingerprint != first.fingerprint
        renamed = Manifest(root / "a.csv", classes=["dog", "cat"])
        assert open_source(renamed).fingerprint != first.fingerprint

    def test_the_keys_of_objects_are_content(self, root: Path) -> None:
        path = write_json(root / "a.jsonl", [{"path": "0.jpg", "at": {"a": 1, "b": 2}}])
        found = {open_source(path, fields=PATH | {"x": Scalar(f"at.{key}")}).fingerprint for key in "ab"}
        assert len(found) == 2

    def test_one_path_in_several_rows(self, root: Path) -> None:
        path = write_csv(root / "a.csv", [("path", "text"), ("0.jpg", "a"), ("0.jpg", "b")])
        source = open_source(path, fields=PATH | {"text": Text()})
        assert source.column("key") == ["0", "1"]
        assert source.location(1) == f"{path} row 1"
        check_source(source)


NULL = None
SIZES = [[1, 2], [], NULL, [3]]
COLUMNS = {
    "int32": (Scalar(), pa.array([1, -2, 3, 4], pa.int32())),
    "uint64": (Scalar(), pa.array([1, 2, 2**63 - 1, 0], pa.uint64())),
    "with null": (Scalar(), pa.array([1, NULL, 3, 4], pa.int8())),
    "float16": (Scalar(), pa.array(np.array([1, 0.5, 2, -3], np.float16))),
    "decimal": (Scalar(), pa.array([1, 2, NULL, 4], pa.decimal128(8, 2))),
    "decimal without fractions": (Scalar(), pa.array([2**53 + 1, -(2**63), NULL, 4], pa.decimal128(38))),
    "decimal of tens": (
        Scalar(),
        pa.array([Decimal(10), Decimal(-20), NULL, Decimal(10 * (2**58 + 1))], pa.decimal128(20, -1)),
    ),
    "bool": (Scalar(), pa.array([True, False, NULL, True])),
    "texts": (Text(), pa.array(["a", NULL, "ü", ""])),
    "view of texts": (Text(), pa.array(["a", NULL, "ü", ""], pa.string_view())),
    "categories": (Text(), pa.array(["a", NULL, "ü", "a"]).dictionary_encode()),
    "lists": (Array(), pa.array(SIZES)),
    "large lists": (Array(), pa.array(SIZES, pa.large_list(pa.float32()))),
    "vectors": (Array(), pa.array([[1, 2], [3, 4], NULL, [5, 6]], pa.list_(pa.float64(), 2))),
    "matrices": (Array(), pa.array([[[1, 2], [3, 4]], NULL, [[5, 6]], []])),
    "boxes": (Boxes(), pa.array([[[1, 2, 3, 4]], [], NULL, [[5, 6, 7, 8]] * 2], pa.list_(pa.list_(pa.float32(), 4)))),
    "binary": (Bytes(), pa.array([b"a", NULL, b"", b"bcd"])),
    "large binary": (Bytes(), pa.array([b"a", NULL, b"", b"bcd"], pa.large_binary())),
    "view of binary": (Bytes(), pa.array([b"a", NULL, b"", b"bcd" * 9], pa.binary_view())),
    "fixed binary": (Bytes(), pa.array([b"ab", NULL, b"cd", b"ef"], pa.binary(2))),
    "no bytes at all": (Bytes(), pa.array([b"", NULL, b"", b""])),
    "null": (Bytes(), pa.nulls(4)),
}


def unread(row: int, path: str) -> Any:
    raise AssertionError(path)


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_are_what_arrow_gives(name: str) -> None:
    field, array = COLUMNS[name]
    table = pa.table({"file": ["a"] * 4, "x": array})
    fields = gpupipe.Schema({"image": Image("file"), "x": field})
    assert columns.located(fields, table.schema, "table") == {"image": ("file",), "x": ("x",)}
    for part in (table, table.slice(1), table.slice(2, 1), table.slice(0, 0), pa.concat_tables([table, table])):
        made = columns.values(field, columns.cells(part, ("x",)), unread)
        expected = part.column("x").to_pylist()
        assert len(made) == len(expected)
        for value, one in zip(made, expected, strict=True):
            if one is None:
                assert value is MISSING
            else:
                np.testing.assert_array_equal(value, np.reshape(one, (-1, 4)) if name == "boxes" else one)


def test_lists_of_structs_are_structs_of_lists() -> None:
    objects = [[{"at": [1, 2], "kind": "a"}], NULL, [], [{"at": NULL, "kind": "b"}, {"at": [3], "kind": NULL}]]
    table = pa.table({"objects": objects})
    for part, rows in ((table, objects), (table.slice(2), objects[2:]), (table.slice(3), objects[3:])):
        for key in ("at", "kind"):
            found = columns.cells(part, ("objects", key)).to_pylist()
            assert found == [one if one is None else [inner[key] for inner in one] for one in rows]
    structs = pa.table({"a": [{"b": {"c": 1}}, {"b": NULL}, NULL]})
    assert columns.cells(structs, ("a", "b", "c")).to_pylist() == [1, NULL, NULL]


def test_structs_of_bytes_and_paths() -> None:
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    rows = [{"bytes": b"a", "path": "x"}, {"bytes": NULL, "path": "y"}, NULL, {"bytes": b"", "path": NULL}]
    read = lambda row, path: np.frombuffer(f"{row} {path}".encode(), np.uint8)  # noqa: E731
    found = columns.files(pa.array(rows, kind), read)
    assert [one if one is None else one.tobytes() for one in found] == [b"a", b"1 y", None, b""]
    with pytest.raises(columns.BadCellError, match="has neither bytes nor path") as raised:
        columns.files(pa.array([*rows, {"bytes": NULL, "path": NULL}], kind), read)
    assert raised.value.row == 4
    assert columns.files(pa.array([{"path": "z"}]), read)[0].tobytes() == b"0 z"


def test_a_value_that_does_not_fit_is_a_sample(root: Path) -> None:
    rows = [{"path": "0.jpg", "list": [[1], [2]]}, {"path": "1.jpg", "list": [[1], [2, 3]]}]
    source = open_source(write_json(root / "a.jsonl", rows), fields=PATH | {"x": Array("list")})
    assert source[0]["x"].tolist() == [[1], [2]]
    with pytest.raises(SampleError, match=r"row 1 \(1\.jpg\)\): its field 'x' \(column 'list'\): .*inhomogeneous"):
        source[1]
    for kind in (pa.uint64(), pa.decimal128(38)):
        with pytest.raises(columns.BadCellError, match="9223372036854775808 has no place in int64") as raised:
            columns.values(Scalar(), pa.array([1, 2**63], kind), unread)
        assert raised.value.row == 1


@pytest.mark.skipif(not hasattr(pa, "decimal32"), reason="this pyarrow has no decimals of 32 bits")
def test_short_decimals() -> None:
    column = pa.array([Decimal(5), NULL, Decimal(-7)], pa.decimal32(9, 0))
    assert columns.whole_decimals(column).to_pylist() == [5, NULL, -7]


def test_decoded_pixels(root: Path) -> None:
    """From end to end, in the order of the table."""
    write_csv(root / "a.csv", [("image", "label"), *((f"{n}.png", n) for n in range(6))])
    for n in range(6):
        (root / f"{n}.png").write_bytes(encode(picture(20, 20, n), "PNG"))
    recipe = gpupipe.imagenet_eval(20, resize=20, dtype="uint8")
    with gpupipe.Loader(Manifest(root / "a.csv"), recipe, 6, engine="torch", num_workers=0, device="cpu") as loader:
        ((images, labels),) = loader
        assert loader.dataset is loader.source
    assert labels.tolist() == list(range(6))
    np.testing.assert_array_equal(images.permute(0, 2, 3, 1).numpy(), [picture(20, 20, n) for n in range(6)])


def test_without_pyarrow_the_extra_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_csv(root / "a.csv", [("image", "label"), ("0.jpg", 1)])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for data in (path, gpupipe.Query("sqlite://", "SELECT 1 ORDER BY 1")):
        with pytest.raises(ConfigError, match=r"needs pyarrow, .*: pip install 'gpupipe\[tables\]'"):
            open_source(data)
