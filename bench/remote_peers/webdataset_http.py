"""WebDataset: the tar shards that gpupipe reads, by curl, its own way to read a URL; or whole ones kept in a folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
import webdataset
from source_peers.kinds import SHARDS, write_tar

from gpupipe.tools.benchmark.measurement import BenchSettings
from remote_peers.common import Passes, Place, Remote, endless

__all__ = ["WebDatasetHttp"]

REQUIREMENTS = ("webdataset",)


class WebDatasetHttp(Remote):
    """Shards in random order, samples through a buffer of 1,000. cached: into the cache folder first."""

    kind = "tar"

    def __init__(self, cached: bool = False) -> None:
        super().__init__()
        self.keeps = cached

    def write(self, folder: str, target: Path) -> None:
        """Byte for byte."""
        write_tar(target, folder)

    def passes(self, place: Place, work: Callable[[bytes], torch.Tensor], settings: BenchSettings) -> Passes:
        """Batches are made in the workers."""
        shards = [f"{place.url}/tar/{number:02}.tar" for number in range(SHARDS)]
        kept = {"cache_dir": place.cache} if self.keeps else {}
        dataset = (
            webdataset.WebDataset(shards, shardshuffle=SHARDS, **kept)
            .shuffle(1000)
            .to_tuple("jpg", "cls")
            .map_tuple(work, int)
            .batched(settings.batch_size, partial=settings.batch_size == 1)
        )
        options = self.options(settings) | {"batch_size": None, "drop_last": False}
        yield from endless(webdataset.WebLoader(dataset, **options))
