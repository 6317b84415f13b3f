"""The floor: libjpeg-turbo decodes the crop's part of each file, and nothing else is done.

To be filled when `gpupipe.kernels` has the kernel that decodes a crop.
"""

from __future__ import annotations

from gpupipe.benchmark.contenders.base import Stream
from gpupipe.benchmark.settings import Settings
from peers.common import Peer

__all__ = ["Floor"]


class Floor(Peer):
    """Decoding alone."""

    name = "floor"

    def available(self, settings: Settings) -> str | None:
        """Not written yet."""
        return "not written yet: waits for the kernel that decodes a crop"

    def open(self, settings: Settings) -> Stream:
        """Never called."""
        raise NotImplementedError
