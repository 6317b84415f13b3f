"""Whether a preset makes what its original does: of an evaluation the same pixels, of a training equal distributions.

In a process of its own, as the originals' modules have the same names.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torchvision.datasets.folder import default_loader
from torchvision.transforms.functional import normalize, pil_to_tensor

from gpupipe.recipe import Mixing, MultiCrop, Recipe
from preset_peers.originals import ORIGINALS
from preset_peers.ours import load, source_of
from preset_peers.table import PRESETS
from preset_peers.theirs import dataset_of

__all__ = ["Agreement", "Comparison"]

SEED = 0
RISK = 1e-3  # that one of a preset's distances is above its limit, if both draw from the same distributions
PIXELS = 1.0  # gray levels that an evaluation's pixels may be apart in the mean
BATCH = 16
PLAIN = (224, 224)


@dataclass(frozen=True)
class Agreement:
    """compared: samples. mean and largest: gray levels between the pixels of an evaluation, and the share of its mask
    that differs. distance: the farthest of all facts' distributions (Kolmogorov-Smirnov), as a part of its limit;
    `fact` says which. wrong: what is too far apart."""

    compared: int
    mean: float | None = None
    largest: float | None = None
    mask: float | None = None
    distance: float | None = None
    fact: str | None = None
    wrong: str | None = None


class Comparison:
    """Of one preset, on the first `count` images of a folder, without mixing."""

    def __init__(self, preset: str, folder: str, count: int) -> None:
        self.preset = PRESETS[preset]
        self.original = ORIGINALS[preset](self.preset.size)
        self.source = source_of(folder, self.preset)
        self.made = dataset_of(folder, self.preset.samples, self.original)
        self.count = min(count, len(self.made))
        self.trains = "train" in preset

    def run(self) -> Agreement:
        """Both make all samples once."""
        return self.distributions() if self.trains else self.pixels()

    def ours(self) -> Iterator[tuple[list[torch.Tensor], dict[str, Any]]]:
        """Each sample's views, and what lies beside."""
        recipe = without_mixing(self.preset.recipe)
        with load(self.source, recipe, BATCH, seed=SEED, num_workers=0, shuffle=False) as loader:
            rows = 0
            for batch in loader:
                beside = batch if isinstance(batch, dict) else {}
                images = beside["image"] if beside else batch[0]
                views = images if recipe.views > 1 else [images]
                for row in range(len(views[0])):
                    if rows == self.count:
                        return
                    rows += 1
                    yield [view[row] for view in views], {key: beside[key][row] for key in SEEN & beside.keys()}

    def theirs(self) -> Iterator[tuple[list[torch.Tensor], dict[str, Any]]]:
        """The same."""
        random.seed(SEED)
        np.random.seed(SEED)  # noqa: NPY002 (the originals' own)
        torch.manual_seed(SEED)
        for index in range(self.count):
            made, _ = self.made[index]
            beside = made if isinstance(made, dict) else {}
            views = beside["image"] if beside else made
            yield (
                list(views) if isinstance(views, (list, tuple)) else [views],
                {key: beside[key] for key in SEEN & beside.keys()},
            )

    def pixels(self) -> Agreement:
        """Given that nothing is drawn."""
        means, largest, masks = [], 0.0, []
        how = self.preset.recipe.view_recipes[0].normalize
        levels = 255 * (torch.tensor(how.std)[:, None, None] if how else 1.0)
        for (mine, beside), (other, their_beside) in zip(self.ours(), self.theirs(), strict=True):
            apart = (mine[0] - other[0]).abs() * levels
            means.append(float(apart.mean()))
            largest = max(largest, float(apart.max()))
            if "mask" in beside:
                masks.append(float((beside["mask"] != their_beside["mask"]).float().mean()))
        mean = float(np.mean(means))
        wrong = f"pixels are {mean:.2f} gray levels apart in the mean" if mean > PIXELS else None
        return Agreement(self.count, mean, largest, float(np.mean(masks)) if masks else None, wrong=wrong)

    def plain(self, path: str) -> torch.Tensor:
        """The whole image, normalized as the preset's."""
        image, how = (
            pil_to_tensor(default_loader(path).resize(PLAIN)) / 255,
            self.preset.recipe.view_recipes[0].normalize,
        )
        return normalize(image, how.mean, how.std) if how else image

    def distributions(self) -> Agreement:
        """Of what can be said of each view, which are of one distribution where their recipes are equal."""
        recipes = self.preset.recipe.view_recipes
        kinds = [recipes.index(recipe) for recipe in recipes for _ in range(recipe.views)]
        plain = [facts(self.plain(path)) for path in self.made.paths[: self.count]]
        mine, other = (collect(kinds, plain, samples) for samples in (self.ours(), self.theirs()))
        risk = RISK / len(mine)
        far = {}
        for name, values in mine.items():
            if name in self.preset.apart:
                continue
            sizes = len(values), len(other[name])
            limit = (-np.log(risk / 2) / 2 * sum(sizes) / np.prod(sizes)) ** 0.5
            far[name] = distance(np.array(values), np.array(other[name])) / float(limit)
        fact = max(far, key=lambda name: far[name])
        wrong = f"the distributions of {fact} are {far[fact]:.1f} times as far apart as chance allows"
        return Agreement(self.count, distance=far[fact], fact=fact, wrong=wrong if far[fact] > 1 else None)


