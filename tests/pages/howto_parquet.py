"""Parquet as `datasets` writes it and as pyarrow does, and what docs/howto/parquet.md promises of both."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from images import encode, picture

import gpupipe

NEEDS = ("datasets",)
KINDS = ("cat", "dog", "fox")


def setup(folder: Path, names: dict[str, Any]) -> None:
    import datasets

    files = [encode(picture(80 + number, 90, number)) for number in range(24)]
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=list(KINDS))})
    columns = {"image": [{"bytes": file, "path": None} for file in files], "label": [row % 3 for row in range(24)]}
    table = datasets.Dataset.from_dict(columns, features=features)
    (folder / "photos/data").mkdir(parents=True)
    for part in range(2):
        table.shard(2, part).to_parquet(folder / f"photos/data/train-{part:05}-of-00002.parquet")
    table.select(range(6)).to_parquet(folder / "photos/data/validation-00000-of-00001.parquet")
    texts = {"text": [f"picture {row}" for row in range(24)], "clip": [[row, 0.5] for row in range(24)]}
    pairs = pa.table({"photo": files, "kind": list(KINDS) * 8} | texts)
    pq.write_table(pairs, folder / "pairs.parquet", compression="zstd", row_group_size=4)


def check(folder: Path, names: dict[str, Any]) -> None:
    printed = names["printed"]
    assert re.search(r"epoch 0: \d+% of 6 are right\nepoch 1: ", printed)
    assert names["train"].source.classes == list(KINDS)
    assert "{'cat': 0, 'dog': 1, 'fox': 2}" in printed
    assert {name: len(values) for name, values in names["batch"].items()} == dict.fromkeys(names["fields"], 4)
    assert len(names["some"]) == 10
    _is_fast_or_not()
    texts = pq.read_table("pairs.parquet", columns=["text"])["text"].to_pylist()
    assert sorted(names["packed"].column("caption")) == sorted(texts)
    assert names["again"].features["label"].names == list(KINDS)
    _blocks(names["by_blocks"])
    with pytest.raises(gpupipe.ConfigError, match=r"more than one split.*train-.*validation-"):
        gpupipe.open_source("photos")


def _is_fast_or_not() -> None:
    """As the page's table has it."""
    compressions = {}
    for file in ("photos/data/train-00000-of-00002.parquet", "packed/data/train-00000-of-00003.parquet"):
        group = pq.ParquetFile(file).metadata.row_group(0)
        compressions[file] = {
            group.column(number).compression for number in range(2) if "bytes" in group.column(number).path_in_schema
        }
    assert set(map(frozenset, compressions.values())) == {frozenset({"UNCOMPRESSED"})}
    pq.write_table(pa.table({"image": [b"one"]}), "plain.parquet")
    assert pq.ParquetFile("plain.parquet").metadata.row_group(0).column(0).compression == "SNAPPY"


def _blocks(listed: list[int]) -> None:
    """All samples, two row groups of four at a time."""
    assert sorted(listed) == list(range(24))
    groups = [{row // 4 for row in listed[start : start + 8]} for start in range(0, 24, 8)]
    assert [len(some) for some in groups] == [2, 2, 2]
