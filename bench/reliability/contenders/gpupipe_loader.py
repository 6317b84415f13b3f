"""gpupipe's Loader, with the JPEGs really decoded."""

from __future__ import annotations

import importlib
import io
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

import gpupipe
from gpupipe.host.muted import muted
from gpupipe.sources import open_source
from reliability import forms
from reliability.contenders.base import Setup, Stored, Stream
from reliability.contenders.stores import TIMEOUT, apart, settings_of
from reliability.data import JPEG
from reliability.traces import threads

__all__ = ["GpupipeDaliStream", "GpupipeStream"]

ALLOCATOR = "jemalloc_bg_thd"  # a thread of pyarrow's, which names itself when it first runs
NAMED = 10.0  # seconds: on a busy machine it was counted by another name before the case, and as a new one after it


class GpupipeStream(Stream):
    """On the CPU: its torch engine."""

    name = "gpupipe"
    library = "pyarrow"
    engine: ClassVar[Any] = "torch"
    kinds = tuple(forms.NAMES)

    @classmethod
    def prepare(cls) -> None:
        """For the life of the process stay pyarrow's threads and pipe for CSV, and the sink of what decoders print."""
        csv = importlib.import_module("pyarrow.csv")
        csv.read_csv(io.BytesIO(b"a\n1\n"))
        deadline = time.monotonic() + NAMED
        has_thread = "jemalloc" in importlib.import_module("pyarrow").supported_memory_backends()
        while has_thread and ALLOCATOR not in threads() and time.monotonic() < deadline:
            time.sleep(0.01)
        with muted():
            pass

    def __init__(self, setup: Setup) -> None:
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
            engine=self.engine,
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
    def write(cls, folder: Path, samples: Mapping[int, bytes], kind: str = "", beside: Any = None) -> None:
        forms.write(cls.kind_of(kind), folder, samples, beside)

    @classmethod
    def read(cls, stored: Stored) -> Iterator[tuple[int, float]]:
        for labels, images in cls.batches(stored):
            yield from zip(labels.tolist(), images.float().mean((1, 2, 3)).tolist(), strict=True)

    @classmethod
    def batches(cls, stored: Stored) -> Iterator[tuple[Tensor, Tensor]]:
        """Of numbers and images."""
        recipe = gpupipe.Recipe((gpupipe.ResizeCenterCrop(stored.size, stored.size),), dtype="uint8")
        options = {"num_workers": stored.workers, "on_error": "skip" if stored.skip else "raise", "timeout": TIMEOUT}
        options |= {**stored.options, "engine": cls.engine, "device": "cpu"}
        with gpupipe.Loader(cls.source(stored), recipe, stored.batch, shuffle=True, **options) as loader:
            for images, labels in loader:
                yield labels, images

    @classmethod
    def source(cls, stored: Stored) -> Any:
        """With the disk cache that it has by default, in the folder; files of a disk are not kept again."""
        kind = cls.kind_of(stored.kind)
        if stored.urls:
            return list(stored.urls)
        if stored.local is not None:
            return forms.Photos(stored.local) if kind == "dataset" else str(stored.local / forms.NAMES[kind])
        os.environ |= settings_of(stored) if stored.role else {}
        where = f"s3://{stored.bucket}" if stored.role else f"{stored.server}/{stored.bucket}"
        kept: Any = "auto" if stored.cache is None else gpupipe.Cache(stored.cache, size=stored.limit)
        return open_source(f"{where}/{forms.NAMES[kind]}{stored.query}", cache=kept)


class GpupipeDaliStream(GpupipeStream):
    """Its DALI engine."""

    name = "gpupipe-dali"
    engine = "dali"

    @classmethod
    def prepare(cls) -> None:
        """DALI keeps threads and files for the life of the process."""
        super().prepare()
        with gpupipe.Loader([(JPEG, 0)], gpupipe.imagenet_train(8), 1, engine="dali", num_workers=0) as loader:
            list(loader)

    @classmethod
    def read(cls, stored: Stored) -> Iterator[tuple[int, float]]:
        """Its training process reads, and a storage's client stays for the life of its process."""
        if stored.local is not None or stored.urls:
            yield from super().read(stored)
        for numbers, levels in apart(cls.batches, stored) if stored.server else ():
            yield from zip(numbers, levels, strict=True)
