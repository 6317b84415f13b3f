"""Masks, boxes and points follow their image as torchvision v2's functions on tv_tensors do."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torchvision import tv_tensors
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional

from gpupipe.decode.masks import move_masks
from gpupipe.decode.pixels import render
from gpupipe.kernels import Crops, Op, affine_matrix, crop_resize, native
from gpupipe.kernels.crops import folded
from gpupipe.plan import Moves, augmentation, cropping, follow_boxes, follow_mask, follow_points, moving
from gpupipe.recipe import (
    ColorJitter,
    RandAugment,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Recipe,
    ResizeCenterCrop,
)

FORMATS = ("xyxy", "xywh", "cxcywh")
SIDES = (1, 2, 3, 7, 16, 31, 97, 224, 375, 500, 1024)


def resized_crops(rng: np.random.Generator, count: int) -> list[tuple[tuple[int, int], Crops]]:
    """(height, width) of images, and boxes in them that are resized to sides of all kinds, also of one pixel."""
    made = []
    for _ in range(count):
        height, width, tall, wide = (int(side) for side in rng.choice(SIDES, 4))
        cut = [int(rng.choice([1, side, rng.integers(1, side + 1)])) for side in (height, width)]
        corner = [int(rng.integers(0, side - own + 1)) for side, own in zip((height, width), cut, strict=True)]
        made.append(((height, width), one([*corner, *cut], (tall, wide), rng.random() < 0.5)))
    return made


def centre_crops(rng: np.random.Generator, count: int) -> list[tuple[tuple[int, int], Crops]]:
    """(height, width) of images, and what `ResizeCenterCrop` makes of them."""
    made = []
    for _ in range(count):
        height, resize = (int(side) for side in rng.choice(SIDES[:-2], 2))
        width = int(height * rng.choice([0.3, 0.7, 1, 1.5, 3])) + 1
        size = (int(rng.integers(1, resize + 1)), int(rng.integers(1, resize + 1)))
        recipe = Recipe((ResizeCenterCrop(size, resize), RandomHorizontalFlip()))
        made.append(((height, width), planned(recipe, height, width, int(rng.integers(1000)))))
    return made


def padded_crops(rng: np.random.Generator, count: int) -> list[tuple[tuple[int, int], Crops]]:
    """(height, width) of images, and windows and outputs that reach out of what they are of."""
    made = []
    for _ in range(count // 6):
        sides = [int(side) for side in rng.choice(SIDES[2:-1], 6)]
        window = [*(int(place) for place in rng.integers(-90, 2, 2)), *(int(side) for side in rng.integers(92, 300, 2))]
        anchors = [int(place) for place in rng.integers(-60, 60, 2)]
        crops = Crops.of(
            [window], (sides[2], sides[3]), flips=rng.random() < 0.5, resized=sides[4:], anchors=anchors, fill=(0, 0, 0)
        )
        made.append(((sides[0], sides[1]), crops))
    return made


def one(window: list[int], size: tuple[int, int], flip: bool) -> Crops:
    return Crops.of([window], size, flips=flip)


def planned(recipe: Recipe, height: int, width: int, position: int = 0) -> Crops:
    return cropping(recipe, 0, 0, np.array([position]), np.array([height], np.int32), np.array([width], np.int32))


def by_torchvision(value: Any, crops: Crops) -> Any:
    """The crop by v2's functions, as its RandomResizedCrop, or Resize and CenterCrop, and RandomHorizontalFlip call
    them."""
    top, left, height, width = crops.windows[0].tolist()
    resized, size = crops.resized[0].tolist(), list(crops.size)
    if crops.fill is not None:
        value = functional.crop(functional.pad(value, [300] * 4), top + 300, left + 300, height, width)
        value = functional.resize(value, resized, InterpolationMode.NEAREST)
        top, left = crops.anchors[0].tolist()
        value = functional.crop(functional.pad(value, [300] * 4), top + 300, left + 300, *size)
    elif resized == size:
        value = functional.resized_crop(value, top, left, height, width, size, InterpolationMode.NEAREST)
    else:
        value = functional.resize(value, resized, InterpolationMode.NEAREST)
        value = functional.center_crop(value, size)
    return functional.horizontal_flip(value) if crops.flips[0] else value


def followed(mask: np.ndarray, crops: Crops, ignore: int = 0) -> np.ndarray:
    out = np.full(crops.size, 99).astype(mask.dtype)
    follow_mask(mask, crops, 0, out, ignore)
    return out


@pytest.mark.parametrize("dtype", ["uint8", "bool", "int16", "uint16", "int32", "int64"])
@pytest.mark.parametrize("crops", [resized_crops, centre_crops, padded_crops])
def test_masks_are_torchvisions_to_the_bit(crops: Any, dtype: str) -> None:
    rng = np.random.default_rng(1)
    for (height, width), drawn in crops(rng, 300):
        mask = rng.integers(0, 2 if dtype == "bool" else 256, (height, width)).astype(dtype)
        expected = by_torchvision(tv_tensors.Mask(torch.from_numpy(mask)), drawn)
        np.testing.assert_array_equal(followed(mask, drawn), expected.numpy(), str(drawn))


def test_every_ratio_of_two_sides_takes_torchs_pixels() -> None:
    """Upwards and downwards, where float32 rounds i * scale to the next whole number or does not."""
    for source in range(1, 130):
        mask = np.arange(source, dtype=np.int32)[None]
        for target in range(1, 130, 3):
            drawn = one([0, 0, 1, source], (1, target), False)
            expected = functional.resize(tv_tensors.Mask(torch.from_numpy(mask)), [1, target])
            np.testing.assert_array_equal(followed(mask, drawn), expected.numpy(), f"{source} to {target}")


def test_masks_that_are_views_and_large_values_are_followed() -> None:
    """A mask of any strides, and instance numbers that float32 can't hold."""
    drawn = one([3, 4, 20, 30], (11, 13), True)
    mask = (2**40 + np.arange(60 * 80).reshape(60, 80))[::-2, ::2]
    rows, columns = (
        by_torchvision(tv_tensors.Mask(grid), drawn)
        for grid in torch.meshgrid(torch.arange(30), torch.arange(40), indexing="ij")
    )
    np.testing.assert_array_equal(followed(mask, drawn), mask[rows.numpy(), columns.numpy()])


