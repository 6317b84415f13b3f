"""Operations that move pixels, with images, masks, boxes and points, beside torchvision v2's transforms."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from scipy import stats
from test_draws import SURELY
from torchvision import tv_tensors
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.functional import _get_perspective_coeffs

from gpupipe.decode.masks import move_masks
from gpupipe.kernels import Crops, Op, augment
from gpupipe.kernels.augment_reference import displacement
from gpupipe.plan import Augmentation, Moves, augmentation, follow_boxes, follow_points, moving
from gpupipe.recipe import (
    Augmenting,
    ElasticTransform,
    RandomAffine,
    RandomApply,
    RandomChoice,
    RandomPerspective,
    RandomRotation,
    RandomVerticalFlip,
    Recipe,
    ResizeCenterCrop,
)

COUNT = 4000
SIZE = (48, 66)
WHOLE = Crops.of([[0, 0, *SIZE]], SIZE)
LINEAR = InterpolationMode.BILINEAR


def drawn(*operations: Augmenting, count: int = COUNT, size: tuple[int, int] = SIZE) -> Augmentation:
    made = augmentation(Recipe((ResizeCenterCrop(size, size), *operations)), 3, 0, np.arange(count))
    assert made is not None
    return made


def moves(*operations: Augmenting, count: int = 1) -> Moves:
    made = moving(Recipe((ResizeCenterCrop(SIZE, SIZE), *operations)), 3, 0, np.arange(count))
    assert made is not None
    return made


def sample() -> dict[str, Any]:
    """One for torchvision; the mask's numbers lie far from its fill."""
    rng = np.random.default_rng(0)
    image = torch.from_numpy(rng.integers(0, 256, (3, *SIZE), np.uint8))
    # Smooth, so that a last bit of a coordinate does not show.
    image = v2.functional.gaussian_blur(image, [9, 9], [2.0, 2.0])
    corners = np.sort(rng.uniform(0, 1, (9, 2, 2)), axis=1) * SIZE[::-1]
    boxes = torch.from_numpy(corners.reshape(9, 4).astype(np.float32))
    points = torch.from_numpy((rng.uniform(0, 1, (9, 2)) * SIZE[::-1]).astype(np.float32))
    return {
        "image": tv_tensors.Image(image),
        "mask": tv_tensors.Mask(torch.from_numpy(rng.integers(0, 100, SIZE, np.uint8))),
        "boxes": tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=SIZE),
        "points": tv_tensors.KeyPoints(points, canvas_size=SIZE),
    }


FILLS = {tv_tensors.Image: (9, 90, 200), "others": 255}
ALIKE: dict[str, tuple[Augmenting, Any]] = {
    "vertical flip": (RandomVerticalFlip(1.0), v2.RandomVerticalFlip(1.0)),
    "rotation": (RandomRotation((33, 33), fill=(9, 90, 200)), v2.RandomRotation((33, 33), fill=FILLS)),
    "rotation, bilinear": (
        RandomRotation((-71, -71), "bilinear", (9, 90, 200)),
        v2.RandomRotation((-71, -71), LINEAR, fill=FILLS),
    ),
    "rotation, no fill": (RandomRotation((20, 20), "bilinear", None), v2.RandomRotation((20, 20), LINEAR, fill=None)),
    "half a turn": (RandomRotation((180, 180)), v2.RandomRotation((180, 180))),
    "affine": (
        RandomAffine((20, 20), scale=(1.3, 1.3), shear=(5, 5, -9, -9), fill=(9, 90, 200)),
        v2.RandomAffine((20, 20), scale=(1.3, 1.3), shear=(5, 5, -9, -9), fill=FILLS),
    ),
    "affine, bilinear": (
        RandomAffine(0, None, (0.6, 0.6), (12, 12), "bilinear", (9, 90, 200)),
        v2.RandomAffine(0, None, (0.6, 0.6), (12, 12), LINEAR, FILLS),
    ),
}


