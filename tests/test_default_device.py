"""Under `torch.set_default_device` a loader's batches are what they are without."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from engines import forked
from images import encode, picture
from programs import FixedSizeCrop, RandomCutMix, RandomMixUp

import gpupipe
from gpupipe import Array, Boxes, Image, Mask, Pad, Scalar
from gpupipe.batch import Ragged
from gpupipe.kernels import native
from gpupipe.kernels.augment_reference import augment_reference
from gpupipe.kernels.finish import _table
from gpupipe.kernels.operations import Op
from gpupipe.recipe.translation import untouched
from gpupipe.recipe.translation.alike import mixing_like, padding_like
from gpupipe.workers.lease import BufferPool

ENGINES = {
    "torch in the process": {"engine": "torch", "num_workers": 0},
    "torch, workers": {"engine": "torch", **forked(2)},
    "DALI in the process": {"engine": "dali", "num_workers": 0},
    "DALI, workers": {"engine": "dali", **forked(2)},
}
ON_TORCH = pytest.mark.parametrize("engine", list(ENGINES.values())[:2], ids=list(ENGINES)[:2])
ON_ALL = pytest.mark.parametrize("engine", ENGINES.values(), ids=list(ENGINES))
NORMALIZE = gpupipe.Normalize((0.5, 0.4, 0.3), (0.5, 0.6, 0.7))
TRAIN = (gpupipe.RandomResizedCrop(24), gpupipe.RandomHorizontalFlip(), gpupipe.RandAugment(2), NORMALIZE)


class Scenes:
    """A dataset of images with a mask, boxes and a class."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> dict[str, Any]:
        height, width = 40 + index, 60 - 2 * index
        return {
            "image": np.frombuffer(encode(picture(height, width, index)), np.uint8),
            "mask": np.random.default_rng(index).integers(0, 9, (height, width), np.uint8),
            "boxes": np.array([[1, 2, 20, 30]], np.float32),
            "label": index % 3,
        }


class Items:
    """A dataset of what torch's default_collate takes, and of where the program's own tensors are made."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        array = np.full((2, 3), index, np.float32)
        return index, index / 2, np.float32(index), array, torch.from_numpy(array), str(torch.empty(0).device)


@pytest.fixture
def on_meta() -> Iterator[Callable[[], None]]:
    """Makes "meta" the default device, on which no tensor has memory, until the test has ended."""
    yield lambda: torch.set_default_device("meta")
    torch.set_default_device(None)
    _table.cache_clear()


def batches(data: Any, recipe: Any, **options: Any) -> list[Any]:
    """An epoch's batches."""
    _table.cache_clear()
    with gpupipe.Loader(data, recipe, 4, shuffle=True, seed=3, device="cpu", **options) as loader:
        return list(loader)


def assert_same(some: Any, others: Any) -> None:
    assert type(some) is type(others)
    if isinstance(some, torch.Tensor):
        assert some.device == others.device == torch.device("cpu")
        assert torch.equal(some, others)
    elif isinstance(some, Ragged):
        assert_same((some.values, some.offsets), (others.values, others.offsets))
    elif isinstance(some, dict):
        assert_same(list(some.items()), list(others.items()))
    elif isinstance(some, list | tuple):
        for one, other in zip(some, others, strict=True):
            assert_same(one, other)
    else:
        assert some == others


PAIR = {"image": Image(), "label": Scalar()}
RECIPES: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "erased": ((*TRAIN, gpupipe.RandomErasing(1.0)), PAIR),
    "mixed": ((*TRAIN, gpupipe.MixUp(10)), PAIR),
    "masks": (
        (*TRAIN[:-1], gpupipe.RandomRotation(20), NORMALIZE),
        {"image": Image(), "mask": Mask(), "x": Boxes("boxes")},
    ),
    "padded": (
        (gpupipe.Resize(30, 50), NORMALIZE),
        {"image": Image(collate=Pad(multiple=8, mask=True)), "mask": Mask(collate=Pad()), "x": Array("boxes")},
    ),
}


@pytest.mark.parametrize("kind", RECIPES)
@ON_ALL
def test_images(on_meta, engine, kind):
    operations, fields = RECIPES[kind]
    expected = batches(Scenes(), gpupipe.Recipe(operations), fields=fields, **engine)
    on_meta()
    assert_same(batches(Scenes(), gpupipe.Recipe(operations), fields=fields, **engine), expected)


def test_images_without_the_kernels(on_meta, monkeypatch):
    monkeypatch.setattr(native, "library", lambda: None)
    operations, fields = RECIPES["erased"]
    expected = batches(Scenes(), gpupipe.Recipe(operations), fields=fields, num_workers=0, engine="torch")
    on_meta()
    made = batches(Scenes(), gpupipe.Recipe(operations), fields=fields, num_workers=0, engine="torch")
    assert_same(made, expected)


@ON_TORCH
def test_items_where_the_datasets_own_code_sees_the_device(on_meta, engine):
    expected = batches(Items(), None, **engine)
    on_meta()
    made = batches(Items(), None, **engine)
    assert [batch.pop() for batch in made] == [("meta",) * 4] * 2
    assert [batch.pop() for batch in expected] == [("cpu",) * 4] * 2
    assert_same(made, expected)


@ON_TORCH
def test_a_sampler_sees_the_device(on_meta, engine):
    class Sampler(torch.utils.data.Sampler[int]):
        def __len__(self) -> int:
            return 8

        def __iter__(self) -> Iterator[int]:
            seen.append(str(torch.empty(0).device))
            return iter(range(8))

    seen: list[str] = []
    on_meta()
    with gpupipe.Loader(Items(), None, 4, order=Sampler(), device="cpu", **engine) as loader:
        assert len(list(loader)) == 2
    assert set(seen) == {"meta"}


def test_a_buffer_of_nothing(on_meta):
    on_meta()
    assert BufferPool().take((0, 3), torch.float32).device.type == "cpu"


def test_the_table_of_levels(on_meta):
    on_meta()
    assert _table((0.0,) * 3, (1.0,) * 3, torch.float32).device.type == "cpu"


def test_classes_of_a_program_are_known_by_what_they_do(on_meta):
    on_meta()
    assert mixing_like(RandomMixUp(2, 0.4, 0.2)) == "MixUp"
    assert mixing_like(RandomCutMix(2, 0.7, 1.0)) == "CutMix"
    assert padding_like(FixedSizeCrop((32, 32), (1.0, 2.5, 3.0))) is not None
    assert untouched._alike(np.ones(2), np.ones(2))


def test_the_definition_of_the_augmentations(on_meta):
    images = torch.from_numpy(picture(9, 8, 1)[None])
    ops, values = np.array([[Op.HOLES]], np.int32), np.zeros((1, 1, 8), np.float32)
    expected = augment_reference(images, ops, values)
    on_meta()
    assert torch.equal(augment_reference(images, ops, values), expected)
