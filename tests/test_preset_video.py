"""Presets of videos beside the originals' transforms, written in plain torch for the same draws."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from images import picture
from torch.nn.functional import interpolate
from videos import batches

import gpupipe
from gpupipe import Frames, Scalar
from gpupipe.plan import cropping
from gpupipe.recipe import MultiCrop, Recipe

SIDES = [(120, 160), (300, 400), (330, 260)]
VIDEOS = [(np.stack([picture(*sides, 10 * row + frame) for frame in range(3)]), row) for row, sides in enumerate(SIDES)]
FIELDS = {"video": Frames(clip=(3, 1), channels="first"), "label": Scalar()}
PYTORCHVIDEO = (0.45, 0.45, 0.45), (0.225, 0.225, 0.225)
TORCHVISION = (0.43216, 0.394666, 0.37645), (0.22803, 0.22145, 0.216989)
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def normalized(video: np.ndarray, mean: Any, std: Any) -> torch.Tensor:
    """(3, frames, height, width)."""
    clip = torch.from_numpy(video).permute(3, 0, 1, 2).float() / 255
    return (clip - torch.tensor(mean)[:, None, None, None]) / torch.tensor(std)[:, None, None, None]


def short_side_scale(clip: torch.Tensor, size: int, antialias: bool) -> torch.Tensor:
    """PyTorchVideo's sizes; it has no antialiasing."""
    height, width = clip.shape[2:]
    short, long = min(height, width), max(height, width)
    sides = [size if side == short else math.floor(long / short * size) for side in (height, width)]
    return resized(clip, sides, antialias)


def resized(clip: torch.Tensor, sides: Any, antialias: bool) -> torch.Tensor:
    frames = interpolate(clip.transpose(0, 1), sides, mode="bilinear", align_corners=False, antialias=antialias)
    return frames.transpose(0, 1)


def made(recipe: Recipe | MultiCrop) -> list[Any]:
    """The clips of each video, (3, 3, height, width)."""
    return [batch["video"] for batch in batches(VIDEOS, recipe, FIELDS, batch_size=1, shuffle=False)]


def drawn(recipe: Recipe, row: int) -> Any:
    height, width = SIDES[row]
    return cropping(recipe, 7, 0, np.array([row]), np.array([height], np.int32), np.array([width], np.int32))


def compare(clip: torch.Tensor, wanted: torch.Tensor, std: Any, mean_levels: float, most: float = 255) -> None:
    levels = (clip - wanted).abs() * torch.tensor(std)[:, None, None, None] * 255
    assert levels.mean() < mean_levels
    assert levels.max() < most


def cut(clip: torch.Tensor, top: int, left: int, size: int) -> torch.Tensor:
    part = clip[:, :, top : top + size, left : left + size]
    assert part.shape[2:] == (size, size)
    return part


TRAIN: dict[str, tuple[Recipe, Any, Any]] = {
    "kinetics_train": (gpupipe.kinetics_train(112, shorter=(128, 160)), PYTORCHVIDEO, (128, 160)),
    "r3d_train": (gpupipe.r3d_train(), TORCHVISION, (128, 128)),
}


@pytest.mark.parametrize("name", TRAIN)
@pytest.mark.parametrize("antialias", [True, False])
def test_random_crops_are_the_originals_of_the_same_draws(name, antialias):
    recipe, (mean, std), (low, high) = TRAIN[name]
    for row, (batch, (video, _)) in enumerate(zip(made(recipe), VIDEOS, strict=True)):
        crops = drawn(recipe, row)
        shorter = int(crops.resized.min())
        assert low <= shorter <= high
        whole = short_side_scale(normalized(video, mean, std), shorter, antialias)
        assert whole.shape[2:] == tuple(crops.resized[0])
        part = cut(whole, *crops.anchors[0].tolist(), 112)
        wanted = part.flip(3) if crops.flips[0] else part
        compare(batch[0], wanted, std, *((0.5, 1.5) if antialias else (4.5,)))


def test_both_ends_of_the_shorter_side_are_drawn():
    recipe = gpupipe.kinetics_train()
    sides = np.full(4000, 300, np.int32)
    shorter = cropping(recipe, 0, 0, np.arange(4000), sides, sides).resized.min(axis=1)
    assert set(shorter.tolist()) == set(range(256, 321))


