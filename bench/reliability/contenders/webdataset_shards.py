"""WebDataset over shards, split by node and by worker, with its deterministic shuffles."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import webdataset
from webdataset.filters import detshuffle

from reliability import forms
from reliability.case import NoFunction
from reliability.contenders.base import Setup, Stored, Stream
from reliability.contenders.stores import PATIENCE, torch_options
from reliability.data import Numbered, pixels_of, write_shards

__all__ = ["WebDatasetStream"]

SHARDS_PER_WORKER = 2
BUFFER = 100  # samples
CURL = f"pipe:curl --connect-timeout {PATIENCE // 2} --retry 2 -f -s -L"  # its own, with less patience than 30 s


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
    kinds = ("tar",)

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
    def write(cls, folder: Path, samples: Mapping[int, bytes], kind: str = "", beside: Any = None) -> None:
        forms.write(cls.kind_of(kind), folder, samples, beside)

    @classmethod
    def read(cls, stored: Stored) -> Iterator[tuple[int, float]]:
        """From files, or by curl, as its URLs may say; with its cache where a folder is given, which has no limit."""
        if stored.limit is not None:
            raise NoFunction("its cache has no limit: cache_size is not looked at")
        if stored.role:
            raise NoFunction("it asks by curl, without credentials of S3")
        place = f"{CURL} '{stored.server}/{stored.bucket}"
        urls = [f"{place}/{number}.tar{stored.query}'" for number in range(forms.TARS)]
        if stored.urls:
            urls = list(stored.urls)
        elif stored.local is not None:
            urls = [str(stored.local / f"{number}.tar") for number in range(forms.TARS)]
        kept = {} if stored.cache is None else {"cache_dir": str(stored.cache)}
        bad = {"handler": webdataset.warn_and_continue if stored.skip else webdataset.reraise_exception}
        dataset = webdataset.WebDataset(urls, shardshuffle=forms.TARS, **kept, **bad).shuffle(BUFFER)
        dataset = dataset.decode("pil", **bad).to_tuple("cls", "jpg", **bad)
        dataset = dataset.map_tuple(int, partial(pixels_of, size=stored.size), **bad).batched(stored.batch)
        loader = webdataset.WebLoader(dataset, **torch_options(stored) | {"batch_size": None})
        for numbers, images in loader:
            yield from zip(numbers.tolist(), images.float().mean((1, 2, 3)).tolist(), strict=True)
