"""Several views of each sample, of one recipe or of several: each is what its own plan says, on every engine."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from images import encode, picture
from pillow_reference import render_reference

import gpupipe
from gpupipe.plan import cropping

ENGINES = [
    pytest.param({"engine": "torch", "num_workers": 0}, id="torch-0"),
    pytest.param({"engine": "torch", "num_workers": 2}, id="torch-2"),
    pytest.param({"engine": "dali", "num_workers": 1}, id="dali"),
]
PAIR = gpupipe.Recipe((gpupipe.RandomResizedCrop(32), gpupipe.RandomHorizontalFlip()), dtype="uint8", views=2)
LARGE = gpupipe.Recipe((gpupipe.RandomResizedCrop((40, 48), scale=(0.4, 1.0), interpolation="bicubic"),), dtype="uint8")
SMALL = gpupipe.Recipe((gpupipe.RandomResizedCrop(16, scale=(0.05, 0.4)),), dtype="uint8", views=3)
CROPS = gpupipe.MultiCrop((LARGE, SMALL))


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> dict[str, Any]:
    return request.param


def epoch(data: Any, recipe: Any, **options: Any) -> tuple[list[torch.Tensor], torch.Tensor]:
    """The views of a whole epoch, and its labels."""
    options = {"batch_size": 4, "device": "cpu", "seed": 5} | options
    with gpupipe.Loader(data, recipe, **options) as loader:
        batches = [([view.clone() for view in views], labels) for views, labels in loader]
    views = [torch.cat(parts) for parts in zip(*(views for views, _ in batches), strict=True)]
    return views, torch.cat([labels for _, labels in batches])


def by_pillow(folder: Path, recipe: gpupipe.Recipe, position: int, view: int) -> np.ndarray:
    from PIL import Image

    file = sorted(folder.glob("*/*.jpg"))[position]
    width, height = Image.open(file).size
    sides = np.array([height], np.int32), np.array([width], np.int32)
    return render_reference(file.read_bytes(), cropping(recipe, 5, 0, np.array([position]), *sides, view))


@pytest.mark.parametrize("recipe", [PAIR, CROPS], ids=["pair", "multi-crop"])
def test_each_view_is_what_its_plan_says(folder: Path, engine: dict[str, Any], recipe: Any) -> None:
    views, labels = epoch(folder, recipe, **engine)
    assert len(views) == recipe.views
    assert labels.tolist() == [position // 5 for position in range(25)]
    for number, (own, made) in enumerate(zip(recipe.view_recipes, views, strict=True)):
        assert made.shape == (25, 3, *own.crop.output_size)
        for position in range(25):
            apart = made[position].permute(1, 2, 0).numpy().astype(int) - by_pillow(folder, own, position, number)
            if engine["engine"] == "torch":
                assert np.abs(apart).max() <= 1, (number, position)
            else:
                assert np.abs(apart).mean() <= 1, (number, position)


def test_views_differ_and_the_first_is_the_one_of_a_loader_without_others(folder: Path) -> None:
    (first, second), _ = epoch(folder, PAIR, engine="torch", num_workers=0)
    alone = gpupipe.Recipe(PAIR.operations, dtype="uint8")
    with gpupipe.Loader(folder, alone, 4, device="cpu", seed=5, engine="torch", num_workers=0) as loader:
        assert torch.equal(torch.cat([images.clone() for images, _ in loader]), first)
    assert all(not torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_float_views_are_finished_like_single_ones(folder: Path, engine: dict[str, Any]) -> None:
    normalized = gpupipe.Recipe((*PAIR.operations, gpupipe.Normalize()), layout="channels_last", views=2)
    views, _ = epoch(folder, normalized, **engine)
    plain, _ = epoch(folder, PAIR, **engine)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in normalized.statistics)
    for view, levels in zip(views, plain, strict=True):
        torch.testing.assert_close(view, (levels / 255 - mean) / std, atol=0.02, rtol=0)


def test_a_bad_sample_is_replaced_in_all_views(folder: Path, tmp_path: Path, engine: dict[str, Any]) -> None:
    root = Path(shutil.copytree(folder, tmp_path / "data", ignore=shutil.ignore_patterns(".gpupipe*")))
    victim = sorted(root.glob("*/*.jpg"))[6]
    victim.write_bytes(victim.read_bytes()[:200])
    views, labels = epoch(root, CROPS, on_error="skip", **engine)
    assert labels[6] == 1
    for number, own in enumerate(CROPS.view_recipes):
        from PIL import Image

        file = sorted(root.glob("*/*.jpg"))[7]  # the next of the order, drawn with the bad position's numbers
        width, height = Image.open(file).size
        sides = np.array([height], np.int32), np.array([width], np.int32)
        expected = render_reference(file.read_bytes(), cropping(own, 5, 0, np.array([6]), *sides, number))
        assert np.abs(views[number][6].permute(1, 2, 0).numpy().astype(int) - expected).mean() <= 1


def test_resumes_in_the_middle(folder: Path) -> None:
    def loader() -> gpupipe.Loader:
        return gpupipe.Loader(folder, CROPS, 4, shuffle=True, device="cpu", engine="torch", num_workers=1)

    with loader() as first, loader() as second:
        whole = [[view.clone() for view in views] for views, _ in first]
        iterator = iter(second)
        next(iterator), next(iterator)
        state = second.state_dict()
    with loader() as third:
        third.load_state_dict(state)
        rest = [[view.clone() for view in views] for views, _ in third]
    assert len(rest) == len(whole) - 2
    for one, other in zip(rest, whole[2:], strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    with pytest.raises(gpupipe.StateError, match="recipe"):
        gpupipe.Loader(folder, PAIR, 4, shuffle=True, device="cpu", engine="torch", num_workers=0).load_state_dict(
            state
        )


@pytest.mark.parametrize("engine", ["torch", "dali"])
@pytest.mark.parametrize("kind", [{"quality": 90}, {"quality": 85, "progressive": True}, {"kind": "PNG"}])
@pytest.mark.parametrize("crop", [gpupipe.RandomResizedCrop, gpupipe.ResizeCenterCrop])
def test_bicubic_is_pillows(engine: str, kind: dict[str, Any], crop: Any, cpu_path: str) -> None:
    sizes = ((90, 130), (64, 64), (300, 200), (41, 500))
    files = [encode(picture(height, width, height), **kind) for height, width in sizes]
    size = {"resize": 56} if crop is gpupipe.ResizeCenterCrop else {}
    recipe = gpupipe.Recipe((crop((48, 40), interpolation="bicubic", **size),), dtype="uint8")
    data = list(zip(files, range(len(files)), strict=True))
    with gpupipe.Loader(data, recipe, 4, device="cpu", seed=5, engine=engine, num_workers=0) as loader:
        ((images, _),) = loader
    for row, (height, width) in enumerate(sizes):
        sides = np.array([height], np.int32), np.array([width], np.int32)
        expected = render_reference(files[row], cropping(recipe, 5, 0, np.array([row]), *sides))
        apart = np.abs(images[row].permute(1, 2, 0).numpy().astype(int) - expected)
        if engine == "dali":
            assert apart.mean() <= 1, (row, apart.mean())
        else:
            assert apart.max() <= (0 if cpu_path == "kernels" else 1), row


def test_a_batch_of_odd_size_is_refused_where_samples_are_mixed(folder: Path) -> None:
    recipe = gpupipe.Recipe((gpupipe.RandomResizedCrop(32), gpupipe.MixUp(num_classes=5)))
    with pytest.raises(gpupipe.ConfigError, match="batch_size=3 must be even"):
        gpupipe.Loader(folder, recipe, 3, device="cpu")
