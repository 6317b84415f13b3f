"""Boxes to erase, and mixing, against torchvision's transforms and against plain formulas."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from test_draws import SURELY, scalar_philox
from torchvision.transforms import v2

from gpupipe.plan import Mixing, erasing, mixing
from gpupipe.plan.elementary import symmetric_beta
from gpupipe.plan.stream import MIX, Stream
from gpupipe.recipe import CutMix, MixUp, MixUpOrCutMix, RandomErasing, RandomResizedCrop, Recipe

SIZE = (48, 64)
COUNT = 6000


def alike(ours: np.ndarray, theirs: np.ndarray) -> None:
    assert stats.ks_2samp(ours, theirs).pvalue > SURELY


# Erasing


def erased(settings: RandomErasing, positions: object = COUNT, seed: int = 0, epoch: int = 0) -> np.ndarray:
    positions = np.arange(positions) if isinstance(positions, int) else np.asarray(positions, np.int64)
    made = erasing(Recipe((RandomResizedCrop(SIZE), settings)), seed, epoch, positions)
    assert made is not None
    assert (made.boxes.dtype, made.boxes.shape) == (np.int32, (len(positions), 4))
    return made.boxes


def torchvision_boxes(transform: v2.RandomErasing, count: int) -> np.ndarray:
    image = [torch.empty(1).expand(3, *SIZE)]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        drawn = [transform.make_params(image) for _ in range(count)]
    return np.array([[d["i"], d["j"], d["h"], d["w"]] if d["v"] is not None else [0, 0, 0, 0] for d in drawn])


@pytest.mark.parametrize("scale", [(0.02, 0.33), (0.3, 1.0)])  # in the second many tries fail, sometimes all
def test_erased_boxes_are_distributed_as_torchvisions(scale: tuple[float, float]) -> None:
    ours = erased(RandomErasing(1, scale))
    theirs = torchvision_boxes(v2.RandomErasing(1, scale), COUNT)
    (top, left, tall, wide), (their_top, their_left, their_tall, their_wide) = ours.T, theirs.T
    alike(tall * wide, their_tall * their_wide)
    alike(np.log((tall + 1) / (wide + 1)), np.log((their_tall + 1) / (their_wide + 1)))
    alike(top / (SIZE[0] - tall), their_top / (SIZE[0] - their_tall))
    alike(left / (SIZE[1] - wide), their_left / (SIZE[1] - their_wide))
    assert (top + tall <= SIZE[0]).all()
    assert (left + wide <= SIZE[1]).all()


def scalar_box(settings: RandomErasing, position: int, seed: int, epoch: int) -> tuple[int, ...]:
    """torchvision's algorithm on the same words, in plain Python."""

    def words(block: int) -> list[int]:
        return scalar_philox((position % 2**32, position >> 32, epoch, 2 << 16 | block), seed)

    if (words(0)[0] + 0.5) / 2**32 >= settings.p:
        return (0, 0, 0, 0)
    for attempt in range(10):
        area, ratio, down, right = words(1 + attempt)
        share = settings.scale[0] + (area + 0.5) / 2**32 * (settings.scale[1] - settings.scale[0])
        low, high = map(math.log, settings.ratio)
        aspect = math.exp(low + (ratio + 0.5) / 2**32 * (high - low))
        tall = round(math.sqrt(SIZE[0] * SIZE[1] * share * aspect))
        wide = round(math.sqrt(SIZE[0] * SIZE[1] * share / aspect))
        if tall < SIZE[0] and wide < SIZE[1]:
            return (down * (SIZE[0] - tall + 1) >> 32, right * (SIZE[1] - wide + 1) >> 32, tall, wide)
    return (0, 0, 0, 0)


def test_erased_boxes_equal_the_scalar_algorithm() -> None:
    settings = RandomErasing(0.7, (0.3, 0.99), (0.2, 6.0))
    positions = np.random.default_rng(2).integers(0, 2**48, 400)
    expected = [scalar_box(settings, position, 77, 5) for position in positions.tolist()]
    np.testing.assert_array_equal(erased(settings, positions, 77, 5), expected)


@pytest.mark.parametrize("p", [0, 0.1, 1])
def test_erasing_comes_at_its_rate(p: float) -> None:
    happened = erased(RandomErasing(p))[:, 2] > 0
    assert stats.binomtest(int(happened.sum()), COUNT, p).pvalue > SURELY


def test_what_is_put_into_erased_boxes() -> None:
    recipe = Recipe((RandomResizedCrop(SIZE),))
    assert erasing(recipe, 0, 0, np.arange(4)) is None
    constant = erasing(Recipe((RandomResizedCrop(SIZE), RandomErasing(value=0.5))), 0, 0, np.arange(4))
    assert (constant.value, constant.keys) == ((0.5, 0.5, 0.5), None)
    noise = erasing(Recipe((RandomResizedCrop(SIZE), RandomErasing(value="random"))), 0, 0, np.arange(500))
    assert noise.value is None
    assert (noise.keys.dtype, len(np.unique(noise.keys, axis=0))) == (np.uint32, 500)
    np.testing.assert_array_equal(constant.boxes, noise.boxes[:4])


