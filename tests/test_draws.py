"""Plans against torchvision's transforms and against a plain Python reading of the algorithm."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from scipy import stats
from torchvision.transforms import RandomResizedCrop as TorchvisionCrop, functional, v2

from gpupipe.errors import ConfigError
from gpupipe.kernels import Crops
from gpupipe.plan import cropping
from gpupipe.plan.stream import Stream
from gpupipe.recipe import (
    LetterBox,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Recipe,
    ResizeCenterCrop,
    ScaleJitter,
    imagenet_train,
)

TRAIN = imagenet_train(224)
RANDOM = Recipe((RandomResizedCrop(224, interpolation="random"), RandomHorizontalFlip()))
ARRAYS = ("windows", "resized", "anchors", "flips", "bicubic")
SURELY = 1e-4  # p-values below this count as a difference; all seeds are fixed


def plan_at(
    recipe: Recipe, positions: object, height: object, width: object, seed: int = 0, epoch: int = 0, field: int = 0
) -> Crops:
    """A plan for images of one size, or of one size each."""
    positions = np.asarray(positions, dtype=np.int64)
    heights = np.broadcast_to(np.asarray(height, np.int32), positions.shape)
    widths = np.broadcast_to(np.asarray(width, np.int32), positions.shape)
    return cropping(recipe, seed, epoch, positions, heights, widths, field=field)


def random_shapes(count: int, seed: int = 0, longest: int = 4000) -> tuple[np.ndarray, np.ndarray]:
    """Heights and widths, log-uniform, so that small and extreme ones are frequent."""
    rng = np.random.default_rng(seed)
    shapes = np.exp(rng.uniform(0, math.log(longest), (2, count))).astype(np.int32)
    return shapes[0], shapes[1]


# torchvision's RandomResizedCrop


def torchvision_boxes(height: int, width: int, count: int, crop: RandomResizedCrop) -> np.ndarray:
    """(count, 4) boxes by torchvision itself."""
    image = torch.empty(1).expand(3, height, width)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        boxes = [TorchvisionCrop.get_params(image, list(crop.scale), list(crop.ratio)) for _ in range(count)]
    return np.array(boxes)


def features(boxes: np.ndarray, height: int, width: int) -> dict[str, np.ndarray]:
    """What is compared: where the box may lie counts as a share of the room that it has."""
    top, left, tall, wide = boxes.T.astype(np.float64)
    return {
        "area": tall * wide / (height * width),
        "aspect": np.log(wide / tall),
        "top": top / np.maximum(height - tall, 1),
        "left": left / np.maximum(width - wide, 1),
    }


@pytest.mark.parametrize(
    ("height", "width", "crop"),
    [
        (375, 500, TRAIN.crop),
        (500, 333, TRAIN.crop),
        (64, 64, TRAIN.crop),
        (13, 17, TRAIN.crop),
        (100, 260, TRAIN.crop),  # many tries fail, some images fall back
        (2000, 1900, RandomResizedCrop(224, scale=(0.35, 0.9), ratio=(0.5, 1.1))),
    ],
)
def test_boxes_are_distributed_as_torchvisions(height: int, width: int, crop: RandomResizedCrop) -> None:
    count = 4000
    theirs = features(torchvision_boxes(height, width, count, crop), height, width)
    ours = features(plan_at(Recipe((crop,)), np.arange(count), height, width, seed=7).windows, height, width)
    for name in theirs:
        assert stats.ks_2samp(ours[name], theirs[name]).pvalue > SURELY, name


def test_that_comparison_would_notice_a_slightly_wrong_crop() -> None:
    theirs = features(torchvision_boxes(375, 500, 4000, TRAIN.crop), 375, 500)
    for name, wrong in [("area", {"scale": (0.12, 1.0)}), ("aspect", {"ratio": (0.79, 4 / 3)})]:
        boxes = plan_at(Recipe((RandomResizedCrop(224, **wrong),)), np.arange(4000), 375, 500, seed=7).windows
        assert stats.ks_2samp(features(boxes, 375, 500)[name], theirs[name]).pvalue < SURELY


@pytest.mark.parametrize("room", [1, 2, 6])
def test_places_are_uniform_to_the_pixel(room: int) -> None:
    """A square of this much less than 12 pixels can stand at few places, all equally likely."""
    share = (1 - room / 12) ** 2
    windows = plan_at(Recipe((RandomResizedCrop(8, (share, share), (1, 1)),)), np.arange(6000), 12, 12).windows
    assert (windows[:, 2:] == 12 - room).all()
    for starts in windows[:, :2].T:
        assert stats.chisquare(np.bincount(starts, minlength=room + 1)).pvalue > SURELY


@pytest.mark.parametrize(("height", "width"), [(7, 3000), (3000, 7), (1, 1), (1, 3000), (3000, 1), (3, 1000)])
def test_the_fallback_is_torchvisions_exactly(height: int, width: int) -> None:
    expected = torchvision_boxes(height, width, 200, TRAIN.crop)
    assert len(np.unique(expected, axis=0)) == 1  # no try can fit, or all that fit are the same
    windows = plan_at(TRAIN, np.arange(200), height, width).windows
    np.testing.assert_array_equal(windows, expected)


@pytest.mark.parametrize("ratio", [(0.75, 4 / 3), (0.1, 0.2), (5, 10), (1, 1)])
@pytest.mark.parametrize("scale", [(0.08, 1.0), (1e-6, 1e-5), (0.9, 4.0)])
def test_boxes_lie_inside_their_image(scale: tuple[float, float], ratio: tuple[float, float]) -> None:
    heights, widths = random_shapes(5000)
    made = plan_at(Recipe((RandomResizedCrop(32, scale, ratio),)), np.arange(5000), heights, widths)
    top, left, tall, wide = made.windows.T
    assert min(top.min(), left.min()) >= 0
    assert min(tall.min(), wide.min()) >= 1
    assert (top + tall <= heights).all()
    assert (left + wide <= widths).all()


# A scalar reading of Philox4x32-10 (Salmon et al. 2011) and of torchvision's get_params, in plain Python.


def scalar_philox(counter: tuple[int, int, int, int], seed: int) -> list[int]:
    c0, c1, c2, c3 = counter
    k0, k1 = seed % 2**32, seed >> 32
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 % 2**32, (p0 >> 32) ^ c3 ^ k1, p0 % 2**32
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return [c0, c1, c2, c3]


class Drawn(NamedTuple):
    box: tuple[int, int, int, int]
    tries: int  # 11: none fitted


def scalar_box(crop: RandomResizedCrop, seed: int, epoch: int, position: int, height: int, width: int) -> Drawn:
    for attempt in range(10):
        words = scalar_philox((position % 2**32, position >> 32, epoch, attempt), seed)
        area, ratio = ((word + 0.5) / 2**32 for word in words[:2])
        target = height * width * (crop.scale[0] + area * (crop.scale[1] - crop.scale[0]))
        low, high = math.log(crop.ratio[0]), math.log(crop.ratio[1])
        aspect = math.exp(low + ratio * (high - low))
        wide, tall = round(math.sqrt(target * aspect)), round(math.sqrt(target / aspect))
        if 0 < wide <= width and 0 < tall <= height:
            top, left = words[2] * (height - tall + 1) >> 32, words[3] * (width - wide + 1) >> 32
            return Drawn((top, left, tall, wide), attempt + 1)
    tall, wide = height, width
    if width / height < crop.ratio[0]:
        tall = round(width / crop.ratio[0])
    elif width / height > crop.ratio[1]:
        wide = round(height * crop.ratio[1])
    return Drawn(((height - tall) // 2, (width - wide) // 2, tall, wide), 11)


@pytest.mark.parametrize(
    ("crop", "seed", "epoch"),
    [
        (TRAIN.crop, 0, 0),
        (TRAIN.crop, 2**63 + 12345, 89),
        (RandomResizedCrop(8, scale=(0.001, 3.0), ratio=(0.02, 50.0)), 1, 2**32 - 1),
    ],
)
def test_boxes_equal_the_scalar_algorithm(crop: RandomResizedCrop, seed: int, epoch: int) -> None:
    heights, widths = random_shapes(1500, seed=3)
    positions = np.random.default_rng(4).integers(0, 2**48, 1500)
    made = plan_at(Recipe((crop,)), positions, heights, widths, seed, epoch)
    rows = zip(positions.tolist(), heights.tolist(), widths.tolist(), strict=True)
    expected = [scalar_box(crop, seed, epoch, *row) for row in rows]
    np.testing.assert_array_equal(made.windows, [drawn.box for drawn in expected])
    assert {drawn.tries for drawn in expected} == set(range(1, 12))  # every way through the algorithm was taken


def test_flips_and_filters_equal_the_scalar_algorithm() -> None:
    positions = np.random.default_rng(5).integers(0, 2**48, 500)
    words = [scalar_philox((p % 2**32, p >> 32, 3, 1 << 16), 77) for p in positions.tolist()]
    made = plan_at(RANDOM, positions, 10, 10, seed=77, epoch=3)
    np.testing.assert_array_equal(made.flips, [flip < 2**31 for flip, *_ in words])
    np.testing.assert_array_equal(made.bicubic, [filters < 2**31 for _, filters, *_ in words])


# Flips and filters


@pytest.mark.parametrize("p", [0.5, 0.25, 0.01])
def test_flips_come_at_their_rate(p: float) -> None:
    recipe = Recipe((ResizeCenterCrop(8), RandomHorizontalFlip(p)))
    flips = plan_at(recipe, np.arange(20_000), 9, 9).flips
    assert stats.binomtest(int(flips.sum()), len(flips), p).pvalue > SURELY


@pytest.mark.parametrize("flip", [(), (RandomHorizontalFlip(0),)])
def test_no_flip(flip: tuple[RandomHorizontalFlip, ...]) -> None:
    assert not plan_at(Recipe((ResizeCenterCrop(8), *flip)), np.arange(5000), 9, 9).flips.any()


def test_always_flip() -> None:
    assert plan_at(Recipe((ResizeCenterCrop(8), RandomHorizontalFlip(1))), np.arange(5000), 9, 9).flips.all()


@pytest.mark.parametrize("interpolation", ["bilinear", "random", "bicubic"])
def test_a_filter_changes_nothing_else(interpolation: Any) -> None:
    """As many images are resized by each as timm's, see test_from_timm.py."""
    crop = RandomResizedCrop(224, interpolation=interpolation)
    plain = plan_at(TRAIN, np.arange(2000), 300, 400)
    for recipe in (Recipe((crop, RandomHorizontalFlip())), Recipe((crop,))):
        made = plan_at(recipe, np.arange(2000), 300, 400)
        np.testing.assert_array_equal(made.windows, plain.windows)
        assert set(made.bicubic) == {"bilinear": {False}, "bicubic": {True}, "random": {False, True}}[interpolation]
        assert not recipe.flip or (made.flips == plain.flips).all()


