"""The few questions that a storage is asked; each costs one request, and is asked once."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from gpupipe.sources.remote.plain import Answer

__all__ = ["Found", "Store", "found_of"]


class Found(NamedTuple):
    """What an answer says of its object; `etag` as in Object."""

    size: int
    etag: str


def found_of(size: int, etag: str | None, changed: datetime | None) -> Found:
    """Told by an ETag, in quotes, which those in listings of Azure and Google lack; else by the time of change; else by
    nothing."""
    if etag:
        return Found(size, etag if etag.startswith(('"', "W/")) else f'"{etag}"')
    return Found(size, f"modified {changed.isoformat()}" if changed and changed.timestamp() > 0 else "")


class Store(Protocol):
    """A storage, whose objects have paths. All of it raises Fault. Threads may share it."""

    def begin(self, path: str, offset: int, size: int, etag: str) -> Answer | None:
        """Ask for the same as `read` and do not wait; None where that can't be. What does not come
        whole is for `read`."""

    def read(
        self, path: str, offset: int, size: int, etag: str, begun: Answer | None = None
    ) -> tuple[NDArray[np.uint8], Found]:
        """A part of an object, which must have this ETag, where the storage can tell; of size -1: all of it. begun: the
        same, on its way."""

    def head(self, path: str) -> Found:
        """What it says of an object."""

    def level(self, folder: str) -> tuple[list[tuple[str, Found]], list[str]]:
        """The objects that lie in a folder itself, and the folders: of many names several requests."""

    def pages(self, folder: str, after: str) -> Iterator[list[tuple[str, Found]]]:
        """Paths of all objects below a folder that come after `after` in its order, and what it says of them."""
