"""gpupipe's Loader, with the JPEGs really decoded."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import gpupipe
from gpupipe.sources import open_source
from reliability.contenders.base import Setup, Stored, Stream
from reliability.contenders.stores import BATCH, TARS, settings_of, split_into_tars

__all__ = ["GpupipeStream"]


class GpupipeStream(Stream):
    """On the CPU: its torch engine, unless another is asked for."""

    name = "gpupipe"

    def __init__(self, setup: Setup, engine: Literal["torch", "dali"] = "torch") -> None:
        super().__init__(setup)
        self.loader = gpupipe.Loader(
            setup.dataset,
            gpupipe.imagenet_train(8),
            setup.batch_size,
            setup.shuffle,
            drop_last=setup.drop_last,
            seed=setup.seed,
            num_workers=setup.workers,
            rank=setup.rank,
            world_size=setup.world,
            engine=engine,
            device="cpu",
            **setup.worker_options,
        )

    def __iter__(self) -> Iterator[list[int]]:
        for _, labels in self.loader:
            yield labels.tolist()

    @property
    def padding(self) -> int:
        return self.loader.padding

    def set_epoch(self, epoch: int) -> None:
        self.loader.set_epoch(epoch)

    def state(self) -> Any:
        return self.loader.state_dict()

    def load(self, state: Any, epoch: int) -> None:
        self.loader.load_state_dict(state)
        self.loader.set_epoch(epoch)

    def close(self) -> None:
        self.loader.close()

    @classmethod
    def write(cls, folder: Path, samples: Mapping[int, bytes]) -> None:
        split_into_tars(folder, samples)

    @classmethod
    def read(cls, stored: Stored) -> Iterator[tuple[int, float]]:
        """With the disk cache that it has by default, in the folder; files of a disk are not kept again."""
        os.environ |= settings_of(stored) if stored.role else {}
        where = stored.local or (f"s3://{stored.bucket}" if stored.role else f"{stored.server}/{stored.bucket}")
        kept: Any = "auto" if stored.cache is None else gpupipe.Cache(stored.cache, size=stored.limit)
        shards = f"{where}/{{0..{TARS - 1}}}.tar{stored.query}"
        source = open_source(shards, **({} if stored.local else {"cache": kept}))
        recipe = gpupipe.imagenet_train(8, dtype="uint8")
        options = {"num_workers": stored.workers, "engine": "torch", "device": "cpu"}
        with gpupipe.Loader(source, recipe, BATCH, shuffle=True, **options) as loader:
            for images, labels in loader:
                yield from zip(labels.tolist(), images.float().mean((1, 2, 3)).tolist(), strict=True)
