"""What docs/guide/data.md takes for granted, and what it promises."""

from __future__ import annotations

import sqlite3
import zipfile
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from images import encode, picture, write_folder
from tars import jpeg, write_samples

import gpupipe

N = 5
PIXELS = np.stack([picture(20, 30, number) for number in range(N)])
FILES = [jpeg(number) for number in range(N)]
LABELS = np.array([3, 1, 4, 1, 5], np.uint8)
FILE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def setup(folder: Path, names: dict[str, Any]) -> None:
    photos(folder)
    tables(folder)
    parquet(folder)
    stores(folder)
    write_samples(folder / "drawings.tar", count=8)


def photos(folder: Path) -> None:
    """An image folder, and images beside its classes' folders."""
    write_folder(folder / "photos")
    for number in range(8):
        (folder / "photos" / f"{number}.jpg").write_bytes(encode(picture(70, 80, number)))


def tables(folder: Path) -> None:
    (folder / "lists").mkdir()
    rows = [(number, f"{number}.jpg", number % 2) for number in range(8)]
    for table, root in (("train.csv", "photos/"), ("lists/val.csv", "")):
        lines = [f"{root}{path},{('cat', 'dog')[label]},{number}" for number, path, label in rows]
        (folder / table).write_text("\n".join(["path,class,score", *lines]))
    with sqlite3.connect(folder / "photos.db") as database:
        database.execute("CREATE TABLE photos (id INTEGER, path TEXT, label INTEGER)")
        database.executemany("INSERT INTO photos VALUES (?, ?, ?)", rows)


def parquet(folder: Path) -> None:
    for name in ("imagenet-1k/data", "pairs"):
        (folder / name).mkdir(parents=True)
    for number in range(2):
        images = pa.array([{"bytes": data, "path": None} for data in FILES[:4]], FILE)
        path = folder / f"imagenet-1k/data/train-{number}.parquet"
        pq.write_table(pa.table({"image": images, "label": range(4)}), path)
    pair = pa.array([{"bytes": FILES[0], "path": None}, {"bytes": None, "path": "3.jpg"}], FILE)
    table = pa.table({"photo": pair, "text": ["one", "two"], "clip": [[1.5], [2.5]]})
    pq.write_table(table, folder / "pairs/a.parquet")
    keys = [str(path.relative_to(folder / "photos")) for path in (folder / "photos").rglob("*/*.jpg")]
    pq.write_table(pa.table({"file": keys, "embedding": [[1.5, 2.0]] * len(keys)}), folder / "embeddings.parquet")


def stores(folder: Path) -> None:
    with zipfile.ZipFile(folder / "photos.zip", "w") as archive:
        for number, data in enumerate(FILES):
            archive.writestr(f"photos/class_{number % 2}/{number}.jpg", data)
    with (
        lmdb.open(str(folder / "words.lmdb"), map_size=1 << 20) as opened,
        opened.begin(write=True) as transaction,
    ):
        transaction.put(b"num-samples", b"2")
        for number in (1, 2):
            transaction.put(b"image-%09d" % number, FILES[number])
            transaction.put(b"label-%09d" % number, b"word")
    with h5py.File(folder / "scans.h5", "w") as file:
        file["train/images"], file["train/labels"] = PIXELS, LABELS
        file["train/boxes"] = np.zeros((N, 2, 4))
    np.save(folder / "images.npy", PIXELS)
    np.save(folder / "labels.npy", LABELS)


def check(folder: Path, names: dict[str, Any]) -> None:
    after = names["after"]
    check_tables(after["Tables that list samples"], after["Databases"])
    check_parquet(after["Parquet"], folder)
    check_stores(after["Stores"])
    with after["Streams"]["train"] as loader:
        assert sorted(labels_of(loader)) == list(range(8))
    for section in ("Lookups", "Mixtures"):
        with after[section]["train"] as loader:
            assert len(list(loader)) == len(loader) > 0
    assert "[1.5 2. ] 0 {'class_0': 2, 'class_1': 2, 'class_2': 0}" in names["printed"]
    assert "'epochs/photos': 2.33" in names["printed"]
    packed = after["Packing"]
    assert len(labels_of(packed["train"])) == len(packed["packed"].source) == 12
    assert (folder / "packed" / "data" / "train-00000-of-00001.parquet").exists()


def check_tables(tables: dict[str, Any], databases: dict[str, Any]) -> None:
    gpupipe.check_source(tables["train"])
    gpupipe.check_source(databases["train"])
    assert tables["val"].class_to_idx == {"cat": 0, "dog": 1}
    with tables["loader"] as loader:
        assert len(list(loader)) == 1


def check_parquet(names: dict[str, Any], folder: Path) -> None:
    with names["loader"] as loader:
        assert sorted(labels_of(loader)) == sorted([*range(4)] * 2)
    sample = names["pairs"][1]
    assert sample["image"].tobytes() == (folder / "photos" / "3.jpg").read_bytes()
    assert (sample["caption"], sample["embedding"].tolist()) == ("two", [2.5])


def check_stores(names: dict[str, Any]) -> None:
    assert [len(names[name]) for name in ("photos", "words", "scans", "arrays")] == [N, 2, N, N]
    with names["train"] as loader:
        images, labels = next(iter(loader))
    assert images.shape == (4, 3, 64, 64)
    assert set(labels.tolist()) <= set(LABELS.tolist())


def labels_of(loader: gpupipe.Loader) -> list[int]:
    return torch.cat([labels for _, labels in loader]).tolist()
