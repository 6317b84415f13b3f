"""MosaicML's StreamingDataset: MDS shards of 64 MB, its own size, of the images' bytes; from S3, kept in a folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from peers.common import images
from streaming import MDSWriter, StreamingDataset
from torch.utils.data import DataLoader

from gpupipe.tools.benchmark.measurement import BenchSettings
from remote_peers.common import S3, Passes, Place, Remote, endless

__all__ = ["Streaming"]

REQUIREMENTS = ("mosaicml-streaming", "numpy<2.2")  # they do not go together with numpy 2.2 and later


class Worked(StreamingDataset):
    """A StreamingDataset of (image, label)."""

    def __init__(self, work: Callable[[bytes], torch.Tensor], **options: Any) -> None:
        super().__init__(**options)
        self.work = work

    def __getitem__(self, index: Any) -> Any:
        stored = super().__getitem__(index)
        return self.work(stored["image"]), stored["label"]


class Streaming(Remote):
    """StreamingDataset(shuffle=True) behind a DataLoader."""

    kind = "mds"

    def write(self, folder: str, target: Path) -> None:
        """By its writer."""
        with MDSWriter(out=str(target / "shards"), columns={"image": "bytes", "label": "int"}) as writer:
            for path, label in zip(*images(folder), strict=True):
                writer.write({"image": Path(path).read_bytes(), "label": label})

    def passes(self, place: Place, work: Callable[[bytes], torch.Tensor], settings: BenchSettings) -> Passes:
        """Each pass downloads what its folder lacks."""
        os.environ["S3_ENDPOINT_URL"] = place.url
        os.environ.update(AWS_ACCESS_KEY_ID=S3["key"], AWS_SECRET_ACCESS_KEY=S3["secret"])
        os.environ["AWS_DEFAULT_REGION"] = S3["region"]
        where = {"remote": "s3://mds/shards", "local": f"{place.cache}/mds"}
        dataset = Worked(work, **where, shuffle=True, batch_size=settings.batch_size)
        for stream in dataset.streams:
            stream._downloader.clean_up()  # forked workers would share its connection, and read each other's answers
        yield from endless(DataLoader(dataset, **self.options(settings)))
