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
from torchvision import tv_tensors
from torchvision.transforms import v2

import gpupipe
from gpupipe import ConfigError
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


# Views of a test.


ROOM = [(33, 47), (50, 33), (33, 33), (60, 33)]  # whose shorter side is what the recipe resizes to: nothing is filtered


def placed(tmp_path: Path) -> Path:
    for number, sides in enumerate(ROOM):
        (tmp_path / "0").mkdir(exist_ok=True)
        (tmp_path / "0" / f"{number}.png").write_bytes(encode(picture(*sides, number), "PNG"))
    return tmp_path


@pytest.mark.parametrize("size", [24, (21, 32)], ids=str)
@pytest.mark.parametrize("flip", [False, True])
def test_five_and_ten_crops_are_torchvisions(
    tmp_path: Path, engine: dict[str, Any], flip: bool, size: int | tuple[int, int]
) -> None:
    recipe = gpupipe.eval_views(gpupipe.imagenet_eval(size, resize=33, dtype="uint8"), flip=flip, five=True)
    views, _ = epoch(placed(tmp_path), recipe, **engine)
    crops = v2.TenCrop(size) if flip else v2.FiveCrop(size)
    assert len(views) == 5 + 5 * flip
    for row, sides in enumerate(ROOM):
        wanted = crops(torch.from_numpy(picture(*sides, row).copy()).permute(2, 0, 1))
        for view, truth in zip(views, wanted, strict=True):
            assert torch.equal(view[row], truth)


def test_masks_and_boxes_follow_ten_crops() -> None:
    pixels = picture(33, 47, 3)
    boxes = torch.tensor([[3.0, 4.0, 40.0, 30.0]])
    fields = {"image": gpupipe.Image(), "mask": gpupipe.Mask(), "boxes": gpupipe.Boxes(collate="list")}
    data = [{"image": pixels, "mask": np.ascontiguousarray(pixels[:, :, 0]), "boxes": boxes.numpy()}]
    source = gpupipe.open_source(data, fields=fields)
    recipe = gpupipe.eval_views(gpupipe.imagenet_eval(24, resize=33, dtype="uint8"), flip=True, five=True)
    with gpupipe.Loader(source, recipe, 1, engine="torch", num_workers=0, device="cpu") as loader:
        batch = next(iter(loader))
    given = tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=(33, 47))
    for number, (image, mask) in enumerate(zip(batch["image"], batch["mask"], strict=True)):
        assert torch.equal(mask[0], image[0, 0])
        flipped = v2.functional.horizontal_flip(given) if number > 4 else given
        top, left = [(0, 0), (0, 23), (9, 0), (9, 23), (4, 12)][number % 5]
        wanted = v2.functional.clamp_bounding_boxes(v2.functional.crop(flipped, top, left, 24, 24))
        torch.testing.assert_close(batch["boxes"][number][0], torch.Tensor(wanted))


def test_a_flip_alone_is_the_flipped_batch_and_scales_are_factors(folder: Path) -> None:
    evaluation = gpupipe.deit3_eval(32, dtype="uint8")
    views, _ = epoch(folder, gpupipe.eval_views(evaluation, flip=True, scales=(0.75, 1.0)), num_workers=0)
    assert [view.shape[-1] for view in views] == [24, 24, 32, 32]
    assert torch.equal(views[3], views[2].flip(-1))
    plain, _ = epoch(folder, gpupipe.eval_views(evaluation, flip=True), num_workers=0)
    assert torch.equal(views[2], plain[0])
    crop = gpupipe.eval_views(gpupipe.imagenet_eval(), five=True, scales=(0.5,)).view_recipes[0].crop
    assert (crop.output_size, crop.resize, crop.place) == ((112, 112), 128, "top_left")
    squashed = gpupipe.eval_views(gpupipe.siglip_eval(), scales=(1, 2)).view_recipes[1].crop
    assert (squashed.output_size, squashed.resize) == ((448, 448), (448, 448))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_outputs_of_views_are_merged_and_gathered(folder: Path, dtype: torch.dtype) -> None:
    """Rank by rank the same as on one, and no row of the padding."""
    recipe = gpupipe.eval_views(gpupipe.imagenet_eval(16, resize=20), flip=True, five=True)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 16 * 16, 7)).to(dtype)

    def logits(**ranks: Any) -> list[torch.Tensor]:
        with gpupipe.Loader(folder, recipe, 4, num_workers=0, device="cpu", **ranks) as loader, torch.no_grad():
            made = []
            for views, _ in loader:
                merged = gpupipe.mean_over_views(model(view.to(dtype)) for view in views)
                slow = torch.stack([model(view.to(dtype)) for view in views]).float().mean(0)
                torch.testing.assert_close(merged, slow)
                made.append(merged if ranks else loader.gather(merged))
        return made

    whole = torch.cat(logits())
    assert whole.dtype == torch.float32
    parts = [logits(rank=rank, world_size=2) for rank in range(2)]
    together = torch.cat([part for step in zip(*parts, strict=True) for part in step])
    torch.testing.assert_close(together[: len(whole)], whole)


def test_scales_go_for_the_longest_side_too_and_what_stands_before_the_crop_stays() -> None:
    longest = gpupipe.ResizeCenterCrop(32, 40, max_size=44, fill=0)
    small, large = gpupipe.eval_views(gpupipe.Recipe((longest,)), scales=(0.5, 1.5)).view_recipes
    assert small.crop == gpupipe.ResizeCenterCrop(16, 20, max_size=22, fill=0)
    assert large.crop == gpupipe.ResizeCenterCrop(48, 60, max_size=66, fill=0)
    by_longest = gpupipe.ResizeCenterCrop(32, None, max_size=32, fill=0)
    assert gpupipe.eval_views(gpupipe.Recipe((by_longest,)), flip=True).view_recipes[0].crop == by_longest
    first = gpupipe.PerImage(np.flipud, name="upside down", version="1")
    views = gpupipe.eval_views(gpupipe.Recipe((first, longest)), flip=True).view_recipes
    assert [view.operations[:2] for view in views] == [(first, longest)] * 2


def test_what_makes_no_views_of_a_test_is_refused() -> None:
    with pytest.raises(ConfigError, match="must have a ResizeCenterCrop, and no flip"):
        gpupipe.eval_views(gpupipe.imagenet_train(), flip=True)
    for settings in ({}, {"scales": (0.0, 1.0)}, {"scales": ()}, {"scales": "1"}):
        with pytest.raises(ConfigError, match="must be numbers above 0 that make several views"):
            gpupipe.eval_views(gpupipe.imagenet_eval(), **settings)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="place='middle' must be one of top_left"):
        gpupipe.ResizeCornerCrop(4, 4, place="middle")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"view 1 has \(2, 3\), the first \(2, 4\)"):
        gpupipe.mean_over_views([torch.zeros(2, 4), torch.zeros(2, 3)])
    with pytest.raises(ConfigError, match="there are no outputs"):
        gpupipe.mean_over_views([])