def test_what_lies_outside_the_mask_is_ignored() -> None:
    """As v2's crop pads a mask that is smaller than its box, but with the value to ignore."""
    drawn = one([5, 2, 20, 30], (40, 45), True)
    mask = np.full((12, 20), 7, np.uint8)
    expected = by_torchvision(tv_tensors.Mask(torch.from_numpy(mask)), drawn).numpy()
    assert set(np.unique(expected)) == {0, 7}
    np.testing.assert_array_equal(followed(mask, drawn, ignore=255), np.where(expected == 0, 255, 7))


@pytest.mark.parametrize("mode", ["reflect", "edge", "symmetric"])
@pytest.mark.parametrize("kernels", [True, False])
def test_padding_that_is_no_color_is_torchvisions(mode: Any, kernels: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images and masks, also of a crop that is smaller than its padding, where only mirrored parts are seen."""
    if not kernels:
        monkeypatch.setattr(native, "library", lambda: None)
    rng = np.random.default_rng(2)
    image, mask = rng.integers(0, 256, (40, 31, 3), np.uint8), rng.integers(0, 256, (40, 31), np.uint8)
    for size, padding in (((32, 32), 4), ((9, 5), 20), ((60, 80), 28)):
        recipe = Recipe((RandomCrop(size, padding=padding, padding_mode=mode), RandomHorizontalFlip()))
        for position in range(12):
            drawn = planned(recipe, 40, 31, position)
            padded = [
                functional.pad(torch.from_numpy(given), [30] * 4, padding_mode=mode)
                for given in (image.transpose(2, 0, 1).copy(), mask[None].copy())
            ]
            top, left = (drawn.anchors[0] + 30).tolist()
            cropped = [functional.crop(given, top, left, *size) for given in padded]
            cropped = [functional.horizontal_flip(one) if drawn.flips[0] else one for one in cropped]
            out = torch.empty((*size, 3), dtype=torch.uint8)
            render(image, 40, 31, [drawn], False, [out])
            assert torch.equal(out.permute(2, 0, 1), cropped[0])
            for variant in native.variants():
                np.testing.assert_array_equal(crop_resize([image], drawn, variant=variant)[0], out.numpy())
            np.testing.assert_array_equal(followed(mask, drawn), cropped[1][0].numpy())


def test_padding_goes_on_as_often_as_it_takes() -> None:
    """torchvision refuses that; as NumPy's."""
    for mode, side in product(("reflect", "edge", "symmetric"), (1, 2, 5)):
        wanted = np.pad(np.arange(side), 40, mode)  # type: ignore[call-overload]
        np.testing.assert_array_equal(folded(np.arange(-40, side + 40), side, mode), wanted)  # type: ignore[arg-type]


@pytest.mark.parametrize("position", range(6))
def test_the_references_padding_and_random_crop_agree(position: int) -> None:
    """Of torchvision's segmentation reference: resized, mirrored, padded right and below, cropped."""
    recipe = Recipe((RandomCrop((40, 50), resize=(20, 81), place="top_left"), RandomHorizontalFlip()))
    drawn = planned(recipe, 60, 70, position)
    mask = tv_tensors.Mask(torch.from_numpy(np.random.default_rng(position).integers(0, 21, (60, 70), np.uint8)))
    resized = drawn.resized[0].tolist()
    value = functional.resize(mask, resized, InterpolationMode.NEAREST)
    value = functional.horizontal_flip(value) if drawn.flips[0] else value
    value = functional.pad(value, [0, 0, max(50 - resized[1], 0), max(40 - resized[0], 0)], fill=255)
    top, left = drawn.anchors[0].tolist()
    left = resized[1] - 50 - left if drawn.flips[0] else left
    assert min(top, left) >= 0
    np.testing.assert_array_equal(followed(mask.numpy(), drawn, 255), functional.crop(value, top, left, 40, 50).numpy())


def test_masks_of_other_shapes_and_dtypes_are_refused() -> None:
    drawn = one([0, 0, 4, 4], (4, 4), False)
    for mask in (np.zeros((4, 4, 1), np.uint8), np.zeros((4, 4), np.int64)):
        with pytest.raises(ValueError, match=r"needed"):
            follow_mask(mask, drawn, 0, np.zeros((4, 4), np.uint8), 255)


def some_boxes(rng: np.random.Generator, height: int, width: int, format: str) -> np.ndarray:
    """Eight boxes, some of which reach out of the image, or have no area."""
    corners = np.sort(rng.uniform(-0.2, 1.2, (8, 2, 2)), axis=1) * (width, height)
    corners[0, 1] = corners[0, 0]
    xyxy = tv_tensors.BoundingBoxes(torch.from_numpy(corners.reshape(8, 4)), format="XYXY", canvas_size=(height, width))
    return functional.convert_bounding_box_format(xyxy, new_format=format.upper()).numpy().astype(np.float32)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("crops", [resized_crops, centre_crops, padded_crops])
def test_boxes_are_torchvisions(crops: Any, format: Any) -> None:
    rng = np.random.default_rng(2)
    for (height, width), drawn in crops(rng, 100):
        boxes = some_boxes(rng, height, width, format)
        given = tv_tensors.BoundingBoxes(torch.from_numpy(boxes), format=format.upper(), canvas_size=(height, width))
        expected = by_torchvision(given, drawn).numpy()
        made, kept = follow_boxes(boxes, format, drawn, 0, 0)
        assert made.dtype == np.float32
        assert kept.all()
        # Torchvision's arithmetic is float32, from here of up to 1,024 pixels by 1,024: to 1e-3, or float32's last
        # places of what is subtracted.
        np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-3, err_msg=str(drawn))


