"""gpupipe.Loader on a kind of data, by the torch engine."""

from __future__ import annotations

from typing import Any

from peers.common import Peer

import gpupipe
from gpupipe.decode.choose import PREFETCH
from gpupipe.sources import Source, open_source
from gpupipe.tools.benchmark.contenders import BatchStream
from gpupipe.tools.benchmark.contenders.gpupipe_loader import PASSES, many_passes
from gpupipe.tools.benchmark.measurement import BenchSettings
from source_peers.kinds import KINDS, prepare, stored

__all__ = ["FOLDER", "Ours", "load", "opened"]

FOLDER = "folder"


class Ours(Peer):
    """Shuffled passes without a gap."""

    name = "gpupipe"

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def prepare(self, settings: BenchSettings) -> bool:
        """Write the data."""
        return self.kind != FOLDER and prepare(settings.data, self.kind)

    def queued(self, settings: BenchSettings) -> int:
        """What the workers prefetch, and the batch that is being finished."""
        return settings.workers * PREFETCH["torch"] + 1

    def open(self, settings: BenchSettings) -> BatchStream:
        """Start the workers."""
        source = opened(settings.data, self.kind)
        order = KINDS[self.kind].order if self.kind != FOLDER else None
        passes = many_passes(len(source)) if order is None else order(source, PASSES)
        return load(source, settings, order=passes, num_workers=settings.workers)


def opened(folder: str, kind: str) -> Source:
    """The source of what was written of the folder's images, or of the folder itself."""
    if kind == FOLDER:
        return open_source(folder)
    return open_source(KINDS[kind].data(stored(folder, kind)), fields=KINDS[kind].fields)


def load(source: Source, settings: BenchSettings, **options: Any) -> gpupipe.Loader:
    """The loader."""
    recipe = gpupipe.imagenet_train(settings.size, dtype="uint8")
    return gpupipe.Loader(source, recipe, settings.batch_size, drop_last=True, engine="torch", device="cpu", **options)