def between_no_pixels(values: np.ndarray, elastic: bool = False) -> np.ndarray:
    """Where a pixel is read that does not lie in the middle between two, so that float32's last bit decides."""
    y, x = np.mgrid[: SIZE[0], : SIZE[1]]
    if elastic:
        places = displacement(torch.from_numpy(values), *SIZE).double().numpy() + np.stack([x, y])
    else:
        a, b, c, d, e, f, g, h = np.pad(values.astype(np.float64), (0, 8 - len(values)))
        part = g * x + h * y + 1
        places = np.stack([(a * x + b * y + c) / part, (d * x + e * y + f) / part])
    clear: np.ndarray = (np.abs(places % 1 - 0.5) > 1e-4).all(axis=0)
    assert clear.mean() > 0.99
    return clear


@pytest.mark.parametrize("name", ALIKE)
def test_all_move_as_torchvisions(name: str) -> None:
    """Where nothing is left to chance."""
    ours, theirs = ALIKE[name]
    assert_alike(ours, theirs)


def assert_alike(ours: Augmenting, theirs: Any, row: int = 0) -> None:
    given, program, moved = sample(), drawn(ours, count=row + 1), moves(ours, count=row + 1)
    expected = theirs(given)
    image = given["image"].permute(1, 2, 0).contiguous()[None]
    made = augment(image, program.ops[row:], program.values[row:], fill=program.fill)[0].permute(2, 0, 1)
    apart = (made.int() - expected["image"].int()).abs()
    op = program.ops[row, 0]
    clear = between_no_pixels(program.values[row, 0], op >= Op.ELASTIC_NEAREST)
    nearest = op in (Op.AFFINE_NEAREST, Op.PERSPECTIVE_NEAREST, Op.ELASTIC_NEAREST)
    assert (apart[:, clear] == 0).all() if nearest else apart.max() <= 1
    mask = given["mask"].numpy()[None].copy()
    move_masks(mask, Moves(moved.ops[row:], moved.values[row:]), 255 if expected["mask"].max() == 255 else 0)
    np.testing.assert_array_equal(mask[0, clear], expected["mask"].numpy()[clear])
    steps = moved.of(row)
    boxes, _ = follow_boxes(given["boxes"].numpy(), "xyxy", WHOLE, 0, 0, steps)
    np.testing.assert_allclose(boxes, expected["boxes"].numpy(), atol=1e-3)
    points, _ = follow_points(given["points"].numpy(), "keep", WHOLE, 0, steps)
    np.testing.assert_allclose(points, expected["points"].numpy(), atol=1e-3)


def uniform(numbers: Any, low: float, high: float) -> bool:
    return stats.kstest(numbers, stats.uniform(low, high - low).cdf).pvalue > SURELY


def test_vertical_flips_come_at_their_rate() -> None:
    made = drawn(RandomVerticalFlip(0.3))
    flipped = made.ops[:, 0] == Op.AFFINE_NEAREST
    assert stats.binomtest(int(flipped.sum()), COUNT, 0.3).pvalue > SURELY
    assert not made.values[~flipped].any()


def test_angles_are_uniform() -> None:
    made = drawn(RandomRotation((-10, 35), "bilinear")).values[:, 0]
    angles = np.degrees(np.arctan2(-made[:, 1], made[:, 0]))
    assert uniform(angles, -10, 35)
    clockwise = drawn(RandomAffine((-10, 35))).values[:, 0]
    assert uniform(np.degrees(np.arctan2(clockwise[:, 1], clockwise[:, 0])), -10, 35)


