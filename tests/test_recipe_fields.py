"""What a recipe can't do to a sample's other fields is refused by name, as torchvision v2 refuses it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torchvision import tv_tensors
from torchvision.transforms import v2

from gpupipe.batch import Array, Boxes, Field, Image, Mask, Points, Scalar, Schema, Text
from gpupipe.errors import ConfigError
from gpupipe.recipe import (
    AugMix,
    AutoAugment,
    CoarseDropout,
    ColorJitter,
    CutMix,
    GaussianBlur,
    MixUp,
    MixUpOrCutMix,
    RandAugment,
    RandomApply,
    RandomChoice,
    RandomCrop,
    RandomErasing,
    RandomGamma,
    RandomGrayscale,
    RandomHorizontalFlip,
    RandomHSV,
    RandomPhotometricDistort,
    RandomResizedCrop,
    RandomSolarize,
    Recipe,
    ThreeAugment,
    TimmAugMix,
    TimmRandAugment,
    TrivialAugmentWide,
    check_fields,
)

MOVING = [RandAugment(), TrivialAugmentWide(), AutoAugment(), TimmRandAugment(fill=None)]
STILL = [
    ColorJitter(0.4),
    RandomGrayscale(),
    RandomSolarize(128),
    GaussianBlur(3),
    ThreeAugment(),
    RandomPhotometricDistort(),
    RandomHSV(),
    RandomGamma(),
    CoarseDropout(fill=None),
]
MIXING = [MixUp(3), CutMix(3), MixUpOrCutMix(3)]
FOLLOWERS = {"mask": Mask(), "boxes": Boxes(), "points": Points()}
VALUES = {
    "mask": tv_tensors.Mask(torch.zeros(8, 8, dtype=torch.uint8)),
    "boxes": tv_tensors.BoundingBoxes(torch.ones(1, 4), format="XYXY", canvas_size=(8, 8)),
    "points": tv_tensors.KeyPoints(torch.ones(1, 2), canvas_size=(8, 8)),
}


def recipe(*operations: Any) -> Recipe:
    return Recipe((RandomResizedCrop(8), RandomHorizontalFlip(), *operations))


def schema(**fields: Field) -> Schema:
    return Schema({"image": Image(), "label": Scalar(), **fields})


def test_augmentations_are_followed_or_touch_images_alone() -> None:
    check_fields(recipe(*MOVING, *STILL, RandomErasing()), schema(**FOLLOWERS))
    check_fields(recipe(RandomApply(tuple(STILL)), RandomChoice(MOVING)), Schema({"image": Image(), "mask": Mask()}))


@pytest.mark.parametrize("operation", [AugMix(), RandomApply((TimmAugMix(),))])
def test_mixtures_of_moved_images(operation: Any) -> None:
    check_fields(recipe(operation), schema(second=Image()))
    for follower, field in FOLLOWERS.items():
        with pytest.raises(ConfigError, match=rf"AugMix mixes an image .* fields='{follower}' .*take RandAugment"):
            check_fields(recipe(operation), schema(**{follower: field}))


def test_boxes_and_points_do_not_go_with_padding_that_repeats_them() -> None:
    reflecting = Recipe((RandomCrop(8, padding=2, padding_mode="reflect"),))
    check_fields(reflecting, schema(mask=Mask()))
    check_fields(Recipe((RandomCrop(8, padding=2),)), schema(**FOLLOWERS))
    for follower in ("boxes", "points"):
        with pytest.raises(ConfigError, match=rf"padding_mode='reflect' repeats .* fields='{follower}' .*'constant'"):
            check_fields(reflecting, schema(**{follower: FOLLOWERS[follower]}))
        with pytest.raises(ValueError, match="not supported with"):
            v2.Pad(2, padding_mode="reflect")(VALUES[follower])


@pytest.mark.parametrize("operation", MIXING, ids=lambda operation: type(operation).__name__)
def test_mixing(operation: Any) -> None:
    name, theirs = type(operation).__name__, getattr(v2, type(operation).__name__, v2.MixUp)
    # A user's dataset tells only with each batch what its labels are.
    for label in (Scalar(), Scalar(dtype="int64"), Scalar("cls", dtype="i8"), Array()):
        check_fields(recipe(operation), schema(label=label, caption=Text(), second=Image()))
    for follower, field in FOLLOWERS.items():
        with pytest.raises(ConfigError, match=rf"{name} mixes images, and fields='{follower}' .*leave"):
            check_fields(recipe(operation), schema(**{follower: field}))
        images, labels = torch.zeros(2, 3, 8, 8), torch.zeros(2, dtype=torch.int64)
        with pytest.raises(ValueError, match="does not support"):
            theirs(num_classes=3)({"image": images, "label": labels, follower: VALUES[follower]})
    wrong = [
        {"label": Scalar(dtype="float32")},
        {"label": Scalar(dtype="int32")},
        {"label": Scalar(dtype="bool")},
        {"class": Scalar()},
    ]
    for fields in wrong:
        with pytest.raises(
            ConfigError, match=rf"{name} mixes class numbers, int64, but fields have label=.*'label' of them"
        ):
            check_fields(recipe(operation), Schema({"image": Image(), **fields}))
    with pytest.raises(RuntimeError, match="LongTensor"):  # neither does torchvision take others than int64
        theirs(num_classes=3)(torch.zeros(2, 3, 8, 8), torch.zeros(2, dtype=torch.int32))