# Purity


ROWS = st.lists(
    st.tuples(st.integers(0, 2**48 - 1), st.integers(0, 3000), st.integers(0, 3000)), min_size=1, max_size=20
)


@given(rows=ROWS, seed=st.integers(0, 2**64 - 1), epoch=st.integers(0, 2**32 - 1), data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_subset_in_any_order_gives_the_same_rows(
    rows: list[tuple[int, int, int]], seed: int, epoch: int, data: st.DataObject
) -> None:
    positions, heights, widths = np.array(rows, dtype=np.int64).T
    chosen = np.array(data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=30)), dtype=np.int64)
    for recipe in (RANDOM, Recipe((ResizeCenterCrop(24, 32), RandomHorizontalFlip()))):
        whole = plan_at(recipe, positions, heights, widths, seed, epoch)
        part = plan_at(recipe, positions[chosen], heights[chosen], widths[chosen], seed, epoch)
        for name in ARRAYS:
            np.testing.assert_array_equal(getattr(part, name), getattr(whole, name)[chosen])


def test_row_is_the_plan_of_one_image() -> None:
    whole = plan_at(RANDOM, np.arange(5), 300, 400)
    for position in range(5):
        alone, row = plan_at(RANDOM, [position], 300, 400), whole.row(position)
        for name in ARRAYS:
            np.testing.assert_array_equal(getattr(row, name), getattr(alone, name))
        assert row.size == alone.size == (224, 224)


