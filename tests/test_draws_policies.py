"""RandAugment, TrivialAugmentWide and AutoAugment against torchvision's tables and pixels; timm's against timm's."""

from __future__ import annotations

import importlib
import math
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import pytest
import torch
from images import picture
from PIL import Image
from scipy import stats
from test_draws import SURELY, scalar_philox
from torchvision.transforms import v2

from gpupipe.kernels import Op, augment_reference
from gpupipe.plan import augmentation
from gpupipe.plan.aug_mix import SPACE
from gpupipe.plan.policies import NARROW, SEARCH, WIDE, Space, magnitudes
from gpupipe.plan.searched import SEARCHED
from gpupipe.plan.timm_policy import OPERATIONS, _values, argument
from gpupipe.recipe import (
    AugMix,
    AutoAugment,
    RandAugment,
    RandomResizedCrop,
    Recipe,
    TimmAugMix,
    TimmRandAugment,
    TrivialAugmentWide,
)

SIZE = (25, 38)


# torchvision's tables


@pytest.mark.parametrize("bins", [2, 10, 31])
@pytest.mark.parametrize(
    ("space", "theirs"),
    [(NARROW, v2.RandAugment), (WIDE, v2.TrivialAugmentWide), (SEARCH, v2.AutoAugment), (SPACE, v2.AugMix)],
)
def test_magnitudes_are_torchvisions(space: Space, theirs: Any, bins: int) -> None:
    assert space.names == tuple(theirs._AUGMENTATION_SPACE)
    for size in ((224, 224), (160, 176), SIZE):
        for name, (function, _) in theirs._AUGMENTATION_SPACE.items():
            ours, expected = magnitudes(space, name, bins, size), function(bins, *size)
            expected = np.zeros(bins) if expected is None else expected.double().numpy()
            np.testing.assert_allclose(ours, expected, rtol=1e-6, atol=1e-7)
            if name in ("TranslateX", "TranslateY"):  # whole pixels
                np.testing.assert_array_equal(np.trunc(ours), np.trunc(expected))


@pytest.mark.parametrize("policy", ["imagenet", "cifar10", "svhn"])
def test_pairs_are_torchvisions(policy: str) -> None:
    theirs = v2.AutoAugment(v2.AutoAugmentPolicy[policy.upper()])._policies
    expected = [tuple(value or 0 for half in pair for value in half) for pair in theirs]
    assert list(SEARCHED[policy]) == expected


# What was drawn, read from the same words in plain Python, is done by torchvision.


class Drawn(NamedTuple):
    name: str
    magnitude: float


SEED, EPOCH = 2**40 + 3, 7


def words(position: int, operation: int, block: int, page: int = 0) -> list[int]:
    return scalar_philox((position % 2**32, position >> 32 | page << 16, EPOCH, operation << 16 | block), SEED)


def drawn(space: dict[str, Any], name: str, bins: int, level: int, sign: int) -> Drawn:
    function, signed = space[name]
    table = function(bins, *SIZE)
    if table is None:
        return Drawn(name, 0.0)
    return Drawn(name, float(table[level]) * (-1 if signed and sign else 1))


def rand_augment_steps(policy: RandAugment, position: int) -> Iterator[Drawn | None]:
    space = v2.RandAugment._AUGMENTATION_SPACE
    for step in range(policy.num_ops):
        which, sign, _, _ = words(position, 16, step)
        yield drawn(space, list(space)[which * 14 >> 32], policy.num_magnitude_bins, policy.magnitude, sign >> 31)


def trivial_steps(policy: TrivialAugmentWide, position: int) -> Iterator[Drawn | None]:
    space, bins = v2.TrivialAugmentWide._AUGMENTATION_SPACE, policy.num_magnitude_bins
    which, level, sign, _ = words(position, 17, 0)
    yield drawn(space, list(space)[which * 14 >> 32], bins, level * bins >> 32, sign >> 31)