def test_affine_draws_each_number_for_itself() -> None:
    made = (
        drawn(RandomAffine(0, (0.25, 0.5), (0.5, 2), (-20, 10, 5, 40)), size=(40, 80)).values[:, 0].astype(np.float64)
    )
    # What it takes the middle to, which turning, shearing and scaling leave where it is, and the linear part.
    inverse = np.linalg.inv(made.reshape(-1, 2, 3)[:, :, :2])
    middle = np.array([39.5, 19.5])
    moved = np.einsum("nij,nj->ni", inverse, middle - made.reshape(-1, 2, 3)[:, :, 2]) - middle
    assert np.abs(moved - np.rint(moved)).max() < 1e-3
    right, down = np.rint(moved).astype(int).T
    for steps, most in ((right, 20), (down, 20)):
        counts = np.array([(steps == step).sum() for step in range(-most, most + 1)])
        assert counts.sum() == COUNT
        odds = np.array([0.5, *[1.0] * (2 * most - 1), 0.5]) / (2 * most)  # of rounded uniform numbers
        assert stats.chisquare(counts, odds * COUNT).pvalue > SURELY
    scale = np.sqrt(np.linalg.det(inverse))
    assert uniform(scale, 0.5, 2)
    tall = np.degrees(np.arctan(-inverse[:, 1, 0] / scale))  # shears without a turn: 1, -tan(y)
    assert uniform(tall, 5, 40)
    wide = np.degrees(np.arctan(-inverse[:, 0, 1] / scale))
    assert uniform(wide, -20, 10)
    assert np.abs(np.corrcoef([right, down, scale, tall, wide]) - np.eye(5)).max() < 0.08


def corners(program: Augmentation, size: tuple[int, int]) -> np.ndarray:
    """Where the image's corners come to lie, (N, 4, 2), to the pixel."""
    whole = np.array([[0, 0, 1], [size[1] - 1, 0, 1], [size[1] - 1, size[0] - 1, 1], [0, size[0] - 1, 1]])
    ends = np.stack([np.stack(Moves(program.ops, program.values).of(row)) @ whole.T for row in range(len(program.ops))])
    found = (ends[:, 0, :2] / ends[:, 0, 2:]).swapaxes(1, 2)
    assert np.abs(found - np.rint(found)).max() < 1e-3
    return np.rint(found).astype(int)


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
def test_perspectives_are_torchvisions(interpolation: Any) -> None:
    operation = RandomPerspective(0.6, 1.0, interpolation, (9, 90, 200))
    ends = corners(drawn(operation, count=12), SIZE)
    whole = [[0, 0], [SIZE[1] - 1, 0], [SIZE[1] - 1, SIZE[0] - 1], [0, SIZE[0] - 1]]
    for row in range(12):

        class Fixed(v2.RandomPerspective):
            def make_params(self, flat_inputs: list[Any], row: int = row) -> dict[str, Any]:
                return {"coefficients": _get_perspective_coeffs(whole, ends[row].tolist())}

        assert_alike(operation, Fixed(0.6, 1.0, InterpolationMode(interpolation), FILLS), row)


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
@pytest.mark.parametrize(("alpha", "sigma"), [(60.0, 4.0), ((9.0, 300.0), 2.3), (8.0, 0)])
def test_elastic_moves_are_torchvisions(interpolation: Any, alpha: Any, sigma: float) -> None:
    """With the same displacement, from the same uniform numbers, in the place of torch's."""
    operation = ElasticTransform(alpha, sigma, interpolation, (9, 90, 200))
    program = drawn(operation, count=3)
    theirs = v2.ElasticTransform(alpha, float(sigma), InterpolationMode(interpolation), FILLS)
    for row in range(3):
        values = torch.from_numpy(program.values[row, 0])
        noise = displacement(torch.cat([torch.ones(2), values[2:6], torch.ones(1)]), *SIZE)  # not blurred
        uniform = iter((noise + 1) / 2)
        with patch.object(torch, "rand", lambda *size, uniform=uniform: next(uniform).view(size)):
            wanted = theirs.make_params([torch.empty(3, *SIZE)])["displacement"]
        found = displacement(values, *SIZE).permute(1, 2, 0)[None]
        np.testing.assert_allclose(found, wanted * torch.tensor(SIZE[::-1]) / 2, atol=1e-4)

        class Same(v2.ElasticTransform):
            def make_params(self, flat_inputs: list[Any], found: torch.Tensor = found) -> dict[str, Any]:
                return {"displacement": found * 2 / torch.tensor(SIZE[::-1])}

        assert_alike(operation, Same(alpha, float(sigma), InterpolationMode(interpolation), FILLS), row)


