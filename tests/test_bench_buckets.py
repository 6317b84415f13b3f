"""bench/buckets.py: what it counts as padding, against batches that are listed one by one, and a small run."""

from __future__ import annotations

import csv
import importlib
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from images import encode, picture

import gpupipe
from gpupipe.host.children import ChildError
from gpupipe.tools.benchmark.measurement import BenchSettings

BENCH = Path(__file__).parent.parent / "bench"
SIZES = np.array([(40, 60), (60, 40), (45, 45), (30, 90)] * 5) + np.arange(20)[:, None]


@pytest.fixture(autouse=True)
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("buckets")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("buckets")
    for index, (height, width) in enumerate(SIZES.tolist()):
        (root / f"{index % 2}").mkdir(exist_ok=True)
        (root / f"{index % 2}" / f"{index}.jpg").write_bytes(encode(picture(height, width, index)))
    return root


def test_padding_is_that_of_batches(script: ModuleType) -> None:
    order, real, whole = gpupipe.Buckets(np.arange(20) % 4, 3), 0, 0
    for epoch in range(script.EPOCHS):
        listed, starts = order.indices(0, epoch, np.arange(20)), order.starts(0, epoch)
        for begin, end in itertools.pairwise(starts):
            height, width = (-(-SIZES[listed[begin:end]].max(axis=0) // 32) * 32).tolist()
            whole += (end - begin) * height * width
            real += int(SIZES[listed[begin:end]].prod(axis=1).sum())
    found = script.padding("images", "buckets", order, 1, SIZES, 32)
    assert (found.padded, found.largest_batch) == (pytest.approx(1 - real / whole), 3)
    assert script.padding("images", "random", gpupipe.Shuffled(20), 1, SIZES).padded == 0


def test_buckets_pad_less_than_random_batches(script: ModuleType) -> None:
    lost = script.wasted(SIZES, BenchSettings("", batch_size=4, size=64))
    images = {one.batches: one.padded for one in lost if one.what == "resized images"}
    assert images["Buckets.by_size"] <= images["groups of aspect ratios"] < images["random"]
    sequences = {one.batches: one.padded for one in lost if one.what == "sequences"}
    assert sequences["Buckets.by_size"] < sequences["random"] < sequences["all of 256"]
    assert 0 < lost[-1].padded < 0.3


class Here:
    """A contender in this process."""

    def __init__(self, _: str, arguments: tuple[Any, ...], *__: object) -> None:
        name, settings = arguments
        self.fails = name == "gpupipe, random batches"
        self.host = importlib.import_module("bucket_ways").Host(name, settings)

    def ask(self, question: str, *arguments: Any, extra_time: float = 0) -> Any:
        if self.fails:
            raise ChildError("no reason")
        return getattr(self.host, question)(*arguments)

    def end(self) -> None:
        if hasattr(self.host.way.loader, "close"):
            self.host.way.loader.close()


def test_all_contenders(script: ModuleType, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "Child", Here)
    command = [str(data), "--out", str(tmp_path), "--rounds", "1", "--seconds", "0.01", "--workers", "1"]
    assert script.main([*command, "--size", "32", "--batch-size", "4"]) == 1  # one that fails
    with open(tmp_path / "buckets.csv") as file:
        rows = {row["contender"]: row for row in csv.DictReader(file)}
    assert rows.pop("gpupipe, random batches")["reason"] == "no reason"
    assert len(rows) == 6
    assert all(float(row["img_per_s"]) > 0 and not row["reason"] for row in rows.values())
    pixels = {name: float(row["pixels_per_img"]) for name, row in rows.items()}
    assert pixels["gpupipe, buckets by size"] < pixels["torchvision v2, random batches"]
    assert pixels["gpupipe, crops of buckets"] == pixels["torchvision v2, crops of buckets"]
    content = json.loads((tmp_path / "buckets.json").read_text())
    assert content["environment"]["settings"]["size"] == 32
    assert len(content["padding"]) == 7
    assert "| gpupipe, crops of buckets |" in (tmp_path / "results.md").read_text()
    assert script.main([*command, "--only", "none"]) == 1