def searched_steps(policy: AutoAugment, position: int) -> Iterator[Drawn | None]:
    pair = v2.AutoAugment(v2.AutoAugmentPolicy[policy.policy.upper()])._policies[words(position, 18, 0)[0] * 25 >> 32]
    numbers = words(position, 18, 1)
    for half, (name, probability, level) in enumerate(pair):
        done = (numbers[2 * half] + 0.5) / 2**32 < probability
        step = drawn(v2.AutoAugment._AUGMENTATION_SPACE, name, 10, level or 0, numbers[2 * half + 1] >> 31)
        yield step if done else None


READINGS = {RandAugment: rand_augment_steps, TrivialAugmentWide: trivial_steps, AutoAugment: searched_steps}


@pytest.mark.parametrize(
    ("policy", "names"),
    [
        (RandAugment(2), 13),
        (RandAugment(2, 30, interpolation="bilinear"), 13),
        (TrivialAugmentWide(), 13),
        (TrivialAugmentWide(11, interpolation="bilinear", fill=(10, 200, 90)), 13),
        (AutoAugment(), 8),
        (AutoAugment("cifar10", fill=(10, 200, 90)), 10),
        (AutoAugment("svhn", interpolation="bilinear"), 8),
    ],
    ids=str,
)
def test_programs_do_what_torchvision_does(policy: Any, names: int) -> None:
    """Step by step, each from torchvision's image, so that a level of difference does not grow."""
    positions = np.arange(50) + 2**33
    made = augmentation(Recipe((RandomResizedCrop(SIZE), policy)), SEED, EPOCH, positions)
    theirs = v2.AutoAugment(interpolation=v2.InterpolationMode(policy.interpolation), fill=policy.fill)
    seen: Counter[str] = Counter()
    for row, position in enumerate(positions.tolist()):
        image = torch.from_numpy(picture(*SIZE, seed=row))
        for step, chosen in enumerate(READINGS[type(policy)](policy, position)):
            at = slice(row, row + 1), slice(step, step + 1)
            ours = augment_reference(image[None], made.ops[at], made.values[at], made.fill)[0]
            if chosen is not None:
                seen[chosen.name] += 1
                image = torch.as_tensor(
                    theirs._apply_image_or_video_transform(
                        image.permute(2, 0, 1), *chosen, theirs.interpolation, theirs._fill
                    )
                ).permute(1, 2, 0)
            assert (ours.int() - image.int()).abs().max() <= 1, (position, chosen)
    assert len(seen) >= names  # enough of the operations were drawn


class ToldAugMix(v2.AugMix):
    """Torchvision's with the draws of an image, read from its words, in the place of torch's."""

    def __init__(self, policy: AugMix, position: int) -> None:
        super().__init__(policy.severity, policy.mixture_width, policy.chain_depth, all_ops=policy.all_ops)
        space, width = (
            self._AUGMENTATION_SPACE if policy.all_ops else self._PARTIAL_AUGMENTATION_SPACE,
            self.mixture_width,
        )
        heads = [words(position, 26, block, page=1) for block in range(width)]
        own = (heads[0][0] + 0.5) / 2**32
        parts = [-math.log((head[1] + 0.5) / 2**32) for head in heads]
        self.shares = iter([[own, 1 - own], [part / sum(parts) for part in parts]])
        self.numbers: list[int | float] = []
        self.names: list[str] = []
        deepest = max(self.chain_depth, 3) if self.chain_depth < 1 else self.chain_depth
        for chain, head in enumerate(heads):
            depth = 1 + (head[2] * 3 >> 32) if self.chain_depth < 1 else self.chain_depth
            self.numbers += [depth] if self.chain_depth < 1 else []
            for step in range(depth):
                which, level, sign, _ = words(position, 26, width + chain * deepest + step, page=1)
                name = list(space)[which * len(space) >> 32]
                function, signed = space[name]
                self.names.append(name)
                self.numbers += [level * self.severity >> 32] if function(10, *SIZE) is not None else []
                self.numbers += [float(not sign >> 31)] if signed else []

    def _sample_dirichlet(self, params: torch.Tensor) -> torch.Tensor:
        return torch.tensor([next(self.shares)])

    def _get_random_item(self, space: Any) -> Any:
        name = self.names.pop(0)
        return name, space[name]

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        def told(*_: Any, **__: Any) -> torch.Tensor:
            return torch.tensor(self.numbers.pop(0))

        with patch.object(torch, "randint", told), patch.object(torch, "rand", told):
            made = self.forward(image)
        assert not self.numbers
        assert not self.names
        return made


