"""A user's own dataset as a source, and what `open_source` takes at all."""

from __future__ import annotations

import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from images import Numbered, encode, picture, write_folder
from PIL import Image as PillowImage
from tars import jpeg, write_samples
from torch.utils.data import default_collate

from gpupipe.batch import MISSING
from gpupipe.errors import ConfigError, DataError, SampleError
from gpupipe.sources import DatasetSource, FolderSource, ShardSource, open_source


class Images(torch.utils.data.Dataset[Any]):
    """Counts what it is asked for."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items
        self.asked: list[int] = []

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        self.asked.append(index)
        if isinstance(self.items[index], Exception):
            raise self.items[index]
        return self.items[index]


def images(count: int = 4) -> Images:
    return Images([(jpeg(number, 30 + number, 50), number * 2) for number in range(count)])


def test_it_reads_what_it_is_asked_for() -> None:
    dataset = images()
    source = open_source(dataset)
    assert isinstance(source, DatasetSource)
    assert len(source) == 4
    assert dataset.asked == []
    assert source.shapes(np.array([3, 1, 3])) is None
    assert dataset.asked == []
    columns = source.fetch(np.array([3, 1, 3]))
    assert dataset.asked == [3, 1, 3]
    assert columns["image"].sizes is None
    assert columns["label"].tolist() == [6, 2, 6]
    assert columns["label"].dtype == np.int64


def test_two_billion_samples_cost_no_memory() -> None:
    tracemalloc.start()
    source = open_source(Numbered(2 * 10**9, [jpeg(0)]))
    columns = source.fetch(np.array([2 * 10**9 - 1]))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert columns["label"].tolist() == [2 * 10**9 - 1]
    assert peak < 1_000_000


def test_fetch_reads_each_sample_once() -> None:
    dataset = images()
    source = open_source(dataset)
    for _ in range(2):
        dataset.asked.clear()
        columns = source.fetch(np.array([2, 0]))
        assert dataset.asked == [2, 0]
        assert [part.tobytes() for part in columns["image"].data] == [jpeg(2, 32, 50), jpeg(0, 30, 50)]
        assert columns["label"].tolist() == [4, 0]


def test_every_kind_of_bytes_and_labels() -> None:
    data = jpeg(0)
    array = np.frombuffer(data, np.uint8)
    kinds = [data, bytearray(data), memoryview(data), array, torch.tensor(array.copy()), np.repeat(array, 2)[::2]]
    labels = [1, np.int32(1), np.array(1), torch.tensor(1), np.uint8(1), np.int64(1)]
    source = open_source(list(zip(kinds, labels, strict=True)))
    columns = source.fetch(np.arange(len(kinds)))
    read = columns["image"].data
    assert {part.tobytes() for part in read} == {data}
    assert {(part.dtype, part.ndim) for part in read} == {(np.dtype(np.uint8), 1)}
    assert set(columns["label"].tolist()) == {1}


def test_the_users_own_exception_is_the_cause() -> None:
    own = KeyError("no such row")
    source = open_source(Images([(jpeg(0), 0), own]))
    for call in (lambda: source[1], lambda: source.fetch(np.array([0, 1]))):
        with pytest.raises(SampleError, match=r"Images\[1\].*__getitem__ raised KeyError: 'no such row'") as caught:
            call()
        assert caught.value.__cause__ is own
        assert caught.value.index == 1


@pytest.mark.parametrize(
    ("item", "said"),
    [
        (
            (torch.zeros(3, 8, 8), 0),
            r"\(Tensor, int\); its field 'image': it is Tensor \(float32, 3 x 8 x 8\)",
        ),
        ((PillowImage.new("RGB", (0, 3)), 0), r"\(Image, int\); its field 'image': it is Image \(uint8, 3 x 0 x 3\)"),
        ((b"x", "cat"), r"\(bytes, str\); its field 'label': str \('cat'\) is no number"),
        (("path.jpg", 0), r"\(str, int\); its field 'image': it is 'path.jpg', a path where the bytes belong"),
        ((b"x", 0, 1), r"\(bytes, int, int\); it must be \(image, label\), .*pass fields="),
        (b"only bytes", r"bytes; it must be \(image, label\)"),
        (None, r"NoneType; it must be \(image, label\)"),
        ({"jpg": b"x", "cls": 0}, r"dict; it has \['jpg', 'cls'\], but none of \['image', 'label'\]"),
    ],
)
def test_items_of_another_kind_are_refused(item: Any, said: str) -> None:
    kind, named = (SampleError, r"\): it") if "its field" in said else (DataError, "")
    with pytest.raises(kind, match=rf"Images\[0\]{named} is .*{said}"):
        open_source(Images([item]))[0]


class Treacherous:
    """An item whose every method raises."""

    def __iter__(self) -> Any:
        raise LookupError("lost the row")

    def __len__(self) -> int:
        raise LookupError("lost the row")

    def __repr__(self) -> str:
        raise LookupError("lost the row")

    def __index__(self) -> int:
        raise LookupError("lost the row")


LABELS = {
    "objects": (np.array([None, 1], object), r"ndarray \(array\(\[None, 1\], dtype=object\)\) is no number"),
    "one object": (np.array(None, object), r"ndarray \(array\(None"),
    "a dict": ({"class": 3}, r"dict \({'class': 3}\) is no number"),
    "a list": ([3], r"it must be \(image, label\)"),  # of which torch makes a list of tensors
    "text": ("cat", r"str \('cat'\) is no number"),
    "digits": ("3", r"str \('3'\)"),
    "bytes": (b"cat", r"bytes \(b'cat'\)"),
    "numpy's text": (np.str_("cat"), r"str_ \("),
    "too large": (2**63, r"9223372036854775808 has no place in int64"),
    "too small": (-(2**63) - 1, r"-9223372036854775809 has no place in int64"),
    "too large for numpy": (np.uint64(2**63), r"9223372036854775808 has no place in int64"),
    "far too large": (10**4000, r"1000.*000 has no place in int64"),
    "treacherous": (Treacherous(), r"Treacherous \(.* is no number"),
}


@pytest.mark.parametrize("name", LABELS)
def test_labels_of_another_kind_are_named(name: str) -> None:
    label, said = LABELS[name]
    kind, named = (DataError, "") if name == "a list" else (SampleError, r"\): it")
    with pytest.raises(kind, match=rf"Images\[1\]{named} is tuple of \(bytes, {type(label).__name__}\); .*{said}"):
        open_source(Images([(jpeg(0), 0), (jpeg(0), label)])).fetch(np.arange(2))


@pytest.mark.parametrize(
    "labels",
    [
        [1.5, 2.0],
        [np.float32(1.5), np.float32(2)],
        [True, False],
        [torch.tensor([0, 1, 0]), torch.tensor([1, 0, 0])],
        [torch.tensor(1.5), torch.tensor(2.5)],
        [np.ones((2, 3)), np.zeros((2, 3))],
        [np.array([]), np.array([])],
        [1, 2],
    ],
    ids=str,
)
def test_labels_of_any_shape_are_those_of_torchs_collate(labels: list[Any]) -> None:
    column = open_source([(jpeg(0), label) for label in labels]).fetch(np.arange(2))["label"]
    made = torch.stack([torch.as_tensor(value) for value in column])
    expected = default_collate(labels)
    assert made.dtype == expected.dtype
    assert torch.equal(made, expected)


def test_a_label_of_none_is_missing() -> None:
    assert open_source([(jpeg(0), 0), (jpeg(0), None)]).fetch(np.arange(2))["label"] == [0, MISSING]


@pytest.mark.parametrize("label", [2**63 - 1, -(2**63), np.uint64(7), np.int8(-3), torch.tensor(5)])
def test_labels_at_the_edge(label: Any) -> None:
    assert open_source(Images([(jpeg(0), label)])).fetch(np.arange(1))["label"].tolist() == [int(label)]


@pytest.mark.parametrize(
    "encoded", [Treacherous(), np.uint8(3), np.array(3, np.uint8), np.zeros((2, 2)), ["a"], 3, [b"x"]]
)
def test_other_bytes_are_named(encoded: Any) -> None:
    with pytest.raises(SampleError, match=rf"Images\[0\]\): it is tuple of \({type(encoded).__name__}, int\)"):
        open_source(Images([(encoded, 0)]))[0]


def test_an_item_whose_methods_raise_is_named() -> None:
    with pytest.raises(DataError, match=r"Images\[0\] is Treacherous; it must be \(image, label\)"):
        open_source(Images([Treacherous()]))[0]


def test_labels_are_not_known_at_once() -> None:
    with pytest.raises(DataError, match=r"labels of DatasetSource\(Images, 4 samples\) are known only by reading"):
        _ = open_source(images()).targets


def test_an_empty_dataset() -> None:
    with pytest.raises(DataError, match="Images is empty"):
        open_source(Images([]))


def test_classes_and_fingerprint_of_the_object_are_taken() -> None:
    dataset = images()
    plain = open_source(dataset)
    assert plain.classes is None
    assert open_source(images()).fingerprint == plain.fingerprint
    assert open_source(images(5)).fingerprint != plain.fingerprint
    dataset.classes, dataset.class_to_idx = ["a", "b"], {"a": 0, "b": 1}  # type: ignore[attr-defined]
    dataset.fingerprint = "version 2"  # type: ignore[attr-defined]
    named = open_source(dataset)
    assert named.class_to_idx == {"a": 0, "b": 1}
    assert named.fingerprint != plain.fingerprint


def test_locations_keys_and_pickling() -> None:
    source = open_source(images())
    assert (source.location(2), source.key(2)) == ("Images[2]", "2")
    assert pickle.loads(pickle.dumps(source))[2][0].tobytes() == jpeg(2, 32, 50)


def test_what_open_source_takes(tmp_path: Path) -> None:
    folder, shard = write_folder(tmp_path / "data"), write_samples(tmp_path / "s.tar")
    assert isinstance(open_source(folder), FolderSource)
    assert isinstance(open_source(str(shard)), ShardSource)
    assert isinstance(open_source([shard]), ShardSource)
    assert isinstance(open_source([(encode(picture(9, 9)), 0)]), DatasetSource)
    for source in (open_source(folder), open_source(shard), open_source(images())):
        assert open_source(source) is source


@pytest.mark.parametrize("data", [7, None, (part for part in "ab"), {1, 2}])
def test_anything_else_is_refused(data: Any) -> None:
    with pytest.raises(ConfigError, match=f"data is {type(data).__name__}: pass a folder"):
        open_source(data)
