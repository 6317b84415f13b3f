"""gpupipe.Loader, torch engine, on tar shards by HTTP with a disk cache, and on the folder that they were made of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from source_peers.kinds import SHARDS, write_tar

import gpupipe
from gpupipe.sources import Source, open_source
from gpupipe.tools.benchmark.measurement import BenchSettings
from remote_peers.common import Digest, Passes, Place, Remote, endless

__all__ = ["Folder", "Shards"]


class Shards(Remote):
    """Other work than its own is only asked for to look at the data: then they are the source's samples."""

    kind = "tar"

    def write(self, folder: str, target: Path) -> None:
        """Byte for byte."""
        write_tar(target, folder)

    def source(self, place: Place) -> Source:
        """With a cache of its own."""
        return open_source(f"{place.url}/tar/{{00..{SHARDS - 1:02}}}.tar", cache=gpupipe.Cache(place.cache))

    def passes(self, place: Place, work: Callable[[bytes], torch.Tensor], settings: BenchSettings) -> Passes:
        """The workers live on."""
        source = self.source(place)
        if isinstance(work, Digest):
            samples = (source[index] for index in range(len(source)))
            yield ((torch.stack([work(data)]), torch.tensor([label])) for data, label in samples)
            return
        loader = gpupipe.Loader(
            source,
            gpupipe.imagenet_train(settings.size, dtype="uint8"),
            settings.batch_size,
            shuffle=True,
            drop_last=True,
            num_workers=settings.workers,
            engine="torch",
            device="cpu",
        )
        try:
            yield from endless(loader)
        finally:
            loader.close()


class Folder(Shards):
    """Nothing is remote."""

    kind = "files"

    def prepare(self, folder: str) -> None:
        """It is there."""

    def source(self, place: Place) -> Source:
        """The files."""
        return open_source(place.folder)