@pytest.mark.parametrize("policy", [AugMix(), AugMix(10, 2, 4, all_ops=False), AugMix(5, 1, 1)], ids=str)
def test_mixtures_are_torchvisions(policy: AugMix) -> None:
    """But where a level's difference in a step grows by those that follow."""
    positions = np.arange(30) + 2**33
    made = augmentation(Recipe((RandomResizedCrop(SIZE), policy)), SEED, EPOCH, positions)
    for row, position in enumerate(positions.tolist()):
        image = torch.from_numpy(picture(*SIZE, seed=row))
        ours = augment_reference(image[None], made.ops[row : row + 1], made.values[row : row + 1], made.fill)[0]
        theirs = ToldAugMix(policy, position)(image.permute(2, 0, 1).contiguous()).permute(1, 2, 0)
        apart = (ours.int() - theirs.int()).abs().float()
        assert apart.mean() < 0.5, position
        assert apart.quantile(0.95) <= 2, position


@pytest.mark.parametrize("policy", [AugMix(7, 3), TimmAugMix(7, 3)])
def test_mixtures_are_drawn_uniformly(policy: AugMix | TimmAugMix) -> None:
    made = augmentation(Recipe((RandomResizedCrop(8), policy)), 5, 0, np.arange(6000))
    assert made.ops.shape == (6000, 1 + 3 * (3 + 1))
    assert set(made.ops[:, 0]) == {Op.MIX_BEGIN}
    own, shares = made.values[:, 0, 0].astype(np.float64), made.values[:, 4::4, 0].astype(np.float64)
    np.testing.assert_allclose(own + shares.sum(axis=1), 1, atol=1e-6)
    assert stats.kstest(own, "uniform").pvalue > SURELY
    for part in (shares / (1 - own)[:, None]).T:
        assert stats.kstest(part, stats.beta(1, 2).cdf).pvalue > SURELY
    chains = made.ops[:, 1:].reshape(6000, 3, 4)
    assert (chains[:, :2, 3] == Op.MIX_ADD).all()
    assert (chains[:, 2, 3] == Op.MIX_END).all()
    deep = chains[:, :, 1:3] != Op.IDENTITY
    for depth, share in zip((deep[..., 0], deep[..., 1]), (2 / 3, 1 / 3), strict=True):
        assert stats.binomtest(int(depth.sum()), depth.size, share).pvalue > SURELY
    counts = Counter(chains[:, :, 0].ravel().tolist())
    moves = [counts.pop(Op.AFFINE_BILINEAR) / 5] * 5
    assert stats.chisquare([*moves, *counts.values()]).pvalue > SURELY
    assert len(counts) == 8


@pytest.mark.parametrize("policy", [RandAugment(1), TrivialAugmentWide()])
def test_operations_come_equally_often(policy: RandAugment | TrivialAugmentWide) -> None:
    made = augmentation(Recipe((RandomResizedCrop(8), policy)), 5, 0, np.arange(14_000))
    counts = Counter(made.ops[:, 0].tolist())
    assert len(counts) == 10  # five are the same affine operation
    affine = counts.pop(Op.AFFINE_NEAREST)
    assert stats.chisquare(list(counts.values()), [sum(counts.values()) / 9] * 9).pvalue > SURELY
    assert stats.binomtest(affine, 14_000, 5 / 14).pvalue > SURELY