def test_shapes_and_dtypes() -> None:
    for count in (0, 1, 3):
        made = plan_at(imagenet_train((24, 32)), np.arange(count), 50, 60)
        assert [(a.dtype, a.shape) for a in (made.windows, made.resized, made.anchors)] == [
            (np.int32, (count, 4)),
            (np.int32, (count, 2)),
            (np.int32, (count, 2)),
        ]
        assert [(a.dtype, a.shape) for a in (made.flips, made.bicubic)] == [(np.bool_, (count,))] * 2
        assert (made.resized == (24, 32)).all()
        assert (made.anchors == 0).all()


def test_unknown_sizes_get_the_plan_of_one_pixel() -> None:
    unknown, pixel = plan_at(TRAIN, np.arange(9), 0, 0), plan_at(TRAIN, np.arange(9), 1, 1)
    np.testing.assert_array_equal(unknown.windows, pixel.windows)
    np.testing.assert_array_equal(unknown.flips, pixel.flips)


# Independence


COUNT = 20_000
FAR = 4.5 / math.sqrt(COUNT)  # standard deviations of a correlation coefficient of independent numbers


def streams() -> Iterator[tuple[str, np.ndarray]]:
    """Numbers that should have nothing to do with each other."""
    positions = np.arange(COUNT)
    variations = {
        "base": {},
        "next seed": {"seed": 1},
        "seed's high word": {"seed": 2**32},
        "next epoch": {"epoch": 1},
        "next positions": {"positions": positions + 1},
        "positions' high word": {"positions": positions + 2**32},
        "next field": {"field": 1},
    }
    for name, variation in variations.items():
        made = plan_at(RANDOM, **{"positions": positions, "height": 1000, "width": 1000, **variation})
        top, left, tall, wide = made.windows.T.astype(np.float64)
        yield f"{name}: area", tall * wide
        yield f"{name}: aspect", np.log(wide / tall)
        yield f"{name}: top", top / np.maximum(1000 - tall, 1)
        yield f"{name}: left", left / np.maximum(1000 - wide, 1)
        yield f"{name}: flip", made.flips.astype(np.float64)
        yield f"{name}: filter", made.bicubic.astype(np.float64)


