"""Whether what a recipe does to images goes together with what else a sample has."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gpupipe.batch import Array, Boxes, Frames, Image, Mask, Pad, Points, Schema
from gpupipe.errors import ConfigError
from gpupipe.recipe.augmentations import walk
from gpupipe.recipe.auto_augment import AugMix, TimmAugMix
from gpupipe.recipe.operations import RandomIoUCrop
from gpupipe.recipe.own import OnBatch
from gpupipe.recipe.recipe import MultiCrop, Recipe
from gpupipe.recipe.several import CopyPaste, DetectionMixUp, Several

__all__ = ["check_fields"]

MOST = {"float16": 65504.0, "bfloat16": 2.0**128 - 2.0**120, "float32": 2.0**128 - 2.0**104}
"""The largest number of each."""


def check_fields(recipe: Recipe | MultiCrop, schema: Schema) -> None:
    """ConfigError where masks, boxes or points could not follow the images, or there is no label to mix.

    Crops, flips and operations that move pixels are followed. Those that change colors, and erasing, touch images
    alone, as torchvision v2's. Operations of the user's own that may move pixels can't be followed, nor can mixing.
    `RandomIoUCrop` needs boxes. What makes one sample of several needs something that follows it.
    """
    followers = [name for name, field in schema.items() if field.geometric and not isinstance(field, Image)]
    listed = ", ".join(f"{name!r} ({type(schema[name]).__name__})" for name in followers)
    for view in recipe.view_recipes:
        own = [f"{one}" for one in view.own if one.geometric and not (isinstance(one, OnBatch) and one.whole)]
        if own and followers:
            raise ConfigError(
                f"recipe: {', '.join(own)} may move the images' pixels, and fields={listed} can't follow; pass it "
                "geometric=False if each pixel stays where it is, or leave the fields out"
            )
        blended = [type(one).__name__ for one in walk(view.augmentations) if isinstance(one, AugMix | TimmAugMix)]
        if blended and followers:
            raise ConfigError(
                f"recipe: {blended[0]} mixes an image with others that it was moved to, which fields={listed} can't "
                "follow; take RandAugment or TrivialAugmentWide, or leave the fields out"
            )
        mirrored = [name for name in followers if isinstance(schema[name], Boxes | Points)]
        if view.crop.padding_mode != "constant" and mirrored:
            raise ConfigError(
                f"recipe: padding_mode={view.crop.padding_mode!r} repeats parts of the image, and fields={listed} hold "
                "boxes or points, which are not repeated; take 'constant', or leave the fields out"
            )
        if isinstance(view.crop, RandomIoUCrop):
            _check_boxes(schema)
        if view.before_crop.stop and schema.of_kind(Frames):
            raise ConfigError(
                f"recipe: {view.operations[0]} changes whole images before their crop, which clips have one of for all "
                "their frames; pass it behind the crop"
            )
        for name in schema.images:
            _check_collated(name, schema[name], schema.pixel_policy(name), view)
        for operation in view.several:
            problem = _unfit(operation, schema)
            if problem:
                raise ConfigError(f"recipe: {type(operation).__name__} {problem}")
        if view.mixing is not None:
            _check_mixing(type(view.mixing).__name__, schema, listed)


def _check_collated(name: str, field: Any, policy: Any, view: Recipe) -> None:
    if isinstance(field, Frames) and view.crop.varies:
        raise ConfigError(f"recipe: {name!r} are clips, which have one size, but {view.crop} gives each its own")
    on_batch = [one for one in view.own if isinstance(one, OnBatch) and not one.whole]
    if policy != "stack" and on_batch:
        raise ConfigError(
            f"recipe: {on_batch[0]} works on images that are stacked, but {name!r} has collate={policy!r}; pass it "
            "whole=True, or do without one of both"
        )
    if isinstance(policy, Pad) and view.erasing is not None and view.erasing.constant is None:
        raise ConfigError(
            f"recipe: RandomErasing(value='random') would draw other numbers for {name!r} with other images beside it, "
            "whose largest decides how it is padded, and on another device; pass a value, or collate='list'"
        )
    if isinstance(policy, Pad) and not _holds(view.dtype, policy.value):
        rather = "an integer of 0 to 255" if view.dtype == "uint8" else f"one of at most {MOST[view.dtype]:.6g}"
        raise ConfigError(
            f"recipe: {name!r} is padded with {policy.value}, which dtype={view.dtype!r} can't hold; pass {rather}, or "
            "take another dtype"
        )


def _holds(dtype: str, value: float) -> bool:
    """Whether the value is one of that dtype but for the rounding of floats, of which infinity is one."""
    if dtype == "uint8":
        return value in range(256)
    return not MOST[dtype] < abs(value) < math.inf


def _check_boxes(schema: Schema) -> None:
    having = {schema.drawn_as(name) for name in schema.of_kind(Boxes)}
    lacking = [name for name in schema.images if schema.drawn_as(name) not in having]
    if lacking:
        raise ConfigError(
            f"recipe: RandomIoUCrop is chosen by boxes, and {', '.join(map(repr, lacking))} has none; give the fields "
            "gpupipe.Boxes that follow it, or take another crop"
        )


def _unfit(operation: Several, schema: Schema) -> str | None:
    """Why samples with these fields can't be made of several."""
    masks, boxes, points = (schema.of_kind(kind) for kind in (Mask, Boxes, Points))
    if not masks + boxes + points:
        return "makes one sample of several, and no gpupipe.Boxes, Mask or Points among the fields say what is where"
    if schema.of_kind(Frames):
        return "makes one image of several, not videos; leave one of both out"
    if isinstance(operation, DetectionMixUp) and masks:
        return f"can't blend masks, and fields have {', '.join(map(repr, masks))}; leave one of both out"
    images = {schema.drawn_as(name) for name in boxes}
    numbered = boxes and len(images) == len(boxes) and all(len(schema.numbering(name)) == 1 for name in boxes)
    if isinstance(operation, CopyPaste) and (points or not numbered):
        return (
            "needs to know the pixels of each object; give each image one field of gpupipe.Boxes with one "
            "gpupipe.Mask(numbers=) of these, and no Points"
        )
    return None


def _check_mixing(name: str, schema: Schema, followers: str) -> None:
    if followers:
        raise ConfigError(
            f"recipe: {name} mixes images, and fields={followers} can't be mixed; take a recipe without it, or leave "
            "the fields out"
        )
    label = schema.get("label")
    if not isinstance(label, Array) or (label.dtype is not None and np.dtype(label.dtype) != np.int64):
        raise ConfigError(
            f"recipe: {name} mixes class numbers, int64, but fields have label={label!r}; give a 'label' of them, such "
            f"as gpupipe.Scalar(dtype='int64'), or take a recipe without {name}"
        )