def test_what_follows_an_elastic_move_knows_the_size_of_its_own_image() -> None:
    """Also where each image of a batch has another."""
    given, steps = sample(), moves(ElasticTransform(300.0)).of(0)
    varied = replace(WHOLE, size=(99, 131), outputs=np.array([SIZE], np.int32))
    boxes, points = given["boxes"].numpy(), given["points"].numpy()
    for one in (follow_boxes(boxes, "xyxy", crops, 0, 0, steps)[0] for crops in (WHOLE, varied)):
        np.testing.assert_array_equal(one, follow_boxes(boxes, "xyxy", WHOLE, 0, 0, steps)[0])
        assert np.abs(one - boxes).max() > 1
    np.testing.assert_array_equal(*(follow_points(points, "keep", crops, 0, steps)[0] for crops in (WHOLE, varied)))


def test_ways_of_an_elastic_move_are_uniform_before_they_are_blurred() -> None:
    made = drawn(ElasticTransform((2.0, 6.0), 0), count=2)
    first, second = (displacement(torch.from_numpy(values), *SIZE).flatten(1).numpy() for values in made.values[:, 0])
    for right, down in (first, second):
        assert uniform(right, -1, 1)
        assert uniform(down, -3, 3)
    numbers = np.concatenate([first, second])
    assert np.abs(np.corrcoef(numbers) - np.eye(4)).max() < 0.08


def test_corners_are_drawn_as_torchvisions() -> None:
    height, width = 20, 31
    ends = corners(drawn(RandomPerspective(0.5, 1.0), size=(height, width)), (height, width)).reshape(COUNT, 8).T
    # torchvision's ranges: of int(0.5 * half) + 1 pixels from each border.
    near_x, near_y, far_x, far_y = range(8), range(6), range(width - 8, width), range(height - 6, height)
    for places, span in zip(ends, (near_x, near_y, far_x, near_y, far_x, far_y, near_x, far_y), strict=True):
        counts = np.array([(places == place).sum() for place in span])
        assert counts.sum() == COUNT
        assert stats.chisquare(counts).pvalue > SURELY
    assert np.abs(np.corrcoef(ends) - np.eye(8)).max() < 0.08
    some = drawn(RandomPerspective(0.5, 0.3), size=(height, width)).ops[:, 0] == Op.PERSPECTIVE_BILINEAR
    assert stats.binomtest(int(some.sum()), COUNT, 0.3).pvalue > SURELY


@pytest.mark.parametrize("size", [(1, 1), (1, 9), (2, 2), (4, 3)])
def test_corners_on_a_line_leave_the_image_as_it_is(size: tuple[int, int]) -> None:
    made = drawn(RandomPerspective(1.0, 1.0), size=size, count=300)
    done = made.ops[:, 0] != Op.IDENTITY
    assert not done.all()
    assert np.isfinite(made.values).all()
    assert not made.values[~done].any()
    for row in range(300):
        assert np.isfinite(Moves(made.ops, made.values).of(row)).all()


def test_golden_programs() -> None:
    """A saved run must see the same moves with every later version."""
    choice = RandomChoice((RandomApply((RandomVerticalFlip(),)), RandomRotation(9), RandomAffine(9, (0.1, 0.1))))
    elastic = augmentation(Recipe((ResizeCenterCrop(SIZE, SIZE), ElasticTransform(9))), 42, 3, np.array([2**40 + 5]), 2)
    assert elastic is not None
    assert elastic.values[0, 0, :6].tolist() == [4.5, 4.5, 33527, 36791, 58072, 9626]
    all_of_them = (
        RandomVerticalFlip(),
        RandomRotation(30),
        RandomAffine(20, (0.1, 0.2), (0.5, 2), 10),
        choice,
        RandomPerspective(),
    )

    recipe = Recipe((ResizeCenterCrop(SIZE, SIZE), *all_of_them))
    made = augmentation(recipe, 42, 3, np.array([0, 1, 2**40 + 5]), view=2)
    assert made is not None
    assert made.ops.tolist() == [[1, 1, 1, 1, 0], [1, 1, 1, 1, 0], [0, 1, 1, 1, 41]]
    np.testing.assert_allclose(
        np.abs(made.values).sum(axis=2),
        [[49.0, 7.325, 28.693, 8.872, 0.0], [49.0, 6.042, 30.044, 8.99, 0.0], [0.0, 14.084, 16.403, 9.743, 59.584]],
        atol=1e-3,
    )
