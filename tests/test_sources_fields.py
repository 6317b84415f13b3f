"""Fields other than image and label: of shards, image folders and users' datasets, against who else reads them."""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
import webdataset
from images import encode, picture, write_folder
from tars import jpeg, write_samples, write_tar
from torch.utils.data import Subset
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional as v2

import gpupipe
from gpupipe.batch import MISSING, Array, Boxes, Bytes, Image, Index, Key, Mask, Points, Scalar, Text
from gpupipe.decode.pixels import decode_window
from gpupipe.errors import ConfigError, DataError, SampleError
from gpupipe.sources import check_source, open_source, shards
from gpupipe.sources.values import as_value

FIELDS = {
    "image": Image("jpg;png;webp"),
    "mask": Mask("seg.png"),
    "caption": Text("txt"),
    "boxes": Boxes("json:objects.boxes"),
    "first": Array("json:objects.boxes.0"),
    "score": Scalar("json:score", "float32"),
    "title": Text("json:a.title"),
    "cls": Scalar(),
    "depth": Array("npy"),
    "bin": Bytes(),
    "key": Key(),
    "index": Index(),
}


def npy(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def record(number: int) -> dict[str, Any]:
    boxes = [[1, 2, 3 + row, 4.5] for row in range(number % 3)]
    return {"objects": {"boxes": boxes}, "score": number / 4, "a.title": f"t{number}", "label": number}


def members(number: int) -> dict[str, bytes]:
    """What a sample has, by extension."""
    return {
        "jpg": jpeg(number, 40 + number, 60),
        "seg.png": encode(np.full((40 + number, 60), number, np.uint8), "PNG", "L"),
        "txt": f"picture {number} ü".encode(),
        "json": json.dumps(record(number)).encode(),
        "cls": b"%d\n" % number,
        "npy": npy(np.arange(6.0).reshape(2, 3) * number),
        "bin": bytes([number, 0, 255]),
        "pyd": b"never looked at",
    }


def shard_of(path: Path, samples: dict[str, dict[str, bytes]]) -> Path:
    return write_tar(path, [(f"{key}.{name}", data) for key, parts in samples.items() for name, data in parts.items()])


@pytest.fixture
def two_shards(tmp_path: Path) -> list[Path]:
    numbers = [range(4), range(4, 9)]
    return [
        shard_of(tmp_path / f"{place}.tar", {f"s/{number}": members(number) for number in part})
        for place, part in enumerate(numbers)
    ]


def rows(source: Any, *indices: int) -> Any:
    return source.fetch(np.array(indices or range(len(source))))


# Shards.


def test_shards_have_what_webdataset_reads(two_shards: list[Path]) -> None:
    source = open_source(two_shards, fields=FIELDS)
    expected = list(webdataset.WebDataset(list(map(str, two_shards)), shardshuffle=False, empty_check=False))
    columns = rows(source)
    assert list(columns) == list(FIELDS)
    assert [data.tobytes() for data in columns["image"].data] == [sample["jpg"] for sample in expected]
    assert [data.tobytes() for data in columns["mask"]] == [sample["seg.png"] for sample in expected]
    assert columns["caption"] == [sample["txt"].decode() for sample in expected]
    assert columns["bin"] == [sample["bin"] for sample in expected]
    assert columns["key"] == [sample["__key__"] for sample in expected]
    assert columns["cls"].tolist() == [int(sample["cls"]) for sample in expected]
    assert columns["cls"].dtype == np.int64
    documents = [json.loads(sample["json"]) for sample in expected]
    assert [float(score) for score in columns["score"]] == [document["score"] for document in documents]
    assert columns["title"] == [document["a.title"] for document in documents]
    for row, document in enumerate(documents):
        boxes = np.array(document["objects"]["boxes"], float).reshape(-1, 4)
        assert np.array_equal(columns["boxes"][row], boxes)
        first = columns["first"][row]
        assert np.array_equal(first, boxes[0]) if len(boxes) else first is MISSING
        assert np.array_equal(columns["depth"][row], np.load(io.BytesIO(expected[row]["npy"])))
    assert columns["index"].tolist() == list(range(9))
    assert columns["image"].sizes.tolist() == [[40 + number, 60, 1] for number in range(9)]
    assert source.shapes(np.arange(9)).tolist() == columns["image"].sizes.tolist()


def test_the_index_of_image_and_label_stays_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = write_samples(tmp_path / "a.tar")
    names = {path.name for path in tmp_path.iterdir()}
    before = open_source(shard)
    (index,) = {path.name for path in tmp_path.iterdir()} - names
    content = (tmp_path / index).read_bytes()
    fields = {"image": Image("jpg"), "label": Scalar(), "key": Key()}
    more = open_source(shard, fields=fields)
    assert more.targets.tolist() == before.targets.tolist()
    assert (tmp_path / index).read_bytes() == content
    assert len(list(tmp_path.iterdir())) == 3
    monkeypatch.delattr("gpupipe.sources.shard_index.scan_tar")
    assert open_source(shard, fields=fields).fingerprint == more.fingerprint
    assert open_source(shard).fingerprint == before.fingerprint


@pytest.mark.parametrize("label", [Scalar("cls"), Array("json:label"), Scalar("json:label"), Scalar("num", "float32")])
def test_labels_that_are_class_numbers_are_indexed(tmp_path: Path, label: Any) -> None:
    def shard(name: str, **changed: bytes) -> Path:
        samples = {
            str(number): {"jpg": jpeg(number), "json": b'{"label": %d}' % (5 - number)}
            | dict.fromkeys(("cls", "num"), b"%d" % (5 - number))
            for number in range(4)
        }
        samples["2"] |= changed
        return shard_of(tmp_path / name, samples)

    fields = {"image": Image("jpg"), "label": label, "key": Key()}
    source = open_source(shard("a.tar"), fields=fields)
    usual = open_source(tmp_path / "a.tar", fields={"image": Image("jpg"), "label": Scalar(), "key": Key()})
    assert source.targets.tolist() == usual.targets.tolist() == [5, 4, 3, 2]
    assert source.targets.dtype == np.int64
    assert np.array_equal(np.array(rows(source)["label"]), [5, 4, 3, 2])
    assert open_source(Subset(source, [3, 0])).targets.tolist() == [2, 5]
    assert [len(part) for part in gpupipe.split(source, (0.5, 0.5), stratify=True)]
    assert check_source(source) is None
    # The same members without a label: another index, and no targets.
    other = open_source(tmp_path / "a.tar", fields={"image": Image("jpg"), "n": label, "key": Key()})
    with pytest.raises(DataError, match=r"'label' is a class number: gpupipe.Scalar\(\)"):
        _ = other.targets
    for number, value in enumerate((b"0.5", b"", b"[1]", b"x")):
        changed = shard(f"b{number}.tar", cls=value, num=value, json=b'{"label": %s}' % (value or b"null"))
        with pytest.raises(DataError, match="known only by reading every sample"):
            _ = open_source(changed, fields=fields).targets


def test_members_side_by_side_are_read_at_once(two_shards: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []
    source = open_source(two_shards, fields=FIELDS)
    read = source._open.read

    def counted(path: str, offset: int, size: int) -> Any:
        reads.append(size)
        return read(path, offset, size)

    monkeypatch.setattr(source._open, "read", counted)
    together = rows(source, 3)
    assert len(reads) == 1
    monkeypatch.setattr(shards, "WASTE", -1)
    assert rows(source, 3)["caption"] == together["caption"]
    assert len(reads) == 1 + len(source._wanted.files)


def test_what_a_sample_lacks_is_missing(tmp_path: Path) -> None:
    parts = members(1)
    samples = {
        "a": parts,
        "b": {"txt": b"no image"},
        "c": {"png": encode(picture(9, 9), "PNG"), "json": b'{"score": null}'},
        "about": {"json": b"{}"},  # of the shard, not of a sample
        "other": {"md": b"#"},
    }
    source = open_source(shard_of(tmp_path / "a.tar", samples), fields=FIELDS)
    columns = rows(source)
    assert columns["key"] == ["a", "b", "c"]
    assert [data is None for data in columns["image"].data] == [False, True, False]
    assert columns["image"].sizes.tolist() == [[41, 60, 1], [0, 0, 1], [9, 9, 1]]
    for name in ("mask", "cls", "depth", "bin"):
        assert [value is MISSING for value in columns[name]] == [False, True, True], name
    assert [value is MISSING for value in columns["caption"]] == [False, False, True]
    for name in ("boxes", "score", "title"):
        assert [value is MISSING for value in columns[name]] == [False, True, True], name
    assert "at offset" in source.location(1)


def test_samples_without_image_may_be_skipped(tmp_path: Path) -> None:
    shard = shard_of(tmp_path / "a.tar", {"a": {"jpg": jpeg(0), "cls": b"1"}, "b": {"cls": b"2"}})
    for fields in (None, {"image": Image(), "label": Scalar()}):
        with pytest.raises(DataError, match=r"'b' .* has a label but no image"):
            open_source(shard, fields=fields)
    source = open_source(shard, fields={"image": Image(missing="skip"), "label": Scalar()})
    assert source.targets.tolist() == [1, 2]
    assert [data is None for data in rows(source)["image"].data] == [False, True]


def test_what_no_sample_has_is_told(tmp_path: Path, root: Path, caplog: pytest.LogCaptureFixture) -> None:
    shard = shard_of(tmp_path / "a.tar", {"a": members(0), "b": members(1)})
    there = r"but \.jpg, \.seg\.png, \.txt, \.json, \.cls, \.npy, \.bin, \.pyd; check the source"
    fields = {"image": Image("jpg"), "mask": Mask("seg.pgn", missing="default"), "label": Scalar()}
    for _ in range(2):  # indexed, and from the index
        open_source(shard, fields=fields)
        assert re.search(f"no sample of ShardSource.* has 'mask': there is no member .seg.pgn, {there}", caplog.text)
        for missing in ("error", "skip"):
            with pytest.raises(DataError, match=rf"'mask': there is no member \.seg\.pgn, {there}"):
                open_source(shard, fields=fields | {"mask": Mask("seg.pgn", missing=missing)})
        caplog.clear()
    with pytest.raises(DataError, match=rf"'image': there is no member \.jpgg or \.png, {there}"):
        open_source(shard, fields={"image": Image("jpgg;png"), "text": Text("txt")})
    with pytest.raises(DataError, match=rf"no members \.jpgg in .*a\.tar, {there}"):
        open_source(shard, fields={"image": Image("jpgg")})
    with pytest.raises(DataError, match=r"has 'x', 'y': there is no member \.jsn"):
        open_source(shard, fields={"image": Image("jpg"), "x": Bytes("jsn"), "y": Bytes("jsn", missing="default")})
    fields = PARALLEL | {"mask": Mask(folder="masks", suffix=".pgn")}
    message = r"'mask': there is no file with suffix='\.pgn' in the place .* in folder='masks', but \.png \(.*\.png\);"
    with pytest.raises(DataError, match=message):
        open_source(root, fields=fields)
    open_source(root, fields=fields | {"mask": Mask(folder="masks", suffix=".pgn", missing="default")})
    assert re.search(message, caplog.text)
    with pytest.raises(DataError, match=r"no images in .* \(\.jpgg\): check the path and suffix; there are \.JPG \(c"):
        open_source(root, fields={"image": Image(folder="images", suffix=".jpgg")})
    with pytest.raises(DataError, match=r"own: gpupipe\.Image\(folder='images'\) \(docs"):  # masks are images, too
        open_source(root, fields={"image": Image(), "mask": PARALLEL["mask"]})
    caplog.clear()
    open_source(root, fields=PARALLEL)
    assert not caplog.text


def test_the_first_extension_that_is_there_is_taken(tmp_path: Path) -> None:
    images = {name: encode(picture(8 + place, 8), name.upper()) for place, name in enumerate(("png", "webp"))}
    shard = shard_of(tmp_path / "a.tar", {"a": images | {"jpg": jpeg(0)}, "b": images})
    for source, heights in (("jpg;webp;png", [40, 9]), ("png;jpg", [8, 8]), (".PNG ; jpg", [8, 8])):
        opened = open_source(shard, fields={"image": Image(source)})
        assert opened.shapes(np.arange(2))[:, 0].tolist() == heights
    with pytest.raises(DataError, match=r"has 3 images, .*name the one by gpupipe\.Image\('jpg'\)"):
        open_source(shard, fields={"image": Image(), "key": Key()})


def test_images_of_other_fields_are_not_the_usual_image(tmp_path: Path) -> None:
    parts = {"jpg": jpeg(0), "right.jpg": jpeg(1, 30), "seg.png": encode(picture(40, 60), "PNG", "L")}
    fields = {"image": Image(), "right": Image("right.jpg"), "mask": Mask("seg.png")}
    columns = rows(open_source(shard_of(tmp_path / "a.tar", {"a": parts}), fields=fields))
    assert columns["image"].data[0].tobytes() == parts["jpg"]
    assert columns["right"].data[0].tobytes() == parts["right.jpg"]
    assert columns["right"].sizes is None


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (Image(folder="images"), r"'x' has folder='images', but the data is \.tar shards"),
        (Image(0), r"'x' has source=0, but"),
        (Image("json:image"), r"'x' is Image, which can't be under 'image' of \.json"),
        (Mask("json:mask"), "'x' is Mask, which can't be under 'mask'"),
        (Text("txt:a"), r"'x' is Text, which can't be under 'a' of \.txt"),
        (Array("pth"), r"'x' is Array, which can't be in \.pth; it can be in \.npy or \.json"),
        (Text("jpg;"), "pass extensions: 'jpg;png'"),
        (Key("txt"), "'x' is Key, which the source gives; for what lies at 'txt' pass gpupipe.Text"),
    ],
    ids=str,
)
def test_what_can_be_in_no_shard_is_refused(tmp_path: Path, field: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_source(write_samples(tmp_path / "a.tar"), fields={"image": Image("jpg"), "x": field})


class Trap:
    """Ends the test if it is unpickled."""

    def __reduce__(self) -> Any:
        return os._exit, (1,)


HOSTILE = {
    "a pickle": (
        Array("npy"),
        npy(np.array([Trap()], object)),
        "pickled objects|holds object, no numbers, and pickles",
    ),
    "an npy that claims a terabyte": (
        Array("npy"),
        npy(np.zeros(3)).replace(b"(3,)", b"(" + b"9" * 12 + b",)", 1),
        "has .* bytes of values where|can't be read",
    ),
    "a cut npy": (Array("npy"), npy(np.zeros(30))[:-1], "has 239 bytes of values where its header says 240"),
    "an npy of text": (Array("npy"), npy(np.array(["a"])), "holds <U1, no numbers"),
    "a strange npy": (Array("npy"), b"\x93NUMPY\x09\x00" + bytes(60), "header that can't be read"),
    "an npy with a wild header": (
        Array("npy"),
        b"\x93NUMPY\x01\x00\x10\x00" + b"{'''" * 4,
        "header that can't be read",
    ),
    "no JSON": (Array("json"), b"{", r"its \.json can't be parsed"),
    "deep JSON": (Array("json"), b"[" * 100_000, r"nested too deeply|can't be parsed"),
    "an object": (Array("json"), b'{"a": 1}', r"dict .* is no number"),
    "ragged lists": (Array("json"), b"[[1], [2, 3]]", "inhomogeneous|setting an array element"),
    "text among numbers": (Boxes("json"), b'[["a", 1, 2, 3]]', "is no number"),
    "a huge integer": (Scalar("json:a"), b'{"a": 18446744073709551616}', "has no place in int64"),
    "a huge integer in a list": (Array("json:a"), b'{"a": [1, 18446744073709551616]}', "551616 has no place in int64"),
    "one of which NumPy makes a float": (Array("json:a"), b'{"a": [[9223372036854775808, 1]]}', "808 has no place"),
    "text for a number": (Scalar("json:a"), b'{"a": "5"}', r"str \('5'\) is no number"),
    "a number for a text": (Text("json:a"), b'{"a": 5}', r"int \(5\) is no text"),
    "no UTF-8": (Text("txt"), b"\xff\xfe", "can't decode byte"),
    "no number": (Scalar("num"), b"five", "'five' is no number"),
    "a number out of range": (Scalar("num"), b"9223372036854775808", "has no place in int64"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_members_are_refused_by_name(tmp_path: Path, name: str) -> None:
    field, data, message = HOSTILE[name]
    extension = str(field.source).partition(":")[0]
    samples = {"good": {"jpg": jpeg(0)}, "bad": {"jpg": jpeg(0), extension: data}}
    source = open_source(shard_of(tmp_path / "a.tar", samples), fields={"image": Image("jpg"), "x": field})
    assert rows(source, 0)["x"] == [MISSING]
    with pytest.raises(SampleError, match=rf"(?s)sample 1 \(key 'bad' .*its field 'x': .*({message})"):
        rows(source, 0, 1)


def test_arrays_with_bytes_changed_at_random_are_read_or_refused() -> None:
    rng = np.random.default_rng(0)
    for number in range(2000):
        broken = bytearray(npy(np.arange(6.0).reshape(2, 3)))
        for place in rng.integers(len(broken), size=1 + number % 3):
            broken[place] = rng.integers(256)
        with suppress(ValueError, TypeError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert as_value(Array(), np.frombuffer(broken, np.uint8)).nbytes <= 48


def test_texts_of_gigabytes_are_not_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpupipe.sources.values.MOST_TEXT", 3)
    samples = {"a": {"txt": b"abc", "json": b"[1]"}, "b": {"txt": b"abcd", "json": b"[12]"}}
    shard = shard_of(tmp_path / "a.tar", samples)
    for field in (Text("txt"), Array("json"), Array("json:0")):
        source = open_source(shard, fields={"x": field})
        assert rows(source, 0)["x"] is not MISSING
        with pytest.raises(SampleError, match="more than the 3 of a text"):
            rows(source, 1)


@pytest.mark.parametrize("text", ["5", " -3\n", "2.5", "1e3", "nan", "9223372036854775807"])
def test_numbers_as_text(tmp_path: Path, text: str) -> None:
    source = open_source(shard_of(tmp_path / "a.tar", {"a": {"num": text.encode()}}), fields={"num": Scalar()})
    (value,) = rows(source)["num"]
    assert np.array_equal(
        value, float(text) if "." in text or "e" in text or text == "nan" else int(text), equal_nan=True
    )


def test_arrays_in_columns_order_and_other_byte_orders(tmp_path: Path) -> None:
    arrays = [np.asfortranarray(np.arange(6).reshape(2, 3)), np.arange(3, dtype=">i4"), np.array(7), np.zeros((0, 4))]
    samples = {f"{number}": {"npy": npy(array)} for number, array in enumerate(arrays)}
    source = open_source(shard_of(tmp_path / "a.tar", samples), fields={"npy": Array()})
    for value, array in zip(rows(source)["npy"], arrays, strict=True):
        assert np.array_equal(value, array)


# Image folders.


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Five images in two folders below `images`, most with a mask, a caption, boxes and a depth."""
    names = ["a.jpg", "b.jpg", "sub/a.jpg", "sub/c.JPG", "sub/d.png"]
    for number, name in enumerate(names):
        stem = name.rpartition(".")[0]
        files = {
            f"images/{name}": jpeg(number, 30 + number, 50),
            f"masks/{stem}.png": encode(np.full((30 + number, 50), number, np.uint8), "PNG", "L"),
            f"texts/{stem}.txt": f"caption {number}".encode(),
            f"boxes/{stem}_boxes.json": json.dumps({"boxes": [[0, 0, number, 1]], "n": number}).encode(),
            f"depth/{stem}.npy": npy(np.full((2, 2), number)),
            f"right/{name}": jpeg(number, 20, 20),
        }
        for path, data in files.items():
            if number != 3 or not path.startswith("texts"):
                (tmp_path / "data" / path).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / "data" / path).write_bytes(data)
    return tmp_path / "data"


PARALLEL = {
    "image": Image(folder="images"),
    "right": Image(folder="right"),
    "mask": Mask(folder="masks", suffix=".png"),
    "text": Text(folder="texts", suffix=".txt", missing="default"),
    "boxes": Boxes("boxes", folder="boxes", suffix="_boxes.json"),
    "n": Scalar("json:n", folder="boxes", suffix="_boxes.json"),
    "depth": Array(folder="depth", suffix=".npy"),
    "key": Key(),
}


def test_parallel_folders(root: Path) -> None:
    source = open_source(root, fields=PARALLEL)
    columns = rows(source)
    assert columns["key"] == ["a.jpg", "b.jpg", "sub/a.jpg", "sub/c.JPG", "sub/d.png"]
    for row, key in enumerate(columns["key"]):
        stem = key.rpartition(".")[0]
        assert columns["image"].data[row].tobytes() == (root / "images" / key).read_bytes()
        assert columns["right"].data[row].tobytes() == (root / "right" / key).read_bytes()
        assert columns["mask"][row].tobytes() == (root / "masks" / f"{stem}.png").read_bytes()
        assert np.array_equal(columns["depth"][row], np.load(root / "depth" / f"{stem}.npy"))
        assert np.array_equal(columns["boxes"][row], [[0, 0, row, 1]])
        assert source.location(row) == str(root / "images" / key)
    assert columns["n"].tolist() == [0, 1, 2, 3, 4]
    assert columns["text"] == ["caption 0", "caption 1", "caption 2", MISSING, "caption 4"]
    assert columns["image"].sizes.tolist() == [[30 + number, 50, 1] for number in range(5)]
    assert source.sizes[0] == sum(path.stat().st_size for path in root.glob("*/a*"))
    assert (source.classes, source.class_to_idx) == (None, None)


def test_images_without_classes_lie_anywhere_below_the_root(root: Path) -> None:
    (root / "top.png").write_bytes(encode(picture(9, 9), "PNG"))
    fields = {"image": Image(), "mask": Mask(folder="masks", suffix=".png", missing="default")}
    keys = [open_source(root, fields=fields).key(index) for index in range(11)]
    assert keys == ["top.png", *(f"{folder}/{key}" for folder in ("images",) for key in ("a.jpg", "b.jpg")),
                    "images/sub/a.jpg", "images/sub/c.JPG", "images/sub/d.png",
                    "right/a.jpg", "right/b.jpg", "right/sub/a.jpg", "right/sub/c.JPG", "right/sub/d.png"]  # fmt: skip
    assert len(open_source(root, fields={"image": Image(suffix=".JPG")})) == 2


def test_classes_with_masks(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "data")
    for image in sorted(root.glob("*/*.jpg")):
        (root / "masks" / image.parent.name).mkdir(parents=True, exist_ok=True)
        (root / "masks" / image.parent.name / f"{image.stem}.png").write_bytes(encode(picture(9, 9), "PNG", "L"))
    fields = {"image": Image(), "mask": Mask(folder="masks", suffix=".png"), "label": Scalar()}
    source = open_source(root, fields=fields)
    assert source.classes == ["class_0", "class_1", "class_2"]
    assert source.targets.tolist() == rows(source)["label"].tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert all(mask is not MISSING for mask in rows(source)["mask"])


def test_files_beside_their_images(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.png").write_bytes(encode(picture(9, 9, number), "PNG"))
        (tmp_path / f"{number}_mask.png").write_bytes(encode(picture(9, 9), "PNG", "L"))
        (tmp_path / f"{number}.txt").write_text(str(number))
    fields = {
        "image": Image(),
        "mask": Mask(folder=".", suffix="_mask.png"),
        "text": Text(folder=".", suffix=".txt"),
    }
    columns = rows(open_source(tmp_path, fields=fields))
    assert columns["text"] == ["0", "1", "2"]
    assert [data.tobytes() for data in columns["mask"]] == [encode(picture(9, 9), "PNG", "L")] * 3


def test_the_index_of_a_folder_notices_what_came_or_went(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    fields = {"image": Image(), "text": Text(folder="texts", suffix=".txt", missing="default")}
    for name in ("images", "texts"):
        assert len(open_source(root, fields=fields)) == 15
        assert open_source(root, fields=fields)
        assert "is stale" not in caplog.text
        (root / name / "new.txt").write_text("new")
        open_source(root, fields=fields)
        assert f"folder {name} was changed" in caplog.text
        caplog.clear()
    (root / "top.jpg").write_bytes(jpeg(9))
    assert len(open_source(root, fields=fields)) == 16
    assert "files or folders were added or removed" in caplog.text


def test_an_image_that_changed_is_named_and_other_files_may_be_edited(root: Path) -> None:
    source = open_source(root, fields=PARALLEL)
    for text in (b"short", b"a longer caption than there was"):
        (root / "masks/sub/a.png").write_bytes(text)
        (root / "texts/sub/a.txt").write_bytes(text)
        for one in (source, open_source(root, fields=PARALLEL)):
            columns = rows(one, 1, 2)
            assert (columns["mask"][1].tobytes(), columns["text"][1]) == (text, text.decode())
    for folder in ("images", "right"):
        data = (root / folder / "b.jpg").read_bytes()
        (root / folder / "b.jpg").write_bytes(b"short")
        with pytest.raises(SampleError, match=r"sample 1 \(.*images/b.jpg\): .*has 5 bytes where"):
            rows(source, 1, 2)
        (root / folder / "b.jpg").write_bytes(data)
    (root / "masks/sub/a.png").unlink()
    with pytest.raises(
        SampleError, match=r"masks/sub/a.png can't be read: No such file.*open_source\(..., rebuild=True"
    ):
        rows(source, 2)


def test_only_a_folder_that_is_passed_lies_elsewhere(root: Path, tmp_path: Path) -> None:
    (root / "masks").rename(tmp_path / "elsewhere")
    for folder in ("../elsewhere", str(tmp_path / "elsewhere")):
        fields = {"image": Image(folder="images"), "mask": Mask(folder=folder, suffix=".png")}
        assert all(mask is not MISSING for mask in rows(open_source(root, fields=fields))["mask"])
        assert open_source(root, fields=fields)
    with pytest.raises(DataError, match=r"no folder at .*data/masks"):
        open_source(root, fields={"image": Image(folder="images"), "mask": Mask(folder="masks", suffix=".png")})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"image": Image(), "mask": Mask()}, r"'mask' has source=None, folder=None; in an image folder pass folder="),
        ({"image": Image(), "mask": Mask(1)}, "'mask' has source=1"),
        ({"label": Scalar()}, "the samples of an image folder are its images, and label have none"),
        ({"image": Image(), "x": Array(folder="a", suffix=".pth")}, r"can't be in \.pth"),
        ({"image": Image(), "x": Mask("a", folder="a", suffix=".json")}, r"can't be under 'a' of \.json"),
        ({"image": Image(), "label": Scalar(missing="skip")}, "'label' is the class number, which every sample has"),
    ],
    ids=str,
)
def test_what_can_be_in_no_folder_is_refused(root: Path, fields: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_source(root, fields=fields)


# Users' datasets.


PIXELS = picture(12, 10)
GRAY = PIXELS[:, :, 0]
RGB = np.repeat(GRAY[:, :, None], 3, 2)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (PIXELS, PIXELS),
        (PIXELS[::2, ::-1], PIXELS[::2, ::-1]),
        (GRAY, RGB),
        (GRAY[:, :, None], RGB),
        (torch.from_numpy(PIXELS).permute(2, 0, 1), PIXELS),
        (torch.from_numpy(GRAY.copy())[None], RGB),
        (torch.from_numpy(GRAY.copy()), RGB),
        (tv_tensors.Image(torch.from_numpy(PIXELS).permute(2, 0, 1)), PIXELS),
        (PIL.Image.fromarray(PIXELS), PIXELS),
        (PIL.Image.fromarray(GRAY), RGB),
        (PIL.Image.fromarray(PIXELS).convert("RGBA"), PIXELS),
        (PIL.Image.open(io.BytesIO(encode(PIXELS, "PNG"))), PIXELS),
        (bytearray(jpeg(1)), np.frombuffer(jpeg(1), np.uint8)),
        (torch.frombuffer(bytearray(jpeg(1)), dtype=torch.uint8), np.frombuffer(jpeg(1), np.uint8)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_images_of_every_form(value: Any, expected: Any) -> None:
    for item in ((value, 0), {"image": value, "label": 0}):
        (data,) = rows(open_source([item]))["image"].data
        assert data.dtype == np.uint8
        assert data.flags.c_contiguous
        assert np.array_equal(data, expected)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (PIXELS / 255, r"it is ndarray \(float64, 12 x 10 x 3\), and images are uint8.*leave out .*ToTensor"),
        (torch.zeros(3, 8, 8), r"Tensor \(float32, 3 x 8 x 8\)"),
        (torch.zeros(8, 8, 3, dtype=torch.uint8), r"pixels are uint8 \(3 or 1, height, width\)"),
        (np.zeros((3, 8, 8), np.uint8), r"pixels are uint8 \(height, width, 3 or 1\)"),
        (np.zeros((8, 8, 4), np.uint8), "8 x 8 x 4"),
        (np.zeros((0, 8, 3), np.uint8), "0 x 8 x 3"),
    ],
    ids=str,
)
def test_what_is_no_image_is_refused(value: Any, message: str) -> None:
    with pytest.raises(SampleError, match=rf"list\[0\]\): it is .*'image': .*{message}"):
        rows(open_source([(value, 0)]))


MASKS = [np.arange(6, dtype=dtype).reshape(2, 3) for dtype in ("uint8", "int16", "uint16", "int32", "int64")] + [
    np.array([[True, False]])
]


@pytest.mark.parametrize("mask", MASKS, ids=lambda mask: str(mask.dtype))
def test_masks_keep_their_numbers(mask: Any) -> None:
    tensor = torch.from_numpy(mask) if mask.dtype != np.uint16 else torch.from_numpy(mask.astype(np.int32))
    forms = [mask, mask[:, :, None], tensor, tensor[None], tv_tensors.Mask(tensor)]
    if mask.dtype in (np.uint8, np.bool_, np.int32):
        forms.append(PIL.Image.fromarray(mask))
    for form in forms:
        (value,) = rows(open_source([{"image": PIXELS, "mask": form}], fields={"image": Image(), "mask": Mask()}))[
            "mask"
        ]
        assert value.ndim == 2
        assert np.array_equal(value, mask)


def test_palettes_and_modes_of_masks() -> None:
    palette = PIL.Image.fromarray(PIXELS).quantize(7)
    kinds = [palette, palette.convert("L"), PIL.Image.fromarray(GRAY > 99), PIL.Image.fromarray(GRAY.astype(np.uint16))]
    assert [image.mode for image in kinds] == ["P", "L", "1", "I;16"]
    fields = {"image": Image(), "mask": Mask()}
    columns = rows(open_source([(PIXELS, kind) for kind in kinds], fields=fields))
    for value, kind in zip(columns["mask"], kinds, strict=True):
        assert np.array_equal(value, np.asarray(kind))
    assert columns["mask"][0].max() <= 6
    for wrong in (PIL.Image.fromarray(PIXELS), PIXELS, 3, "a", GRAY / 2, GRAY[None, None]):
        with pytest.raises(SampleError, match=r"'mask': .*(one channel|a mask is integers)"):
            rows(open_source([(PIXELS, wrong)], fields=fields))


@pytest.mark.parametrize("mode", ["I;16", "I;16B"])
def test_images_of_16_bits_have_the_pixels_of_their_file(mode: str) -> None:
    levels = np.arange(2**16, dtype=np.uint16).reshape(256, 256)
    image = PIL.Image.fromarray(levels)
    file = io.BytesIO()
    image.save(file, "PNG")
    encoded = np.frombuffer(file.getvalue(), np.uint8)
    given = image if mode == "I;16" else PIL.Image.frombytes(mode, image.size, levels.astype(">u2").tobytes())
    assert given.mode == mode
    (pixels,) = rows(open_source([given], fields={"image": Image()}))["image"].data
    assert np.array_equal(pixels, decode_window(encoded, 256, 256, (0, 0, 256, 256), False))


@pytest.mark.parametrize("mode", ["I", "F"])
@pytest.mark.parametrize(("lowest", "highest"), [(0, 256), (-1, 255), (0, 255)])
def test_images_of_more_values_than_pixels_have_are_refused(mode: str, lowest: int, highest: int) -> None:
    image = PIL.Image.fromarray(np.array([[lowest, 7, highest]], np.int32)).convert(mode)
    source = open_source([{"image": image}], fields={"image": Image()})
    if (lowest, highest) == (0, 255):
        assert rows(source)["image"].data[0][0, :, 0].tolist() == [0, 7, 255]
        return
    with pytest.raises(SampleError, match=rf"'image': it is a PIL image of mode '{mode}' with values .*scale them"):
        rows(source)


def test_tensors_that_numpy_lacks_are_refused_by_name() -> None:
    source = open_source([{"value": torch.ones(2, dtype=torch.bfloat16)}], fields={"value": Array()})
    with pytest.raises(SampleError, match=r"'value': it is a tensor of torch.bfloat16, .*return .float\(\)"):
        rows(source)


@pytest.mark.parametrize("own", ["xyxy", "xywh", "cxcywh"])
@pytest.mark.parametrize("wanted", ["xyxy", "xywh", "cxcywh"])
def test_boxes_of_torchvision_are_converted(own: str, wanted: Any) -> None:
    boxes = tv_tensors.BoundingBoxes([[4.0, 5, 8, 9], [1, 2, 3, 4]], format=own.upper(), canvas_size=(12, 10))
    fields = {"image": Image(), "boxes": Boxes(format=wanted)}
    (value,) = rows(open_source([(PIXELS, boxes)], fields=fields))["boxes"]
    assert np.allclose(value, v2.convert_bounding_box_format(boxes, new_format=wanted.upper()))


@pytest.mark.parametrize(
    "value", [b"ab", bytearray(b"ab"), np.frombuffer(b"ab", np.uint8), torch.tensor([97, 98]).byte()]
)
def test_bytes_of_every_form(value: Any) -> None:
    assert rows(open_source([value], fields={"data": Bytes()}))["data"] == [b"ab"]


@pytest.mark.parametrize("value", ["ab", 3, np.zeros(3), np.zeros((2, 2), np.uint8)])
def test_what_is_no_bytes_is_refused(value: Any) -> None:
    with pytest.raises(SampleError, match=r"its field 'data': it is .*, and no bytes"):
        rows(open_source([{"data": value}], fields={"data": Bytes()}))


def test_boxes_of_other_formats_are_refused() -> None:
    boxes = tv_tensors.BoundingBoxes([[4.0, 5, 8, 9, 45]], format="XYWHR", canvas_size=(12, 10))
    with pytest.raises(SampleError, match="its boxes have the format XYWHR"):
        rows(open_source([(PIXELS, boxes)], fields={"image": Image(), "boxes": Boxes()}))


def test_where_the_fields_of_an_item_are() -> None:
    target = {"boxes": [[1, 2, 3, 4]], "id": 7}
    nested = {
        "image": Image(0),
        "boxes": Boxes("1.boxes"),
        "id": Scalar("1.id"),
        "text": Text("1.text", missing="skip"),
    }
    columns = rows(open_source([(PIXELS, target)] * 2, fields=nested))
    assert columns["id"].tolist() == [7, 7]
    assert np.array_equal(columns["boxes"][1], [[1, 2, 3, 4]])
    assert columns["text"] == [MISSING, MISSING]
    swapped = rows(open_source([(5, PIXELS)], fields={"image": Image(1), "n": Scalar(0)}))
    assert swapped["n"].tolist() == [5]
    named = {"image": Image("img"), "box": Points("objects.at"), "key": Key(), "index": Index()}
    columns = rows(open_source([{"img": PIXELS, "objects": {"at": []}}], fields=named))
    assert columns["box"][0].shape == (0, 2)
    assert (columns["key"], columns["index"].tolist()) == (["0"], [0])
    single = rows(open_source(np.stack([PIXELS, PIXELS]), fields={"image": Image()}))
    assert np.array_equal(single["image"].data[1], PIXELS)


def test_datasets_of_known_libraries_are_taken() -> None:
    tensors = torch.utils.data.TensorDataset(torch.from_numpy(PIXELS).permute(2, 0, 1)[None], torch.tensor([3]))
    columns = rows(open_source(tensors))
    assert np.array_equal(columns["image"].data[0], PIXELS)
    assert columns["label"].tolist() == [3]


# Subsets, what is opened twice, and the contract.


def test_a_subset_has_all_fields(two_shards: list[Path]) -> None:
    whole = open_source(two_shards, fields=FIELDS)
    part = open_source(Subset(Subset(whole, [7, 2, 5]), [2, 0]))
    assert part.fields is whole.fields
    columns, expected = rows(part), rows(whole, 5, 7)
    assert columns["key"] == expected["key"]
    assert columns["cls"].tolist() == [5, 7]
    assert columns["index"].tolist() == [0, 1]
    assert columns["image"].sizes.tolist() == expected["image"].sizes.tolist()


def test_an_opened_source_keeps_its_fields(two_shards: list[Path]) -> None:
    source = open_source(two_shards, fields=FIELDS)
    assert open_source(source) is source
    assert open_source(source, fields=FIELDS) is source
    with pytest.raises(ConfigError, match="was opened with"):
        open_source(source, fields={"image": Image("jpg")})
    with pytest.raises(ConfigError, match="was opened with"):
        open_source(Subset(source, [0]), fields={"image": Image("jpg")})


@pytest.mark.parametrize("make", ["shards", "folder", "dataset", "subset"])
def test_sources_with_fields_keep_the_contract(make: str, two_shards: list[Path], root: Path) -> None:
    items = [{"image": PIXELS, "boxes": np.ones((row, 4)), "text": f"{row}"} for row in range(5)]
    sources: dict[str, Callable[[], Any]] = {
        "shards": lambda: open_source(two_shards, fields=FIELDS),
        "folder": lambda: open_source(root, fields=PARALLEL),
        "dataset": lambda: open_source(items, fields={"image": Image(), "boxes": Boxes(), "text": Text()}),
        "subset": lambda: open_source(Subset(open_source(root, fields=PARALLEL), [4, 0, 2])),
    }
    source = sources[make]()
    check_source(source)
    assert pickle.loads(pickle.dumps(source)).fields == source.fields
