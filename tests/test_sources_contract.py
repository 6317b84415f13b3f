"""What every source promises, asked of each kind."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from images import encode, picture, write_folder
from PIL import Image as PILImage
from tars import jpeg, write_samples
from torch.utils.data import Subset

from gpupipe.batch import MISSING, Boxes, Image, Images, Index, Key, Mask, Scalar, Schema, Text
from gpupipe.errors import ConfigError, SampleError
from gpupipe.sources import Source, check_source, open_source
from gpupipe.sources.headers import FORMATS


class Items:
    """A user's dataset."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> tuple[bytes, int]:
        return jpeg(index, 30 + index, 70), index % 4


def folder(path: Path) -> Any:
    root = write_folder(path / "data")
    (root / "class_0/other.png").write_bytes(encode(picture(33, 22), "PNG"))
    return root


def shards(path: Path) -> Any:
    return [write_samples(path / f"{number}.tar", 5 * number, 4) for number in range(3)]


def subset(path: Path) -> Any:
    return Subset(Subset(open_source(folder(path)), [7, 12, 0, 3, 5, 4, 2]), range(1, 7))


def subset_of_a_dataset(path: Path) -> Any:
    return Subset(open_source(Items()), [5, -6, 3, 1, 2])


KINDS = {
    "folder": folder,
    "shards": shards,
    "dataset": lambda path: Items(),
    "subset": subset,
    "subset of a dataset": subset_of_a_dataset,
}


@pytest.fixture(params=KINDS.values(), ids=KINDS.keys())
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Source]:
    data = request.param(tmp_path)
    return lambda: open_source(data)


def everything(source: Source) -> Any:
    return source.fetch(np.arange(len(source)))


def test_bytes_are_those_of_the_image_that_shapes_describes(make: Callable[[], Source]) -> None:
    source = make()
    images, shapes = everything(source)["image"], source.shapes(np.arange(len(source)))
    assert len(images.data) == len(source)
    assert (images.sizes is None) == (shapes is None)
    for index, data in enumerate(images.data):
        assert (data.dtype, data.ndim) == (np.dtype(np.uint8), 1)
        with PILImage.open(io.BytesIO(data.tobytes()), formats=FORMATS) as image:
            image.load()
            assert shapes is None or (*image.size[::-1], 1) == tuple(shapes[index]) == tuple(images.sizes[index])


def test_all_of_the_contract(make: Callable[[], Source]) -> None:
    check_source(make())


def test_labels_are_int64_of_no_samples_too(make: Callable[[], Source]) -> None:
    for indices in (np.array([3, 0, 3]), np.empty(0, np.int64)):
        labels = make().fetch(indices)["label"]
        assert (labels.dtype, labels.shape) == (np.int64, indices.shape)


def test_columns_belong_to_the_caller(make: Callable[[], Source]) -> None:
    source = make()
    before = int(source.fetch(np.array([1]))["label"][0])
    source.fetch(np.array([1]))["label"][0] = 99
    assert source.fetch(np.array([1]))["label"].tolist() == [before]


def test_locations_name_the_sample(make: Callable[[], Source]) -> None:
    source = make()
    assert all(source.key(index) in source.location(index) for index in range(len(source)))


def test_opened_again_and_pickled_it_is_the_same(make: Callable[[], Source]) -> None:
    source = make()
    for same in (make(), pickle.loads(pickle.dumps(source))):
        assert same.fingerprint == source.fingerprint
        assert len(same) == len(source)
        assert same[1][0].tobytes() == source[1][0].tobytes()
        assert same.classes == source.classes


def test_it_is_a_map_style_dataset(make: Callable[[], Source]) -> None:
    source = make()
    size = len(source)
    columns = everything(source)
    data = [data.tobytes() for data in columns["image"].data]
    expected = list(zip(data, columns["label"].tolist(), strict=True))
    items = list(source)  # which ends at the first IndexError
    assert [(data.tobytes(), label) for data, label in items] == expected
    assert all(type(label) is int for _, label in items)
    for index in (-1, -size, np.int32(1), torch.tensor(2)):
        data, label = source[index]
        assert (data.tobytes(), label) == expected[index]
    for index in (size, -size - 1):
        with pytest.raises(IndexError, match=f"no sample {index}, there are {size}"):
            source[index]
    for wrong in (slice(0, 2), [0, 1], 1.0, "0"):
        with pytest.raises(TypeError, match="must be an int"):
            source[wrong]


PIXELS = picture(8, 6)


class Good(Source):
    """A source of the user's own, which the next ones break."""

    fields = Schema(
        {"image": Image(), "mask": Mask(), "boxes": Boxes(), "text": Text(), "key": Key(), "index": Index()}
    )
    fingerprint = "good"

    def __len__(self) -> int:
        return 20

    def fetch(self, indices: Any) -> Any:
        if len(indices) and max(indices) >= 20:
            raise IndexError(max(indices))
        return {
            "image": Images(
                [None if index == 3 else PIXELS + np.uint8(index) for index in indices], self.shapes(indices)
            ),
            "mask": [MISSING if index == 4 else PIXELS[:, :, 0] for index in indices],
            "boxes": [np.ones((index % 3, 4)) for index in indices],
            "text": [str(index) for index in indices],
            "key": [self.key(index) for index in indices],
            "index": indices.copy(),
        }

    def shapes(self, indices: Any) -> Any:
        return np.tile(np.array([8, 6, 1], np.int32), (len(indices), 1))


