"""Videos whose frames are files or pixels by themselves."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gpupipe.sources.folder import EXTENSIONS
from gpupipe.sources.reading import MOST_BYTES, OpenFiles, Stamp, read_file

__all__ = ["FrameFolder", "FrameParts", "GivenFrames", "in_order"]


def in_order(names: Sequence[str]) -> list[str]:
    """Files of frames: by the length of their names, so that 10.jpg comes behind 9.jpg, and then by name."""
    return sorted(names, key=lambda name: (len(name), name))


class Frames:
    """Of which nothing says how many a second they are."""

    rate: ClassVar[float | None] = None


@dataclass
class FrameFolder(Frames):
    """A folder that has a file for each frame.

    pattern: of the files' names; None: all images. listed: how many frames a list says that it has, which are taken.
    """

    path: str
    pattern: str | None = None
    listed: int | None = None

    @cached_property
    def names(self) -> list[str]:
        """Of the frames, in order. The folder is listed once, which is cheap beside its frames: 0.1 ms for 300."""
        found = os.listdir(self.path)
        if self.pattern is None:
            names = in_order([name for name in found if name.lower().endswith(EXTENSIONS)])
        else:
            names = in_order([name for name in found if fnmatchcase(name, self.pattern)])
        if not names:
            looked_for = "images" if self.pattern is None else f"files {self.pattern!r}"
            raise ValueError(f"its folder has no {looked_for}, but {', '.join(sorted(found)[:4]) or 'nothing at all'}")
        if self.listed is not None and len(names) < self.listed:
            raise ValueError(f"its folder has {len(names)} frames where the list says {self.listed}")
        return names[: self.listed]

    def __len__(self) -> int:
        return len(self.names)

    def read(self, numbers: Sequence[int]) -> list[NDArray[np.uint8]]:
        return [read_file(f"{self.path}/{self.names[number]}") for number in numbers]


@dataclass
class FrameParts(Frames):
    """Frames that are parts of one file, a shard: of each its offset and bytes."""

    open: OpenFiles
    path: str
    stamp: Stamp
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets)

    def read(self, numbers: Sequence[int]) -> list[NDArray[np.uint8]]:
        return [self.part(int(self.offsets[number]), int(self.sizes[number])) for number in numbers]

    def part(self, offset: int, size: int) -> NDArray[np.uint8]:
        if size > MOST_BYTES:
            raise ValueError(f"a file of it has {size:,} bytes, more than {MOST_BYTES:,}")
        return self.open.unchanged(self.path, self.stamp, offset, size, "shard")


@dataclass
class GivenFrames(Frames):
    """Frames that are there: encoded, or pixels."""

    frames: Sequence[NDArray[np.uint8]]

    def __len__(self) -> int:
        return len(self.frames)

    def read(self, numbers: Sequence[int]) -> list[NDArray[np.uint8]]:
        return [self.frames[number] for number in numbers]
