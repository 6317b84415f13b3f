"""Several views of each image for a test, by an evaluation's recipe: mirrored, five or ten crops, several sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

from gpupipe.errors import ConfigError
from gpupipe.recipe.checks import floats
from gpupipe.recipe.operations import Place, RandomHorizontalFlip, ResizeCenterCrop, ResizeCornerCrop
from gpupipe.recipe.recipe import MultiCrop, Recipe

__all__ = ["eval_views"]

SCALED = ("size", "resize", "max_size")


def eval_views(
    recipe: Recipe, *, flip: bool = False, five: bool = False, three: bool = False, scales: Sequence[float] = (1.0,)
) -> MultiCrop:
    """The views of test-time augmentation, all of which are made of one decoding; `mean_over_views` merges what a model
    says of them.

    recipe: an evaluation's, with a `ResizeCenterCrop` and no flip: `imagenet_eval()`.
    flip:   whether each view comes mirrored, too.
    five:   the four corners and the centre in the place of the centre: torchvision's `FiveCrop`, and with `flip` its
            `TenCrop`, in their order and with their pixels.
    three:  in its place the left, middle and right part, or upper, middle and lower one, of images that are resized to
            the crop's side by their shorter one: the three crops of video tests.
    scales: factors of the sizes, of the resized image's and of the crop's: (0.875, 1.0, 1.125) makes 196, 224 and 252
            of 224, with all of this for each. What stands before the crop is done before each.

    Raises ConfigError for another recipe, for five and three at once, for one view, and for scales that are no numbers
    above 0.

    >>> from gpupipe import imagenet_eval
    >>> eval_views(imagenet_eval(), flip=True, five=True).views
    10
    """
    crop = recipe.crop
    if type(crop) is not ResizeCenterCrop or recipe.flip is not None:
        raise ConfigError(
            f"eval_views: {recipe!r} must have a ResizeCenterCrop, and no flip; take an evaluation's recipe"
        )
    factors = floats(scales)
    if not factors or min(factors) <= 0 or not (flip or five or three or len(factors) > 1):
        raise ConfigError(
            f"eval_views: flip={flip}, five={five}, three={three}, scales={scales!r} must be numbers above 0 that make "
            "several views"
        )
    if three and (five or crop.output_size != (crop.resize, crop.resize)):
        raise ConfigError(f"eval_views: three=True is for a square crop of the shorter side, without five, not {crop}")
    places: tuple[Place, ...] = ("top_left", "center", "bottom_right") if three else get_args(Place)
    mirrored: list[tuple[RandomHorizontalFlip, ...]] = [(), (RandomHorizontalFlip(1.0),)]
    place, views = recipe.before_crop.stop, []
    before, behind = recipe.operations[:place], recipe.operations[place + 1 :]
    for factor in factors:
        scaled = replace(crop, **{name: _scaled(getattr(crop, name), factor) for name in SCALED})
        crops = [ResizeCornerCrop(**vars(scaled), place=place) for place in places] if five or three else [scaled]
        for flips in mirrored[: 1 + flip]:
            views += [replace(recipe, operations=(*before, one, *flips, *behind)) for one in crops]
    return MultiCrop(tuple(views))


def _scaled(sides: Any, factor: float) -> Any:
    if sides is None:
        return None
    return tuple(_scaled(side, factor) for side in sides) if isinstance(sides, tuple) else round(sides * factor)
