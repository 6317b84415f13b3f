"""The recipes that are measured, and the options with which timm's create_loader does the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import gpupipe
from gpupipe.benchmark.contenders.base import needs_folder
from gpupipe.benchmark.contenders.torch_loader import PREFETCH_FACTOR
from gpupipe.benchmark.settings import Settings
from gpupipe.recipe import Augmenting, Mixing, Recipe

__all__ = ["CLASSES", "RECIPES", "Way", "maker"]

CLASSES = 1000  # of the labels; a folder may have fewer

JITTER = gpupipe.ColorJitter(0.4, 0.4, 0.4, 0.1)
MIX = gpupipe.MixUpOrCutMix(CLASSES, mixup_alpha=0.2, cutmix_alpha=1.0)


@dataclass(frozen=True)
class Entry:
    """A recipe for a side in pixels, and timm's options; `timm_lacks` says what it has no option for."""

    title: str
    make: Callable[[int], Recipe]
    timm: dict[str, Any] = field(default_factory=dict)
    timm_mixing: dict[str, Any] | None = None
    timm_lacks: str | None = None
    size: int | None = None

    def recipe(self, size: int) -> Recipe:
        """For batches of `size` squares."""
        return self.make(size)


def train(*augmentations: Augmenting, erase: float = 0.0, mixing: Mixing | None = None) -> Callable[[int], Recipe]:
    """Random resized crop, flip, the augmentations, normalization, erasing with zeros, mixing."""

    def make(size: int) -> Recipe:
        last = [gpupipe.RandomErasing(erase)] if erase else []
        mixed = [mixing] if mixing else []
        plain = gpupipe.imagenet_train(size)
        return replace(plain, operations=(*plain.operations[:2], *augmentations, plain.operations[2], *last, *mixed))

    return make


RECIPES = {
    "plain": Entry("crop + flip", train()),
    "rand_augment": Entry(
        "crop + RandAugment(2, 9) + erase",
        train(gpupipe.RandAugment(2, 9), erase=0.25),
        # timm's magnitude 3 of 10 is torchvision's 9 of 30.
        {"auto_augment": "rand-m3-n2-p1.0-inc1", "re_prob": 0.25},
    ),
    "trivial_augment": Entry(
        "crop + TrivialAugmentWide", train(gpupipe.TrivialAugmentWide()), timm_lacks="no TrivialAugment"
    ),
    "auto_augment": Entry("crop + AutoAugment", train(gpupipe.AutoAugment()), {"auto_augment": "original"}),
    "jitter": Entry(
        "crop + ColorJitter + grayscale + blur + solarize",
        train(
            gpupipe.RandomApply((JITTER,), 0.8),
            gpupipe.RandomGrayscale(0.2),
            gpupipe.RandomApply((gpupipe.GaussianBlur(23),), 0.5),
            gpupipe.RandomSolarize(128, 0.2),
        ),
        timm_lacks="no solarize beside color jitter",
    ),
    "three_augment": Entry(
        "crop + ThreeAugment + ColorJitter(0.3)",
        train(gpupipe.ThreeAugment(), gpupipe.ColorJitter(0.3, 0.3, 0.3)),
        {"auto_augment": "3a", "color_jitter": 0.3},
    ),
    "mix": Entry(
        "crop + MixUp or CutMix",
        train(mixing=MIX),
        timm_mixing={"mixup_alpha": 0.2, "cutmix_alpha": 1.0, "label_smoothing": 0.0},
    ),
}


class Way:
    """What the ways to load have in common: an image folder, torch's workers in turn."""

    name: str

    def __init__(self, recipe: str) -> None:
        self.entry = RECIPES[recipe]

    def available(self, settings: Settings) -> str | None:
        """An image folder is needed."""
        return needs_folder(settings)

    def cycle(self, settings: Settings) -> int:
        """Workers take turns."""
        return settings.workers

    def queued(self, settings: Settings) -> int:
        """What the workers prefetch."""
        return settings.workers * PREFETCH_FACTOR


def maker(way: type[Way], recipe: str) -> Callable[[], Way]:
    """For a module's `__getattr__`: what makes the contender for a recipe. Raises AttributeError for an unknown one."""
    if recipe not in RECIPES:
        raise AttributeError(f"there is no recipe {recipe!r}; there are {', '.join(RECIPES)}")
    return lambda: way(recipe)
