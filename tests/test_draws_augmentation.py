"""Programs of augmentations: what comes how often, and that each draw depends on nothing but its own counter."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats
from test_draws import SURELY, scalar_philox

from gpupipe.kernels import Op, gaussian_weights
from gpupipe.plan import Augmentation, augmentation, cropping, erasing
from gpupipe.plan.augmentation import KINDS
from gpupipe.plan.elementary import cos_turn, exp, log, normal
from gpupipe.plan.steps import Kind, Steps, single
from gpupipe.recipe import (
    Augmenting,
    AugMix,
    AutoAugment,
    CoarseDropout,
    ColorJitter,
    ElasticTransform,
    GaussianBlur,
    GaussianNoise,
    RandAugment,
    RandomAdjustSharpness,
    RandomApply,
    RandomAutocontrast,
    RandomChannelPermutation,
    RandomChoice,
    RandomEqualize,
    RandomErasing,
    RandomGamma,
    RandomGrayscale,
    RandomHorizontalFlip,
    RandomHSV,
    RandomInvert,
    RandomPhotometricDistort,
    RandomPosterize,
    RandomResizedCrop,
    RandomSolarize,
    Recipe,
    ThreeAugment,
    TimmAugMix,
    TimmRandAugment,
    TrivialAugmentWide,
)

COUNT = 12_000


def programs(*operations: Augmenting, positions: object = COUNT, **key: int) -> Augmentation:
    positions = np.arange(positions) if isinstance(positions, int) else np.asarray(positions, np.int64)
    recipe = Recipe((RandomResizedCrop(32), *operations))
    made = augmentation(
        recipe, key.get("seed", 3), key.get("epoch", 0), positions, key.get("view", 0), key.get("field", 0)
    )
    assert made is not None
    return made


def assert_rate(happened: np.ndarray, p: float) -> None:
    assert stats.binomtest(int(happened.sum()), happened.size, p).pvalue > SURELY


# Functions that are the same on every machine


def test_elementary_functions() -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-4, 4, 500), rng.uniform(-700, 700, 500), [0.0, 4.0, -4.0]])
    np.testing.assert_allclose(exp(x), [math.exp(v) for v in x], rtol=1e-13)
    assert exp(np.array([-1e4, -math.inf])).tolist() == [0.0, 0.0]
    x = np.concatenate([np.exp(rng.uniform(-600, 600, 500)), rng.uniform(0.5, 2, 500), [1.0, 2**-33, 1 - 2**-33]])
    np.testing.assert_allclose(log(x), [math.log(v) for v in x], rtol=1e-14)
    x = np.concatenate([rng.uniform(0, 1, 500), np.arange(17) / 16])
    np.testing.assert_allclose(cos_turn(x), [math.cos(2 * math.pi * v) for v in x], atol=1e-15)


def test_normal_numbers() -> None:
    first, second = np.random.default_rng(1).uniform(0, 1, (2, 20_000))
    assert stats.kstest(normal(first, second), "norm").pvalue > SURELY


# What comes how often


def test_color_jitter_draws_orders_and_factors_uniformly() -> None:
    made = programs(ColorJitter(0.4, 0.3, (0.5, 2), 0.1))
    orders, counts = np.unique(made.ops, axis=0, return_counts=True)
    assert len(orders) == 24
    assert stats.chisquare(counts).pvalue > SURELY
    ranges = {Op.BRIGHTNESS: (0.6, 1.4), Op.CONTRAST: (0.7, 1.3), Op.SATURATION: (0.5, 2.0), Op.HUE: (-0.1, 0.1)}
    factors = {op: made.values[made.ops == op][:, 0] for op in ranges}
    for op, (low, high) in ranges.items():
        assert stats.kstest(factors[op], stats.uniform(low, high - low).cdf).pvalue > SURELY
    assert np.abs(np.corrcoef(list(factors.values())) - np.eye(4)).max() < 0.05


def test_color_jitter_of_two() -> None:
    made = programs(ColorJitter(contrast=0.4, hue=0.1))
    assert made.ops.shape == (COUNT, 2)
    assert_rate(made.ops[:, 0] == Op.HUE, 0.5)
    assert (np.sort(made.ops, axis=1) == [Op.CONTRAST, Op.HUE]).all()


@pytest.mark.parametrize("operation", [ColorJitter(), RandAugment(0), RandomApply((ColorJitter(),))])
def test_no_step_is_no_program(operation: Augmenting) -> None:
    assert augmentation(Recipe((RandomResizedCrop(8), operation)), 0, 0, np.arange(5)) is None
    assert augmentation(Recipe((RandomResizedCrop(8),)), 0, 0, np.arange(5)) is None


def test_grayscale_and_solarize_come_at_their_rates() -> None:
    made = programs(RandomGrayscale(0.2), RandomSolarize(100, 0.7))
    gray, inverted = (made.ops != Op.IDENTITY).T
    assert_rate(gray, 0.2)
    assert_rate(inverted, 0.7)
    assert_rate(gray & inverted, 0.14)
    assert set(made.values[inverted, 1, 0].tolist()) == {100.0}
    assert set(made.ops.ravel().tolist()) == {Op.IDENTITY, Op.GRAYSCALE, Op.SOLARIZE}


def test_blurs_have_uniform_sigmas() -> None:
    made = programs(GaussianBlur(15, (0.5, 2.0)))
    assert made.values.shape == (COUNT, 1, 8)
    weights = made.values[:, 0].astype(np.float64)
    sigmas = np.sqrt(-0.5 / np.log(weights[:, 1] / weights[:, 0]))
    assert stats.kstest(sigmas, stats.uniform(0.5, 1.5).cdf).pvalue > SURELY
    np.testing.assert_allclose(weights, gaussian_weights(15, sigmas), atol=1e-6)


def test_channels_come_in_all_orders() -> None:
    orders, counts = np.unique(programs(RandomChannelPermutation()).values[:, 0, 0], return_counts=True)
    assert orders.tolist() == list(range(6))
    assert stats.chisquare(counts).pvalue > SURELY


def test_noise_has_a_key_of_its_own_for_each_sample() -> None:
    made = programs(GaussianNoise(-0.1, 0.2))
    assert (made.ops == Op.NOISE).all()
    np.testing.assert_allclose(made.values[:, 0, :2], [[-25.5, 51]] * COUNT)
    halves = made.values[:, 0, 2:].astype(np.uint64)
    words = halves[:, ::2] | halves[:, 1::2] << np.uint64(16)
    assert len(np.unique(words, axis=0)) == COUNT
    assert stats.kstest(words.ravel() / 2**32, "uniform").pvalue > SURELY


def test_hue_saturation_and_value_are_uniform() -> None:
    values = programs(RandomHSV(0.1, 0.5, 0.2)).values[:, 0].astype(np.float64)
    for numbers, low, high in zip(values.T, (-18, 0.5, 0.8), (18, 1.5, 1.2), strict=False):
        assert stats.kstest(numbers, stats.uniform(low, high - low).cdf).pvalue > SURELY
    assert np.abs(np.corrcoef(values[:, :3].T) - np.eye(3)).max() < 0.05
    assert not values[:, 3:].any()


def test_powers_are_uniform() -> None:
    made = programs(RandomGamma((0.5, 2), 0.3))
    done = made.ops[:, 0] == Op.GAMMA
    assert_rate(done, 0.3)
    assert stats.kstest(made.values[done, 0, 0], stats.uniform(0.5, 1.5).cdf).pvalue > SURELY


def test_holes_lie_inside_and_are_of_all_sizes() -> None:
    made = programs(CoarseDropout((2, 4), (0.1, 0.5), (0.3, 0.4), p=0.6))
    done = made.ops[:, 0] == Op.HOLES
    assert_rate(done, 0.6)
    assert not made.values[~done].any()
    values = made.values[done, 0].astype(int)
    assert stats.chisquare(np.unique(values[:, 0], return_counts=True)[1]).pvalue > SURELY
    holes = values[:, 1:17].reshape(-1, 4)
    for place, side, shortest, longest in ((0, 2, 3, 15), (1, 3, 9, 12)):
        places, sides = holes[:, place], holes[:, side]
        assert (sides.min(), sides.max()) == (shortest, longest)
        assert (places >= 0).all()
        assert (places + sides <= 32).all()
        shares = (places + np.random.default_rng(0).random(len(places))) / (32 - sides + 1)
        assert stats.kstest(shares, "uniform").pvalue > SURELY


def test_three_augment_is_one_of_three() -> None:
    made = programs(ThreeAugment())
    assert made.ops.shape == (COUNT, 1)
    kinds, counts = np.unique(made.ops, return_counts=True)
    assert kinds.tolist() == [Op.SOLARIZE, Op.GRAYSCALE, Op.GAUSSIAN_BLUR]
    assert stats.chisquare(counts).pvalue > SURELY
    assert set(made.values[made.ops == Op.SOLARIZE][:, 0].tolist()) == {128.0}
    np.testing.assert_array_equal(made.values, programs(ThreeAugment().choice).values)


def test_random_apply_takes_all_or_nothing() -> None:
    made = programs(RandomApply((ColorJitter(0.4, 0.4), RandomApply((GaussianBlur(3),), 0.5)), 0.8))
    assert made.ops.shape == (COUNT, 3)
    jittered, blurred = made.ops[:, 0] != Op.IDENTITY, made.ops[:, 2] != Op.IDENTITY
    assert_rate(jittered, 0.8)
    assert_rate(blurred, 0.4)
    assert (jittered | ~blurred).all()
    assert (made.values[~jittered] == 0).all()


def test_random_choice_takes_its_weights() -> None:
    made = programs(RandomChoice((RandomGrayscale(1), ColorJitter(0.4, 0.4), RandomSolarize(9, 1)), (1, 2, 0)))
    assert made.ops.shape == (COUNT, 2)
    assert_rate(made.ops[:, 0] == Op.GRAYSCALE, 1 / 3)
    assert Op.SOLARIZE not in made.ops
    gray = made.ops[:, 0] == Op.GRAYSCALE
    assert (made.ops[gray, 1] == Op.IDENTITY).all()
    assert (made.ops[~gray] != Op.IDENTITY).all()


# Each draw depends on its own counter alone.

MANY: tuple[Augmenting, ...] = (
    RandAugment(),
    TrivialAugmentWide(),
    AutoAugment(),
    TimmRandAugment(7, magnitude_std=0.5, fill=None),
    ColorJitter(0.4, 0.4, 0.2, 0.1),
    RandomGrayscale(),
    GaussianBlur(13),
    RandomSolarize(128),
    RandomApply((ColorJitter(0.4), RandomChoice((ThreeAugment(), RandAugment()))), 0.5),
    RandomInvert(),
    RandomPosterize(3),
    RandomAutocontrast(),
    RandomEqualize(),
    RandomAdjustSharpness(1.5),
    RandomChannelPermutation(),
    RandomPhotometricDistort(),
    GaussianNoise(),
)
LATER = (
    ElasticTransform(fill=None),
    AugMix(),
    TimmAugMix(fill=None),
    RandomHSV(),
    CoarseDropout(fill=None),
    RandomGamma(),
)


def same(first: Augmentation, second: Augmentation) -> bool:
    room = max(first.values.shape[2], second.values.shape[2])
    values = [np.pad(v, ((0, 0), (0, 0), (0, room - v.shape[2]))) for v in (first.values, second.values)]
    return np.array_equal(first.ops, second.ops) and np.array_equal(*values)


def columns(made: Augmentation, at: Sequence[int] | slice) -> Augmentation:
    return Augmentation(made.ops[:, at], made.values[:, at], made.fill)


def test_any_positions_in_any_order_give_the_same_rows() -> None:
    whole = programs(*MANY, positions=np.arange(64) + 2**33)
    assert (whole.ops.dtype, whole.values.dtype, whole.values.shape[:2]) == (np.int32, np.float32, whole.ops.shape)
    assert whole.ops.flags.c_contiguous
    assert whole.values.flags.c_contiguous
    chosen = np.array([5, 63, 0, 5, 17])
    assert same(
        programs(*MANY, positions=chosen + 2**33), Augmentation(whole.ops[chosen], whole.values[chosen], whole.fill)
    )
    assert programs(*MANY, positions=0).ops.shape == (0, whole.ops.shape[1])


@pytest.mark.parametrize("operation", [*MANY, *LATER], ids=lambda operation: type(operation).__name__)
def test_other_kinds_of_operations_change_nothing(operation: Augmenting) -> None:
    alone = programs(operation, positions=200)
    others = [other for other in MANY if type(other) is not type(operation) and not isinstance(other, RandomApply)]
    if isinstance(operation, RandomApply):  # it is made of others
        others = [RandomSolarize(128)]
    before = programs(*others, operation, positions=200)
    assert same(columns(before, slice(-alone.ops.shape[1], None)), alone)
    assert same(columns(programs(operation, *others, positions=200), slice(alone.ops.shape[1])), alone)


def test_two_of_a_kind_draw_different_numbers() -> None:
    first, second = programs(GaussianBlur(3), GaussianBlur(3)).values[:, :, 1].T
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.05
    assert len(np.intersect1d(first, second)) < COUNT / 100


@pytest.mark.parametrize("key", [{"seed": 4}, {"epoch": 1}, {"view": 1}, {"view": 255}, {"field": 1}, {"field": 255}])
def test_seeds_epochs_views_and_fields_draw_different_numbers(key: dict[str, int]) -> None:
    base, other = programs(ColorJitter(0.4)), programs(ColorJitter(0.4), **key)
    assert abs(np.corrcoef(base.values[:, 0, 0], other.values[:, 0, 0])[0, 1]) < 0.05


class Sixteenth(RandomSolarize):
    """An augmentation that is not there yet."""


class Last(RandomSolarize):
    """Another."""


@pytest.mark.parametrize(("kind", "number"), [(Sixteenth, 16), (Last, 4095)])
def test_there_is_room_for_further_kinds(
    kind: type[RandomSolarize], number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kinds from the sixteenth on draw on pages of their own, and change nothing that others draw."""
    seen: list[np.ndarray] = []

    def draw(operation: RandomSolarize, words: np.ndarray, size: tuple[int, int]) -> Steps:
        seen.append(words)
        return single(Op.SOLARIZE, np.ones(words.shape[2], bool), operation.threshold)

    monkeypatch.setitem(KINDS, kind, Kind(number, lambda _: 2, draw))
    made = programs(RandomSolarize(7), kind(8), kind(9), positions=[3, 2**40], view=5, field=6)
    assert same(columns(made, slice(1)), programs(RandomSolarize(7), positions=[3, 2**40], view=5, field=6))
    page, low = number // 16, number % 16
    for occurrence, words in enumerate(seen):
        for row, position in enumerate((3, 2**40)):
            for block in range(2):
                fourth = (16 * (occurrence + 1) + low) << 16 | 5 << 8 | block
                counter = (position % 2**32, position >> 32 | page << 16 | 6 << 24, 0, fourth)
                assert words[:, block, row].tolist() == list(scalar_philox(counter, 3))


