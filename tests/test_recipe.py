"""Recipes: what they say of themselves, what they refuse, and the presets against torchvision's."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torchvision.transforms import _presets as torchvision_presets, transforms as torchvision_transforms

import gpupipe
from gpupipe.recipe import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Normalize,
    OutputSpec,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Recipe,
    ResizeCenterCrop,
    imagenet_eval,
    imagenet_train,
)

RECIPES = [
    imagenet_train(),
    imagenet_train((128, 160), dtype="float16", layout="channels_last", exif_orientation=True),
    imagenet_train(32, dtype="uint8"),
    imagenet_eval(),
    imagenet_eval(288, resize=320, dtype=torch.bfloat16, exif_orientation=True),
    imagenet_train(224, decode="fast"),
    Recipe((RandomResizedCrop(7, scale=(0.25, 0.5), ratio=(1, 2)), Normalize((0.1, 0.2, 0.3), (0.4, 0.5, 0.6)))),
    Recipe((ResizeCenterCrop((10, 20), 30), RandomHorizontalFlip(0.25))),
    Recipe((ResizeCenterCrop(5, 5),)),
    Recipe((RandomResizedCrop(9, interpolation="bicubic"),), views=3),
    Recipe((ResizeCenterCrop(9, 9, "bicubic"),)),
    Recipe(
        (
            RandomResizedCrop(8),
            RandomHorizontalFlip(),
            gpupipe.RandAugment(3, 5, 11, "bilinear", 7),
            gpupipe.TrivialAugmentWide(fill=(7, 7, 7)),
            gpupipe.AutoAugment("svhn", fill=(7, 7, 7)),
            gpupipe.TimmRandAugment(7, magnitude_std=0.5, fill=7),
            gpupipe.ColorJitter(0.4, (0.5, 1.5), hue=0.1),
            gpupipe.RandomGrayscale(),
            gpupipe.RandomApply([gpupipe.GaussianBlur(13), gpupipe.RandomSolarize(128)], p=0.25),
            gpupipe.RandomChoice([gpupipe.ThreeAugment(), gpupipe.GaussianBlur(3, 1)], p=[1, 2]),
            Normalize(),
            gpupipe.RandomErasing(value="random"),
            gpupipe.MixUpOrCutMix(1000, 0.2, 1.0),
        )
    ),
    gpupipe.MultiCrop((imagenet_train(224), Recipe((RandomResizedCrop(96), Normalize()), views=8))),
]


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_printed_recipe_is_its_definition(recipe: Recipe | gpupipe.MultiCrop) -> None:
    copy = eval(repr(recipe), {name: getattr(gpupipe, name) for name in gpupipe.__all__})
    assert copy == recipe
    assert repr(copy) == repr(recipe)


def test_what_a_recipe_prints() -> None:
    assert repr(imagenet_train(224, dtype="bfloat16")) == (
        "Recipe(\n"
        "    (\n"
        "        RandomResizedCrop(size=(224, 224), scale=(0.08, 1.0), ratio=(0.75, 1.3333333333333333)),\n"
        "        RandomHorizontalFlip(p=0.5),\n"
        "        Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),\n"
        "    ),\n"
        "    dtype='bfloat16',\n"
        "    layout='NCHW',\n"
        ")"
    )


@pytest.mark.parametrize("size", [0, -1, 2.5, None, "224", (3,), (1, 2, 3), (4, 0), (2.0, 2)])
@pytest.mark.parametrize("crop", [RandomResizedCrop, ResizeCenterCrop])
def test_sizes_are_positive_ints(crop: type, size: object) -> None:
    with pytest.raises(gpupipe.ConfigError, match=rf"{crop.__name__}: size=.* positive int"):
        crop(size)


@pytest.mark.parametrize("field", ["scale", "ratio"])
@pytest.mark.parametrize(
    "value", [(0, 1), (-1, 1), (2, 1), (1,), (1, 2, 3), (float("nan"), 1), (1, float("inf")), 0.5, ("a", 1)]
)
def test_ranges_are_checked(field: str, value: object) -> None:
    with pytest.raises(gpupipe.ConfigError, match=rf"RandomResizedCrop: {field}=.*0 < low <= high"):
        RandomResizedCrop(8, **{field: value})


@pytest.mark.parametrize("resize", [9, 9.5, 256.0, None])
def test_a_center_crop_fits_into_the_resized_image(resize: object) -> None:
    with pytest.raises(gpupipe.ConfigError, match=rf"ResizeCenterCrop: resize={resize}.*at least the crop's"):
        ResizeCenterCrop((8, 10), resize)


@pytest.mark.parametrize("p", [-0.1, 1.1, float("nan"), "half", None])
def test_a_probability_lies_between_0_and_1(p: object) -> None:
    with pytest.raises(gpupipe.ConfigError, match=rf"RandomHorizontalFlip: p={p!r} must (be one number and )?lie"):
        RandomHorizontalFlip(p)


@pytest.mark.parametrize(
    ("statistics", "message"),
    [
        ({"mean": (0.5,)}, "mean=.* one value for each"),
        ({"std": (1, 1, 1, 1)}, "std=.* one value for each"),
        ({"mean": 0.5}, "mean=.* one value for each"),
        ({"std": (1, float("nan"), 1)}, "std=.* one value for each"),
        ({"std": (1, 0, 1)}, "std=.* above 0"),
        ({"std": (1, 1, -1)}, "std=.* above 0"),
    ],
)
def test_statistics_are_checked(statistics: dict[str, object], message: str) -> None:
    with pytest.raises(gpupipe.ConfigError, match=f"Normalize: {message}"):
        Normalize(**statistics)


CROP, FLIP, NORMALIZE = RandomResizedCrop(8), RandomHorizontalFlip(), Normalize()
BLUR, ERASING, MIXUP = gpupipe.GaussianBlur(3), gpupipe.RandomErasing(), gpupipe.MixUp(10)


@pytest.mark.parametrize(
    "operations",
    [
        (),
        (FLIP,),
        (CROP, CROP),
        (CROP, ResizeCenterCrop(8)),
        (FLIP, CROP),
        (CROP, NORMALIZE, FLIP),
        (CROP, FLIP, FLIP),
        (CROP, BLUR, FLIP),
        (CROP, NORMALIZE, BLUR),
        (CROP, ERASING, NORMALIZE),
        (CROP, ERASING, ERASING),
        (CROP, MIXUP, ERASING),
        (CROP, MIXUP, gpupipe.CutMix(10)),
    ],
)
def test_operations_have_one_order(operations: tuple[object, ...]) -> None:
    with pytest.raises(gpupipe.ConfigError, match="one crop, then at most one RandomHorizontalFlip"):
        Recipe(operations)


def test_an_unknown_operation_is_named_with_the_known_ones() -> None:
    with pytest.raises(gpupipe.ConfigError, match=r"'rotate' is not an operation; known are RandomResizedCrop, "):
        Recipe((CROP, "rotate"))


@pytest.mark.parametrize("dtype", ["float64", "half", torch.int8, None])
def test_an_unknown_dtype_is_refused_with_the_known_ones(dtype: object) -> None:
    with pytest.raises(gpupipe.ConfigError, match=r"dtype=.* must be one of float32, float16, bfloat16, uint8"):
        Recipe((CROP,), dtype=dtype)


def test_an_unknown_layout_is_refused_with_the_known_ones() -> None:
    with pytest.raises(gpupipe.ConfigError, match="layout='NHWC' must be one of NCHW, channels_last"):
        Recipe((CROP,), layout="NHWC")


def test_uint8_takes_no_normalization() -> None:
    with pytest.raises(gpupipe.ConfigError, match="drop Normalize or take a float dtype"):
        Recipe((CROP, NORMALIZE), dtype="uint8")
    assert imagenet_train(8, dtype="uint8").normalize is None
    assert imagenet_eval(8, dtype=torch.uint8).normalize is None


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16", "uint8"])
def test_torch_dtypes_are_accepted(name: str) -> None:
    assert Recipe((CROP,), dtype=getattr(torch, name)) == Recipe((CROP,), dtype=name)
    assert imagenet_train(8, dtype=getattr(torch, name)) == imagenet_train(8, dtype=name)


@pytest.mark.parametrize("part", [imagenet_train(), CROP, ResizeCenterCrop(8), FLIP, NORMALIZE])
def test_everything_is_frozen_and_hashable(part: object) -> None:
    for field in dataclasses.fields(part):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(part, field.name, 1)
    assert hash(part) == hash(dataclasses.replace(part))


def test_lists_become_tuples() -> None:
    recipe = Recipe([RandomResizedCrop([8, 9], scale=[0.5, 1]), Normalize([0, 0, 0], [1, 1, 1])])
    assert recipe == Recipe((RandomResizedCrop((8, 9), scale=(0.5, 1.0)), Normalize((0, 0, 0), (1, 1, 1))))
    assert isinstance(hash(recipe), int)


@pytest.mark.parametrize("crop_size", [224, 192, 299, 384])
@pytest.mark.parametrize("resize", [None, 400])
def test_the_eval_preset_is_torchvisions(crop_size: int, resize: int | None) -> None:
    chosen = {} if resize is None else {"resize_size": resize}
    theirs = torchvision_presets.ImageClassification(crop_size=crop_size, **chosen)
    # torchvision's default resize is for its default crop alone.
    expected_resize = theirs.resize_size[0] if resize or crop_size == 224 else round(crop_size / 0.875)
    ours = imagenet_eval(crop_size, resize=resize)
    assert ours.crop == ResizeCenterCrop((theirs.crop_size[0],) * 2, expected_resize)
    assert ours.statistics == (tuple(theirs.mean), tuple(theirs.std))
    assert ours.flip is None


def test_the_train_preset_is_torchvisions() -> None:
    theirs = torchvision_transforms.RandomResizedCrop(176)
    crop = imagenet_train(176).crop
    assert (crop.size, crop.scale, crop.ratio) == (theirs.size, tuple(theirs.scale), tuple(theirs.ratio))
    assert imagenet_train(176).flip.p == torchvision_transforms.RandomHorizontalFlip().p
    assert imagenet_train(176).statistics == (IMAGENET_MEAN, IMAGENET_STD)
    assert imagenet_train() == imagenet_train(224)


def test_statistics_without_normalization_leave_values_alone() -> None:
    assert Recipe((CROP,)).statistics == ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))


def test_decode_is_exact_or_fast() -> None:
    with pytest.raises(gpupipe.ConfigError, match="Recipe: decode='quick' must be one of exact, fast"):
        imagenet_eval(224, decode="quick")


def test_output_spec() -> None:
    assert imagenet_train(224).output_spec(256) == OutputSpec((256, 3, 224, 224), "float32", "NCHW")
    recipe = imagenet_eval((96, 128), dtype=torch.float16, layout="channels_last")
    assert recipe.output_spec(0) == OutputSpec((0, 3, 96, 128), "float16", "channels_last")


DRAWN = [
    imagenet_train(224),
    imagenet_train(192),
    imagenet_train((224, 192)),
    imagenet_train(224, exif_orientation=True),
    imagenet_eval(224),
    imagenet_eval(224, resize=232),
    Recipe((RandomResizedCrop(224),)),
    Recipe((RandomResizedCrop(224), RandomHorizontalFlip(0.25))),
    Recipe((RandomResizedCrop(224, scale=(0.35, 1)), RandomHorizontalFlip())),
    Recipe((RandomResizedCrop(224, ratio=(1, 1)), RandomHorizontalFlip())),
]


def test_the_fingerprint_tells_crops_and_flips_apart() -> None:
    assert len({recipe.fingerprint for recipe in DRAWN}) == len(DRAWN)


def test_the_fingerprint_ignores_what_is_not_drawn() -> None:
    changed = [
        imagenet_train(224, dtype="bfloat16"),
        imagenet_train(224, dtype="uint8"),
        imagenet_train(224, layout="channels_last"),
        imagenet_train(224, decode="fast"),
        Recipe((RandomResizedCrop(224), RandomHorizontalFlip(), Normalize((0, 0, 0), (1, 1, 1)))),
        Recipe((RandomResizedCrop((224, 224), scale=(0.08, 1)), RandomHorizontalFlip(np.float64(0.5)))),
    ]
    assert {recipe.fingerprint for recipe in changed} == {imagenet_train(224).fingerprint}


def test_equal_recipes_have_equal_fingerprints() -> None:
    whole, real = (Recipe((CROP, RandomHorizontalFlip(p))) for p in (1, 1.0))
    assert whole == real
    assert whole.fingerprint == real.fingerprint


def test_the_fingerprint_is_pinned() -> None:
    """A saved state holds it, so it may not change between versions."""
    assert imagenet_train(224).fingerprint == "92bcd9cfb614111e"
    assert imagenet_eval(224).fingerprint == "5622984c496226ad"


def test_a_lone_operation_is_refused() -> None:
    with pytest.raises(gpupipe.ConfigError, match="put it in"):
        Recipe(RandomResizedCrop(9))  # type: ignore[arg-type]
