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
    AutoAugment,
    ColorJitter,
    CutMix,
    GaussianBlur,
    MixUp,
    MixUpOrCutMix,
    MultiCrop,
    RandAugment,
    RandomApply,
    RandomChoice,
    RandomErasing,
    RandomGrayscale,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomSolarize,
    Recipe,
    ThreeAugment,
    TimmRandAugment,
    TrivialAugmentWide,
    check_fields,
)

MOVING = [RandAugment(), TrivialAugmentWide(), AutoAugment(), TimmRandAugment()]
STILL = [ColorJitter(0.4), RandomGrayscale(), RandomSolarize(128), GaussianBlur(3), ThreeAugment()]
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


@pytest.mark.parametrize("name", FOLLOWERS)
@pytest.mark.parametrize("operation", MOVING, ids=lambda operation: type(operation).__name__)
def test_operations_that_move_pixels(operation: Any, name: str) -> None:
    check_fields(recipe(operation), schema(second=Image(geometry="image"), caption=Text()))
    kinds = [operation, RandomApply((operation,)), RandomChoice((ColorJitter(0.4), operation))]
    made = [recipe(ColorJitter(0.4), kind) for kind in kinds]
    for one in [*made, MultiCrop((recipe(), made[0]))]:
        with pytest.raises(ConfigError, match=rf"{type(operation).__name__} moves .*'{name}' \(.*without it"):
            check_fields(one, schema(**{name: FOLLOWERS[name]}))
    theirs = getattr(v2, type(operation).__name__, None)
    if theirs is not None:  # timm's takes no fields at all
        with pytest.raises(TypeError, match="not supported by"):
            theirs()(tv_tensors.Image(torch.zeros(3, 8, 8, dtype=torch.uint8)), VALUES[name])


def test_all_that_is_in_the_way_is_named() -> None:
    both = recipe(RandAugment(), TrivialAugmentWide())
    with pytest.raises(ConfigError, match=r"RandAugment, TrivialAugmentWide .*'mask' \(Mask\), 'boxes' \(Boxes\), 'p"):
        check_fields(both, schema(**FOLLOWERS))


def test_operations_on_colors_and_erasing_touch_images_alone() -> None:
    check_fields(recipe(*STILL, RandomErasing()), schema(**FOLLOWERS))
    check_fields(recipe(RandomApply(tuple(STILL))), Schema({"image": Image(), "mask": Mask()}))


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