def test_seeds_epochs_positions_and_operations_are_independent() -> None:
    names, values = zip(*streams(), strict=True)
    correlation = np.corrcoef(values)
    np.fill_diagonal(correlation, 0)
    assert np.isfinite(correlation).all()
    first, second = np.unravel_index(np.abs(correlation).argmax(), correlation.shape)
    assert np.abs(correlation).max() < FAR, f"{names[first]} and {names[second]}"


def test_epoch_and_position_are_not_added() -> None:
    here = plan_at(TRAIN, np.arange(1, 101), 500, 500, epoch=0).windows
    there = plan_at(TRAIN, np.arange(0, 100), 500, 500, epoch=1).windows
    assert (here != there).any(axis=1).mean() > 0.95


def test_words_of_different_uses_are_never_the_same() -> None:
    """Every word of the layout: fields, pages of operations, operations, views, blocks, and the position's parts."""
    uses = list(product((0, 1, 255), (0, 1, 255), (0, 1, 16, 255), (0, 1, 255), (0, 1, 255)))
    positions = np.array([0, 1, 2**32, 2**47, 2**48 - 1])
    words, expected = [], []
    for field, page, operation, view, block in uses:
        column = np.array([page << 24 | operation << 16 | block], np.uint64)[:, None]
        words.append(Stream(7, 3, positions, view, field).words(column)[:, 0].T)
        fourth, second = operation << 16 | view << 8 | block, field << 24 | page << 16
        expected += [scalar_philox((p % 2**32, p >> 32 | second, 3, fourth), 7) for p in positions.tolist()]
    made = np.concatenate(words)
    assert len(np.unique(made, axis=0)) == len(uses) * len(positions) == 1620
    assert made.tolist() == [list(numbers) for numbers in expected]


