"""A Loader made from a DataLoader, against that DataLoader."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from images import encode, picture, write_folder
from PIL import Image
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    Subset,
    random_split,
)
from torchvision import transforms as T
from torchvision.datasets import ImageFolder
from vision_datasets import FILES, image_folder, no_checksums as no_checksums, oxford_pets

import gpupipe
from gpupipe.errors import ConfigError, SampleError, StateError

LEVELS = T.Compose([T.Resize(20), T.CenterCrop(16), T.PILToTensor()])
FLOATS = T.Compose([T.Resize(20), T.CenterCrop(16), T.ToTensor(), T.Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))])
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

    def test_a_file_that_is_gone_or_damaged_is_named(self, tmp_path: Path) -> None:
        loader = DataLoader(image_folder(tmp_path, transform=LEVELS), batch_size=2)
        made = gpupipe.from_dataloader(loader)
        (tmp_path / "a/0.jpg").write_bytes(b"short")
        with pytest.raises(SampleError, match=r"a/0\.jpg\): has 5 bytes where the index says .* remove .*\.index to"):
            next(iter(made))

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
            with gpupipe.from_dataloader(DataLoader(dataset, 5, num_workers=workers), seed=1) as made:
                drawn.append(torch.cat([labels for _, labels in made]))
        random_after = random.random()
        random.seed(5)
        assert random_after == random.random()
        assert torch.equal(*drawn)
        assert len({float(value) % 1 for value in drawn[0]}) == len(dataset)

    def test_what_a_target_transform_raises(self, folder: Path) -> None:
        dataset = ImageFolder(folder, LEVELS, target_transform={0: 0}.__getitem__)
        made = gpupipe.from_dataloader(DataLoader(dataset, batch_size=25))
        with pytest.raises(KeyError, match="1") as caught:
            next(iter(made))
        assert isinstance(caught.value, SampleError)
        assert str(caught.value).startswith(f"sample 5 ({dataset.samples[5][0]}): target_transform raised KeyError: 1")

    @pytest.mark.parametrize("function", [str, lambda label: (label, label), lambda label: 1 / label])
    def test_that_are_no_numbers_leave_all_as_it_is(self, function: Callable[[int], Any], folder: Path) -> None:
        dataset = ImageFolder(folder, LEVELS, target_transform=function)
        loader = DataLoader(Subset(dataset, range(5, 25)), batch_size=4)
        made = gpupipe.from_dataloader(loader)
        assert made.recipe is None
        assert "its target_transform" in line(made, "dataset").why
        same_batches(loader, made)

    def test_other_target_types(self, tmp_path: Path) -> None:
        loader = DataLoader(oxford_pets(tmp_path, transform=LEVELS, target_types="binary-category"), batch_size=2)
        same_batches(loader, gpupipe.from_dataloader(loader, strict=True))
        loader = DataLoader(
            oxford_pets(tmp_path, transform=LEVELS, target_types=["category", "category"]), batch_size=2
        )
        made = gpupipe.from_dataloader(loader)
        assert "target_types" in line(made, "dataset").why
        same_batches(loader, made)


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


def gray(path: str) -> Image.Image:
    return Image.open(path).convert("L")


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
        ],
        ids=["own", "subset", "len", "loader", "wrapped", "function", "lambda", "unknown"],
    )
    def test_what_is_not_known(
        self, make: Callable[[Path], Any], part: str, reason: str, workers: int, folder: Path
    ) -> None:
        loader = DataLoader(make(folder), batch_size=4, num_workers=workers)
        with gpupipe.from_dataloader(loader) as made:
            assert made.recipe is None
            assert [line.part for line in made.translation.untranslated] == [part]
            assert "can't be translated: " in line(made, part).why
            assert reason in line(made, part).why
            same_batches(loader, made)
            assert made.dataset is loader.dataset
        with pytest.raises(ConfigError, match="strict=True") as caught:
            gpupipe.from_dataloader(loader, strict=True)
        assert str(made.translation).partition(":")[2] in str(caught.value)
