"""The recipes that are measured, and the options with which timm's create_loader does the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import gpupipe
from gpupipe.recipe import Augmenting, Mixing, MultiCrop, Recipe
from gpupipe.tools.benchmark.contenders import Batch, needs_folder
from gpupipe.tools.benchmark.contenders.torch_loader import PREFETCH_FACTOR
from gpupipe.tools.benchmark.measurement import BenchSettings

__all__ = ["CLASSES", "RECIPES", "FirstView", "Way", "maker"]

CLASSES = 1000  # of the labels; a folder may have fewer

JITTER = gpupipe.ColorJitter(0.4, 0.4, 0.4, 0.1)
MIX = gpupipe.MixUpOrCutMix(CLASSES, mixup_alpha=0.2, cutmix_alpha=1.0)


@dataclass(frozen=True)
class Entry:
    """A recipe for a side in pixels, and timm's options; `timm_lacks` says what it has no option for.

    size: of the batches; None for the one that is asked for.
    """

    title: str
    recipe: Callable[[int], Recipe | MultiCrop]
    timm: dict[str, Any] = field(default_factory=dict)
    timm_mixing: dict[str, Any] | None = None
    timm_lacks: str | None = None
    size: int = 224

    @property
    def mixes(self) -> bool:
        """Whether images are mixed."""
        return self.recipe(self.size).view_recipes[0].mixing is not None


def train(*augmentations: Augmenting, erase: float = 0.0, mixing: Mixing | None = None) -> Callable[[int], Recipe]:
    """Random resized crop, flip, the augmentations, normalization, erasing with zeros, mixing."""

    def make(size: int) -> Recipe:
        last = [gpupipe.RandomErasing(erase)] if erase else []
        mixed = [mixing] if mixing else []
        plain = gpupipe.imagenet_train(size)
        return replace(plain, operations=(*plain.operations[:2], *augmentations, plain.operations[2], *last, *mixed))

    return make


def mixing(mixup_alpha: float, label_smoothing: float = 0.0) -> dict[str, Any]:
    """timm's Mixup with CutMix as often."""
    return {"mixup_alpha": mixup_alpha, "cutmix_alpha": 1.0, "label_smoothing": label_smoothing}


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
    "mix": Entry("crop + MixUp or CutMix", train(mixing=MIX), timm_mixing=mixing(0.2)),
    "resnet50_v2": Entry(
        "resnet50_v2_train",
        partial(gpupipe.resnet50_v2_train, num_classes=CLASSES),
        timm_lacks="no TrivialAugment",
        size=176,
    ),
    "timm_a1": Entry(
        "timm_a_train('A1')",
        partial(gpupipe.timm_a_train, "A1", num_classes=CLASSES),
        {"auto_augment": "rand-m7-mstd0.5-inc1", "interpolation": "bicubic"},
        mixing(0.2, 0.1),
    ),
    "timm_a2": Entry(
        "timm_a_train('A2')",
        partial(gpupipe.timm_a_train, "A2", num_classes=CLASSES),
        {"auto_augment": "rand-m7-mstd0.5-inc1", "interpolation": "bicubic"},
        mixing(0.1),
    ),
    "timm_a3": Entry(
        "timm_a_train('A3')",
        partial(gpupipe.timm_a_train, "A3", num_classes=CLASSES),
        {"auto_augment": "rand-m6-mstd0.5-inc1", "interpolation": "bicubic"},
        mixing(0.1),
        size=160,
    ),
    "deit3": Entry(
        "deit3_train",
        partial(gpupipe.deit3_train, num_classes=CLASSES),
        {"auto_augment": "3a", "color_jitter": 0.3, "interpolation": "bicubic"},
        mixing(0.8),
    ),
    "dino": Entry("dino_train, 2 + 8 views", gpupipe.dino_train, timm_lacks="no views of several sizes"),
}


@dataclass
class FirstView:
    """A torch DataLoader's batches of several views: the first view's images, and the labels."""

    loader: Any

    def __iter__(self) -> Iterator[Batch]:
        for views, labels in self.loader:
            yield views[0], labels

    def close(self) -> None:
        """Nothing is left once the iterator is gone."""


class Way:
    """What the ways to load have in common: an image folder, torch's workers in turn."""

    name: str

    def __init__(self, recipe: str) -> None:
        self.entry = RECIPES[recipe]

    def available(self, settings: BenchSettings) -> str | None:
        """An image folder is needed."""
        return needs_folder(settings)

    def cycle(self, settings: BenchSettings) -> int:
        """Workers take turns."""
        return settings.workers

    def queued(self, settings: BenchSettings) -> int:
        """What the workers prefetch."""
        return settings.workers * PREFETCH_FACTOR


def maker(way: type[Way], recipe: str) -> Callable[[], Way]:
    """For a module's `__getattr__`: what makes the contender for a recipe. Raises AttributeError for an unknown one."""
    if recipe not in RECIPES:
        raise AttributeError(f"there is no recipe {recipe!r}; there are {', '.join(RECIPES)}")
    return lambda: way(recipe)