@pytest.mark.parametrize("position", [2**48, 2**62, -1])
def test_positions_beyond_what_words_can_be_keyed_by_are_refused(position: int) -> None:
    with pytest.raises(ConfigError, match=rf"position {position} can't be drawn for.*2\*\*48"):
        plan_at(TRAIN, [5, position], 300, 400)


# torchvision's Resize and CenterCrop


@pytest.mark.parametrize(
    "crop",
    [
        *(ResizeCenterCrop(*each) for each in [(224, 256), (224, 232), (255, 256), (1, 1), (33, 64), ((20, 31), 40)]),
        ResizeCenterCrop((60, 91), 40, fill=0),
        ResizeCenterCrop(100, 40, max_size=99, fill=0),
        ResizeCenterCrop((90, 100), None, max_size=100, fill=0),
        ResizeCenterCrop((90, 100), (91, 33), fill=0),
    ],
)
def test_resize_and_center_crop_are_torchvisions(crop: Any) -> None:
    heights, widths = random_shapes(1500, seed=crop.output_size[0], longest=1000)
    made = plan_at(Recipe((crop,)), np.arange(1500), heights, widths)
    size = [crop.resize] if isinstance(crop.resize, int) else crop.resize
    for row, (height, width) in enumerate(zip(heights.tolist(), widths.tolist(), strict=True)):
        resized = functional._compute_resized_output_size((height, width), size, crop.max_size, allow_size_none=True)
        resized = [max(side, 1) for side in resized]
        assert made.resized[row].tolist() == resized
        for axis in (0, 1):
            given = torch.arange(1, resized[axis] + 1)[None, :, None].expand(1, resized[axis], 9)
            expected = functional.center_crop(given, [crop.output_size[axis], 9])[0, :, 0].tolist()
            places = range(made.anchors[row, axis], made.anchors[row, axis] + crop.output_size[axis])
            assert [place + 1 if 0 <= place < resized[axis] else 0 for place in places] == expected
        assert made.windows[row].tolist() == [0, 0, height, width]


@pytest.mark.parametrize("size", [(64, 96), (33, 20)])
def test_letter_boxes_are_ultralytics(size: tuple[int, int]) -> None:
    heights, widths = random_shapes(1500, longest=1000)
    made = plan_at(Recipe((LetterBox(size),)), np.arange(1500), heights, widths)
    for row, (height, width) in enumerate(zip(heights.tolist(), widths.tolist(), strict=True)):
        ratio = min(size[0] / height, size[1] / width)
        tall, wide = max(round(height * ratio), 1), max(round(width * ratio), 1)
        top, left = round((size[0] - tall) / 2 - 0.1), round((size[1] - wide) / 2 - 0.1)
        assert (made.resized[row].tolist(), made.anchors[row].tolist()) == ([tall, wide], [-top, -left])


