"""An image folder of which all names are known at once: in an archive, in a storage."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property

from gpupipe.sources.folder import Layout, Times

__all__ = ["Inside"]


@dataclass(frozen=True)
class Inside(Layout):
    """names: paths of all files below `place`, with which the root's path begins."""

    place: str
    names: Collection[str]

    def name(self, path: str) -> str:
        """That of what is at a path."""
        return path[len(self.place) + 1 :]

    @cached_property
    def _directories(self) -> dict[str, list[str]]:
        """By their paths below the root, sorted, with the names of their files."""
        top = self.name(self.root)
        directories: dict[str, list[str]] = defaultdict(list)
        for path in self.names:
            directory, name = os.path.split(path)
            if _lies_in(directory, top):
                directories[directory[len(top) :].lstrip("/")] += [name] if name else []
        return dict(sorted(directories.items()))

    @cached_property
    def _sorted(self) -> list[str]:
        return list(self._directories)

    def walk(self, directory: str) -> Iterator[tuple[str, Times, list[str]]]:
        top = self._below(self.within(directory))
        apart = {self._below(path) for path in self.apart} - {top}
        for below in self._all_below(top):
            if not any(_lies_in(below, one) for one in apart):
                within = below[len(top) :].lstrip("/")
                yield os.path.join(directory, within).rstrip("/"), (0, 0), self._directories[below]

    def _all_below(self, top: str) -> list[str]:
        """Directories: `top` and those in it, which stand together."""
        if not top:
            return self._sorted
        own = [top] if top in self._directories else []
        return own + self._sorted[bisect_left(self._sorted, f"{top}/") : bisect_left(self._sorted, f"{top}0")]

    def class_names(self) -> list[str]:
        base = self._below(self.base)
        inner = {below[len(base) :].lstrip("/").split("/")[0] for below in self._all_below(base)}
        return sorted(name for name in inner - {""} if f"{self.base}/{name}" not in self.apart)

    def _below(self, path: str) -> str:
        return path[len(self.root) + 1 :]


def _lies_in(path: str, folder: str) -> bool:
    return not folder or path == folder or path.startswith(f"{folder}/")
