"""A Loader made from a DataLoader, against that DataLoader."""

from __future__ import annotations

import copy
import functools
import math
import pickle
import random
import sys
import types
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
import torchvision
from engines import forked
from images import encode, picture, write_folder
from PIL import Image, ImageOps
from programs import DataAugmentationDINO
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
    get_worker_info,
    random_split,
)
from torch.utils.data.distributed import DistributedSampler
from torchvision import transforms as T
from torchvision.datasets import ImageFolder, VOCSegmentation
from torchvision.transforms import v2
from vision_datasets import (
    FILES,
    image,
    image_folder,
    no_checksums as no_checksums,
    oxford_pets,
    stanford_cars,
    text,
)

import gpupipe
from gpupipe.errors import ConfigError, DataError, SampleError, StateError
from gpupipe.recipe.translation.untouched import replaced_in

LEVELS = T.Compose([T.Resize(20), T.CenterCrop(16), T.PILToTensor()])
FLOATS = T.Compose([T.Resize(20), T.CenterCrop(16), T.ToTensor(), T.Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))])
PIL_LOADER = torchvision.datasets.folder.pil_loader
TRAIN = T.Compose([T.RandomResizedCrop(16), T.RandomHorizontalFlip(), T.ToTensor()])


class Numbers(Dataset):
    """Items are their indices."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        return index


def same(found: Any, expected: Any, tolerance: float = 0) -> None:
    """Structure, shapes, dtypes and values."""
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        for name in expected:
            same(found[name], expected[name], tolerance)
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            same(one, other, tolerance)
    else:
        assert found == expected
        assert type(found) is type(expected)


def same_batches(loader: DataLoader[Any], made: gpupipe.Loader, tolerance: float = 0) -> None:
    """Of an unshuffled epoch."""
    assert len(made) == len(loader)
    for found, expected in zip(made, loader, strict=True):
        same(found, expected, tolerance)


def line(made: gpupipe.Loader, part: str) -> Any:
    """Of the report."""
    (found,) = [line for line in made.translation.lines if line.part == part]
    return found


class TestFiles:
    @pytest.mark.usefixtures("no_checksums")
    @pytest.mark.parametrize("make", FILES, ids=lambda make: make.__name__)
    def test_of_torchvisions_datasets(self, make: Callable[..., Any], tmp_path: Path) -> None:
        dataset = make(tmp_path, transform=LEVELS)
        files = {path for path in tmp_path.rglob("*") if path.is_file()}
        loader = DataLoader(dataset, batch_size=2)
        made = gpupipe.from_dataloader(loader, strict=True)
        assert made.recipe is not None
        assert made.dataset is dataset
        assert made.source.classes == getattr(dataset, "classes", None)
        same_batches(loader, made)
        assert files == {path for path in tmp_path.rglob("*") if path.is_file()}

    def test_floats_in_workers(self, folder: Path) -> None:
        loader = DataLoader(ImageFolder(folder, FLOATS), batch_size=4, num_workers=2)
        with gpupipe.from_dataloader(loader) as made:
            same_batches(loader, made, 1e-6)
            images, labels = next(iter(made))
        assert (images.device.type, images.dtype, labels.dtype) == ("cpu", torch.float32, torch.int64)

    def test_above_what_a_link_leads_to(self, tmp_path: Path) -> None:
        """Where the system finds them, not in the folder that the link lies in."""
        for place, seed in (("far", 1), ("near", 2)):
            (tmp_path / place / "images" / "a").mkdir(parents=True)
            Image.fromarray(picture(20, 20, seed)).save(tmp_path / place / "images" / "a" / "0.png")
        (tmp_path / "far" / "deep").mkdir()
        (tmp_path / "near" / "link").symlink_to(tmp_path / "far" / "deep")
        loader = DataLoader(ImageFolder(str(tmp_path / "near/link/../images"), LEVELS))
        same_batches(loader, gpupipe.from_dataloader(loader, strict=True))

    def test_workers_that_are_spawned(self, tmp_path: Path) -> None:
        loader = DataLoader(image_folder(tmp_path, transform=LEVELS), 4, num_workers=1, multiprocessing_context="spawn")
        with gpupipe.from_dataloader(loader) as made:
            same_batches(DataLoader(loader.dataset, 4), made)

    def test_a_list_that_is_no_folders(self, tmp_path: Path) -> None:
        """allow_empty, is_valid_file, samples that were taken away or put elsewhere."""
        (tmp_path / "z").mkdir()
        dataset = image_folder(
            tmp_path, transform=LEVELS, allow_empty=True, is_valid_file=lambda path: path.endswith(("0.jpg", "1.png"))
        )
        dataset.samples.reverse()
        loader = DataLoader(dataset, batch_size=2)
        same_batches(loader, gpupipe.from_dataloader(loader, strict=True))

    def test_relative_paths(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        image_folder(tmp_path / "data")
        monkeypatch.chdir(tmp_path)
        loader = DataLoader(ImageFolder("data", LEVELS), batch_size=2)
        made = gpupipe.from_dataloader(loader, strict=True)
        monkeypatch.chdir("/")
        assert made.source.location(0) == str(tmp_path / "data/a/0.jpg")
        assert len(next(iter(made))[0]) == 2

    def test_parts_of_datasets(self, folder: Path, tmp_path: Path) -> None:
        whole = ImageFolder(folder, LEVELS)
        other = image_folder(tmp_path, transform=LEVELS)
        part = Subset(Subset(whole, [20, 3, 3, -1, 7]), [4, 0, 1])
        for dataset in (part, ConcatDataset([other, part, whole]), random_split(whole, [20, 5])[1]):
            loader = DataLoader(dataset, batch_size=4)
            made = gpupipe.from_dataloader(loader, strict=True)
            same_batches(loader, made)
            assert made.source.location(0) == (whole.samples[7][0] if dataset is part else made.source.location(0))

    def test_parts_with_numpys_labels(self, tmp_path: Path) -> None:
        cars = stanford_cars(tmp_path, transform=LEVELS)
        loader = DataLoader(ConcatDataset([cars, Subset(cars, [1])]), batch_size=4)
        same_batches(loader, gpupipe.from_dataloader(loader, strict=True))

    def test_an_index_is_read_again_and_made_anew(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        loader = DataLoader(image_folder(tmp_path, transform=LEVELS), batch_size=2)
        before = gpupipe.from_dataloader(loader).source
        assert gpupipe.from_dataloader(loader).source.fingerprint == before.fingerprint
        file = tmp_path / "a/0.jpg"
        file.unlink()
        file.write_bytes(encode(picture(90, 60, 9)))
        caplog.clear()
        made = gpupipe.from_dataloader(loader)
        assert "folder a was changed" in caplog.text
        same_batches(loader, made)
        with pytest.raises(StateError, match="source"):
            made.load_state_dict(gpupipe.from_dataloader(loader, seed=1).state_dict() | {"source": before.fingerprint})

    def test_a_file_that_is_written_anew_is_named_and_indexed_by_the_next_loader(self, tmp_path: Path) -> None:
        """In place, where the folder's time of change stays."""
        dataset = image_folder(tmp_path, transform=LEVELS)
        loader = DataLoader(dataset, batch_size=2)
        made = gpupipe.from_dataloader(loader)
        before = (tmp_path / "a").stat().st_mtime_ns
        (tmp_path / "a/0.jpg").write_bytes(encode(picture(90, 60, 9)))
        assert (tmp_path / "a").stat().st_mtime_ns == before
        match = r"a/0\.jpg\): has \d+ bytes where the index says .* build dataset and loader again"
        with pytest.raises(SampleError, match=match):
            next(iter(made))
        again = gpupipe.from_dataloader(loader)
        same_batches(loader, again)
        assert again.source.fingerprint != made.source.fingerprint
        assert gpupipe.from_dataloader(loader).source.fingerprint == again.source.fingerprint
        (tmp_path / "a/0.jpg").unlink()
        with pytest.raises(SampleError, match=r"a/0\.jpg\): can't be read: No such file"):
            next(iter(again))

    def test_headers_are_read_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        loader = DataLoader(image_folder(tmp_path, transform=LEVELS), batch_size=2)
        assert {Path(path).suffix for path, _ in loader.dataset.samples} == {".jpg", ".png"}
        gpupipe.from_dataloader(loader, strict=True)
        monkeypatch.setattr(Image, "open", lambda *arguments, **options: pytest.fail("a header is read"))
        gpupipe.from_dataloader(loader, strict=True)

    def test_an_index_that_can_be_written_nowhere(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        loader = DataLoader(image_folder(tmp_path / "data", transform=LEVELS), batch_size=2)
        text(tmp_path / "file", "in the place of a folder")
        monkeypatch.setenv("GPUPIPE_CACHE", str(tmp_path / "file"))
        with pytest.raises(DataError, match=r"the index can't be written to .*file/data-.*; set GPUPIPE_CACHE"):
            gpupipe.from_dataloader(loader)

    def test_no_files(self, tmp_path: Path) -> None:
        dataset = image_folder(tmp_path, transform=LEVELS)
        dataset.samples.clear()
        with pytest.raises(gpupipe.DataError, match="lists no files"):
            gpupipe.from_dataloader(DataLoader(dataset, batch_size=2))

    @pytest.mark.trainers("timm")
    def test_of_timm(self, folder: Path) -> None:
        from timm.data import ImageDataset

        loader = DataLoader(ImageDataset(str(folder), transform=LEVELS), batch_size=4)
        made = gpupipe.from_dataloader(loader, strict=True)
        same_batches(loader, made)
        assert "on_error='skip'" in str(made.translation)
        for options in ({"input_img_mode": "L"}, {"load_bytes": True}):
            made = gpupipe.from_dataloader(DataLoader(ImageDataset(str(folder), transform=LEVELS, **options)))
            assert made.recipe is None
        assert gpupipe.from_dataloader(DataLoader(ImageDataset(str(folder), transform=LEVELS)), on_error="raise")

    @pytest.mark.trainers("timm")
    def test_timms_transform(self, folder: Path) -> None:
        from timm.data import create_transform

        loader = DataLoader(ImageFolder(folder, create_transform(16, crop_pct=0.8)), batch_size=4)
        made = gpupipe.from_dataloader(loader, strict=True)
        same_batches(loader, made, 1e-6)
        turning = create_transform(16, is_training=True, auto_augment="rand-m9-tweights", interpolation="bicubic")
        made = gpupipe.from_dataloader(DataLoader(ImageFolder(folder, turning), batch_size=4))
        assert line(made, "transform").why.startswith("RandAugment(ops=[")

    @pytest.mark.trainers("timm")
    def test_timms_bad_files_are_skipped(self, tmp_path: Path) -> None:
        from timm.data import ImageDataset

        write_folder(tmp_path, 2, 3)
        (tmp_path / "class_0/img_1.jpg").write_bytes(b"none")
        dataset = ImageDataset(str(tmp_path), transform=LEVELS)
        made = gpupipe.from_dataloader(DataLoader(dataset, batch_size=6))
        (images, labels), (expected, theirs) = next(iter(made)), next(iter(DataLoader(dataset, batch_size=6)))
        assert labels.tolist() == theirs.tolist() == [0, 0, 0, 1, 1, 1]
        same(images, expected)
        assert [error.index for error in made.bad_samples] == [1]


@pytest.mark.parametrize("indices", [[1.0, 2.0], ["1"], [[1, 2]], [0, 99]], ids=str)
def test_indices_of_no_sample_raise_what_the_dataset_raises(indices: list[Any], folder: Path) -> None:
    loader = DataLoader(Subset(ImageFolder(folder, LEVELS), indices), batch_size=2)
    made = gpupipe.from_dataloader(loader)
    assert "its indices are not one list of numbers from -25 to 24" in line(made, "dataset").why
    for one in (loader, made):
        with pytest.raises((TypeError, IndexError), match="list ind"):
            next(iter(one))


class TestLabels:
    @pytest.mark.parametrize(
        "function",
        [
            lambda label: label + 10,
            lambda label: label / 2,
            lambda label: label == 1,
            lambda label: torch.nn.functional.one_hot(torch.tensor(label), 5),
            lambda label: np.float32(label),
            lambda label: np.eye(5)[label],
            {number: number % 2 for number in range(5)}.get,
        ],
        ids=["int", "float", "bool", "tensor", "numpy", "array", "dict"],
    )
    def test_of_a_target_transform(self, function: Callable[[int], Any], folder: Path) -> None:
        loader = DataLoader(ImageFolder(folder, LEVELS, target_transform=function), batch_size=4)
        made = gpupipe.from_dataloader(loader, strict=True)
        same_batches(loader, made)
        assert made.source.location(3) == loader.dataset.samples[3][0]
        assert line(made, "target_transform").now == "called for each label"

    def test_of_a_target_transform_that_draws(self, folder: Path) -> None:
        """Each sample has its own draw, the same with any number of workers; nothing is drawn from the program's."""
        dataset = ImageFolder(folder, LEVELS, target_transform=lambda label: label + random.random())
        random.seed(5)
        drawn = []
        for workers in (0, 2):
            with gpupipe.from_dataloader(DataLoader(dataset, 5, **forked(workers)), seed=1) as made:
                drawn.append(torch.cat([labels for _, labels in made]))
        random_after = random.random()
        random.seed(5)
        assert random_after == random.random()
        assert torch.equal(*drawn)
        assert len({float(value) % 1 for value in drawn[0]}) == len(dataset)

    def test_of_a_target_transform_for_some_classes(self, folder: Path) -> None:
        dataset = ImageFolder(folder, LEVELS, target_transform={3: 0, 4: 1}.__getitem__)
        loader = DataLoader(Subset(dataset, range(15, 25)), batch_size=4)
        same_batches(loader, gpupipe.from_dataloader(loader, strict=True))

    def test_what_a_target_transform_raises(self, folder: Path) -> None:
        dataset = ImageFolder(folder, LEVELS, target_transform={0: 0}.__getitem__)
        made = gpupipe.from_dataloader(DataLoader(dataset, batch_size=25))
        with pytest.raises(KeyError, match="1") as caught:
            next(iter(made))
        assert isinstance(caught.value, SampleError)
        assert str(caught.value).startswith(f"sample 5 ({dataset.samples[5][0]}): target_transform raised KeyError: 1")

    @pytest.mark.parametrize(
        "function",
        [
            str,
            lambda label: (label, label),
            lambda label: label if label < 3 else label / 2,
            lambda label: torch.tensor(label, dtype=torch.float32 if label == 4 else torch.float64),
        ],
    )
    def test_that_are_no_numbers_of_one_type_leave_all_as_it_is(
        self, function: Callable[[int], Any], folder: Path
    ) -> None:
        dataset = ImageFolder(folder, LEVELS, target_transform=function)
        loader = DataLoader(Subset(dataset, range(5, 25)), batch_size=4)
        made = gpupipe.from_dataloader(loader)
        assert made.recipe is None
        assert "its target_transform gives" in line(made, "dataset").why
        same_batches(loader, made)

    @pytest.mark.parametrize(
        "label", [np.uint8(3), torch.tensor(3, dtype=torch.int32), torch.ones(2).bfloat16()], ids=str
    )
    def test_of_another_dtype_stay_of_it(self, label: Any, folder: Path) -> None:
        loader = DataLoader(ImageFolder(folder, LEVELS, target_transform=lambda number: label), batch_size=4)
        made = gpupipe.from_dataloader(loader)
        same_batches(loader, made)
        assert f"its labels are {str(label.dtype).removeprefix('torch.')}," in line(made, "dataset").why

    def test_other_target_types(self, tmp_path: Path) -> None:
        loader = DataLoader(oxford_pets(tmp_path, transform=LEVELS, target_types="binary-category"), batch_size=2)
        same_batches(loader, gpupipe.from_dataloader(loader, strict=True))
        loader = DataLoader(
            oxford_pets(tmp_path, transform=LEVELS, target_types=["category", "category"]), batch_size=2
        )
        made = gpupipe.from_dataloader(loader)
        assert "target_types" in line(made, "dataset").why
        same_batches(loader, made)


class TestMixing:
    @pytest.mark.parametrize("batch_size", [4, 5])
    def test_of_a_batch(self, batch_size: int, folder: Path) -> None:
        """Of pairs: an odd batch leaves the DataLoader's as it is."""
        mixup = v2.MixUp(num_classes=5, alpha=0.8)
        collate = lambda batch: mixup(*default_collate(batch))  # noqa: E731
        loader = DataLoader(ImageFolder(folder, FLOATS), batch_size, collate_fn=collate)
        made = gpupipe.from_dataloader(loader)
        (images, labels), (their_images, their_labels) = next(iter(made)), next(iter(loader))
        assert (images.shape, images.dtype) == (their_images.shape, their_images.dtype)
        assert (labels.shape, labels.dtype) == (their_labels.shape, their_labels.dtype)
        if batch_size == 4:
            assert made.translation.complete
            assert made.recipe.mixing == gpupipe.MixUp(5, 0.8, alike=4)
            assert "MixUp(" in line(made, "collate_fn").now
        else:
            assert "batch_size=5 can't be translated" in line(made, "collate_fn").why

    def test_by_what_is_not_known(self, folder: Path) -> None:
        def collate(batch: Any) -> Any:
            images, labels = default_collate(batch)
            return images.flip(0), labels

        loader = DataLoader(ImageFolder(folder, FLOATS), 4, collate_fn=collate, **forked(1))
        with gpupipe.from_dataloader(loader) as made:
            same_batches(loader, made)
        assert "gpupipe can't read what it does" in line(made, "collate_fn").why

    def test_by_what_gets_its_value_later(self, folder: Path) -> None:
        """A name of the function around it, which has none when the loader is made."""

        def collate(batch: Any) -> Any:
            return later(*default_collate(batch))

        loader = DataLoader(ImageFolder(folder, FLOATS), 4, collate_fn=collate)
        made = gpupipe.from_dataloader(loader)
        later = lambda images, labels: (images.flip(0), labels)  # noqa: E731
        same_batches(loader, made)
        assert "gpupipe can't read what it does" in line(made, "collate_fn").why


@pytest.fixture
def doubles() -> Iterator[None]:
    """torch's default dtype is float64."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("doubles")
class TestDefaultDtype:
    @pytest.mark.parametrize("lib", ["torchvision", pytest.param("timm", marks=pytest.mark.trainers("timm"))])
    def test_of_what_makes_floats_of_it(self, lib: str, folder: Path) -> None:
        if lib == "torchvision":
            convert: Any = T.ToTensor()
        else:
            from timm.data.transforms import MaybeToTensor

            convert = MaybeToTensor()
        transform = T.Compose([T.Resize(20), T.CenterCrop(16), convert])
        loader = DataLoader(ImageFolder(folder, transform), 4)
        made = gpupipe.from_dataloader(loader)
        assert "torch's default dtype is float64" in line(made, "transform").why
        same_batches(loader, made)

    @pytest.mark.parametrize(
        "converts",
        [
            [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)],
            [T.PILToTensor(), T.ConvertImageDtype(torch.float32)],
        ],
    )
    def test_of_what_names_its_own(self, converts: list[Any], folder: Path) -> None:
        norm = T.Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
        transform = T.Compose([T.Resize(20), T.CenterCrop(16), *converts, norm])
        loader = DataLoader(ImageFolder(folder, transform, target_transform=float), 4)
        same_batches(loader, gpupipe.from_dataloader(loader, strict=True), 1e-6)
        mixup = v2.MixUp(num_classes=5)
        mixed = DataLoader(ImageFolder(folder, transform), 4, collate_fn=lambda batch: mixup(*default_collate(batch)))
        made = gpupipe.from_dataloader(mixed, strict=True)
        assert [one.dtype for one in next(iter(made))] == [one.dtype for one in next(iter(mixed))]


class TestViews:
    """DINO's transform, which gives a list of views."""

    def test_of_dino(self, folder: Path) -> None:
        transform = DataAugmentationDINO((0.4, 1.0), (0.05, 0.4), 8)
        assert gpupipe.from_dataloader(DataLoader(ImageFolder(folder, transform))).recipe == gpupipe.dino_train()
        loader = DataLoader(
            ImageFolder(folder, DataAugmentationDINO((0.3, 1.0), (0.1, 0.3), 3, (24, 12))), batch_size=4
        )
        made = gpupipe.from_dataloader(loader, strict=True)
        assert [(one.crop.size, one.crop.scale, one.views) for one in made.recipe.recipes] == [
            *[((24, 24), (0.3, 1.0), 1)] * 2,
            ((12, 12), (0.1, 0.3), 3),
        ]
        (views, labels), (their_views, their_labels) = next(iter(made)), next(iter(loader))
        assert [(one.shape, one.dtype) for one in views] == [(one.shape, one.dtype) for one in their_views]
        assert torch.equal(labels, their_labels)
        assert "1 view by Recipe of RandomResizedCrop" in line(made, "transform").now
        assert "Pillow's blur, if it has one, becomes torchvision's" in line(made, "transform").now

    def test_without_small_views(self, folder: Path) -> None:
        transform = DataAugmentationDINO((0.4, 1.0), (0.05, 0.4), 0)
        made = gpupipe.from_dataloader(DataLoader(ImageFolder(folder, transform)), strict=True)
        assert made.recipe == gpupipe.dino_train(local_views=0)

    def test_of_another_call(self, folder: Path) -> None:
        class Stacked(DataAugmentationDINO):
            def __call__(self, image: Image.Image) -> Any:
                return super().__call__(image)[1:]

        loader = DataLoader(ImageFolder(folder, Stacked((0.4, 1.0), (0.1, 0.4), 1, (16, 8))), batch_size=2)
        made = gpupipe.from_dataloader(loader)
        assert "Stacked can't be translated" in line(made, "transform").why
        assert len(next(iter(made))[0]) == 2

    def test_are_not_mixed(self, folder: Path) -> None:
        mixup = v2.MixUp(num_classes=5)
        transform = DataAugmentationDINO((0.4, 1.0), (0.1, 0.4), 1, (16, 8))
        made = gpupipe.from_dataloader(
            DataLoader(ImageFolder(folder, transform), 2, collate_fn=lambda batch: mixup(*default_collate(batch)))
        )
        assert "mixing of 3 views can't be translated" in line(made, "collate_fn").why


class Own(ImageFolder):
    """With a `__getitem__` of its own."""

    def __getitem__(self, index: int) -> Any:
        image, label = super().__getitem__(index)
        return {"pixels": image, "label": label, "name": Path(self.samples[index][0]).name, "n": (index, 0.5)}


class Shortened(ImageFolder):
    def __len__(self) -> int:
        return 3


def gray_again(image: Image.Image) -> Image.Image:
    return image.convert("L").convert("RGB")


def to_mode(image: Image.Image, mode: str = "RGB") -> Image.Image:
    """Its bytecode is that of a method which hands on."""
    return image.convert(mode)


class Static:
    @staticmethod
    def __call__(image: Image.Image, mode: str = "RGB") -> Image.Image:
        return image.convert(mode)


class OfTheClass:
    transforms = T.Compose([T.RandomVerticalFlip(1.0), LEVELS])

    def __init__(self) -> None:
        self.transforms = LEVELS

    @classmethod
    def __call__(cls, image: Image.Image) -> Any:
        return cls.transforms(image)


def gray(path: str) -> Image.Image:
    return Image.open(path).convert("L")


def inverted(path: str) -> Image.Image:
    return ImageOps.invert(Image.open(path).convert("RGB"))


class Imitated(torchvision.datasets.vision.StandardTransform):
    """A transform of both under the name of torchvision's."""

    def __call__(self, image: Any, label: Any) -> Any:
        return self.transform(image), label + 50


Imitated.__name__ = "StandardTransform"


class TestReplaced:
    """What the program has put in the place of a library's functions: it is called, as in the DataLoader."""

    def as_written(self, loader: DataLoader[Any], part: str, reason: str) -> None:
        made = gpupipe.from_dataloader(loader)
        assert reason in line(made, part).why
        same_batches(loader, made)

    def test_a_loader(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        loader = DataLoader(ImageFolder(folder, LEVELS), 4)
        (before, _), reason = next(iter(loader)), "folder.pil_loader was replaced"
        monkeypatch.setattr("torchvision.datasets.folder.pil_loader", inverted)
        assert not torch.equal(next(iter(loader))[0], before)
        self.as_written(loader, "dataset", reason)
        monkeypatch.setattr("torchvision.datasets.folder.pil_loader", functools.wraps(PIL_LOADER)(inverted))
        self.as_written(loader, "dataset", reason)
        named = functools.wraps(PIL_LOADER)(lambda path: inverted(path))
        self.as_written(DataLoader(ImageFolder(folder, LEVELS, loader=named), 4), "dataset", "its loader is pil_loader")

    @pytest.mark.parametrize("kind", [torchvision.datasets.DatasetFolder, ConcatDataset])
    def test_a_datasets_items(self, kind: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        dataset: Any = ImageFolder(folder, LEVELS)
        dataset = ConcatDataset([dataset]) if kind is ConcatDataset else dataset
        own = kind.__getitem__

        def items(self: Any, index: int) -> Any:
            image, label = own(self, index)
            return image, label + 100

        monkeypatch.setattr(kind, "__getitem__", items)
        loader = DataLoader(dataset, 4)
        assert min(next(iter(loader))[1]) >= 100
        self.as_written(loader, "dataset", f"{kind.__name__}.__getitem__ was replaced")

    def test_a_transform(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        loader, own = DataLoader(ImageFolder(folder, LEVELS), 4), T.CenterCrop.forward
        turned = lambda self, image: T.functional.vflip(own(self, image))  # noqa: E731
        for forward in (turned, torch.no_grad()(turned), MagicMock(side_effect=lambda image: image.crop((0, 0, 9, 9)))):
            with monkeypatch.context() as patch:
                patch.setattr(T.CenterCrop, "forward", forward)
                self.as_written(loader, "transform", "CenterCrop.forward can't be translated")
        assert gpupipe.from_dataloader(loader, strict=True)

    def test_what_v2s_draw(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        transform = v2.Compose([v2.Resize((16, 16)), v2.RandomHorizontalFlip(1.0), T.PILToTensor()])
        monkeypatch.setattr(v2.RandomHorizontalFlip, "transform", lambda self, image, params: image)
        self.as_written(DataLoader(ImageFolder(folder, transform), 4), "transform", "RandomHorizontalFlip.transform")

    def test_transforms_of_a_torchvisions_name(self, tmp_path: Path) -> None:
        loader = DataLoader(oxford_pets(tmp_path, transforms=Imitated(LEVELS)), batch_size=2)
        self.as_written(loader, "dataset", "its transforms= is called with image and label together")

    @pytest.mark.parametrize(
        ("kind", "listed"),
        [
            (SequentialSampler, lambda self: iter([3, 1, 2, 0, 4, 5, 9, 8, 7, 6])),
            (BatchSampler, lambda self: iter([[3, 1], [2, 0], [9, 8], [4, 5], [7, 6]])),
        ],
    )
    def test_a_sampler(self, kind: Any, listed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        loader = DataLoader(Numbers(10), 2)
        monkeypatch.setattr(kind, "__iter__", listed)
        assert flat([batch.tolist() for batch in loader])[:4] == [3, 1, 2, 0]
        same_batches(loader, gpupipe.from_dataloader(loader))

    @pytest.mark.trainers("timm")
    @pytest.mark.parametrize("name", ["ReaderImageFolder", "Mine"])
    def test_a_reader_of_timms(self, name: str, folder: Path) -> None:
        from timm.data import ImageDataset
        from timm.data.readers.reader_image_folder import ReaderImageFolder

        class Reader(ReaderImageFolder):
            def __getitem__(self, index: int) -> Any:
                file, label = super().__getitem__(index)
                return file, label + 50

        Reader.__name__ = name
        dataset = ImageDataset(str(folder), reader=Reader(str(folder)), transform=LEVELS)
        self.as_written(DataLoader(dataset, 4), "dataset", f"its reader is {__name__}.{name}")

    @pytest.mark.trainers("timm")
    def test_timms_reader_itself(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from timm.data import ImageDataset
        from timm.data.readers.reader_image_folder import ReaderImageFolder

        own = ReaderImageFolder.__getitem__
        loader = DataLoader(ImageDataset(str(folder), transform=LEVELS), 4)
        monkeypatch.setattr(ReaderImageFolder, "__getitem__", lambda self, index: own(self, index // 2))
        self.as_written(loader, "dataset", "ReaderImageFolder.__getitem__ was replaced")

    @pytest.mark.trainers("timm")
    def test_timms_operations(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from timm.data import auto_augment, create_transform

        arguments = {"is_training": True, "scale": (1, 1), "ratio": (1, 1), "hflip": 0, "color_jitter": None}

        def reason() -> str:
            made = gpupipe.from_dataloader(DataLoader(ImageFolder(folder, transform), 4))
            return "" if made.translation.complete else line(made, "transform").why

        for policy in ("rand-m9-n1", "3a", "augmix-m5-w2"):
            transform = copy.deepcopy(create_transform(16, auto_augment=policy, **arguments))
            assert reason() == ""
            (policy_of,) = [one for one in transform.transforms if type(one).__module__ == auto_augment.__name__]
            op = policy_of.policy[0][0] if policy == "3a" else policy_of.ops[0]
            with monkeypatch.context() as patch:
                patch.setattr(op, "aug_fn", auto_augment.invert if policy == "3a" else lambda image, *_, **__: image)
                assert f"(op='{op.name}') can't be translated: it does something else" in reason()
            with monkeypatch.context() as patch:
                patch.setitem(auto_augment.NAME_TO_OP, op.name, lambda image, *_, **__: image)
                assert "it does something else" in reason()
                transform = create_transform(16, auto_augment=policy, **arguments)
                assert "it does something else" in reason()
            with monkeypatch.context() as patch:
                patch.setattr(auto_augment.AugmentOp, "__call__", lambda self, image: image)
                assert "AugmentOp.__call__ can't be translated" in reason()

    def test_nothing_is_replaced_as_it_comes(self) -> None:
        rooms = (T, v2, torchvision.datasets, torch.utils.data, torch.utils.data.distributed)
        kinds = [kind for room in rooms for kind in vars(room).values() if isinstance(kind, type)]
        assert len(kinds) > 150
        assert [name for kind in kinds if (name := replaced_in(kind))] == []


def _zeros(indices: list[int]) -> list[Any]:
    return [(torch.zeros(3, 16, 16, dtype=torch.uint8), 100 + index) for index in indices]


class TestAsWritten:
    @pytest.mark.parametrize("workers", [0, 2])
    @pytest.mark.parametrize(
        ("make", "part", "reason"),
        [
            (lambda root: Own(root, LEVELS), "dataset", "its __getitem__ is no dataset's"),
            (lambda root: Subset(Own(root, LEVELS), [3, 1, 2]), "dataset", "its __getitem__ is no dataset's"),
            (lambda root: Shortened(root, LEVELS), "dataset", "it lists 25 files, but its len() is 3"),
            (lambda root: ImageFolder(root, LEVELS, loader=gray), "dataset", "its loader is gray"),
            (
                lambda root: torchvision.datasets.wrap_dataset_for_transforms_v2(ImageFolder(root, LEVELS)),
                "dataset",
                "",
            ),
            (lambda root: ImageFolder(root, lambda image: LEVELS(image)), "transform", "function"),
            (lambda root: ImageFolder(root, T.Compose([T.Lambda(gray_again), LEVELS])), "transform", "Lambda"),
            (lambda root: ImageFolder(root, T.Compose([LEVELS, T.Resize(8)])), "transform", "Resize"),
            (lambda root: ImageFolder(root, T.Compose([to_mode, LEVELS])), "transform", "function"),
            (lambda root: ImageFolder(root, T.Compose([Static(), LEVELS])), "transform", "Static"),
            (lambda root: ImageFolder(root, OfTheClass()), "transform", "OfTheClass"),
        ],
        ids=[
            *("own", "subset", "len", "loader", "wrapped", "function", "lambda", "unknown"),
            *("two arguments", "static", "of the class"),
        ],
    )
    def test_what_is_not_known(
        self,
        make: Callable[[Path], Any],
        part: str,
        reason: str,
        workers: int,
        folder: Path,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        loader = DataLoader(make(folder), batch_size=4, **forked(workers))
        with gpupipe.from_dataloader(loader) as made:
            assert f"{part} of the DataLoader runs as it is written: {line(made, part).why}" in caplog.text
            assert made.recipe is None
            assert [line.part for line in made.translation.untranslated] == [part]
            assert "can't be translated: " in line(made, part).why
            assert reason in line(made, part).why
            same_batches(loader, made)
            assert made.dataset is loader.dataset
        with pytest.raises(ConfigError, match="strict=True") as caught:
            gpupipe.from_dataloader(loader, strict=True)
        assert caught.value.args[0].endswith(f"not all is translated: {part}: {line(made, part).why}")

    @pytest.mark.parametrize(
        "wrap",
        [
            lambda files: files,
            lambda files: Subset(files, [3, 1]),
            lambda files: ConcatDataset([files, files]),
            lambda files: Subset(ConcatDataset([files]), [2, 0]),
        ],
        ids=["alone", "subset", "joined", "subset of joined"],
    )
    @pytest.mark.parametrize("where", ["instance", "getattr"])
    def test_a_getitems_that_no_class_has(self, wrap: Callable[[Any], Any], where: str, folder: Path) -> None:
        class Answering(ImageFolder):
            def __getattr__(self, name: str) -> Any:
                if name == "__getitems__":
                    return _zeros
                raise AttributeError(name)

        files = (Answering if where == "getattr" else ImageFolder)(folder, LEVELS)
        if where == "instance":
            files.__getitems__ = _zeros
        dataset = wrap(files)
        if where == "instance" and dataset is not files:
            del files.__getitems__
            dataset.__getitems__ = _zeros
        loader = DataLoader(dataset, 4)
        made = gpupipe.from_dataloader(loader)
        same_batches(loader, made)
        assert "it has a __getitems__, which makes its batches" in line(made, "dataset").why

    def test_paths_that_are_no_texts(self, folder: Path) -> None:
        files = ImageFolder(folder, LEVELS)
        files.samples = [(path.encode(), label) for path, label in files.samples]
        loader = DataLoader(files, 4)
        made = gpupipe.from_dataloader(loader)
        same_batches(loader, made)
        assert "its files are bytes, not str or Path" in line(made, "dataset").why
        files.samples = [(Path(path.decode()), label) for path, label in files.samples]
        made = gpupipe.from_dataloader(loader)
        same_batches(loader, made)
        assert made.translation.complete

    def test_a_getitems_that_is_none(self, folder: Path) -> None:
        files = ImageFolder(folder, LEVELS)
        files.__getitems__ = None
        loader = DataLoader(Subset(files, [3, 1]), 4)
        made = gpupipe.from_dataloader(loader)
        same_batches(loader, made)
        assert made.translation.complete

    def test_parts_with_different_transforms(self, folder: Path) -> None:
        parts = [
            ImageFolder(folder, LEVELS),
            ImageFolder(folder, T.Compose([T.Resize(20), T.CenterCrop(12), T.ToTensor()])),
        ]
        loader = DataLoader(ConcatDataset(parts), batch_size=5)
        made = gpupipe.from_dataloader(loader)
        assert "its parts have different transforms" in line(made, "transform").why
        same_batches(loader, made)
        parts[1].transform, parts[1].target_transform = LEVELS, float
        made = gpupipe.from_dataloader(loader)
        assert "its parts have different target_transforms" in line(made, "dataset").why

    def test_transforms_of_both_image_and_label(self, tmp_path: Path) -> None:
        loader = DataLoader(
            oxford_pets(tmp_path, transforms=lambda image, label: (LEVELS(image), -label)), batch_size=2
        )
        made = gpupipe.from_dataloader(loader)
        assert "its transforms= is called with image and label together" in line(made, "dataset").why
        same_batches(loader, made)

    def test_images_in_a_mode_of_their_own(self, tmp_path: Path) -> None:
        for number in range(1, 4):
            image(tmp_path / f"caltech256/256_ObjectCategories/001.gun/001_{number:04d}.jpg", 0)
        loader = DataLoader(torchvision.datasets.Caltech256(tmp_path, transform=LEVELS), batch_size=2)
        made = gpupipe.from_dataloader(loader)
        assert "it does not open its images as RGB" in line(made, "dataset").why
        same_batches(loader, made)

    @pytest.mark.parametrize(("name", "mode"), [("deep.png", "I;16"), ("deep.tif", "F"), ("deep.pgm", "I")])
    def test_images_of_more_than_8_bits(self, name: str, mode: str, tmp_path: Path) -> None:
        write_folder(tmp_path)
        levels = np.linspace(0, 65535, 48 * 64).reshape(48, 64).astype("float32" if mode == "F" else "uint16")
        Image.fromarray(levels).save(tmp_path / "class_0" / name)
        loader = DataLoader(ImageFolder(tmp_path, LEVELS), 4)
        made = gpupipe.from_dataloader(loader)
        assert f"{name} is of Pillow's mode {mode}" in line(made, "dataset").why
        same_batches(loader, made)

    def test_containers_keep_their_types(self) -> None:
        loader = DataLoader(Numbers(4), 2, collate_fn=lambda items: {"all": range(len(items)), "first": (items[0],)})
        same_batches(loader, gpupipe.from_dataloader(loader))

    def test_cut_images_that_pillow_fills_up(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        loader = DataLoader(image_folder(tmp_path, transform=LEVELS), batch_size=3)
        file = tmp_path / "a/1.jpg"
        file.write_bytes(file.read_bytes()[:-60])
        with pytest.raises(SampleError, match=r"a/1\.jpg"):
            list(gpupipe.from_dataloader(loader))
        monkeypatch.setattr("PIL.ImageFile.LOAD_TRUNCATED_IMAGES", True)
        made = gpupipe.from_dataloader(loader)
        same_batches(loader, made)
        assert "LOAD_TRUNCATED_IMAGES" in line(made, "dataset").why

    def test_without_transform_or_collate(self, folder: Path) -> None:
        """As in a DataLoader, which says so at the first batch."""
        made = gpupipe.from_dataloader(DataLoader(ImageFolder(folder), batch_size=2))
        assert "transform=None" in line(made, "transform").why
        with pytest.raises(DataError, match="default_collate"):
            next(iter(made))
        loader = DataLoader(ImageFolder(folder), batch_size=2, collate_fn=lambda items: [label for _, label in items])
        same_batches(loader, gpupipe.from_dataloader(loader))

    def test_voc_and_its_collate(self, tmp_path: Path) -> None:
        base = tmp_path / "VOCdevkit/VOC2012"
        for number in range(3):
            image(base / f"JPEGImages/{number}.jpg", 2 * number)
            image(base / f"SegmentationClass/{number}.png", 2 * number, "PNG")
        text(base / "ImageSets/Segmentation/train.txt", "2", "0", "1")
        both = lambda image, mask: (LEVELS(image), T.PILToTensor()(mask))  # noqa: E731
        dataset = VOCSegmentation(tmp_path, transforms=both)
        loader = DataLoader(
            dataset, batch_size=2, collate_fn=lambda items: tuple(zip(*items, strict=True)), **forked(2)
        )
        with gpupipe.from_dataloader(loader) as made:
            same_batches(loader, made)
        assert [line.part for line in made.translation.untranslated] == ["dataset"]
        assert "TestAsWritten.test_voc_and_its_collate.<locals>.<lambda>" in line(made, "collate_fn").was

    def test_coco(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        class Coco:
            def __init__(self, file: str) -> None:
                self.imgs = {number: {"file_name": f"{number}.jpg"} for number in (7, 3)}

            def loadImgs(self, number: int) -> list[Any]:
                return [self.imgs[number]]

            def getAnnIds(self, number: int) -> list[int]:
                return [number] * number

            def loadAnns(self, numbers: list[int]) -> list[Any]:
                return [{"bbox": [1.0, 2.0, float(number), 4.0]} for number in numbers]

        for number in (7, 3):
            image(tmp_path / f"{number}.jpg", number)
        module = types.ModuleType("pycocotools.coco")
        module.COCO = Coco  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "pycocotools", types.ModuleType("pycocotools"))
        monkeypatch.setitem(sys.modules, "pycocotools.coco", module)
        dataset = torchvision.datasets.CocoDetection(tmp_path, "annotations.json", transform=LEVELS)
        loader = DataLoader(dataset, batch_size=2, collate_fn=list)
        made = gpupipe.from_dataloader(loader)
        same_batches(loader, made)
        assert "its samples are not image files with one label each" in line(made, "dataset").why

    @pytest.mark.parametrize("workers", [0, 2])
    def test_a_collate_that_drops_samples(self, workers: int) -> None:
        def collate(items: list[int]) -> Any:
            even = [item for item in items if item % 2 == 0]
            return torch.tensor(even) if even else None

        loader = DataLoader(Subset(Numbers(9), [0, 1, 2, 3, 5, 7, 9 - 1]), 2, collate_fn=collate, **forked(workers))
        with gpupipe.from_dataloader(loader) as made:
            same_batches(loader, made)
            assert [None if batch is None else batch.tolist() for batch in made] == [[0], [2], None, [8]]

    @pytest.mark.parametrize("workers", [0, 2])
    def test_an_item_that_depends_on_the_programs_state(self, workers: int) -> None:
        """Without persistent workers each epoch sees what the program has changed before it."""
        state = {"scale": 1}

        class Scaled(Numbers):
            def __getitem__(self, index: int) -> int:
                return index * state["scale"]

        loader = DataLoader(Scaled(5), batch_size=3, **forked(workers))
        with gpupipe.from_dataloader(loader) as made:
            for state["scale"] in (1, 10):
                assert torch.cat(list(made)).tolist() == [index * state["scale"] for index in range(5)]

    @pytest.mark.parametrize("options", [forked(0), forked(1), forked(1) | {"persistent_workers": True}], ids=str)
    @pytest.mark.parametrize("shuffle", [False, True])
    @pytest.mark.parametrize("change", [3, -2])
    def test_a_dataset_of_another_length_is_no_epoch_of_the_first(
        self, change: int, shuffle: bool, options: dict[str, Any]
    ) -> None:
        dataset = Numbers(4)
        loader = DataLoader(dataset, batch_size=2, shuffle=shuffle, **options)
        with gpupipe.from_dataloader(loader) as made:
            assert sorted(torch.cat(list(made)).tolist()) == sorted(torch.cat(list(loader)).tolist())
            dataset.size += change
            assert len(loader) == (4 + change + 1) // 2
            for _ in range(2):
                with pytest.raises(
                    ConfigError, match=rf"Numbers had 4 samples .* now its len\(\) is {4 + change}, .*new"
                ):
                    list(made)
            with gpupipe.from_dataloader(loader) as again:
                assert sorted(torch.cat(list(again)).tolist()) == list(range(4 + change))
            dataset.size = 4
            assert sorted(torch.cat(list(made)).tolist()) == list(range(4))

    @pytest.mark.parametrize("workers", [0, 2])
    def test_without_automatic_batching(self, workers: int) -> None:
        class Batches(Numbers):
            def __getitem__(self, index: int) -> Any:
                return {"values": np.arange(index), "name": f"{index}"}

        for options in ({}, {"collate_fn": lambda item: (item["name"], len(item["values"]))}):
            loader = DataLoader(Batches(5), batch_size=None, **forked(workers), **options)
            with gpupipe.from_dataloader(loader) as made:
                same_batches(loader, made)
            assert "batch_size=None" in line(made, "dataset").why

    @pytest.mark.parametrize("batch_size", [1, 4])
    @pytest.mark.parametrize("options", [{}, {"collate_fn": lambda item: -item}])
    def test_batches_of_a_dataloader_without_any(self, options: dict[str, Any], batch_size: int) -> None:
        """Its collate_fn is for one sample: which is to make batches has to be said."""
        loader = DataLoader(Numbers(9), batch_size=None, **options)
        with pytest.raises(
            ConfigError, match=rf"batch_size={batch_size}, but the DataLoader has batch_size=None, .*None"
        ):
            gpupipe.from_dataloader(loader, batch_size=batch_size)
        for collate in (None, sum):
            made = gpupipe.from_dataloader(loader, batch_size=batch_size, collate_fn=collate)
            same_batches(DataLoader(Numbers(9), batch_size, collate_fn=collate), made)

    @pytest.mark.parametrize("workers", [0, 1])
    def test_several_items_at_once_are_for_batches(self, workers: int) -> None:
        class Several(Numbers):
            def __getitems__(self, indices: list[int]) -> list[int]:
                return [100 + index for index in indices]

        for batch_size in (None, 1, 3):
            loader = DataLoader(Several(5), batch_size, **forked(workers))
            with gpupipe.from_dataloader(loader) as made:
                same_batches(loader, made)

    @pytest.mark.parametrize(
        "dataset", [[3, 1, 2], TensorDataset(torch.arange(6).view(3, 2), torch.arange(3)), range(5)]
    )
    def test_what_torch_takes(self, dataset: Any) -> None:
        loader = DataLoader(dataset, batch_size=2)
        same_batches(loader, gpupipe.from_dataloader(loader))

    def test_recipe_none_wins(self, folder: Path) -> None:
        loader = DataLoader(ImageFolder(folder, FLOATS), batch_size=4)
        made = gpupipe.from_dataloader(loader, recipe=None)
        assert made.recipe is None
        assert not made.translation.complete
        same_batches(loader, made)


def indices(made: gpupipe.Loader, epoch: int = 0) -> list[list[int]]:
    """Of each batch."""
    made.set_epoch(epoch)
    return [np.atleast_1d(batch).tolist() for batch in made]


def flat(batches: list[list[int]]) -> list[int]:
    return [index for batch in batches for index in batch]


class Backwards(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(9, -1, -1))

    def __len__(self) -> int:
        return 10


class Endless(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        while True:
            yield 1


class Rolling(Sampler[int]):
    """Three samples an epoch, which goes on where the last one has left a list."""

    def __init__(self) -> None:
        self.waiting = list(range(10))

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[int]:
        for _ in range(3):
            self.waiting.append(self.waiting.pop(0))
            yield self.waiting[-1]


class Pending(Rolling):
    """The same of permutations: a new one is drawn where the last one's end was met."""

    def __iter__(self) -> Iterator[int]:
        for _ in range(3):
            if not self.waiting:
                self.waiting[:] = torch.randperm(10).tolist()
            yield self.waiting.pop()


class TestSamplers:
    @pytest.mark.parametrize("drop_last", [False, True])
    @pytest.mark.parametrize(
        "make",
        [
            lambda data, rank: SequentialSampler(data),
            lambda data, rank: RandomSampler(data),
            lambda data, rank: SubsetRandomSampler([1, 4, 6, 2, 8, 3, 0]),
            lambda data, rank: DistributedSampler(data, 3, rank, shuffle=False),
            lambda data, rank: DistributedSampler(data, 3, rank, drop_last=True),
        ],
        ids=["in turn", "shuffled", "subset", "ranks", "ranks that drop"],
    )
    @pytest.mark.parametrize("size", [9, 10, 11])
    @pytest.mark.parametrize("batch_size", [2, 3, 4, 20])
    def test_its_length_is_torchs(
        self, make: Callable[[Any, int], Any], size: int, batch_size: int, drop_last: bool
    ) -> None:
        """Whatever is dropped: programs divide by it."""
        data = Numbers(size)
        for rank in range(3):
            loader = DataLoader(data, batch_size, sampler=make(data, rank), drop_last=drop_last)
            made = gpupipe.from_dataloader(loader)
            assert len(made) == len(loader)
            assert len(made.sampler) == len(loader.sampler) == len(list(made.sampler))  # type: ignore[arg-type]
            assert [len(batch) for batch in made.batch_sampler] == [len(batch) for batch in loader.batch_sampler]
            if type(loader.sampler) is SequentialSampler:
                assert list(made.sampler) == list(loader.sampler)

    def test_in_turn(self) -> None:
        for options in (
            {},
            {"sampler": SequentialSampler(range(10))},
            {"drop_last": True},
            {"sampler": range(9, 2, -2)},
        ):
            loader = DataLoader(Numbers(10), batch_size=3, **options)
            made = gpupipe.from_dataloader(loader)
            assert indices(made, 3) == indices(made, 4) == [batch.tolist() for batch in loader]
        assert isinstance(gpupipe.from_dataloader(DataLoader(Numbers(10))).sampler, SequentialSampler)

    def test_shuffled(self) -> None:
        loader = DataLoader(Numbers(10), batch_size=3, shuffle=True, drop_last=True)
        made = gpupipe.from_dataloader(loader)
        drawn = [indices(made, epoch) for epoch in range(20)]
        assert {tuple(map(len, batches)) for batches in drawn} == {(3, 3, 3)}
        assert all(len(set(flat(batches))) == 9 for batches in drawn)
        assert len({tuple(flat(batches)) for batches in drawn}) == 20
        assert made.order.fingerprint.startswith("shuffled")

    @pytest.mark.parametrize("number", [1, 4, 10, 13, 25])
    def test_a_number_of_samples(self, number: int) -> None:
        """As many permutations as fit, and distinct samples of another one."""
        loader = DataLoader(Numbers(10), sampler=RandomSampler(range(10), num_samples=number), batch_size=50)
        made = gpupipe.from_dataloader(loader)
        counts = np.array([np.bincount(flat(indices(made, epoch)), minlength=10) for epoch in range(200)])
        expected = np.bincount(flat([batch.tolist() for batch in loader]), minlength=10)
        assert (counts.sum(axis=1) == number).all()
        assert {*np.unique(counts)} == {*np.unique(expected)}
        assert abs(counts.mean(axis=0) / number - 0.1).max() < 0.1 / math.sqrt(number)

    def test_with_replacement(self) -> None:
        sampler = RandomSampler(range(10), replacement=True, num_samples=5000)
        found = flat(indices(gpupipe.from_dataloader(DataLoader(Numbers(10), 5000, sampler=sampler))))
        assert len(found) == 5000
        assert abs(np.bincount(found, minlength=10) / 5000 - 0.1).max() < 0.03

    def test_a_subset(self) -> None:
        chosen = [8, 1, 1, 4]
        made = gpupipe.from_dataloader(DataLoader(Numbers(10), 2, sampler=SubsetRandomSampler(chosen)))
        drawn = [flat(indices(made, epoch)) for epoch in range(30)]
        assert {tuple(sorted(found)) for found in drawn} == {(1, 1, 4, 8)}
        assert len({*map(tuple, drawn)}) > 5

    def test_weighted(self) -> None:
        weights = [0.0, 1.0, 2.0, 1.0, 0.0]
        loader = DataLoader(Numbers(5), 8000, sampler=WeightedRandomSampler(weights, 8000))
        found = flat(indices(gpupipe.from_dataloader(loader)))
        assert abs(np.bincount(found, minlength=5) / 8000 - np.array(weights) / 4).max() < 0.03
        loader = DataLoader(Numbers(5), 3, sampler=WeightedRandomSampler(weights, 3, replacement=False))
        made = gpupipe.from_dataloader(loader)
        assert all(sorted(flat(indices(made, epoch))) == [1, 2, 3] for epoch in range(9))

    def test_of_ones_own(self) -> None:
        loader = DataLoader(Numbers(10), batch_size=4, sampler=Backwards())
        made = gpupipe.from_dataloader(loader)
        assert indices(made, 2) == [batch.tolist() for batch in loader]
        assert line(made, "sampler").was == "Backwards"

    def test_of_ones_own_by_epochs(self) -> None:
        class Rolled(Backwards):
            def __init__(self) -> None:
                self.epoch = 2

            def set_epoch(self, epoch: int) -> None:
                self.epoch = epoch

            def __iter__(self) -> Iterator[int]:
                return iter([(index + self.epoch) % 10 for index in range(10)])

        sampler = Rolled()
        loader = DataLoader(Numbers(10), batch_size=4, sampler=sampler, num_workers=1, persistent_workers=True)
        with gpupipe.from_dataloader(loader) as made:
            assert [flat([batch.tolist() for batch in made])[0] for _ in range(3)] == [2, 3, 4]
            sampler.set_epoch(7)
            assert made.epoch == 7
            assert flat([batch.tolist() for batch in made]) == [*range(7, 10), *range(7)]

    @pytest.mark.parametrize("workers", [0, 1])
    def test_of_ones_own_that_goes_on_in_each_epoch(self, workers: int) -> None:
        def epochs(loader: Any, count: int) -> list[list[int]]:
            return [flat([np.atleast_1d(batch).tolist() for batch in loader]) for _ in range(count)]

        with gpupipe.from_dataloader(DataLoader(Numbers(10), 2, sampler=Rolling(), num_workers=workers)) as made:
            assert made.order.fingerprint.startswith("sampler-Rolling")
            assert epochs(made, 5) == epochs(DataLoader(Numbers(10), 2, sampler=Rolling()), 5)
        batches = [Rolling(), Rolling()]
        with gpupipe.from_dataloader(DataLoader(Numbers(10), batch_sampler=BatchSampler(batches[0], 3, False))) as made:
            theirs = DataLoader(Numbers(10), batch_sampler=BatchSampler(batches[1], 3, False))
            assert epochs(made, 5) == epochs(theirs, 5)
        with gpupipe.from_dataloader(DataLoader(Numbers(10), 2, sampler=Pending(), num_workers=workers)) as made:
            found = flat(epochs(made, 20))
        assert [sorted(found[at : at + 10]) for at in range(0, 60, 10)] == [list(range(10))] * 6
        assert len({tuple(found[at : at + 10]) for at in range(10, 60, 10)}) == 5

    @pytest.mark.parametrize("name", ["order", "shuffle"])
    def test_none_in_the_place_of_an_order_leaves_the_sampler(self, name: str) -> None:
        loader = DataLoader(Numbers(10), batch_size=4, sampler=Backwards())
        assert indices(gpupipe.from_dataloader(loader, **{name: None})) == [batch.tolist() for batch in loader]

    def test_without_length(self) -> None:
        loader = DataLoader(Numbers(10), batch_size=4, sampler=Endless())
        with pytest.raises(
            ConfigError, match=r"Endless has no len\(\), .* than 100 samples .* __len__, .* or shuffle="
        ):
            gpupipe.from_dataloader(loader)
        assert len(gpupipe.from_dataloader(loader, shuffle=True)) == 3

    def test_a_plain_batch_sampler(self) -> None:
        loader = DataLoader(Numbers(10), batch_sampler=BatchSampler(Backwards(), 4, drop_last=True))
        assert indices(gpupipe.from_dataloader(loader)) == [batch.tolist() for batch in loader]

    def test_an_order_in_the_place_of_a_batch_sampler(self) -> None:
        loader = DataLoader(Numbers(10), batch_sampler=ByParity(Backwards(), 4))
        with pytest.raises(ConfigError, match=r"batch_sampler is a ByParity; with order= pass batch_size="):
            gpupipe.from_dataloader(loader, shuffle=True)
        assert len(gpupipe.from_dataloader(loader, batch_size=4, shuffle=True)) == 3

    def test_an_order_that_is_passed_wins(self) -> None:
        loader = DataLoader(Numbers(10), batch_size=4, sampler=Endless())
        made = gpupipe.from_dataloader(loader, order=gpupipe.Subset([3, 9]))
        assert indices(made) == [[3, 9]]
        assert line(made, "sampler").now == "the order that was passed"

    def test_for_another_dataset(self) -> None:
        with pytest.raises(ConfigError, match="for a dataset of 12 samples or more, but this one has 10"):
            gpupipe.from_dataloader(DataLoader(Numbers(10), sampler=RandomSampler(range(12))))
        loader = DataLoader(Numbers(10), batch_size=4, sampler=SequentialSampler(range(7)))
        assert indices(gpupipe.from_dataloader(loader)) == [batch.tolist() for batch in loader]


class ByParity(Sampler[list[int]]):
    """Batches of even or of odd numbers, as they come; what is left is filled up from the beginning, as the sampler of
    torchvision's references does it that groups images by their aspect ratio."""

    def __init__(self, sampler: Any, batch_size: int) -> None:
        self.sampler, self.batch_size = sampler, batch_size

    def __len__(self) -> int:
        return len(self.sampler) // self.batch_size

    def __iter__(self) -> Iterator[list[int]]:
        seen: dict[int, list[int]] = {0: [], 1: []}
        waiting: dict[int, list[int]] = {0: [], 1: []}
        made = 0
        for index in self.sampler:
            seen[index % 2].append(index)
            waiting[index % 2].append(index)
            if len(waiting[index % 2]) == self.batch_size:
                made += 1
                yield waiting[index % 2]
                waiting[index % 2] = []
        for parity in sorted(waiting, key=lambda parity: -len(waiting[parity]))[: len(self) - made]:
            yield (waiting[parity] + seen[parity] * self.batch_size)[: self.batch_size]


class Rising(Sampler[list[int]]):
    """Batches of 1, 2, 3 ... samples, and of what is left."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __iter__(self) -> Iterator[list[int]]:
        left = list(self.sampler)
        for size in range(1, len(left)):
            yield left[:size]
            left = left[size:]
            if not left:
                return


class Listed(Sampler[list[int]]):
    """The batches of each epoch in turn, without a length."""

    def __init__(self, *epochs: list[list[int]]) -> None:
        self.epochs, self.number = epochs, 0

    def __iter__(self) -> Iterator[list[int]]:
        self.number += 1
        return iter(self.epochs[(self.number - 1) % len(self.epochs)])


class Pairs(Sampler[int]):
    """Of two classes a batch, two samples each, until only two classes are left, as references/similarity's PKSampler:
    epochs have several lengths, and lists are shuffled in place."""

    def __init__(self, size: int) -> None:
        self.classes = {number: list(range(number, size, 5)) for number in range(5)}

    def __iter__(self) -> Iterator[int]:
        for members in self.classes.values():
            random.shuffle(members)
        left = {number: list(members) for number, members in self.classes.items()}
        while len(left) > 2:
            for number in torch.multinomial(torch.ones(len(left)), 2).tolist():
                name = list(left)[number]
                yield from (left[name].pop() for _ in range(2))
            left = {name: members for name, members in left.items() if len(members) > 1}


def of_a_batch_sampler(batch_sampler: Any, size: int = 40, **options: Any) -> gpupipe.Loader:
    return gpupipe.from_dataloader(DataLoader(Numbers(size), batch_sampler=batch_sampler), **options)


class TestBatchSamplers:
    @pytest.mark.parametrize("make", [list, tuple, np.array, torch.tensor], ids=lambda make: make.__name__)
    def test_a_list_of_batches(self, make: Callable[[Any], Any]) -> None:
        """As a DataLoader has them, the last one short."""
        batches = [make(batch) for batch in ([3, 1], [0, 0], [2])]
        made = of_a_batch_sampler(batches)
        assert (made.batch_size, made.drop_last) == (2, False)
        assert indices(made) == indices(made, 3) == [[3, 1], [0, 0], [2]]
        assert indices(of_a_batch_sampler(batches, drop_last=True)) == [[3, 1], [0, 0]]

    def test_that_groups(self) -> None:
        loader = DataLoader(Numbers(41), batch_sampler=ByParity(SequentialSampler(range(41)), 4))
        made = gpupipe.from_dataloader(loader)
        assert indices(made) == [batch.tolist() for batch in loader]
        assert line(made, "sampler").was == "ByParity"

    @pytest.mark.parametrize("workers", [0, 2])
    def test_that_groups_what_is_shuffled(self, workers: int) -> None:
        sampler = ByParity(RandomSampler(range(40)), 4)
        loader = DataLoader(Numbers(40), batch_sampler=sampler, num_workers=workers)
        with gpupipe.from_dataloader(loader, seed=3) as made, gpupipe.from_dataloader(loader, seed=3) as other:
            epochs = [[batch.tolist() for batch in made] for _ in range(3)]
            other.set_epoch(1)
            rest = iter(other)
            begun = [next(rest).tolist() for _ in range(4)]
            made.load_state_dict(other.state_dict())
            assert begun + [batch.tolist() for batch in made] == epochs[1]
        for batches in epochs:
            assert all(len({index % 2 for index in batch}) == 1 for batch in batches)
            assert set(flat(batches)) == set(range(40))
        assert epochs[0] != epochs[1] != epochs[2]

    @pytest.mark.parametrize("ranks", [2, 3])
    def test_that_groups_what_is_distributed(self, ranks: int) -> None:
        """Each rank has the very batches of each epoch that it has with the DataLoader; a state is any rank's."""
        samplers = [DistributedSampler(Numbers(50), ranks, rank, seed=7) for rank in range(ranks)]
        loaders = [DataLoader(Numbers(50), batch_sampler=ByParity(sampler, 4)) for sampler in samplers]
        made = [gpupipe.from_dataloader(loader) for loader in loaders]
        for epoch in (0, 5):
            for sampler in samplers:
                sampler.set_epoch(epoch)
            assert {loader.epoch for loader in made} == {epoch}
            expected = [[batch.tolist() for batch in loader] for loader in loaders]
            assert [[batch.tolist() for batch in loader] for loader in made] == expected
            assert [sampler.rank for sampler in samplers] == list(range(ranks))
        made[0].set_epoch(5)
        next(iter(made[0]))
        made[1].load_state_dict(made[0].state_dict())
        assert [batch.tolist() for batch in made[1]] == expected[1][1:]

    def test_set_epoch_through_two(self) -> None:
        class Told(ByParity):
            def set_epoch(self, epoch: int) -> None:
                self.sampler.set_epoch(epoch + 1)

        inner = DistributedSampler(Numbers(20), 1, 0)
        sampler = Told(inner, 4)
        loader = DataLoader(Numbers(20), batch_sampler=sampler)
        made = gpupipe.from_dataloader(loader)
        sampler.set_epoch(3)
        assert (made.epoch, inner.epoch) == (3, 4)
        expected = [batch.tolist() for batch in loader]
        batches = iter(made)
        first = next(batches).tolist()
        assert made.state_dict()["epoch"] == made.epoch == 3
        assert [first, *(batch.tolist() for batch in batches)] == expected

    @pytest.mark.parametrize(
        ("batches", "match"),
        [
            ([[1, 2], [], [4, 5]], "sampler list makes batches of 0, 2 samples, .*; none may be empty"),
            (
                Listed([[1, 2], [3, 4]], [[1], [2, 3], [4]]),
                "makes batches of 1, 2 samples, and of 2 in its first epoch",
            ),
            (
                Listed([[1, 2], [3], [4]], *[[[1], [2, 3, 5]]] * 2),  # as it is asked again by next()
                "makes batches of 1, 3 samples, and of several sizes up to 2 in its first epoch",
            ),
            ([[1.5]], "yields float64 of shape"),
            ([3, 4], "a batch of list must be one list of integers, not int"),
            (iter([[1, 2]]), "list_iterator is an iterator, at its end after one epoch"),
            (Listed([[1, 2]] * 300), r"Listed has no len\(\), and its first epoch more than 400 samples"),
        ],
    )
    def test_what_makes_no_batches(self, batches: Any, match: str) -> None:
        with pytest.raises(ConfigError, match=match):
            [indices(made, epoch) for made in [of_a_batch_sampler(batches)] for epoch in range(2)]

    @pytest.mark.parametrize("workers", [0, 2])
    def test_of_several_sizes(self, workers: int) -> None:
        loader = DataLoader(Numbers(50), batch_sampler=Rising(RandomSampler(range(50))), num_workers=workers)
        with gpupipe.from_dataloader(loader, seed=3) as made, gpupipe.from_dataloader(loader, seed=3) as other:
            assert (made.batch_size, len(made), len(made.sampler)) == (9, 10, 50)
            epochs = [[batch.tolist() for batch in made] for _ in range(3)]
            other.set_epoch(1)
            rest = iter(other)
            begun = [next(rest).tolist() for _ in range(4)]
            made.load_state_dict(other.state_dict())
            assert begun + [batch.tolist() for batch in made] == epochs[1]
        assert all(list(map(len, batches)) == [*range(1, 10), 5] for batches in epochs)
        assert all(sorted(flat(batches)) == list(range(50)) for batches in epochs)
        assert epochs[0] != epochs[1] != epochs[2]

    @pytest.mark.parametrize("ranks", [2, 3])
    def test_of_several_sizes_and_ranks(self, ranks: int) -> None:
        samplers = [DistributedSampler(Numbers(60), ranks, rank, seed=7) for rank in range(ranks)]
        loaders = [DataLoader(Numbers(60), batch_sampler=Rising(sampler)) for sampler in samplers]
        made = [gpupipe.from_dataloader(loader) for loader in loaders]
        for epoch in (0, 5):
            for sampler in samplers:
                sampler.set_epoch(epoch)
            assert [indices(one, epoch) for one in made] == [[batch.tolist() for batch in one] for one in loaders]
            assert [one.padding for one in made] == [0] * ranks

    def test_a_short_last_batch_of_ranks_is_no_other_size(self) -> None:
        """Such batches are the loader's own, which can leave the last one out."""

        class Whole(ByParity):
            def __iter__(self) -> Iterator[list[int]]:
                left = list(self.sampler)
                return iter([left[:4], left[4:8], left[8:]])

        for rank in range(2):
            sampler = Whole(DistributedSampler(Numbers(20), 2, rank), 4)
            made = of_a_batch_sampler(sampler, 20, drop_last=True)
            assert [len(batch) for batch in made] == [4, 4]

    def test_epochs_of_other_sizes_without_length(self) -> None:
        made = of_a_batch_sampler(Listed([[1, 2], [3], [4]], [[5], [6, 7]], [[8], [9], [0], [1, 2]]))
        assert [indices(made, epoch) for epoch in range(3)] == [
            [[1, 2], [3], [4]],
            [[5], [6, 7], [8]],
            [[1, 2], [3], [4]],
        ]

    def test_another_size_is_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"batch_size=3, but the batches of the batch_sampler, list, have 2"):
            of_a_batch_sampler([[1, 2]], batch_size=3)

    def test_one_that_cuts_the_epoch_itself(self) -> None:
        sampler = ByParity(range(20), 4)
        sampler.num_replicas = 2
        with pytest.raises(ConfigError, match="ByParity cuts the epoch into num_replicas=2 parts"):
            of_a_batch_sampler(sampler)

    def test_ranks_with_several_numbers_of_batches(self) -> None:
        class Halves(ByParity):
            def __iter__(self) -> Iterator[list[int]]:
                return iter([list(self.sampler)[:2]] * (1 + self.sampler.rank))

        with pytest.raises(ConfigError, match="Halves makes 1 batches of 2 samples, 2 batches of 4 samples on the ran"):
            of_a_batch_sampler(Halves(DistributedSampler(Numbers(9), 2, 0), 2))

    def test_epochs_of_several_lengths(self) -> None:
        epochs = ([[1, 2], [3, 4]], [[5, 6]], [[7, 8], [9, 0], [0, 0]])
        made = of_a_batch_sampler(Listed(*epochs))
        assert len(made) == 2
        assert [indices(made, epoch) for epoch in range(3)] == [[[1, 2], [3, 4]], [[5, 6], [7, 8]], [[1, 2], [3, 4]]]
        assert "of 4 samples each: a longer listing is cut" in line(made, "sampler").now

        class Sized(Listed):
            def __len__(self) -> int:
                return len(self.epochs[0])

        with pytest.raises(ConfigError, match="Sized has 2 samples in epoch 1, but had 4 when"):
            [indices(made, epoch) for made in [of_a_batch_sampler(Sized(*epochs))] for epoch in range(2)]
        made = of_a_batch_sampler(Listed([[1, 2], [3]], [[5]]))
        with pytest.raises(ConfigError, match="Listed has epochs of several lengths, with a last batch that is not f"):
            [indices(made, epoch) for epoch in range(2)]

    def test_a_sampler_without_length(self) -> None:
        """Batches stay whole, epochs differ, and a run that is resumed has the same."""

        def made() -> gpupipe.Loader:
            return gpupipe.from_dataloader(DataLoader(Numbers(60), 4, sampler=Pairs(60)), seed=4)

        loader = made()
        epochs = [indices(loader, epoch) for epoch in range(4)]
        assert {len(batches) for batches in epochs} == {len(loader)}
        assert len({str(batches) for batches in epochs}) == 4
        for batch in flat(epochs):
            assert sorted(np.bincount(np.bincount(np.array(batch) % 5))[1:].tolist()) == [0, 2]
        assert "a shorter one goes on with another" in line(loader, "sampler").now
        loader.set_epoch(2)
        next(iter(loader))
        fresh = made()
        fresh.load_state_dict(loader.state_dict())
        assert [batch.tolist() for batch in fresh] == epochs[2][1:]


class RASampler(Sampler[int]):
    """What torchvision's references and DeiT call so, written anew from what they say that it does."""

    def __init__(
        self, dataset: Any, ranks: int, rank: int, shuffle: bool = True, seed: int = 0, repetitions: int = 3
    ) -> None:
        self.dataset, self.num_replicas, self.rank = dataset, ranks, rank
        self.shuffle, self.seed, self.repetitions, self.epoch = shuffle, seed, repetitions, 0
        self.num_samples = math.ceil(len(dataset) * repetitions / ranks)
        self.total_size = self.num_samples * ranks
        self.num_selected_samples = len(dataset) // 256 * 256 // ranks

    def __len__(self) -> int:
        return self.num_selected_samples

    def __iter__(self) -> Iterator[int]:
        size = len(self.dataset)
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(size, generator=generator) if self.shuffle else torch.arange(size)
        copies = order.repeat_interleave(self.repetitions).tolist()
        copies += copies[: self.total_size - len(copies)]
        return iter(copies[self.rank : self.total_size : self.num_replicas][: self.num_selected_samples])

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


def of_each_rank(make: Callable[[int], DataLoader[Any]], ranks: int, **options: Any) -> list[gpupipe.Loader]:
    return [gpupipe.from_dataloader(make(rank), **options) for rank in range(ranks)]


def same_copies(found: list[int], expected: list[int], size: int) -> None:
    """As many samples come as often, but for two whose copies the epoch's end may cut off differently."""
    ours, theirs = (np.bincount(np.bincount(one, minlength=size), minlength=5) for one in (found, expected))
    assert len(found) == len(expected)
    assert abs(ours - theirs).sum() <= 4


class TestRanks:
    @pytest.mark.parametrize("loader_drops", [False, True])
    @pytest.mark.parametrize("drops", [False, True])
    @pytest.mark.parametrize("shuffle", [False, True])
    def test_a_distributed_sampler(self, shuffle: bool, drops: bool, loader_drops: bool) -> None:
        """Steps and rows are the same; unshuffled, each step has the same samples over all ranks."""
        for size, ranks, batch in [(24, 2, 4), (23, 2, 4), (25, 2, 5), (10, 3, 2), (7, 3, 5), (31, 4, 4), (3, 4, 1)]:

            def make(rank: int, size: int = size, ranks: int = ranks, batch: int = batch) -> DataLoader[Any]:
                sampler = DistributedSampler(range(size), ranks, rank, shuffle=shuffle, seed=4, drop_last=drops)
                return DataLoader(Numbers(size), batch, sampler=sampler, drop_last=loader_drops)

            made = of_each_rank(make, ranks)
            theirs = [[part.tolist() for part in make(rank)] for rank in range(ranks)]
            ours = [indices(loader) for loader in made]
            assert [list(map(len, batches)) for batches in ours] == [list(map(len, batches)) for batches in theirs]
            assert {loader.seed for loader in made} == {4}
            steps = [[sorted(flat(list(parts))) for parts in zip(*batches, strict=True)] for batches in (ours, theirs)]
            if not shuffle:
                assert steps[0] == steps[1]
            else:  # as many samples come once, twice or never
                counts = [np.bincount(np.bincount(flat(found), minlength=size)) for found in steps]
                np.testing.assert_array_equal(*counts)

    def test_drop_last_that_is_passed_is_as_the_data_loaders(self) -> None:
        """Where the sampler's padding fills a last batch, that is none that is dropped."""
        sampler = DistributedSampler(range(9), 2, 0)
        made = gpupipe.from_dataloader(DataLoader(Numbers(9), 5, sampler=sampler), drop_last=True)
        assert [len(batch) for batch in made] == list(
            map(len, DataLoader(Numbers(9), 5, sampler=sampler, drop_last=True))
        )

    def test_set_epoch_of_the_sampler_is_the_loaders(self) -> None:
        sampler = DistributedSampler(range(12), 2, 1)
        made = gpupipe.from_dataloader(DataLoader(Numbers(12), 3, sampler=sampler))
        first = [batch.tolist() for batch in made]
        assert made.epoch == 1
        sampler.set_epoch(7)
        assert (sampler.epoch, made.epoch) == (7, 7)
        assert [batch.tolist() for batch in made] != first
        sampler.set_epoch(0)
        assert [batch.tolist() for batch in made] == first
        sampler.set_epoch(4)
        assert gpupipe.from_dataloader(DataLoader(Numbers(12), 3, sampler=sampler)).epoch == 4
        made.close()
        del made
        sampler.set_epoch(3)
        assert sampler.epoch == 3

    @pytest.mark.parametrize("ranks", [1, 2, 3])
    @pytest.mark.parametrize("shuffle", [False, True])
    @pytest.mark.parametrize("repeats", [1, 3])
    def test_repeated_augmentation(self, ranks: int, shuffle: bool, repeats: int) -> None:
        def make(rank: int) -> DataLoader[Any]:
            sampler = RASampler(range(600), ranks, rank, shuffle, seed=6, repetitions=repeats)
            return DataLoader(Numbers(600), 6, sampler=sampler)

        made = of_each_rank(make, ranks)
        found = flat([flat(indices(loader)) for loader in made])
        expected = flat([list(make(rank).sampler) for rank in range(ranks)])
        assert [len(loader) for loader in made] == [len(make(0))] * ranks
        same_copies(found, expected, 600)
        if not shuffle:
            assert len({*found} ^ {*expected}) <= 1
        assert {type(loader.order) for loader in made} == {gpupipe.Repeated}
        assert {loader.seed for loader in made} == {6}

    @pytest.mark.trainers("timm")
    @pytest.mark.parametrize("ranks", [1, 2])
    @pytest.mark.parametrize("repeats", [3, 2.0])
    def test_timms_samplers(self, ranks: int, repeats: float) -> None:
        from timm.data.distributed_sampler import OrderedDistributedSampler, RepeatAugSampler

        def make(rank: int) -> DataLoader[Any]:
            sampler = RepeatAugSampler(range(300), ranks, rank, num_repeats=repeats)
            return DataLoader(Numbers(300), 10, sampler=sampler)

        made = of_each_rank(make, ranks)
        found = [
            flat(flat([indices(loader) for loader in made])),
            flat([list(make(rank).sampler) for rank in range(ranks)]),
        ]
        same_copies(*found, 300)
        made = of_each_rank(
            lambda rank: DataLoader(Numbers(11), 2, sampler=OrderedDistributedSampler(range(11), 2, rank)), 2
        )
        assert [sorted(flat(list(parts))) for parts in zip(*map(indices, made), strict=True)][:2] == [
            [0, 1, 2, 3],
            [4, 5, 6, 7],
        ]

    def test_a_sampler_of_that_name_that_does_something_else(self) -> None:
        class Other(RASampler):
            def __iter__(self) -> Iterator[int]:
                return iter([index % 5 for index in super().__iter__()])

        Other.__name__ = "RASampler"
        loader = DataLoader(Numbers(600), 6, sampler=Other(range(600), 2, 0))
        with pytest.raises(ConfigError, match=r"RASampler cuts the epoch into num_replicas=2 parts.* pass order="):
            gpupipe.from_dataloader(loader)
        made = gpupipe.from_dataloader(loader, shuffle=True)
        assert (made.rank, made.world_size) == (0, 2)
        alone = gpupipe.from_dataloader(DataLoader(Numbers(600), 6, sampler=Other(range(600), 1, 0)))
        assert {*flat(indices(alone))} == {*range(5)}

    def test_a_copy_of_a_sampler_is_its_own(self) -> None:
        sampler = DistributedSampler(Numbers(8), num_replicas=2, rank=0)
        made = gpupipe.from_dataloader(DataLoader(Numbers(8), 2, sampler=sampler))
        for copied in (copy.deepcopy(sampler), pickle.loads(pickle.dumps(sampler))):
            copied.set_epoch(7)
            assert (copied.epoch, sampler.epoch, made.epoch) == (7, 0, 0)
        sampler.set_epoch(3)
        assert (sampler.epoch, made.epoch) == (3, 3)

    def test_without_a_distributed_sampler_each_rank_reads_all(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "2")
        made = gpupipe.from_dataloader(DataLoader(Numbers(5), batch_size=2))
        assert indices(made) == [[0, 1], [2, 3], [4]]
        assert line(made, "ranks").now == "reads all samples, as its sampler gives them"
        assert indices(gpupipe.from_dataloader(DataLoader(Numbers(4)), rank=0, world_size=2)) == [[0], [2]]

    def test_that_each_rank_reads_all_is_said_once(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def said() -> list[str]:
            found = [record.getMessage() for record in caplog.records]
            caplog.clear()
            return [text for text in found if "ranks reads all" in text]

        early = gpupipe.from_dataloader(DataLoader(Numbers(5), 2, shuffle=True))
        assert not said()
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "2")
        made = gpupipe.from_dataloader(DataLoader(Numbers(5), 2, shuffle=True))
        (text,) = said()
        assert "each of 2 ranks reads all 5 samples, as the DataLoader's RandomSampler shares nothing out" in text
        for loader in (early, made, early):
            list(loader)
        assert len(said()) == 1  # of the one that was built before there were ranks
        for ranks in ({"rank": 0, "world_size": 1}, {"rank": None, "world_size": None}):
            list(gpupipe.from_dataloader(DataLoader(Numbers(5), 2, shuffle=True), **ranks))
        list(gpupipe.from_dataloader(DataLoader(Numbers(5), 2, sampler=DistributedSampler(Numbers(5), 2, 1))))
        assert not said()

    @pytest.mark.parametrize("by_environment", [False, True])
    def test_ranks_that_are_passed_share_one_permutation(
        self, by_environment: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each rank's program has a seed of its own."""
        parts = []
        for rank in range(2):
            torch.manual_seed(rank)
            monkeypatch.setenv("RANK", str(rank))
            monkeypatch.setenv("WORLD_SIZE", "2")
            ranks = {"rank": None, "world_size": None} if by_environment else {"rank": rank, "world_size": 2}
            made = gpupipe.from_dataloader(DataLoader(Numbers(8), 2, shuffle=True), **ranks)
            assert (line(made, "ranks").was, line(made, "ranks").now) == (f"rank {rank} of 2", "shares the epoch")
            assert (line(made, "seed").now, made.seed) == ("0", 0)
            parts += flat(indices(made))
        assert sorted(parts) == list(range(8))
        with pytest.raises(ConfigError, match="rank=None, world_size=2: pass both or neither"):
            gpupipe.from_dataloader(DataLoader(Numbers(8), 2), world_size=2)


class TestSettings:
    def test_of_workers(self) -> None:
        def init(worker: int) -> None:
            info = get_worker_info()
            assert info is not None
            info.dataset.size = 100 + worker

        class Sized(Numbers):
            def __getitem__(self, index: int) -> tuple[int, int]:
                return index, self.size

        loader = DataLoader(
            Sized(8),
            2,
            num_workers=2,
            prefetch_factor=3,
            persistent_workers=True,
            timeout=70,
            worker_init_fn=init,
            multiprocessing_context="fork",
            pin_memory=True,
        )
        with gpupipe.from_dataloader(loader) as made:
            for name in (
                "num_workers",
                "prefetch_factor",
                "persistent_workers",
                "timeout",
                "worker_init_fn",
                "pin_memory",
            ):
                assert getattr(made, name) == getattr(loader, name)
            assert made.worker_init_fn is init
            assert "\n  worker_init_fn " in str(made.translation)
            assert made.multiprocessing_context is loader.multiprocessing_context
            assert {size for _, sizes in made for size in sizes.tolist()} == {100, 101}
        assert gpupipe.from_dataloader(DataLoader(Numbers(8))).timeout == 0
        plain = gpupipe.from_dataloader(DataLoader(Numbers(8), num_workers=1))
        assert (plain.timeout, plain.prefetch_factor, plain.persistent_workers) == (0, 2, False)

    def test_a_worker_init_fn_of_the_worker_s_dataset(self, folder: Path) -> None:
        def init(worker: int) -> None:
            info = get_worker_info()
            assert info is not None
            info.dataset.transform = T.Compose([LEVELS, T.RandomInvert(1.0)])

        loader = DataLoader(ImageFolder(folder, LEVELS), 4, num_workers=1, worker_init_fn=partial(partial(init)))
        with gpupipe.from_dataloader(loader) as made:
            assert "its code names the worker's dataset" in line(made, "dataset").why
            same_batches(loader, made)
        seeding = DataLoader(ImageFolder(folder, LEVELS), 4, num_workers=1, worker_init_fn=random.seed)
        assert gpupipe.from_dataloader(seeding).translation.complete

    def test_a_second_shuffled_loader_of_a_generator_is_told(self, caplog: pytest.LogCaptureFixture) -> None:
        """Its permutations are those of the first, where a DataLoader draws other ones."""

        def build(generator: torch.Generator | None, **options: Any) -> gpupipe.Loader:
            loader = DataLoader(Numbers(20), 5, generator=generator, **({"shuffle": True} | options))
            return gpupipe.from_dataloader(loader)

        said = "same permutations and draws, where DataLoaders draw on. Pass seed="
        for generator in (torch.Generator().manual_seed(6), None):
            caplog.clear()
            torch.manual_seed(2**40 + 7)
            first = build(generator)
            build(generator, shuffle=False)
            build(generator, shuffle=False, sampler=[3, 1])
            build(torch.Generator().manual_seed(6))
            assert said not in caplog.text
            second = build(generator)
            assert flat(indices(first)) == flat(indices(second))
            build(generator)
            assert caplog.text.count(said) == 1
            caplog.clear()
            torch.manual_seed(2**40 + 8)
            gpupipe.from_dataloader(DataLoader(Numbers(20), 5, generator=generator, shuffle=True), seed=3)
            assert said not in caplog.text

    def test_overrides_win(self, folder: Path) -> None:
        loader = DataLoader(ImageFolder(folder, FLOATS), 4, num_workers=2, prefetch_factor=4, persistent_workers=True)
        made = gpupipe.from_dataloader(
            loader, num_workers=0, batch_size=5, drop_last=True, shuffle=True, on_error="skip"
        )
        assert (made.num_workers, made.batch_size, made.drop_last, made.prefetch_factor) == (0, 5, True, None)
        assert made.order.fingerprint.startswith("shuffled")
        assert line(made, "overrides").was == "num_workers, batch_size, drop_last, shuffle, on_error"
        recipe = gpupipe.imagenet_eval(12, dtype="uint8")
        own = gpupipe.from_dataloader(loader, recipe=recipe, num_workers=0)
        reference = gpupipe.Loader(folder, recipe, 4, device="cpu", num_workers=0)
        for found, expected in zip(own, reference, strict=True):
            same(found, expected)
        with pytest.raises(ConfigError, match="device='cudo'"):
            gpupipe.from_dataloader(loader, device="cudo")
        with pytest.raises(TypeError, match=r"unexpected keyword argument 'num_worker'\. Did you mean 'num_workers'"):
            gpupipe.from_dataloader(loader, num_worker=2)

    def test_what_is_chosen_for_a_gpu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What a DataLoader has where nothing was passed, but not what was."""
        given: list[dict[str, Any]] = []

        class Refused(Exception):
            pass

        def built(data: Any, **options: Any) -> None:
            given.append(options)
            raise Refused

        monkeypatch.setattr("gpupipe.migration.dataloader.Loader", built)
        for options in ({}, {"pin_memory": True, "prefetch_factor": 5}):
            for device in ("cuda:1", "cpu"):
                with pytest.raises(Refused):
                    gpupipe.from_dataloader(DataLoader(Numbers(8), num_workers=3, **options), device=device)
        names = ("pin_memory", "prefetch_factor", "num_workers")
        assert [[one.get(name) for name in names] for one in given] == [
            [None, None, 3],
            [False, 2, 3],
            [True, 5, 3],
            [True, 5, 3],
        ]

    def test_a_recipe_for_other_items(self) -> None:
        class Photos(Numbers):
            def __getitem__(self, index: int) -> Any:
                return {"photo": Image.fromarray(picture(30, 40, index)), "n": index}

        fields = {"photo": gpupipe.Image(), "n": gpupipe.Scalar()}
        loader = DataLoader(Photos(5), 2)
        made = gpupipe.from_dataloader(loader, recipe=gpupipe.imagenet_eval(16), fields=fields)
        batch = next(iter(made))
        assert (list(batch), batch["n"].tolist()) == (["photo", "n"], [0, 1])
        collating = DataLoader(Photos(5), 2, collate_fn=list)
        with pytest.raises(ConfigError, match=r"collate_fn, list, can't go with recipe=.* collate_fn=None"):
            gpupipe.from_dataloader(collating, recipe=gpupipe.imagenet_eval(16), fields=fields)
        assert gpupipe.from_dataloader(collating, recipe=gpupipe.imagenet_eval(16), fields=fields, collate_fn=None)

    def test_the_seed(self) -> None:
        def seed(**options: Any) -> int:
            return gpupipe.from_dataloader(DataLoader(Numbers(8), **options)).seed

        generator = torch.Generator().manual_seed(2**63 + 5)
        torch.rand(3, generator=generator)
        assert seed(generator=generator) == seed(generator=generator, shuffle=True) == 2**63 + 5
        assert seed(sampler=RandomSampler(range(8), generator=torch.Generator().manual_seed(9))) == 9
        torch.manual_seed(-3)
        state = torch.get_rng_state()
        assert seed() == seed(shuffle=True) == 2**64 - 3
        assert torch.equal(torch.get_rng_state(), state)
        assert gpupipe.from_dataloader(DataLoader(Numbers(8), shuffle=True, generator=generator)).generator is generator
        made = gpupipe.from_dataloader(DataLoader(Numbers(8), generator=generator), seed=1)
        assert (made.seed, made.generator) == (1, None)
        assert gpupipe.from_dataloader(DataLoader(Numbers(8)), generator=generator).seed == 2**63 + 5

    def test_a_seed_decides_crops_and_order(self, folder: Path) -> None:
        def epoch(seed: int) -> torch.Tensor:
            loader = DataLoader(
                ImageFolder(folder, TRAIN), 25, shuffle=True, generator=torch.Generator().manual_seed(seed)
            )
            return next(iter(gpupipe.from_dataloader(loader)))[0]

        assert torch.equal(epoch(1), epoch(1))
        assert not torch.equal(epoch(1), epoch(2))

    def test_resume(self, folder: Path) -> None:
        def made() -> gpupipe.Loader:
            loader = DataLoader(ImageFolder(folder, TRAIN), 4, shuffle=True, num_workers=1)
            return gpupipe.from_dataloader(loader, seed=5)

        with made() as first, made() as second:
            batches = iter(first)
            next(batches)
            second.load_state_dict(first.state_dict())
            rest = list(batches)
            assert len(rest) == 6
            for found, expected in zip(second, rest, strict=True):
                same(found, expected)

    def test_pinned_memory(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """As if there were a GPU: images are made in it, and labels are moved there."""
        asked, moved, empty = [], [], torch.empty

        def allocated(*args: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
            asked.extend([args[0]] * pin_memory)
            return empty(*args, **options)

        loader = DataLoader(ImageFolder(folder, FLOATS), 4, pin_memory=True)
        expected = next(iter(DataLoader(ImageFolder(folder, FLOATS), 4)))
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        made = gpupipe.from_dataloader(loader)
        monkeypatch.setattr(torch, "empty", allocated)
        monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: moved.append(tensor.shape) or tensor)
        same(next(iter(made)), expected, 1e-6)
        assert (4, 3, 16, 16) in asked
        assert {(4, 3, 16, 16), (4,)} <= {*map(tuple, moved)}

    @pytest.mark.gpu
    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
    def test_batches_are_on_the_cpu_unless_asked(self, folder: Path) -> None:
        loader = DataLoader(ImageFolder(folder, FLOATS), 4, num_workers=1, pin_memory=True)
        with gpupipe.from_dataloader(loader) as made:
            assert made.device.type == "cpu"
            assert all(part.is_pinned() for part in next(iter(made)))
        with gpupipe.from_dataloader(loader, device="cuda") as made:
            assert next(iter(made))[0].device.type == "cuda"


class Lines(IterableDataset):
    def __iter__(self) -> Iterator[int]:
        return iter(())


class Repeating(DataLoader):
    __iter__ = Lines.__iter__


class Longer(DataLoader):
    def __len__(self) -> int:
        return 9


class Halved(DataLoader):
    @property
    def _index_sampler(self) -> Any:
        return [batch[::2] for batch in super()._index_sampler]


def changed() -> DataLoader[Any]:
    loader = DataLoader(Numbers(3))
    loader._get_iterator = lambda: iter([])  # type: ignore[method-assign, assignment, return-value]
    return loader


class TestRefusals:
    @pytest.mark.parametrize(
        ("loader", "match"),
        [
            ([1, 2], r"list is no torch\.utils\.data\.DataLoader"),
            (gpupipe.Subset([1]), "Subset is no"),
            (DataLoader(type("Square", (), {"__getitem__": int})(), sampler=[1]), "Square has no __len__"),
            (DataLoader(Lines()), "Lines is an IterableDataset"),
            (Repeating(Numbers(3)), "Repeating has an __iter__ of its own"),
            (Longer(Numbers(3)), "Longer has an __len__ of its own"),
            (Halved(Numbers(3)), "Halved has an _index_sampler of its own"),
            (changed(), "DataLoader has an _get_iterator of its own"),
        ],
    )
    def test_what_is_no_dataloader_of_samples(self, loader: Any, match: str) -> None:
        with pytest.raises(ConfigError, match=match):
            gpupipe.from_dataloader(loader)

    def test_settings_that_mean_nothing_here_are_told(self) -> None:
        loader = DataLoader(Numbers(3), num_workers=1, in_order=False)
        made = gpupipe.from_dataloader(loader)
        assert line(made, "in_order").now == "batches come in the order of the epoch"
        loader = DataLoader(Numbers(3), pin_memory=True, pin_memory_device="cuda:1")
        assert line(gpupipe.from_dataloader(loader), "pin_memory_device").was == "cuda:1"


def test_the_report(folder: Path) -> None:
    loader = DataLoader(ImageFolder(folder, FLOATS), 4, shuffle=True, num_workers=2)
    made = gpupipe.from_dataloader(loader, seed=3)
    assert gpupipe.Loader(folder, gpupipe.imagenet_eval(8), device="cpu").translation is None
    translation = made.translation
    assert translation.complete
    assert [line.part for line in translation.lines] == [
        "dataset",
        "transform",
        "sampler",
        "seed",
        "workers",
        "device",
        "overrides",
    ]
    text = str(translation)
    assert text.startswith(
        "gpupipe.from_dataloader: translated whole\n  dataset       ImageFolder of 25 samples -> the files"
    )
    assert max(map(len, text.splitlines())) <= 120
    words = " ".join(text.split())
    assert "std=(0.2, 0.3, 0.4)) ) -> Recipe of ResizeCenterCrop, Normalize, float32 sampler" in words
    assert "RandomSampler -> Shuffled: another permutation than torch's in each epoch" in words


@pytest.mark.trainers("datasets")
class TestHuggingFace:
    @pytest.fixture
    def rows(self, tmp_path: Path) -> Any:
        import datasets

        write_folder(tmp_path, 2, 3)
        turned = Image.fromarray(picture(40, 60, 1))
        exif = turned.getexif()
        exif[0x0112] = 6
        turned.save(tmp_path / "class_0/turned.jpg", exif=exif)
        files = sorted(tmp_path.rglob("*.jpg"))
        images = [str(file) for file in files[:4]] + [{"bytes": file.read_bytes(), "path": None} for file in files[4:]]
        features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
        return datasets.Dataset.from_dict({"image": images, "label": list(range(len(files)))}, features=features)

    @pytest.mark.parametrize("workers", [0, 2])
    def test_with_its_transform(self, rows: Any, workers: int) -> None:
        def apply(batch: dict[str, Any]) -> dict[str, Any]:
            return {"pixels": [LEVELS(image.convert("RGB")) for image in batch["image"]], "label": batch["label"]}

        rows.set_transform(apply)
        loader = DataLoader(rows, batch_size=3, **forked(workers))
        with gpupipe.from_dataloader(loader) as made:
            same_batches(loader, made)
        assert line(made, "dataset").why.endswith("pass recipe=, which stands for it and takes the encoded images")

    @pytest.mark.parametrize("kind", ["torch", "numpy"])
    def test_with_a_format(self, rows: Any, kind: str) -> None:
        rows = rows.select_columns(["label"]).with_format(kind)
        for dataset in (rows, Subset(rows, [3, 1, 2])):
            loader = DataLoader(dataset, batch_size=2)
            same_batches(loader, gpupipe.from_dataloader(loader))

    def test_with_a_recipe(self, rows: Any) -> None:
        """In the place of its transform, on the encoded files; upright, as it gives images."""
        loader = DataLoader(rows.with_transform(lambda batch: {}), batch_size=3, num_workers=1)
        recipe = gpupipe.Recipe((gpupipe.ResizeCenterCrop(16, 20),), dtype="uint8")
        with gpupipe.from_dataloader(loader, recipe=recipe) as made:
            found = [torch.cat(parts) for parts in zip(*made, strict=True)]
        same(
            found, [torch.stack([LEVELS(row["image"].convert("RGB")) for row in rows]), torch.tensor(rows["label"][:])]
        )
