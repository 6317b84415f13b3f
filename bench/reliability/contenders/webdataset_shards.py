"""WebDataset over shards, split by node and by worker, with its deterministic shuffles."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import webdataset
from webdataset.filters import detshuffle

from reliability.case import NoFunction
from reliability.contenders.base import Setup, Stored, Stream
from reliability.contenders.stores import BATCH, TARS, split_into_tars
from reliability.data import Numbered, gray, write_shards

__all__ = ["WebDatasetStream"]

SHARDS_PER_WORKER = 2
BUFFER = 100  # samples


class _Read:
    """What happens to a sample, in the worker."""

    def __init__(self, dataset: Numbered) -> None:
        self.dataset = dataset

    def __call__(self, sample: tuple[bytes, bytes]) -> tuple[bytes, int]:
        number = int(sample[1])
        self.dataset.touch(number)
        return sample[0], number


class WebDatasetStream(Stream):
    """There are enough shards that each worker of each rank has its own."""

    name = "webdataset"

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        samples = len(setup.dataset)
        shards = write_shards(
            setup.folder / "shards", samples, min(samples, SHARDS_PER_WORKER * setup.world * max(1, setup.workers))
        )
        pipeline = webdataset.WebDataset(
            shards,
            resampled=False,
            shardshuffle=len(shards) if setup.shuffle else False,
            detshuffle=True,
            seed=setup.seed,
            nodesplitter=webdataset.split_by_node,
            workersplitter=webdataset.split_by_worker,
        )
        self._shuffles = [stage for stage in pipeline.pipeline if isinstance(stage, detshuffle)]
        if setup.shuffle:
            self._shuffles.append(detshuffle(BUFFER, seed=setup.seed))
            pipeline = pipeline.compose(self._shuffles[-1])
        pipeline = pipeline.to_tuple("jpg", "cls").map(_Read(setup.dataset))
        pipeline = pipeline.batched(setup.batch_size, partial=not setup.drop_last)
        self._loader: Any = webdataset.WebLoader(
            pipeline, batch_size=None, num_workers=setup.workers, **setup.worker_options
        )

    def __iter__(self) -> Iterator[list[int]]:
        # Where torchrun would have put them; workers inherit them.
        os.environ |= {"RANK": str(self.setup.rank), "WORLD_SIZE": str(self.setup.world)}
        for _, numbers in self._loader:
            yield numbers.tolist()

    def set_epoch(self, epoch: int) -> None:
        for stage in self._shuffles:
            stage.epoch = epoch - 1  # each iteration adds one

    def close(self) -> None:
        del self._loader

    @classmethod
    def write(cls, folder: Path, samples: Mapping[int, bytes]) -> None:
        split_into_tars(folder, samples)

    @classmethod
    def read(cls, stored: Stored) -> Iterator[tuple[int, float]]:
        """By curl, or with its cache of whole shards where a folder is given, which has no limit."""
        if stored.limit is not None:
            raise NoFunction("its cache has no limit: cache_size is not looked at")
        if stored.role:
            raise NoFunction("it asks by curl, without credentials of S3")
        urls = [f"{stored.server}/{stored.bucket}/{number}.tar{stored.query}" for number in range(TARS)]
        kept = {} if stored.cache is None else {"cache_dir": str(stored.cache)}
        dataset = webdataset.WebDataset(urls, shardshuffle=TARS, **kept).shuffle(BUFFER).to_tuple("cls", "jpg")
        loader = webdataset.WebLoader(
            dataset.map_tuple(int, gray).batched(BATCH), batch_size=None, num_workers=stored.workers
        )
        for numbers, levels in loader:
            yield from zip(numbers.tolist(), levels.tolist(), strict=True)
