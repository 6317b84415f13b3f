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
from PIL import Image
from tars import jpeg, write_samples
from torch.utils.data import Subset

from gpupipe.batch import Images
from gpupipe.batch.columns import take
from gpupipe.sources import Source, open_source
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
        with Image.open(io.BytesIO(data.tobytes()), formats=FORMATS) as image:
            image.load()
            assert shapes is None or (*image.size[::-1], 1) == tuple(shapes[index]) == tuple(images.sizes[index])


def test_dtypes_and_shapes(make: Callable[[], Source]) -> None:
    for indices in (np.array([3, 0, 3]), np.empty(0, np.int64)):
        columns, shapes = make().fetch(indices), make().shapes(indices)
        assert list(columns) == ["image", "label"]
        assert (columns["label"].dtype, columns["label"].shape) == (np.int64, indices.shape)
        assert isinstance(columns["image"], Images)
        assert len(columns["image"]) == len(indices)
        for array in (shapes, columns["image"].sizes):
            assert array is None or (array.dtype, array.shape) == (np.int32, (len(indices), 3))


def test_it_gathers_in_any_order(make: Callable[[], Source]) -> None:
    source = make()
    order = np.random.default_rng(0).integers(0, len(source), 50)
    whole, picked = take(everything(source), order), source.fetch(order)
    assert [data.tobytes() for data in picked["image"].data] == [data.tobytes() for data in whole["image"].data]
    assert np.array_equal(picked["label"], whole["label"])
    assert np.array_equal(picked["image"].sizes, whole["image"].sizes)


def test_columns_belong_to_the_caller(make: Callable[[], Source]) -> None:
    source = make()
    before = int(source.fetch(np.array([1]))["label"][0])
    source.fetch(np.array([1]))["label"][0] = 99
    assert source.fetch(np.array([1]))["label"].tolist() == [before]


def test_keys_are_unique_and_locations_name_the_sample(make: Callable[[], Source]) -> None:
    source = make()
    keys = [source.key(index) for index in range(len(source))]
    assert len(set(keys)) == len(keys)
    assert all(key in source.location(index) for index, key in enumerate(keys))


def test_opened_again_and_pickled_it_is_the_same(make: Callable[[], Source]) -> None:
    source = make()
    for same in (make(), pickle.loads(pickle.dumps(source))):
        assert same.fingerprint == source.fingerprint
        assert len(same) == len(source)
        assert same[1][0].tobytes() == source[1][0].tobytes()
        assert same.classes == source.classes


def test_an_index_beyond_the_end(make: Callable[[], Source]) -> None:
    source = make()
    with pytest.raises(IndexError):
        source.fetch(np.array([len(source)]))


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