@pytest.mark.parametrize("crops", [resized_crops, centre_crops, padded_crops])
@pytest.mark.parametrize("outside", ["drop", "clip", "keep"])
def test_points_are_torchvisions(crops: Any, outside: Any) -> None:
    rng = np.random.default_rng(3)
    for (height, width), drawn in crops(rng, 100):
        points = rng.uniform(-0.2, 1.2, (8, 2)).astype(np.float32) * np.float32((width, height))
        given = tv_tensors.KeyPoints(torch.from_numpy(points), canvas_size=(height, width))
        expected = by_torchvision(given, drawn)
        valid = np.ones(8, bool)
        if outside == "clip":
            expected = functional.clamp_keypoints(expected)
        if outside == "drop":
            expected, valid = (part.numpy() for part in functional.sanitize_keypoints(expected))
        made, kept = follow_points(points, outside, drawn, 0)
        assert made.dtype == np.float32
        np.testing.assert_array_equal(kept, valid)
        np.testing.assert_allclose(made, np.asarray(expected), rtol=1e-5, atol=1e-3, err_msg=str(drawn))


def test_boxes_below_the_area_are_dropped() -> None:
    """After clipping, in pixels of the output: here twice as wide and as high as in the image, and mirrored."""
    drawn = one([0, 0, 50, 50], (100, 100), True)
    boxes = [[10, 10, 20, 20], [45, 0, 90, 10], [0, 0, 5, 2], [60, 60, 90, 90], [0, 0, 4.9, 2]]
    made, kept = follow_boxes(boxes, "xyxy", drawn, 0, 40)
    assert kept.tolist() == [True, True, True, False, False]
    assert made.tolist() == [[60, 20, 80, 40], [0, 0, 10, 20], [90, 0, 100, 4]]
    assert follow_boxes(boxes, "xyxy", drawn, 0, 0)[1].all()