def test_pairs_come_equally_often() -> None:
    """Told apart by their operations: where each comes in, and where nothing is done, by the table."""
    made = augmentation(Recipe((RandomResizedCrop(8), AutoAugment())), 6, 0, np.arange(20_000))
    expected = np.zeros((2, max(Op) + 1))
    codes = {"Posterize": 8, "Rotate": 1, "Solarize": 9, "AutoContrast": 10, "Equalize": 11, "Color": 5}
    codes |= {"Contrast": 4, "Invert": 12, "Sharpness": 7, "ShearX": 1}
    for pair in SEARCHED["imagenet"]:
        for half in range(2):
            name, probability, _ = pair[3 * half : 3 * half + 3]
            expected[half, codes[name]] += probability / 25
            expected[half, Op.IDENTITY] += (1 - probability) / 25
    for half in range(2):
        counts = np.bincount(made.ops[:, half], minlength=max(Op) + 1)
        possible = expected[half] > 0
        assert counts[~possible].sum() == 0
        assert stats.chisquare(counts[possible], 20_000 * expected[half, possible]).pvalue > SURELY


# timm


@pytest.fixture
def timm() -> Any:
    return importlib.import_module("timm.data.auto_augment")


@pytest.mark.trainers("timm")
@pytest.mark.parametrize("increasing", [False, True])
@pytest.mark.parametrize("sign", [1, -1])
def test_arguments_are_timms(timm: Any, increasing: bool, sign: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timm, "_randomly_negate", lambda value: sign * value)
    theirs = timm.rand_augment_choices("", increasing)
    assert [name.removesuffix("Increasing") for name in theirs] == list(OPERATIONS)
    levels = np.append(np.random.default_rng(0).uniform(0, 10, 50), [0, 1, 2.5, 5, 7.5, 9, 10])
    for full_name, name in zip(theirs, OPERATIONS, strict=True):
        function = timm.LEVEL_TO_ARG[full_name]
        expected = [function(level, {})[0] if function else 0 for level in levels.tolist()]
        ours = argument(name, levels, np.full(len(levels), float(sign)), increasing)
        np.testing.assert_allclose(ours, expected, rtol=1e-12, atol=1e-12)


BILINEAR, BICUBIC = Image.Resampling.BILINEAR, Image.Resampling.BICUBIC


def pillow(timm: Any, name: str, image: torch.Tensor, value: float, resample: Any = BILINEAR) -> torch.Tensor:
    """timm's operation on a Pillow image."""
    arguments = () if name in ("AutoContrast", "Equalize", "Invert") else (value,)
    if name in ("Posterize", "Solarize", "SolarizeAdd"):
        arguments = (int(value),)
    settings = {"fillcolor": (124, 116, 104), "resample": resample}
    made = timm.NAME_TO_OP[name](Image.fromarray(image.numpy()), *arguments, **settings)
    return torch.from_numpy(np.array(made))


@pytest.mark.trainers("timm")
@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_are_timms_on_pillow_images_nearly(timm: Any, name: str) -> None:
    """Borders apart, where torchvision mixes the fill in another way."""
    image = torch.from_numpy(picture(64, 80, seed=3))
    for level in (1.5, 6.0, 9.9):
        value = argument(name, np.array([level]), np.array([1.0]), True)
        op = np.array([[OPERATIONS[name]]], np.int32)
        ours = augment_reference(image[None], op, _values(name, value, (64, 80))[None], (124, 116, 104))[0]
        difference = (ours.int() - pillow(timm, name, image, value.item()).int()).abs().amax(-1)
        assert difference.float().quantile(0.9) <= 2, level
    assert (ours != image).any()


