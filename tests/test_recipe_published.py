"""Presets of published recipes against what torchvision and timm say themselves."""

from __future__ import annotations

import math

import pytest
from torchvision.models import ResNet50_Weights

import gpupipe
from gpupipe import (
    ColorJitter,
    ConfigError,
    GaussianBlur,
    MixUpOrCutMix,
    MultiCrop,
    RandomApply,
    RandomErasing,
    RandomGrayscale,
    RandomSolarize,
    Recipe,
    ResizeCenterCrop,
    ThreeAugment,
    TimmRandAugment,
    TrivialAugmentWide,
)
from gpupipe.recipe import IMAGENET_MEAN, IMAGENET_STD

TRAIN = {
    "resnet50_v2": gpupipe.resnet50_v2_train(),
    "A1": gpupipe.timm_a_train("A1"),
    "A2": gpupipe.timm_a_train("A2"),
    "A3": gpupipe.timm_a_train("A3"),
    "deit3": gpupipe.deit3_train(),
}
EVAL = {
    "resnet50_v2": gpupipe.resnet50_v2_eval(),
    "A": gpupipe.timm_a_eval(),
    "deit3": gpupipe.deit3_eval(),
    "dino": gpupipe.dino_eval(),
}


@pytest.mark.parametrize("recipe", [*TRAIN.values(), *EVAL.values(), gpupipe.dino_train()])
def test_they_print_themselves(recipe: Recipe | MultiCrop) -> None:
    assert eval(repr(recipe), {name: getattr(gpupipe, name) for name in gpupipe.__all__}) == recipe
    for view in recipe.view_recipes:
        assert view.statistics == (IMAGENET_MEAN, IMAGENET_STD)


@pytest.mark.parametrize(
    ("name", "size", "interpolation", "augmentations", "erasing", "mixing"),
    [
        (
            "resnet50_v2",
            176,
            "bilinear",
            (TrivialAugmentWide(interpolation="bilinear"),),
            RandomErasing(0.1),
            MixUpOrCutMix(None, 0.2, 1.0),
        ),
        ("A1", 224, "bicubic", (TimmRandAugment(7, 2, 0.5),), None, MixUpOrCutMix(None, 0.2, 1.0, label_smoothing=0.1)),
        ("A2", 224, "bicubic", (TimmRandAugment(7, 2, 0.5),), None, MixUpOrCutMix(None, 0.1, 1.0)),
        ("A3", 160, "bicubic", (TimmRandAugment(6, 2, 0.5),), None, MixUpOrCutMix(None, 0.1, 1.0)),
        ("deit3", 224, "bicubic", (ThreeAugment(), ColorJitter(0.3, 0.3, 0.3)), None, MixUpOrCutMix(None, 0.8, 1.0)),
    ],
)
def test_training_recipes(
    name: str, size: int, interpolation: str, augmentations: object, erasing: object, mixing: object
) -> None:
    recipe = TRAIN[name]
    assert recipe.crop == gpupipe.RandomResizedCrop(size, interpolation=interpolation)
    assert recipe.flip == gpupipe.RandomHorizontalFlip()
    assert (recipe.augmentations, recipe.erasing, recipe.mixing) == (augmentations, erasing, mixing)


@pytest.mark.parametrize(
    ("name", "crop"),
    [
        ("A", ResizeCenterCrop(224, 235, "bicubic")),
        ("deit3", ResizeCenterCrop(224, 224, "bicubic")),
        ("dino", ResizeCenterCrop(224, 256, "bicubic")),
    ],
)
def test_evaluation_recipes(name: str, crop: ResizeCenterCrop) -> None:
    assert EVAL[name] == Recipe((crop, gpupipe.Normalize()))


def test_the_evaluation_of_torchvisions_weights() -> None:
    theirs = ResNet50_Weights.IMAGENET1K_V2.transforms()
    crop = ResizeCenterCrop(theirs.crop_size[0], theirs.resize_size[0], theirs.interpolation.value)
    assert EVAL["resnet50_v2"].crop == crop


def test_dino_makes_ten_views() -> None:
    views = gpupipe.dino_train().view_recipes
    assert [view.crop.output_size for view in views] == [(224, 224)] * 2 + [(96, 96)] * 8
    assert {view.crop.interpolation for view in views} == {"bicubic"}
    assert [view.crop.scale for view in views[1:3]] == [(0.4, 1.0), (0.05, 0.4)]
    colors = (RandomApply((ColorJitter(0.4, 0.4, 0.2, 0.1),), 0.8), RandomGrayscale(0.2))
    blur = GaussianBlur(13, (0.1, 2.0))
    assert views[0].augmentations == (*colors, blur)
    assert views[1].augmentations == (*colors, RandomApply((blur,), 0.1), RandomSolarize(128, 0.2))
    assert set(views[2:]) == {views[2]}
    assert views[2].augmentations == (*colors, RandomApply((blur,), 0.5))
    assert gpupipe.dino_train(local_views=0).views == 2


def test_settings_are_the_recipes() -> None:
    settings = {"dtype": "bfloat16", "layout": "channels_last", "decode": "fast", "exif_orientation": True}
    made = [
        gpupipe.resnet50_v2_train(128, num_classes=10, **settings),
        gpupipe.timm_a_train("A3", 128, num_classes=10, **settings),
        gpupipe.deit3_train(128, num_classes=10, **settings),
        gpupipe.deit3_eval(128, **settings),
        *gpupipe.dino_train(128, **settings).view_recipes[:2],
    ]
    for recipe in made:
        assert {name: getattr(recipe, name) for name in settings} == settings
        assert recipe.crop.output_size == (128, 128)
    assert {recipe.mixing.num_classes for recipe in made[:3]} == {10}
    assert gpupipe.dino_eval(dtype="uint8").normalize is None


def test_what_is_refused() -> None:
    with pytest.raises(ConfigError, match="variant='A4' must be one of A1, A2, A3"):
        gpupipe.timm_a_train("A4")
    with pytest.raises(ConfigError, match="local_views=-1"):
        gpupipe.dino_train(local_views=-1)
    with pytest.raises(ConfigError, match="RandomErasing works on floats"):
        gpupipe.resnet50_v2_train(dtype="uint8")


@pytest.mark.trainers("timm")
def test_timms_own_settings() -> None:
    from timm import models
    from timm.data import auto_augment, transforms_factory

    theirs = auto_augment.rand_augment_transform("rand-m7-mstd0.5-inc1", {})
    ours = TRAIN["A1"].augmentations[0]
    assert ours.num_ops == theirs.num_layers
    for operation in theirs.ops:
        drawn = (operation.magnitude, operation.magnitude_std, operation.prob)
        assert (ours.magnitude, ours.magnitude_std, ours.p) == drawn
    assert ours.increasing == any(operation.name.endswith("Increasing") for operation in theirs.ops)
    assert ours.fill == tuple(round(255 * level) for level in IMAGENET_MEAN)
    config = models.get_pretrained_cfg("resnet50.a1_in1k")
    assert (config.crop_pct, config.interpolation) == (0.95, EVAL["A"].crop.interpolation)
    made = transforms_factory.transforms_imagenet_eval(224, config.crop_pct, interpolation=config.interpolation)
    assert EVAL["A"].crop.resize == made.transforms[0].size == math.floor(224 / 0.95)
