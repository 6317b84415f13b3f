"""What became of a DataLoader, part by part."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Any

from gpupipe.recipe import MultiCrop, Recipe

__all__ = ["Line", "Translation", "described"]

WIDTH = 120
MOST = 240  # characters of an object: two lines


@dataclass(frozen=True)
class Line:
    """One part of a DataLoader: what it was, and what it is now.

    why: where it runs as the user wrote it, the reason and the nearest alternative; empty: it is translated.
    """

    part: str
    was: str
    now: str
    why: str = ""

    def __str__(self) -> str:
        text = f"{self.was} -> {self.now}" + (f": {self.why}" if self.why else "")
        return textwrap.fill(text, WIDTH, initial_indent=f"  {self.part:<13} ", subsequent_indent=" " * 18)


@dataclass(frozen=True)
class Translation:
    """What `gpupipe.from_dataloader` made of each part of a DataLoader; `print` it."""

    lines: tuple[Line, ...]

    @property
    def complete(self) -> bool:
        """Whether nothing runs as the user wrote it."""
        return not self.untranslated

    @property
    def untranslated(self) -> tuple[Line, ...]:
        """What runs as the user wrote it."""
        return tuple(line for line in self.lines if line.why)

    def __str__(self) -> str:
        names = ", ".join(line.part for line in self.untranslated)
        head = f"translated, but for what runs as it is written: {names}" if names else "translated whole"
        return "\n".join([f"gpupipe.from_dataloader: {head}", *map(str, self.lines)])


def described(value: Any) -> str:
    """An object in a line or two: the name of a function or class, a recipe's operations, else the repr, of a long one
    beginning and end."""
    name = getattr(value, "__qualname__", None)
    if isinstance(name, str):
        return name
    if isinstance(value, MultiCrop):
        counts = [f"{recipe.views} view{'s' * (recipe.views > 1)}" for recipe in value.recipes]
        return "; ".join(f"{count} by {described(one)}" for count, one in zip(counts, value.recipes, strict=True))
    if isinstance(value, Recipe):
        return f"Recipe of {', '.join(type(one).__name__ for one in value.operations)}, {value.dtype}"
    text = " ".join(repr(value).split())
    return text if len(text) <= MOST else f"{text[: MOST // 2]} ... {text[-MOST // 2 :]}"