def test_samples_without_boxes_or_points() -> None:
    drawn = one([0, 0, 4, 4], (4, 4), True)
    for empty in ([], np.zeros(0), np.zeros((0, 4)), np.zeros((0, 2), np.int64)):
        boxes, kept = follow_boxes(empty, "xywh", drawn, 0, 1)
        points, also = follow_points(empty, "drop", drawn, 0)
        assert (boxes.shape, boxes.dtype, kept.shape, kept.dtype) == ((0, 4), np.float32, (0,), np.bool_)
        assert (points.shape, points.dtype, also.shape, also.dtype) == ((0, 2), np.float32, (0,), np.bool_)


@pytest.mark.parametrize(
    ("boxes", "format", "words"),
    [
        (np.zeros((2, 5)), "xyxy", r"boxes are float64 \(2, 5\), but \(M, 4\) is needed"),
        (np.zeros(4), "xyxy", r"boxes are float64 \(4,\)"),
        (np.array([["1", "2", "3", "4"]]), "xyxy", r"boxes are <U1"),
        ([[0, 0, 9, 9], [50, 60, 20, 30]], "xyxy", r"box 1 of 2 is \[50.0, 60.0, 20.0, 30.0\].*'xyxy'.*format"),
        ([[0, 0, -1, 5]], "xywh", "box 0 of 1"),
        ([[0, 0, 1, -5]], "cxcywh", "box 0 of 1"),
        ([[0, 0, np.nan, 5]], "xyxy", "box 0 of 1"),
        ([[0, 0, np.inf, 5]], "xywh", "box 0 of 1"),
    ],
)
def test_malformed_boxes_are_refused(boxes: Any, format: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        follow_boxes(boxes, format, one([0, 0, 4, 4], (4, 4), False), 0, 1)


def test_malformed_points_are_refused() -> None:
    drawn = one([0, 0, 4, 4], (4, 4), False)
    for points in (np.zeros((2, 3)), np.zeros(2), np.array([[True, False]])):
        with pytest.raises(ValueError, match=r"points are .*, but \(M, 2\) is needed"):
            follow_points(points, "drop", drawn, 0)


@pytest.mark.parametrize("train", [True, False])
def test_a_whole_pipeline_of_torchvision_agrees(train: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """v2's own transforms on a sample with all kinds, whose boxes and flips are given to them."""
    height, width, size = 120, 161, (63, 80)
    crop: Any = RandomResizedCrop(size) if train else ResizeCenterCrop(size, 90)
    recipe = Recipe((crop, RandomHorizontalFlip()))
    first = v2.RandomResizedCrop(size) if train else v2.Compose([v2.Resize(90), v2.CenterCrop(size)])
    rng = np.random.default_rng(4)
    for position in range(20):
        drawn = planned(recipe, height, width, position)
        box = dict(zip(("top", "left", "height", "width"), drawn.windows[0].tolist(), strict=True))
        monkeypatch.setattr(v2.RandomResizedCrop, "make_params", lambda self, flat, box=box: box)
        flip = v2.RandomHorizontalFlip(float(drawn.flips[0]))
        # Without the clamp some boxes reach out of the image by float32's rounding, and would be dropped.
        pipeline = v2.Compose([first, flip, v2.ClampBoundingBoxes(), v2.SanitizeBoundingBoxes(min_area=30)])
        boxes, points = some_boxes(rng, height, width, "xyxy"), rng.uniform(0, 120, (6, 2)).astype(np.float32)
        mask, labels = rng.integers(0, 21, (height, width), np.uint8), np.arange(8)
        expected = pipeline(
            {
                "image": tv_tensors.Image(torch.zeros(3, height, width, dtype=torch.uint8)),
                "mask": tv_tensors.Mask(torch.from_numpy(mask)),
                "boxes": tv_tensors.BoundingBoxes(torch.from_numpy(boxes), format="XYXY", canvas_size=(height, width)),
                "points": tv_tensors.KeyPoints(torch.from_numpy(points), canvas_size=(height, width)),
                "labels": torch.from_numpy(labels),
            }
        )
        made, kept = follow_boxes(boxes, "xyxy", drawn, 0, 30)
        wide = (made[:, 2:] - made[:, :2] >= 1).all(axis=1)  # SanitizeBoundingBoxes has a least side, besides
        np.testing.assert_array_equal(followed(mask, drawn), expected["mask"].numpy())
        np.testing.assert_allclose(made[wide], expected["boxes"].numpy(), atol=1e-3)
        np.testing.assert_array_equal(labels[kept][wide], expected["labels"].numpy())
        np.testing.assert_allclose(follow_points(points, "keep", drawn, 0)[0], expected["points"].numpy(), atol=1e-3)


# What moves pixels after the crop.

SIZE = (37, 52)
FULL = Crops.of([[0, 0, *SIZE]], SIZE)


def some_affines(rng: np.random.Generator, count: int) -> list[tuple[dict[str, Any], np.ndarray]]:
    """Settings of v2's `affine`, and the values of our operation."""
    made = []
    for _ in range(count):
        angle, *shear = rng.uniform((-180, -30, -30), (180, 30, 30)).tolist()
        translate = rng.integers(-15, 16, 2).tolist()
        settings = {"angle": angle, "translate": translate, "scale": rng.uniform(0.5, 2), "shear": shear}
        values = affine_matrix(
            SIZE, angle=angle, translate=tuple(translate), scale=settings["scale"], shear=tuple(shear)
        )
        made.append((settings, values))
    return made


def moves_of(*values: np.ndarray) -> Moves:
    """Of one image."""
    return Moves(np.full((1, len(values)), Op.AFFINE_NEAREST, np.int32), np.stack(values)[None])


@pytest.mark.parametrize("dtype", ["uint8", "bool", "int16", "uint16", "int32", "int64"])
def test_moved_masks_are_torchvisions_to_the_bit(dtype: str) -> None:
    """But for pixels that are read within 1e-4 of the middle between two, where float32 decides."""
    rng = np.random.default_rng(5)
    for settings, values in some_affines(rng, 60):
        high = 2 if dtype == "bool" else np.iinfo(dtype).max + 1 if "16" in dtype or dtype == "uint8" else 2**24
        mask = rng.integers(0, high, SIZE).astype(dtype)
        ignore = int(rng.integers(high))
        expected = functional.affine(tv_tensors.Mask(torch.from_numpy(mask)), **settings, fill=ignore).numpy()
        made = mask[None].copy()
        move_masks(made, moves_of(values), ignore)
        down, right = np.mgrid[: SIZE[0], : SIZE[1]]
        places = np.stack([right, down, np.ones(SIZE)], -1) @ values.reshape(2, 3).astype(np.float64).T
        clear = (np.abs(places - np.floor(places) - 0.5) > 1e-4).all(axis=-1)
        assert clear.mean() > 0.99
        np.testing.assert_array_equal(made[0][clear], expected[clear], str(settings))


def test_large_numbers_of_masks_are_moved() -> None:
    """Those that float32 can't hold, by rows that move and rows that stay."""
    masks = (2**50 + np.arange(3 * 20 * 30)).reshape(3, 20, 30)
    turned = affine_matrix((20, 30), angle=180)
    moves = Moves(
        np.array([[0, 0], [Op.AFFINE_NEAREST, 0], [Op.AFFINE_NEAREST] * 2], np.int32), np.tile(turned, (3, 2, 1))
    )
    made = masks.copy()
    move_masks(made, moves, -(2**60))
    np.testing.assert_array_equal(made, [masks[0], masks[1, ::-1, ::-1], masks[2]])
    far = moves_of(affine_matrix((20, 30), translate=(29, 0)))
    made = masks[:1].copy()
    move_masks(made, far, -(2**60))
    assert (made[0, :, 29] == masks[0, :, 0]).all()
    assert (made[0, :, :29] == -(2**60)).all()


@pytest.mark.parametrize("format", FORMATS)
def test_moved_boxes_are_torchvisions(format: Any) -> None:
    rng = np.random.default_rng(6)
    affines = some_affines(rng, 60)
    for (one_step, values), (other, more) in zip(affines[::2], affines[1::2], strict=True):
        boxes = some_boxes(rng, *SIZE, format)
        given = tv_tensors.BoundingBoxes(torch.from_numpy(boxes), format=format.upper(), canvas_size=SIZE)
        expected = functional.affine(functional.affine(functional.clamp_bounding_boxes(given), **one_step), **other)
        made, kept = follow_boxes(boxes, format, FULL, 0, 0, moves_of(values, more).of(0))
        assert kept.all()
        np.testing.assert_allclose(made, expected.numpy(), atol=1e-3, err_msg=str((one_step, other)))


def test_boxes_that_were_cut_off_do_not_come_back() -> None:
    """A box beyond the border is a line there, which has an area once it is turned."""
    turned = moves_of(affine_matrix(SIZE, angle=45)).of(0)
    beyond = [[60, 10, 70, 30], [20, 10, 30, 20]]
    assert len(follow_boxes(beyond, "xyxy", FULL, 0, 0, turned)[0]) == 2
    assert follow_boxes(beyond, "xyxy", FULL, 0, 1, turned)[1].tolist() == [False, True]
    away_and_back = moves_of(*(affine_matrix(SIZE, translate=(move, 0)) for move in (40, -40))).of(0)
    assert follow_boxes(beyond, "xyxy", FULL, 0, 1, away_and_back)[1].tolist() == [False, False]


@pytest.mark.parametrize("outside", ["drop", "clip", "keep"])
def test_moved_points_are_torchvisions(outside: Any) -> None:
    rng = np.random.default_rng(7)
    mirror = Crops.of([[0, 0, *SIZE]], SIZE, flips=True)
    for settings, values in some_affines(rng, 40):
        points = rng.uniform(-0.2, 1.2, (8, 2)).astype(np.float32) * np.float32(SIZE[::-1])
        given = functional.horizontal_flip(tv_tensors.KeyPoints(torch.from_numpy(points), canvas_size=SIZE))
        expected, valid = functional.affine(given, **settings), np.ones(8, bool)
        if outside == "clip":
            expected = functional.clamp_keypoints(expected)
        if outside == "drop":
            expected, valid = (part.numpy() for part in functional.sanitize_keypoints(expected))
        made, kept = follow_points(points, outside, mirror, 0, moves_of(values).of(0))
        np.testing.assert_array_equal(kept, valid)
        np.testing.assert_allclose(made, np.asarray(expected), atol=1e-3, err_msg=str(settings))


def test_moving_is_what_the_images_program_does() -> None:
    """The same draws; colours are left out, and so are operations that move nothing."""
    positions, color = np.arange(64), ColorJitter(0.4)
    recipe = Recipe((RandomResizedCrop(SIZE), color, RandAugment(3, interpolation="bilinear"), color))
    drawn, moves = augmentation(recipe, 3, 2, positions, 1, 1), moving(recipe, 3, 2, positions, 1, 1)
    assert drawn is not None
    assert moves is not None
    for row in range(len(positions)):
        steps = drawn.ops[row] == Op.AFFINE_BILINEAR
        kept = moves.ops[row] == Op.AFFINE_NEAREST
        np.testing.assert_array_equal(moves.values[row, kept], drawn.values[row, steps])
        assert (moves.ops[row, ~kept] == Op.IDENTITY).all()
    assert 0 < (moves.ops != Op.IDENTITY).mean() < 1
    assert moving(Recipe((RandomResizedCrop(SIZE), color)), 3, 2, positions) is None
