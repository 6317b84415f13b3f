"""Contenders of recipes.py: the ways to load batches by a recipe; each file's name in `WAYS` is followed by a recipe's.

`module:recipe` is a reference to a contender of `gpupipe bench`: each module makes one for any name in `RECIPES`.
"""

from __future__ import annotations

__all__ = ["BEHIND", "WAYS"]

BEHIND = "torchvision v2 behind the same decode"
WAYS = {
    "gpupipe": "recipe_loaders.ours",
    BEHIND: "recipe_loaders.behind_decode",
    "torchvision's references": "recipe_loaders.torchvision_references",
    "timm": "recipe_loaders.timm_options",
}