@pytest.mark.parametrize(
    ("size", "padding", "height", "width"),
    [(32, 4, 32, 32), ((30, 90), 0, 50, 40), (9, 20, 5, 5), (64, 0, 64, 20)],
)
def test_random_crops_are_distributed_as_torchvisions(size: Any, padding: int, height: int, width: int) -> None:
    theirs = v2.RandomCrop(size, padding=padding or None, pad_if_needed=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        drawn = [theirs.make_params([torch.empty(3, height, width)]) for _ in range(4000)]
    expected = np.array([(made["top"] - made["padding"][1], made["left"] - made["padding"][0]) for made in drawn])
    ours = plan_at(Recipe((RandomCrop(size, padding=padding),)), np.arange(4000), height, width)
    for some, other in zip(ours.anchors.T, expected.T, strict=True):
        assert set(some) == set(other)
        assert stats.ks_2samp(some, other).pvalue > SURELY


def test_random_resizes_are_distributed_as_torchvisions() -> None:
    made = plan_at(Recipe((RandomCrop(20, resize=(13, 31)),)), np.arange(6000), 57, 40)
    expected = {tuple(functional._compute_resized_output_size((57, 40), [size])) for size in range(13, 31)}
    found, counts = np.unique(made.resized, axis=0, return_counts=True)
    assert {tuple(size) for size in found.tolist()} == expected
    assert stats.chisquare(counts).pvalue > SURELY
    assert (plan_at(Recipe((RandomCrop(20, resize=25),)), np.arange(9), 57, 40).resized == (35, 25)).all()


def test_a_small_image_lies_top_left_also_where_it_was_mirrored_first() -> None:
    recipe = Recipe((RandomCrop((40, 50), resize=(20, 81), place="top_left"), RandomHorizontalFlip()))
    made = plan_at(recipe, np.arange(4000), 60, 60)
    room = made.resized - np.array(made.size)
    first = np.where(made.flips[:, None] & [False, True], room - made.anchors, made.anchors)  # in the mirrored image
    assert (first >= 0).all()
    assert (first <= np.maximum(room, 0)).all()
    shares = (first / np.maximum(room, 1))[room[:, 1] >= 20]
    assert stats.kstest(shares[:, 1], "uniform").pvalue > SURELY


def test_scale_jitter_is_distributed_as_torchvisions() -> None:
    theirs, crop = v2.ScaleJitter((100, 100), (0.3, 1.7)), ScaleJitter(100, (0.3, 1.7))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        sizes = np.array([theirs.make_params([torch.empty(3, 57, 140)])["size"] for _ in range(4000)])
    made = plan_at(Recipe((crop,)), np.arange(4000), 57, 140)
    for some, other in zip(made.resized.T, sizes.T, strict=True):
        assert stats.ks_2samp(some, other).pvalue > SURELY
    room = np.maximum(made.resized - 100, 0)
    assert (made.anchors[room == 0] == 0).all()
    both = np.flatnonzero((room > 20).any(axis=1))
    shares = (made.anchors + 0.5)[both] / (room[both] + 1)
    assert stats.kstest(shares[:, 1], "uniform").pvalue > SURELY
    assert (plan_at(Recipe((ScaleJitter((50, 80), (1, 1)),)), np.arange(9), 30, 90).resized == (26, 80)).all()


def test_evaluation_draws_nothing() -> None:
    recipe = Recipe((ResizeCenterCrop(24, 32),))
    here, there = plan_at(recipe, np.arange(50), 40, 70), plan_at(recipe, np.arange(50) + 99, 40, 70, seed=8, epoch=9)
    np.testing.assert_array_equal(here.resized, there.resized)
    np.testing.assert_array_equal(here.anchors, there.anchors)
    assert not here.flips.any()


# Golden values: a saved run must see the same crops with every later version.


def test_golden_plan() -> None:
    positions = [0, 1, 2, 1_000_000, 2**32, 2**40 + 5]
    made = plan_at(TRAIN, positions, [375, 500, 333, 7, 1080, 480], [500, 375, 500, 3000, 1920, 640], seed=42, epoch=3)
    assert made.windows.tolist() == [
        [162, 212, 151, 146],
        [92, 21, 362, 290],
        [56, 136, 223, 280],
        [0, 1495, 7, 9],
        [65, 631, 929, 726],
        [6, 192, 346, 279],
    ]
    assert made.flips.tolist() == [False, False, True, False, False, False]
    made = plan_at(RANDOM, positions, 375, 500, seed=42, epoch=3)
    assert made.bicubic.tolist() == [False, False, True, False, False, True]
    shapes = [[375, 500, 333, 7, 1080, 480], [500, 375, 500, 3000, 1920, 640]]
    crop = Recipe((RandomCrop(300, resize=(200, 400), padding=8, place="top_left"), RandomHorizontalFlip()))
    made = plan_at(crop, positions, *shapes, seed=42, epoch=3)
    assert made.resized.tolist() == [[208, 277], [405, 304], [264, 396], [268, 114857], [399, 709], [250, 333]]
    assert made.anchors.tolist() == [[-8, -8], [6, 5], [-8, 47], [-8, 78479], [47, 311], [-8, -6]]
    made = plan_at(Recipe((ScaleJitter(300),)), positions, *shapes, seed=42, epoch=3)
    assert made.resized.tolist() == [[39, 52], [327, 245], [141, 212], [1, 225], [337, 599], [131, 175]]
    assert made.anchors.tolist() == [[0, 0], [3, 0], [0, 0], [0, 0], [17, 143], [0, 0]]