@pytest.mark.parametrize("antialias", [True, False])
def test_evaluations_are_the_originals(antialias):
    kinetics, r3d = made(gpupipe.kinetics_eval(64)), made(gpupipe.r3d_eval())
    tsn = made(gpupipe.tsn_eval(64, resize=73))
    for row, (video, _) in enumerate(VIDEOS):
        whole = short_side_scale(normalized(video, *PYTORCHVIDEO), 64, antialias)
        top, left = (round((side - 64) / 2) for side in whole.shape[2:])
        compare(kinetics[row][0], cut(whole, top, left, 64), PYTORCHVIDEO[1], 0.5 if antialias else 9)
        squashed = resized(normalized(video, *TORCHVISION), (128, 171), antialias)
        compare(r3d[row][0], cut(squashed, 8, 30, 112), TORCHVISION[1], 0.5 if antialias else 6)
        small = short_side_scale(normalized(video, *IMAGENET), 73, antialias)
        top, left = (round((side - 64) / 2) for side in small.shape[2:])
        compare(
            tsn[row][0],
            cut(small, top, left, 64),
            IMAGENET[1],
            0.5 if antialias else 9,
        )


def test_three_crops_are_the_ends_and_the_middle_of_the_longer_side():
    views = gpupipe.eval_views(gpupipe.kinetics_eval(64), three=True)
    for (video, _), three in zip(VIDEOS, made(views), strict=True):
        whole = short_side_scale(normalized(video, *PYTORCHVIDEO), 64, True)
        room = max(whole.shape[2:]) - 64
        for at, view in zip((0, round(room / 2), room), three, strict=True):
            place = (at, 0) if whole.shape[2] > whole.shape[3] else (0, at)
            compare(view[0], cut(whole, *place, 64), PYTORCHVIDEO[1], 0.5, 1.5)


@pytest.mark.parametrize("settings", [{"three": True, "five": True}, {"three": True}])
def test_three_crops_of_another_recipe_are_refused(settings):
    recipe = gpupipe.kinetics_eval(64) if "five" in settings else gpupipe.imagenet_eval(64)
    with pytest.raises(gpupipe.ConfigError, match="three=True is for a square crop of the shorter side, without five"):
        gpupipe.eval_views(recipe, **settings)


def test_tsn_takes_a_part_and_mirrors():
    recipe = gpupipe.tsn_train(64)
    for row, (batch, (video, _)) in enumerate(zip(made(recipe), VIDEOS, strict=True)):
        crops = drawn(recipe, row)
        top, left, height, width = crops.windows[0].tolist()
        part = resized(normalized(video[:, top : top + height, left : left + width], *IMAGENET), (64, 64), True)
        compare(batch[0], part.flip(3) if crops.flips[0] else part, IMAGENET[1], 0.5, 1.5)


@pytest.mark.parametrize("places", [5, 13])
def test_tsns_boxes_are_each_as_likely(places):
    """Ten boxes in each of its places, by the papers' arithmetic."""
    recipe = Recipe((gpupipe.MultiScaleCrop(64, places=places),))
    height, width = 256, 340
    sides = {256: 0, 224: 1, 192: 2, 168: 3}
    sizes = [(tall, wide) for tall in sides for wide in sides if abs(sides[tall] - sides[wide]) <= 1]
    wanted = set()
    for tall, wide in sizes:
        down, right = (height - tall) // 4, (width - wide) // 4
        at = [(0, 0), (0, 4), (4, 0), (4, 4), (2, 2)]
        if places == 13:
            at += [(2, 0), (2, 4), (0, 2), (4, 2), (1, 1), (1, 3), (3, 1), (3, 3)]
        wanted |= {(y * down, x * right, tall, wide) for y, x in at}
    count = 20_000
    windows = cropping(
        recipe, 3, 1, np.arange(count), np.full(count, height, np.int32), np.full(count, width, np.int32)
    ).windows
    boxes, often = np.unique(windows, axis=0, return_counts=True)
    assert set(map(tuple, boxes.tolist())) == wanted
    by_size = dict.fromkeys(sizes, 0)
    for box, times in zip(boxes.tolist(), often.tolist(), strict=True):
        by_size[tuple(box[2:])] += times
    assert all(1800 < times < 2200 for times in by_size.values())  # 2000 each
    tiny = cropping(recipe, 3, 1, np.arange(9), np.full(9, 1, np.int32), np.full(9, 2, np.int32)).windows
    assert (tiny[:, 2:] == 1).all()


@pytest.mark.parametrize("settings", [{"scales": ()}, {"scales": (1.5,)}, {"places": 4}, {"size": 0}])
def test_boxes_that_can_not_be_are_refused(settings):
    with pytest.raises(gpupipe.ConfigError, match="MultiScaleCrop: "):
        gpupipe.MultiScaleCrop(**{"size": 64, **settings})