class Damaged(Good):
    """Its sample 0 can't be read, which is in order."""

    wrong = 0

    def fetch(self, indices: Any) -> Any:
        if 0 in indices:
            raise SampleError(self.wrong, "zero", "is gone")
        return super().fetch(indices)


def broken(column: str, change: Callable[[Any, Any], Any]) -> type[Good]:
    """A source one of whose columns is what `change` makes of it."""

    class Broken(Good):
        def fetch(self, indices: Any) -> Any:
            columns = super().fetch(indices)
            return columns | {column: change(columns.get(column), indices)}

    return Broken


class Unequal:
    calls = 0

    def __call__(self, column: Any, indices: Any) -> Any:
        self.calls += 1
        return [f"{text} {self.calls}" for text in column]


def changed(**attributes: Any) -> type[Good]:
    return type("Changed", (Good,), attributes)


BROKEN: dict[str, tuple[type[Source], str]] = {
    "a length of 0": (changed(__len__=lambda self: 0), r"len\(\) is 0"),
    "no fingerprint": (changed(fingerprint=""), "fingerprint='' must be"),
    "twins": (changed(key=lambda self, index: "same"), r"key\(\) gives one string for several"),
    "keys that are numbers": (changed(key=lambda self, index: index), "must give strings"),
    "no end": (changed(fetch=lambda self, indices: Good.fetch(self, indices % 20)), "fetch of sample 20|'index' of"),
    "another sample's fault": (type("Wrong", (Damaged,), {"wrong": 7}), "SampleError about sample 7"),
    "a column too many": (broken("extra", lambda column, indices: []), "gave the columns .*'extra'"),
    "too few rows": (broken("text", lambda column, indices: column[:-1]), "'text' has 0 rows for 1"),
    "images in a list": (broken("image", lambda column, indices: column.data), "'image' is list"),
    "floats": (broken("image", lambda column, indices: Images([PIXELS / 2 for _ in indices])), "float64 .*uint8 array"),
    "channels first": (broken("image", lambda column, indices: Images([PIXELS.T for _ in indices])), r"\(3, 6, 8\)"),
    "other sizes": (
        broken("image", lambda column, indices: Images(column.data, column.sizes + 1)),
        "not the sizes",
    ),
    "sizes of int64": (changed(shapes=lambda self, indices: np.ones((len(indices), 3), int)), "sizes is int64"),
    "wide masks": (broken("mask", lambda column, indices: [PIXELS for _ in indices]), "'mask' of sample 0 is ndarray"),
    "boxes of 5": (
        broken("boxes", lambda column, indices: [np.ones((2, 5)) for _ in indices]),
        r"an array \(M, 4",
    ),
    "bytes as text": (broken("text", lambda column, indices: [b"" for _ in indices]), "is bytes; it must be a str"),
    "None": (broken("text", lambda column, indices: [None for _ in indices]), "is NoneType; it must be a str"),
    "other indices": (broken("index", lambda column, indices: indices + 1), "'index' of sample 0 is 1"),
    "no empty batches": (
        changed(fetch=lambda self, indices: Good.fetch(self, np.stack([*indices]))),
        r"samples \[\] raised ValueError",
    ),
    "other errors": (
        broken("text", lambda column, indices: [{}[9] for _ in indices]),
        r"\[0\] raised KeyError: 9; what can't",
    ),
    "no order": (broken("text", lambda column, indices: sorted(column)), "is not what it is when it is fetched alone"),
    "too short a column": (changed(column=lambda self, name: ["0"]), r"column\('text'\) has 1 values for 20 samples"),
    "another column": (
        changed(column=lambda self, name: [str(index + index // 19) for index in range(20)]),
        r"column\('text'\) has '20' for sample 19, where fetch gives '19'",
    ),
    "what differs": (broken("text", Unequal()), "is not what it is when it is fetched alone"),
}


class Known(Good):
    """It knows a column, with NaN in it."""

    fields = Schema({"image": Image(), "score": Scalar()})
    scores = np.where(np.arange(20) % 3, np.arange(20.0), np.nan)

    def fetch(self, indices: Any) -> Any:
        return {"image": super().fetch(indices)["image"], "score": self.scores[indices]}

    def column(self, name: str) -> Any:
        return self.scores if name == "score" else super().column(name)


def test_sources_of_users_keep_the_contract() -> None:
    check_source(Known())
    check_source(Good())
    check_source(Damaged())


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_promise_is_named(name: str) -> None:
    kind, message = BROKEN[name]
    with pytest.raises(AssertionError, match=message):
        check_source(kind())


def test_what_is_no_source_is_named() -> None:
    for thing in (Items(), Source()):
        with pytest.raises(ConfigError, match=f"{type(thing).__name__} is no source: inherit from gpupipe.Source"):
            check_source(thing)  # type: ignore[arg-type]
