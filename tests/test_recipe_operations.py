"""Augmentations, erasing, mixing and views in recipes: what they refuse, and their settings against torchvision's."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from torchvision.transforms import v2

import gpupipe
from gpupipe import (
    AutoAugment,
    ColorJitter,
    ConfigError,
    CutMix,
    GaussianBlur,
    GaussianNoise,
    MixUp,
    MixUpOrCutMix,
    MultiCrop,
    Normalize,
    RandAugment,
    RandomAdjustSharpness,
    RandomAffine,
    RandomApply,
    RandomAutocontrast,
    RandomChoice,
    RandomEqualize,
    RandomErasing,
    RandomGrayscale,
    RandomHorizontalFlip,
    RandomInvert,
    RandomPerspective,
    RandomPhotometricDistort,
    RandomPosterize,
    RandomResizedCrop,
    RandomRotation,
    RandomSolarize,
    RandomVerticalFlip,
    Recipe,
    ThreeAugment,
    TimmRandAugment,
    TrivialAugmentWide,
    imagenet_train,
)

CROP = RandomResizedCrop(8)


@pytest.mark.parametrize("kind", [MixUp, CutMix])
def test_mixing_names_itself_in_errors_of_arguments(kind: Any) -> None:
    assert kind(10, 0.2, 0.5, 0.1) == kind(num_classes=10, alpha=0.2, p=0.5, label_smoothing=0.1)
    with pytest.raises(TypeError, match=rf"^{kind.__name__}\."):
        kind(0.2, num_classes=20)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: RandomResizedCrop(8, interpolation="lanczos"),
            "interpolation='lanczos' must be one of bilinear, bicubic, random",
        ),
        (lambda: gpupipe.ResizeCenterCrop(8, interpolation=3), "ResizeCenterCrop: interpolation=3"),
        (lambda: gpupipe.ResizeCenterCrop(8, interpolation="random"), "'random' must be one of bilinear, bicubic"),
        (lambda: gpupipe.ResizeCenterCrop(8, (9, 9), max_size=20), "max_size=20 goes with an int for resize, or None"),
        (lambda: gpupipe.ResizeCenterCrop(8, 20, max_size=20, fill=0), "max_size=20 must be an int from 21"),
        (lambda: gpupipe.ResizeCenterCrop(8, 20, max_size=40), "without max_size, else .* with fill=0 it may"),
        (lambda: gpupipe.LetterBox(8, fill=None), "LetterBox: fill=None must be a level"),
        (lambda: gpupipe.LetterBox(8, fill=256), "LetterBox: fill=256 must be"),
        (lambda: gpupipe.RandomCrop(8, resize=(9, 9)), r"resize=\(9, 9\) must be \(low, high\) with low < high"),
        (lambda: gpupipe.RandomCrop(8, padding=-1), "RandomCrop: padding=-1 must be an int from 0"),
        (lambda: gpupipe.RandomCrop(8, place="center"), "must be one of random, top_left"),
        (lambda: gpupipe.ScaleJitter(8, (0, 1)), r"ScaleJitter: scale=\(0, 1\) must be"),
        (lambda: RandAugment(-1), "num_ops=-1 must be an int from 0 to 100"),
        (lambda: RandAugment(magnitude=31), "magnitude=31 must be an int from 0 to 30"),
        (lambda: RandAugment(num_magnitude_bins=1), "num_magnitude_bins=1 must be an int from 2"),
        (lambda: RandAugment(fill=256), "RandAugment: fill=256 must be None, a level"),
        (lambda: RandAugment(fill=(1, 2)), r"fill=\(1, 2\) must be None"),
        (lambda: TrivialAugmentWide(interpolation="bicubic"), "must be one of nearest, bilinear"),
        (lambda: AutoAugment("coco"), "policy='coco' must be one of imagenet, cifar10, svhn"),
        (lambda: TimmRandAugment(11), r"magnitude=11 must lie in \[0, 10\]"),
        (lambda: TimmRandAugment(magnitude_std=-1), "magnitude_std=-1 must be 0 or more"),
        (lambda: ColorJitter(-0.1), "brightness=-0.1 must be a number of 0 or more, or"),
        (lambda: ColorJitter(contrast=(2, 1)), r"contrast=\(2, 1\)"),
        (lambda: ColorJitter(saturation=(1, float("inf"))), "saturation="),
        (lambda: ColorJitter(saturation=float("nan")), "saturation=nan"),
        (lambda: ColorJitter(hue=0.6), "hue=0.6 .* <= 0.5"),
        (lambda: ColorJitter(hue=-0.1), "hue=-0.1"),
        (lambda: ColorJitter("bright"), "brightness='bright'"),
        (lambda: RandomGrayscale(2), r"p=2 must lie in \[0, 1\]"),
        (lambda: GaussianBlur(4), "kernel_size=4 must be an odd"),
        (lambda: GaussianBlur((3, 5)), "kernel_size=.* must be an odd"),
        (lambda: GaussianBlur(3, 0), "sigma="),
        (lambda: RandomSolarize(300), "threshold=300"),
        (lambda: RandomRotation(-3), r"degrees=-3 must be a number of 0 or more, or \(low, high\), low <= high"),
        (lambda: RandomRotation((3, 2)), r"degrees=\(3, 2\)"),
        (lambda: RandomRotation(9, "bicubic"), "interpolation='bicubic' must be one of nearest, bilinear"),
        (lambda: RandomPerspective(1.5), r"distortion_scale=1.5 must lie in \[0, 1\]"),
        (lambda: RandomAffine(9, 0.3), "translate=0.3 must be None or two shares"),
        (lambda: RandomAffine(9, (0.3, 1.3)), r"translate=\(0.3, 1.3\)"),
        (lambda: RandomAffine(9, scale=(0, 1)), r"scale=\(0, 1\)"),
        (lambda: RandomAffine(9, shear=(1, 2, 3)), r"shear=\(1, 2, 3\) .*\(low, high\) or \(low, high, low, high\)"),
        (
            lambda: Recipe((CROP, RandomRotation(9, fill=1), RandAugment())),
            "fill with one color, but got RandomRotation",
        ),
        (
            lambda: Recipe((CROP, gpupipe.ElasticTransform(), gpupipe.AugMix())),
            r"fill with one color, but got ElasticTransform\(fill=\(0.0, 0.0, 0.0\)\), AugMix\(fill=None\)",
        ),
        (lambda: RandomPhotometricDistort(p=2), r"RandomPhotometricDistort: p=2 must lie in \[0, 1\]"),
        (lambda: gpupipe.ElasticTransform(sigma=[5, 5]), r"sigma=\[5, 5\] must be one number and lie in \[0, 100\]"),
        (lambda: GaussianNoise(sigma=-0.1), "GaussianNoise: sigma=-0.1 must lie in"),
        (lambda: RandomPosterize(9), "bits=9 must be an int from 0 to 8"),
        (lambda: RandomAdjustSharpness(-1), "sharpness_factor=-1 must be 0 or more"),
        (lambda: RandomApply(()), r"operations=\(\) must be a tuple of one operation or more"),
        (lambda: RandomApply(ColorJitter()), "operations=ColorJitter.* must be a tuple"),
        (
            lambda: RandomChoice((Normalize(),)),
            "Normalize.* can't be one of its operations; these can: AugMix, .*, RandAugment",
        ),
        (lambda: RandomChoice((ThreeAugment(),), (0,)), "weight of 0 or more"),
        (lambda: RandomChoice((ThreeAugment(),), (1, 1)), "for each of the 1 operations"),
        (lambda: RandomErasing(scale=(0.1, 2)), "scale=.* 0 < low <= high <= 1"),
        (lambda: RandomErasing(value="noise"), "value='noise' must be a number, three of them, or 'random'"),
        (lambda: RandomErasing(value=(1, 2)), "value=.* must be a number"),
        (lambda: MixUp(0), "MixUp: num_classes=0"),
        (lambda: CutMix(10, 0), "CutMix: alpha=0 mixes nothing"),
        (lambda: MixUpOrCutMix(10, 0.8, 0), "cutmix_alpha=0 mixes nothing"),
        (lambda: MixUp(10, label_smoothing=1.1), "label_smoothing=1.1"),
        (lambda: CutMix(10, alike=3), "CutMix: alike=3 must be 1, an even number"),
        (lambda: MixUpOrCutMix(10, rounding="up"), "rounding='up' must be one of torchvision, timm"),
        (lambda: Recipe((CROP,), views=0), "views=0 must be an int from 1 to 256"),
        (lambda: Recipe((CROP, MixUp(10)), views=2), "MixUp mixes one view of each sample, but views=2"),
        (lambda: Recipe((CROP, RandomErasing()), dtype="uint8"), "RandomErasing works on floats"),
        (lambda: Recipe((CROP, CutMix(10)), dtype="uint8"), "CutMix works on floats"),
        (lambda: Recipe((CROP, *[RandomApply((ThreeAugment(),))] * 16)), "16 RandomApply in one recipe; at most 15"),
        (
            lambda: Recipe((CROP, RandAugment(fill=9), RandomApply((AutoAugment(),)))),
            "fill with one color, but got",
        ),
        (lambda: MultiCrop(()), "recipes=.* must be a tuple of one Recipe or more"),
        (lambda: MultiCrop((Recipe((CROP, MixUp(10))),)), "views are not mixed"),
        (lambda: MultiCrop((imagenet_train(8), imagenet_train(8, dtype="float16"))), "dtype must be the same"),
        (lambda: MultiCrop((Recipe((CROP,), views=200),) * 2), "400 views together are too many"),
    ],
)
def test_what_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize(
    ("operations", "fill"),
    [
        ((RandomRotation(9), RandAugment()), None),
        ((RandomApply((RandomRotation(9),)), gpupipe.AugMix()), None),
        ((gpupipe.ElasticTransform(), RandAugment()), (0.0, 0.0, 0.0)),
    ],
)
def test_torchvisions_defaults_of_fill_go_together(operations: tuple[Any, ...], fill: object) -> None:
    assert Recipe((CROP, *operations)).fill == fill


@pytest.mark.parametrize("value", [None, 0, 0.3, 1.5, (0.2, 1.7), (1, 1)])
def test_jitter_ranges_are_torchvisions(value: object) -> None:
    ours, theirs = ColorJitter(value, value, value), v2.ColorJitter(value, value, value)
    assert (ours.brightness, ours.contrast, ours.saturation) == (theirs.brightness, theirs.contrast, theirs.saturation)


@pytest.mark.parametrize("value", [None, 0, 0.3, (-0.1, 0.2)])
def test_hue_ranges_are_torchvisions(value: object) -> None:
    assert ColorJitter(hue=value).hue == v2.ColorJitter(hue=value).hue


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (RandAugment(), v2.RandAugment()),
        (TrivialAugmentWide(), v2.TrivialAugmentWide()),
        (RandomGrayscale(), v2.RandomGrayscale()),
        (RandomSolarize(128), v2.RandomSolarize(128)),
        (RandomPhotometricDistort(), v2.RandomPhotometricDistort()),
        (GaussianNoise(), v2.GaussianNoise()),
        (RandomInvert(), v2.RandomInvert()),
        (RandomPosterize(4), v2.RandomPosterize(4)),
        (RandomAutocontrast(), v2.RandomAutocontrast()),
        (RandomEqualize(), v2.RandomEqualize()),
        (RandomAdjustSharpness(2), v2.RandomAdjustSharpness(2)),
        (RandomPerspective(), v2.RandomPerspective()),
        (RandomVerticalFlip(), v2.RandomVerticalFlip()),
        (RandomAffine(9, shear=3), v2.RandomAffine(9, shear=3)),
        (RandomRotation((3, 4)), v2.RandomRotation((3, 4))),
        (RandomApply((ThreeAugment(),)), v2.RandomApply([v2.Identity()])),
        (GaussianBlur(5), v2.GaussianBlur(5)),
        (RandomErasing(), v2.RandomErasing()),
        (MixUp(10), v2.MixUp(num_classes=10)),
        (CutMix(10), v2.CutMix(num_classes=10)),
    ],
)
def test_defaults_are_torchvisions(ours: object, theirs: object) -> None:
    shared = [field.name for field in dataclasses.fields(ours) if hasattr(theirs, field.name)]  # type: ignore[arg-type]
    assert shared
    for name in set(shared) - {"kernel_size"}:
        expected = getattr(theirs, name)
        expected = tuple(expected) * (3 if name == "value" else 1) if isinstance(expected, list) else expected
        expected = (0, 0, 0) if name == "fill" and expected == 0 else expected
        assert getattr(ours, name) == expected


def test_parts_of_a_recipe() -> None:
    augmentations = (ColorJitter(0.4), RandAugment(fill=9), RandomApply((AutoAugment(fill=(9, 9, 9)),)))
    last = (Normalize(), RandomErasing(), MixUp(10))
    recipe = Recipe((CROP, RandomHorizontalFlip(), *augmentations, *last))
    assert recipe.augmentations == augmentations
    assert (recipe.normalize, recipe.erasing, recipe.mixing) == last
    assert recipe.fill == (9.0, 9.0, 9.0)
    bare = Recipe((CROP,))
    assert (bare.augmentations, bare.erasing, bare.mixing, bare.fill) == ((), None, None, None)


def test_views() -> None:
    double = Recipe((CROP,), views=2)
    assert double.view_recipes == (Recipe((CROP,)),) * 2
    crops = MultiCrop([double, imagenet_train(8)])
    assert crops.views == 3
    assert crops.view_recipes == (Recipe((CROP,)), Recipe((CROP,)), imagenet_train(8))


def test_the_fingerprint_tells_all_that_is_drawn_apart() -> None:
    recipes = [
        Recipe((CROP, *more))
        for more in [
            (),
            (RandAugment(),),
            (RandAugment(magnitude=8),),
            (RandAugment(), RandAugment()),
            (RandomGrayscale(),),
            (RandomGrayscale(), GaussianBlur(3)),
            (GaussianBlur(3), RandomGrayscale()),
            (RandomErasing(),),
            (RandomErasing(value="random"),),
            (MixUp(10),),
            (MixUp(10, alike=2),),
            (CutMix(10),),
            (CutMix(10, rounding="timm"),),
        ]
    ]
    views = [Recipe((CROP,), views=2), MultiCrop((Recipe((CROP,)),) * 2), MultiCrop((Recipe((CROP,)),) * 3)]
    assert len({recipe.fingerprint for recipe in [*recipes, *views]}) == len(recipes) + len(views)


def test_settings_of_a_random_crop_have_names() -> None:
    """torchvision's second one is padding."""
    with pytest.raises(TypeError, match="positional argument"):
        gpupipe.RandomCrop(32, 4)  # type: ignore[misc]