SEEN = {"mask", "boxes"}


def without_mixing(recipe: Recipe | MultiCrop) -> Recipe | MultiCrop:
    """Pairs of images are no distribution of single ones."""
    if isinstance(recipe, MultiCrop):
        return recipe
    return replace(recipe, operations=tuple(one for one in recipe.operations if not isinstance(one, Mixing)))


def collect(kinds: list[int], plain: list[dict[str, float]], samples: Any) -> dict[str, list[float]]:
    """All facts of all samples, less those of the whole images: else what is drawn is lost in what images differ by."""
    found = defaultdict(list)
    for whole, (views, beside) in zip(plain, samples, strict=True):
        assert len(views) == len(kinds), f"the original makes {len(views)} views, the preset {len(kinds)}"
        for kind, view in zip(kinds, views, strict=True):
            for name, value in facts(view).items():
                found[f"{name} of view {kind + 1}" if len(kinds) > 1 else name].append(value - whole[name])
        for name, value in facts_beside(beside).items():
            found[name].append(value)
    return dict(found)


def facts(image: torch.Tensor) -> dict[str, float]:
    """Of float (3, H, W): light, contrast, colour, detail, and which way it is shaded."""
    gray, (height, width) = image.mean(0), image.shape[1:]
    return {
        **dict(zip(("red", "green", "blue"), image.mean((1, 2)).tolist(), strict=True)),
        "contrast": float(gray.std()),
        "colour": float((image.amax(0) - image.amin(0)).mean()),
        "detail across": float((gray[:, 1:] - gray[:, :-1]).abs().mean()),
        "detail down": float((gray[1:] - gray[:-1]).abs().mean()),
        "left to right": float(gray[:, : width // 2].mean() - gray[:, width // 2 :].mean()),
        "top to bottom": float(gray[: height // 2].mean() - gray[height // 2 :].mean()),
    }


def facts_beside(beside: dict[str, Any]) -> dict[str, float]:
    """Of a mask: how much of it is ignored or of no class, and where; of boxes: how many, how large, where."""
    found = {}
    if "mask" in beside:
        mask = beside["mask"].float()
        found |= {"ignored": float((mask == 255).float().mean()), "background": float((mask == 0).float().mean())}
    if "boxes" in beside:
        boxes = beside["boxes"]
        sides = boxes[:, 2:] - boxes[:, :2]
        found |= {"boxes": float(len(boxes)), "area": float(sides.prod(1).mean()) if len(boxes) else 0.0}
        found |= {"place": float(boxes[:, 0].mean()) if len(boxes) else 0.0}
    return found


def distance(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """The largest difference between their distribution functions."""
    at = np.concatenate([one, other])
    shares = (np.searchsorted(np.sort(some), at, side="right") / len(some) for some in (one, other))
    first, second = shares
    return float(np.abs(first - second).max())