# Beta(alpha, alpha)


def betas(alpha: float, count: int) -> np.ndarray:
    stream = Stream(3, 0, np.arange(count))
    return symmetric_beta(
        alpha,
        np.arange(count),
        lambda blocks, rows: stream.words(np.array([MIX | block for block in blocks], np.uint64)[:, None], rows),
    )


@pytest.mark.parametrize("alpha", [0.1, 0.2, 0.5, 0.8, 1.0, 2.0])
def test_beta_numbers_have_their_distribution(alpha: float) -> None:
    numbers = betas(alpha, 20_000)
    assert ((numbers >= 0) & (numbers <= 1)).all()
    lower = numbers[numbers < 0.5]  # where floats are fine enough for alphas that give numbers next to 0 and 1
    assert stats.binomtest(len(lower), len(numbers), 0.5).pvalue > SURELY
    assert stats.kstest(lower, lambda x: 2 * stats.beta.cdf(x, alpha, alpha)).pvalue > SURELY
    upper = 1 - numbers[numbers > 0.5]
    assert stats.ks_2samp(np.maximum(lower, 1e-9), np.maximum(upper, 1e-9)).pvalue > SURELY


def test_beta_numbers_of_extreme_alphas() -> None:
    ends = np.minimum(betas(1e-4, 1000), 1 - betas(1e-4, 1000))
    assert (ends < 1e-6).mean() > 0.99
    assert np.abs(betas(1e6, 1000) - 0.5).max() < 0.01


def test_the_beta_test_would_notice_a_slightly_wrong_alpha() -> None:
    lower = betas(0.88, 20_000)
    lower = lower[lower < 0.5]
    assert stats.kstest(lower, lambda x: 2 * stats.beta.cdf(x, 0.8, 0.8)).pvalue < SURELY


# Mixing


def mixed(settings: MixUp | CutMix | MixUpOrCutMix, positions: object = COUNT, full: bool = True) -> Mixing:
    positions = np.arange(positions) if isinstance(positions, int) else np.asarray(positions, np.int64)
    made = mixing(Recipe((RandomResizedCrop(SIZE), settings)), 9, 1, positions, full)
    assert made is not None
    count = len(positions)
    arrays = made.mix.partners, made.mix.weights, made.mix.boxes, made.shares
    assert [a.dtype for a in arrays] == [np.int32, np.float32, np.int32, np.float32]
    assert [a.shape for a in arrays] == [(count,), (count,), (count, 4), (count,)]
    return made


def test_mixup() -> None:
    made = mixed(MixUp(10, 0.4))
    np.testing.assert_array_equal(made.mix.partners, np.arange(COUNT) ^ 1)
    np.testing.assert_array_equal(made.shares, made.mix.weights)
    assert not made.mix.boxes.any()
    assert stats.kstest(made.shares[made.shares < 0.5], lambda x: 2 * stats.beta.cdf(x, 0.4, 0.4)).pvalue > SURELY
    assert abs(np.corrcoef(made.shares[::2], made.shares[1::2])[0, 1]) < 0.1  # each image has its own


@pytest.mark.parametrize("alpha", [0.3, 1.0])
def test_cutmix_is_torchvisions(alpha: float) -> None:
    made = mixed(CutMix(10, alpha))
    assert (made.mix.weights == 1).all()
    np.testing.assert_array_equal(made.mix.partners, np.arange(COUNT) ^ 1)
    top, left, tall, wide = made.mix.boxes.T
    np.testing.assert_allclose(made.shares, 1 - tall * wide / (SIZE[0] * SIZE[1]), atol=1e-7)
    assert min(top.min(), left.min(), tall.min(), wide.min()) >= 0
    assert max((top + tall - SIZE[0]).max(), (left + wide - SIZE[1]).max()) <= 0
    theirs = v2.CutMix(alpha=alpha, num_classes=10)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        drawn = [theirs.make_params([torch.empty(1).expand(2, 3, *SIZE)]) for _ in range(COUNT)]
    x1, y1, x2, y2 = np.array([d["box"] for d in drawn]).T
    # Of empty boxes torchvision keeps the place, ours may lie elsewhere.
    ours_any, theirs_any = (tall * wide > 0), (x2 - x1) * (y2 - y1) > 0
    alike(made.shares, np.array([d["lam_adjusted"] for d in drawn]).astype(np.float32))
    for a, b in ((top, y1), (left, x1), (tall, y2 - y1), (wide, x2 - x1)):
        alike(a[ours_any], b[theirs_any])


