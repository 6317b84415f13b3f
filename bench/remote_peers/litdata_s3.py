"""litdata: chunks of 64 MB, as its documentation has them, of the images' bytes; from S3, kept in its cache folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from litdata import StreamingDataLoader, StreamingDataset, optimize
from litdata.streaming import downloader
from peers.common import images

from gpupipe.tools.benchmark.measurement import BenchSettings
from remote_peers.common import S3, Passes, Place, Remote, endless

__all__ = ["LitData"]

REQUIREMENTS = ("litdata", "boto3", "obstore")
# Folders that `optimize` empties, wherever they are: by default they are in the folder for temporary files.
SCRATCH = {"DATA_OPTIMIZER_CACHE_FOLDER": "scratch-chunks", "DATA_OPTIMIZER_DATA_CACHE_FOLDER": "scratch-data"}


@dataclass(frozen=True)
class Stored:
    """What is stored of an image."""

    paths: list[str]
    labels: list[int]

    def __call__(self, index: int) -> dict[str, Any]:
        return {"image": Path(self.paths[index]).read_bytes(), "label": self.labels[index]}


class Worked(StreamingDataset):
    """A StreamingDataset of (image, label)."""

    def __init__(self, work: Callable[[bytes], torch.Tensor], *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.work = work

    def __getitem__(self, index: Any) -> Any:
        stored = super().__getitem__(index)
        return self.work(stored["image"]), stored["label"]


class LitData(Remote):
    """StreamingDataset(shuffle=True) in its own StreamingDataLoader."""

    kind = "litdata"

    def write(self, folder: str, target: Path) -> None:
        """By `optimize`."""
        os.environ.update({name: str(target / scratch) for name, scratch in SCRATCH.items()})
        paths, labels = images(folder)
        # Left to itself it makes "spawn" the way in which this process starts all others, for good.
        options = {"chunk_bytes": "64MB", "num_workers": 1, "verbose": False, "start_method": "fork"}
        optimize(Stored(paths, labels), list(range(len(paths))), str(target / "chunks"), **options)

    def passes(self, place: Place, work: Callable[[bytes], torch.Tensor], settings: BenchSettings) -> Passes:
        """Each pass downloads what the cache folder lacks."""
        keys = {"aws_access_key_id": S3["key"], "aws_secret_access_key": S3["secret"], "region_name": S3["region"]}
        downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # it would take https only
        kept = {"cache_dir": place.cache, "max_cache_size": "100GB"}
        options = self.options(settings)
        dataset = Worked(
            work,
            "s3://litdata/chunks",
            shuffle=True,
            drop_last=options["drop_last"],
            storage_options=keys | {"endpoint_url": place.url},
            **kept,
        )
        yield from endless(StreamingDataLoader(dataset, **options))
