"""A Dataset of a user's own that reads each image by fsspec, from S3 by s3fs, kept as whole files ("simplecache")."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import fsspec
import torch
from peers.common import images
from torch.utils.data import DataLoader, Dataset

from gpupipe.tools.benchmark.measurement import BenchSettings
from remote_peers.common import S3, Passes, Place, Remote, endless

__all__ = ["Fsspec"]

REQUIREMENTS = ("s3fs",)


class Files(Dataset[Any]):
    """The file system is made in the worker: its event loop does not outlive a fork."""

    def __init__(self, place: Place, work: Callable[[bytes], torch.Tensor]) -> None:
        paths, self.labels = images(place.folder)
        self.keys = [f"files/{os.path.relpath(path, place.folder)}" for path in paths]
        self.place, self.work = place, work
        self.files: Any = None

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, index: int) -> Any:
        if self.files is None:
            client = {"region_name": S3["region"]}
            target = {"key": S3["key"], "secret": S3["secret"], "endpoint_url": self.place.url, "client_kwargs": client}
            options = {"target_protocol": "s3", "target_options": target, "cache_storage": self.place.cache}
            self.files = fsspec.filesystem("simplecache", **options)
        with self.files.open(self.keys[index], "rb") as file:
            return self.work(file.read()), self.labels[index]


class Fsspec(Remote):
    """As many images at a time as there are workers."""

    kind = "files"

    def prepare(self, folder: str) -> None:
        """The files are there."""

    def passes(self, place: Place, work: Callable[[bytes], torch.Tensor], settings: BenchSettings) -> Passes:
        """A plain DataLoader."""
        yield from endless(DataLoader(Files(place, work), shuffle=True, **self.options(settings)))