@pytest.mark.trainers("timm")
@pytest.mark.parametrize("alpha", [0.3, 1.0])
def test_cutmix_is_timms_where_its_rounding_is(alpha: float) -> None:
    from timm.data.mixup import cutmix_bbox_and_lam

    made = mixed(CutMix(10, alpha, rounding="timm"))
    top, left, tall, wide = made.mix.boxes.T
    np.testing.assert_allclose(made.shares, 1 - tall * wide / (SIZE[0] * SIZE[1]), atol=1e-7)
    assert min(top.min(), left.min(), tall.min(), wide.min()) >= 0
    np.random.seed(3)  # noqa: NPY002  (timm draws from there)
    lambdas = np.random.default_rng(4).beta(alpha, alpha, COUNT)
    drawn = [cutmix_bbox_and_lam((3, *SIZE), share) for share in lambdas]
    boxes, shares = np.array([box for box, _ in drawn]), np.array([share for _, share in drawn])
    alike(made.shares, shares.astype(np.float32))
    for a, b in ((top, boxes[:, 0]), (left, boxes[:, 2]), (tall, np.diff(boxes[:, :2])), (wide, np.diff(boxes[:, 2:]))):
        alike(a, b.ravel())
    assert 0.4 < (tall % 2).mean() < 0.6  # torchvision's are odd at the border alone


def test_groups_draw_as_one() -> None:
    settings = MixUpOrCutMix(10, 0.8, 1.0, p=0.7)
    each, groups = mixed(settings, 96), mixed(replace(settings, alike=6), 96)
    firsts = np.arange(96) // 6 * 6
    np.testing.assert_array_equal(groups.mix.boxes, each.mix.boxes[firsts])
    np.testing.assert_array_equal(groups.mix.weights, each.mix.weights[firsts])
    np.testing.assert_array_equal(groups.shares, each.shares[firsts])
    np.testing.assert_array_equal(groups.mix.partners != np.arange(96), each.mix.partners[firsts] != firsts)
    part = mixed(replace(settings, alike=6), np.arange(6, 18))
    np.testing.assert_array_equal(part.shares, groups.shares[6:18])


def test_mixup_or_cutmix_takes_both_at_their_rates() -> None:
    made = mixed(MixUpOrCutMix(10, 0.8, 1.0, p=0.9, switch_p=0.3))
    chosen = made.mix.partners != np.arange(COUNT)
    assert stats.binomtest(int(chosen.sum()), COUNT, 0.9).pvalue > SURELY
    blended = made.mix.weights != 1
    assert stats.binomtest(int(blended.sum()), int(chosen.sum()), 0.7).pvalue > SURELY
    assert not (blended & ~chosen).any()
    assert not made.mix.boxes[blended | ~chosen].any()
    assert (made.shares[~chosen] == 1).all()
    # The same numbers as where there is only one of both: the choice has a word of its own.
    np.testing.assert_array_equal(made.shares[blended], mixed(MixUp(10, 0.8)).shares[blended])
    cut = chosen & ~blended
    np.testing.assert_array_equal(made.mix.boxes[cut], mixed(CutMix(10, 1.0)).mix.boxes[cut])


def test_mixing_does_not_depend_on_how_batches_are_cut() -> None:
    settings = MixUpOrCutMix(10, 0.2, 1.0, p=0.8)
    whole = mixed(settings, 48)
    for size in (2, 4, 24):
        parts = [mixed(settings, np.arange(start, start + size)) for start in range(0, 48, size)]
        partners = [part.mix.partners + size * number for number, part in enumerate(parts)]
        np.testing.assert_array_equal(np.concatenate(partners), whole.mix.partners)
        for name in ("weights", "boxes"):
            joined = np.concatenate([getattr(part.mix, name) for part in parts])
            np.testing.assert_array_equal(joined, getattr(whole.mix, name))
        np.testing.assert_array_equal(np.concatenate([part.shares for part in parts]), whole.shares)


def test_a_short_batch_is_not_mixed() -> None:
    made = mixed(MixUp(10), np.arange(90, 97), full=False)
    assert made.mix.partners.tolist() == list(range(7))
    assert (made.mix.weights == 1).all()
    assert (made.shares == 1).all()
    assert not made.mix.boxes.any()


def test_no_mixing() -> None:
    assert mixing(Recipe((RandomResizedCrop(8),)), 0, 0, np.arange(4), True) is None


def test_golden_mixing() -> None:
    made = mixed(MixUpOrCutMix(10, 0.2, 1.0), np.arange(2**33, 2**33 + 6))
    boxes = [[0, 0, 0, 0], [31, 25, 10, 12], [30, 0, 18, 22], [26, 2, 22, 44], [17, 3, 31, 46], [0, 0, 0, 0]]
    assert made.mix.boxes.tolist() == boxes
    np.testing.assert_allclose(made.mix.weights, [0.75530785, 1, 1, 1, 1, 0.01639394], rtol=1e-6)
