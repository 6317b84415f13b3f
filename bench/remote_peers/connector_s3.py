"""AWS's s3torchconnector: its map-style dataset of objects. It keeps nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from peers.common import images
from s3torchconnector import S3ClientConfig, S3MapDataset
from torch.utils.data import DataLoader, Dataset

from gpupipe.tools.benchmark.measurement import BenchSettings
from remote_peers.common import S3, Passes, Place, Remote, endless

__all__ = ["Connector"]

REQUIREMENTS = ("s3torchconnector",)


class Labelled(Dataset[Any]):
    """With the labels of the folder's classes."""

    def __init__(self, objects: Any, labels: list[int]) -> None:
        self.objects, self.labels = objects, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Any:
        return self.objects[index], self.labels[index]


class Connector(Remote):
    """S3MapDataset, an object for each image."""

    kind = "files"
    keeps = False

    def prepare(self, folder: str) -> None:
        """The files are there."""

    def passes(self, place: Place, work: Callable[[bytes], torch.Tensor], settings: BenchSettings) -> Passes:
        """A plain DataLoader."""
        os.environ.update(AWS_ACCESS_KEY_ID=S3["key"], AWS_SECRET_ACCESS_KEY=S3["secret"])
        paths, labels = images(place.folder)
        objects = S3MapDataset.from_objects(
            [f"s3://files/{os.path.relpath(path, place.folder)}" for path in paths],
            region=S3["region"],
            endpoint=place.url,
            transform=partial(_worked, work),
            s3client_config=S3ClientConfig(force_path_style=True),
        )
        yield from endless(DataLoader(Labelled(objects, labels), shuffle=True, **self.options(settings)))


def _worked(work: Callable[[bytes], torch.Tensor], reader: Any) -> torch.Tensor:
    return work(reader.read())
