"""What became of a DataLoader, part by part."""

from __future__ import annotations

import reprlib
import textwrap
from dataclasses import dataclass
from typing import Any

__all__ = ["Line", "Translation", "described"]

WIDTH = 120
MOST = 2000  # characters of a repr


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
    """An object on one line: the name of a function or class, else the repr, of a long one beginning and end."""
    name = getattr(value, "__qualname__", None)
    if isinstance(name, str):
        return name
    short = reprlib.Repr()
    short.maxother = MOST
    return " ".join(short.repr(value).split())
