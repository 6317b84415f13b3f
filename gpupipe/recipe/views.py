"""Several recipes for the views of one sample."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import indent
from typing import TypeAlias

from gpupipe.errors import ConfigError
from gpupipe.recipe.recipe import MOST_VIEWS, Recipe

__all__ = ["MultiCrop", "Views"]

Views: TypeAlias = tuple[Recipe, ...]
"""The recipe of each view of a sample, as `view_recipes` gives them: the same in dtype, layout, orientation, decode."""

SAME = ("dtype", "layout", "exif_orientation", "decode")


@dataclass(frozen=True)
class MultiCrop:
    """Views of each sample by several recipes, each of which makes as many as its `views` say.

    DINO's two sizes, for one (Caron et al. 2021, arXiv 2104.14294). The recipes have the same dtype, layout,
    exif_orientation and decode, together 256 views at most, and no mixing, else ConfigError.
    """

    recipes: tuple[Recipe, ...]

    def __post_init__(self) -> None:
        recipes = self.recipes
        if not isinstance(recipes, Sequence) or not recipes or not all(isinstance(r, Recipe) for r in recipes):
            raise ConfigError(f"MultiCrop: recipes={recipes!r} must be a tuple of one Recipe or more")
        object.__setattr__(self, "recipes", tuple(recipes))
        for field in SAME:
            values = [getattr(recipe, field) for recipe in recipes]
            if len(set(values)) > 1:
                raise ConfigError(f"MultiCrop: {field} must be the same in all recipes, but they have {values}")
        for recipe in recipes:
            if recipe.mixing is not None:
                raise ConfigError(f"MultiCrop: views are not mixed, but a recipe has {recipe.mixing!r}; drop that")
        if self.views > MOST_VIEWS:
            raise ConfigError(f"MultiCrop: {self.views} views together are too many; at most {MOST_VIEWS} can be drawn")

    @property
    def views(self) -> int:
        """How many views of each sample there are in all."""
        return sum(recipe.views for recipe in self.recipes)

    @property
    def view_recipes(self) -> Views:
        """The recipe of each view, which has one view, in the order of `recipes`."""
        return tuple(view for recipe in self.recipes for view in recipe.view_recipes)

    @property
    def fingerprint(self) -> str:
        """16 hex digits that differ where a `Recipe`'s would."""
        text = "|".join(["MultiCrop", *(recipe.fingerprint for recipe in self.recipes)])
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def __repr__(self) -> str:
        recipes = ",\n".join(indent(repr(recipe), "        ") for recipe in self.recipes)
        return f"MultiCrop(\n    (\n{recipes},\n    ),\n)"