def test_views_and_fields_are_independent_of_each_other() -> None:
    recipe = Recipe((RandomResizedCrop(8), RandomHorizontalFlip(), RandomErasing(1)))
    positions, sides = np.arange(4000), np.full(4000, 1000, np.int32)
    first = cropping(recipe, 0, 0, positions, sides, sides)
    numbers = []
    for view, field in ((0, 0), (1, 0), (2, 0), (0, 1)):
        made = cropping(recipe, 0, 0, positions, sides, sides, view, field)
        same_boxes, same_flips = np.array_equal(made.windows, first.windows), np.array_equal(made.flips, first.flips)
        assert same_boxes == same_flips == (view == field == 0)
        numbers += [
            made.windows[:, 2] * made.windows[:, 3],
            made.flips,
            erasing(recipe, 0, 0, positions, view, field).boxes[:, 0],
        ]
    assert np.abs(np.corrcoef(np.array(numbers, np.float64)) - np.eye(12)).max() < 0.08


LATER_OPS = [
    [43, 22, 2, 2, 2, 23, 2, 0, 0, 23, 2, 7, 0, 24, 22, 2, 3, 0, 23, 2, 4, 10, 23, 8, 2, 0, 24, 25, 0, 0],
    [43, 22, 4, 4, 4, 23, 2, 9, 0, 23, 2, 2, 0, 24, 22, 2, 0, 0, 23, 4, 5, 0, 23, 10, 2, 0, 24, 25, 26, 0],
    [43, 22, 9, 10, 0, 23, 10, 0, 0, 23, 2, 11, 0, 24, 22, 10, 7, 4, 23, 9, 0, 0, 23, 2, 2, 0, 24, 25, 26, 27],
]
LATER_SUMS = [
    481348.594,
    1.918,
    257.9,
    3.1,
    257.8,
    0.734,
    5.965,
    230.867,
    10.918,
    0.223,
    6.15,
    4.0,
    5.9,
    0.126,
    1.522,
    4.223,
    6.124,
    4.076,
    0.301,
    206.276,
    3.248,
    4.706,
    1.071,
    10.625,
    7.041,
    214.739,
    0.106,
    11.354,
    153.0,
    1.019,
]
GOLDEN_OPS = [
    [3, 0, 3, 8, 11, 15, 8, 6, 5, 3, 4, 0, 14, 9, 3, 0, 8, 12, 8, 10, 11, 7, 20, 0, 0, 0, 6, 4, 20, 21],
    [7, 5, 1, 11, 0, 0, 0, 6, 4, 3, 5, 0, 14, 9, 0, 0, 0, 12, 0, 0, 11, 0, 20, 0, 0, 5, 0, 4, 0, 21],
    [1, 3, 0, 1, 0, 0, 0, 3, 4, 6, 5, 0, 14, 0, 0, 0, 0, 0, 8, 10, 0, 0, 20, 3, 0, 5, 0, 0, 0, 21],
]
GOLDEN_SUMS = [
    7.46,
    1.46,
    43.968,
    24.232,
    0,
    82,
    2,
    1.392,
    3.547,
    2.411,
    3.395,
    0,
    2.317,
    256,
    1.042,
    0,
    7,
    0.0,
    6.0,
    0.0,
    0.0,
    1.5,
    1.0,
    1.029,
    0.0,
    1.552,
    0.047,
    2.212,
    4.0,
    297418.5,
]


def test_golden_programs() -> None:
    """A saved run must see the same augmentations with every later version."""
    made = programs(*MANY, positions=[0, 1, 2**40 + 5], seed=42, epoch=3, view=2)
    assert made.ops.tolist() == GOLDEN_OPS
    np.testing.assert_allclose(np.abs(made.values).sum(axis=(0, 2)), GOLDEN_SUMS, atol=1e-3)
    later = programs(*LATER, positions=[0, 1, 2**40 + 5], seed=42, epoch=3, view=2)
    assert later.ops.tolist() == LATER_OPS
    np.testing.assert_allclose(np.abs(later.values).sum(axis=(0, 2)), LATER_SUMS, rtol=1e-4, atol=1e-3)
