"""A bucket of moto's with three shards, and what docs/howto/object_storage.md promises of it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from servers.buckets import Moto
from servers.processes import Absent
from tars import write_samples

import gpupipe


def setup(folder: Path, names: dict[str, Any]) -> Iterator[None]:
    try:
        storage = Moto(folder)
    except Absent as absent:
        pytest.skip(str(absent))
    with storage, mock.patch.dict(os.environ, storage.environment() | {"GPUPIPE_CACHE": str(folder / "kept")}):
        bucket = storage.bucket("photos")
        for shard in range(3):
            bucket.put(f"train-{shard:06}.tar", write_samples(folder / "one.tar", 8 * shard, 8).read_bytes())

        def replace(name: str) -> None:
            bucket.put(name, write_samples(folder / "other.tar", 50, 8).read_bytes())

        names["replace"] = replace
        yield


def check(folder: Path, names: dict[str, Any]) -> None:
    printed = names["printed"]
    assert (folder / "train.index").stat().st_size > 0
    assert "s3://photos/" in printed.partition("written to train.index")[2]  # where to copy it to
    assert "cost" in printed
    first, second = re.findall(r"epoch \d: (\d+) requests, (\d+)% of the bytes from the disk", printed)
    assert int(first[0]) > 0, printed
    assert second[0] == first[0]  # the second epoch asks for nothing
    with gpupipe.Loader(
        names["after"]["The training"]["source"], gpupipe.imagenet_train(64), 8, num_workers=1
    ) as again:
        list(again)
        assert again.stats()["storage_requests"] == 0
        assert again.stats()["cache_hit_share"] == 1
    assert printed.count("s for the storage, 0 bad samples") == 2
    assert list((folder / "cache/gpupipe-blocks").rglob("*"))
    assert re.search(r"sample \d+ .*s3://photos/train-000001\.tar", printed)
    with pytest.raises(gpupipe.DataError, match=r"train-000006\.tar"):
        gpupipe.open_source("s3://photos/train-{000006..000007}.tar")
    with pytest.raises(gpupipe.ConfigError):
        gpupipe.open_source("s3://photos/photos.zip")