@pytest.mark.trainers("timm")
@pytest.mark.parametrize("name", [name for name, op in OPERATIONS.items() if op is Op.AFFINE_BILINEAR])
def test_bicubic_moves_are_timms_on_pillow_images(timm: Any, name: str) -> None:
    image = torch.from_numpy(picture(64, 80, seed=3))
    for level in (0.0, 1.5, 6.0, 9.9):
        value = argument(name, np.array([level]), np.array([-1.0]), True)
        op = np.array([[Op.AFFINE_BICUBIC]], np.int32)
        ours = augment_reference(image[None], op, _values(name, value, (64, 80))[None], (124, 116, 104))[0]
        assert (ours.int() - pillow(timm, name, image, value.item(), BICUBIC).int()).abs().max() <= 1, level


def test_timm_draws_a_filter_for_each_operation() -> None:
    def drawn(**settings: Any) -> Any:
        policy = TimmRandAugment(9, num_ops=3, magnitude_std=0.5, **settings)
        return augmentation(Recipe((RandomResizedCrop(64), policy)), 1, 0, np.arange(3000))

    plain, cubic, some = (drawn(), drawn(interpolation="bicubic"), drawn(interpolation="random"))
    moved = plain.ops == Op.AFFINE_BILINEAR
    for made in (cubic, some):
        np.testing.assert_array_equal(made.values, plain.values)
        np.testing.assert_array_equal(made.ops[~moved], plain.ops[~moved])
    assert set(cubic.ops[moved]) == {Op.AFFINE_BICUBIC}
    assert set(some.ops[moved]) == {Op.AFFINE_BILINEAR, Op.AFFINE_BICUBIC}
    by_step = [(some.ops[:, step][moved[:, step]] == Op.AFFINE_BICUBIC) for step in range(3)]
    for step in by_step:
        assert stats.binomtest(int(step.sum()), len(step), 0.5).pvalue > SURELY
    both = (some.ops[moved.all(axis=1)] == Op.AFFINE_BICUBIC).astype(int)  # each its own
    assert stats.chisquare(np.bincount(both @ [1, 2, 4], minlength=8)).pvalue > SURELY


def test_timm_draws() -> None:
    policy = TimmRandAugment(7, num_ops=3, magnitude_std=0.5, p=0.4)
    made = augmentation(Recipe((RandomResizedCrop(64), policy)), 1, 0, np.arange(15_000))
    assert made.ops.shape == (15_000, 3)
    assert made.fill == (124.0, 116.0, 104.0)
    done = made.ops != Op.IDENTITY
    assert stats.binomtest(int(done.sum()), done.size, 0.4).pvalue > SURELY
    counts = np.bincount(made.ops[done])
    affine = counts[Op.AFFINE_BILINEAR]
    assert stats.binomtest(int(affine), int(done.sum()), 5 / 15).pvalue > SURELY
    assert stats.chisquare(np.delete(counts, Op.AFFINE_BILINEAR)[counts.nonzero()[0][1:] - 1]).pvalue > SURELY
    # The strength, read back from the factors of brightness: 1 +- 0.09 * a normal number of mean 7, cut at 10.
    factors = made.values[made.ops == Op.BRIGHTNESS][:, 0].astype(np.float64)
    assert stats.binomtest(int((factors > 1).sum()), len(factors), 0.5).pvalue > SURELY
    levels = np.abs(factors - 1) / 0.09
    assert stats.kstest(levels, stats.norm(7, 0.5).cdf).pvalue > SURELY


def test_timm_without_deviation_has_one_strength() -> None:
    made = augmentation(Recipe((RandomResizedCrop(64), TimmRandAugment(9, increasing=False))), 1, 0, np.arange(999))
    assert np.unique(made.values[made.ops == Op.CONTRAST][:, 0]) == [np.float32(0.9 * 1.8 + 0.1)]
    assert np.unique(made.values[made.ops == Op.SOLARIZE][:, 0]) == [230]
