"""What docs/guide/storage.md takes for granted, a bucket of S3 with shards and a folder, and what it promises."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from images import write_folder
from servers.buckets import Moto
from servers.processes import Absent
from tars import write_samples


def setup(folder: Path, names: dict[str, Any]) -> Iterator[None]:
    try:
        storage = Moto(folder)
    except Absent as absent:
        pytest.skip(str(absent))
    with storage, pytest.MonkeyPatch.context() as patch:
        for name, value in storage.environment().items():
            patch.setenv(name, value)
        bucket = storage.bucket("bucket")
        bucket.put_folder(write_folder(folder / "made"), "photos/train/")
        for number in range(4):
            shard = write_samples(folder / "made" / "shard.tar", first=4 * number)
            bucket.put(f"imagenet/train-{number:06d}.tar", shard.read_bytes())
        yield


def check(folder: Path, names: dict[str, Any]) -> None:
    assert len(names["train"]) == 16
    after = names["after"]
    with after["Data in object storage"]["loader"] as loader:
        assert np.concatenate([labels for _, labels in loader]).size == 16
    with after["Cache"]["loader"] as loader:
        assert np.concatenate([labels for _, labels in loader]).size == len(after["Cache"]["source"]) == 12
    (first,) = [labels.tolist() for _, labels in names["loader"]]
    assert len(first) == 2
