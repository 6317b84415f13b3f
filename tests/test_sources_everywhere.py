"""The same 24 images in every kind of data: the same batches, the same resume, the same name for a bad sample.

A kind is an entry in KINDS: a function that writes the samples into an empty folder and says what to pass to a Loader.
It gets them in the order of an image folder; that of the data has to be the same.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from images import encode, picture
from tars import write_tar

import gpupipe
from gpupipe.batch import Field
from gpupipe.sources import Source, check_source, open_source

BAD = 7
CUT = 200  # bytes of an image that can't be decoded: with its header, without its pixels


@dataclass(frozen=True)
class Sample:
    """name: unique, in the form class/file."""

    name: str
    data: bytes
    label: int


@dataclass(frozen=True)
class Made:
    """As `open_source` takes it."""

    data: Any
    fields: Mapping[str, Field] | None = None


@cache
def samples(bad: int | None = None) -> tuple[Sample, ...]:
    """Three classes of eight; the image of the sample `bad` is cut."""
    made = []
    for number in range(24):
        data = encode(picture(40 + number, 60 + number % 5, number), quality=90)
        label = number // 8
        made.append(Sample(f"class_{label}/{number:02}.jpg", data[:CUT] if number == bad else data, label))
    return tuple(made)


def write_files(place: Path, samples: tuple[Sample, ...]) -> Path:
    """The images as files."""
    for sample in samples:
        path = place / sample.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(sample.data)
    return place


def folder(place: Path, samples: tuple[Sample, ...]) -> Made:
    return Made(write_files(place, samples))


def shards(place: Path, samples: tuple[Sample, ...]) -> Made:
    members = [
        (f"{sample.name.removesuffix('.jpg')}.{extension}", data)
        for sample in samples
        for extension, data in (("jpg", sample.data), ("cls", str(sample.label).encode()))
    ]
    return Made([write_tar(place / "0.tar", members[:20]), write_tar(place / "1.tar", members[20:])])


def dataset(place: Path, samples: tuple[Sample, ...]) -> Made:
    return Made([(sample.data, sample.label) for sample in samples])


def parquet(place: Path, samples: tuple[Sample, ...], **options: Any) -> Made:
    """Two files, row groups of five."""
    structs = [{"bytes": sample.data, "path": sample.name} for sample in samples]
    for name, part in (("a", slice(0, 13)), ("b", slice(13, 24))):
        table = pa.table({"image": structs[part], "label": [sample.label for sample in samples[part]]})
        pq.write_table(table, place / f"{name}.parquet", row_group_size=5, **options)
    return Made(place)


def archive(place: Path, samples: tuple[Sample, ...]) -> Made:
    with zipfile.ZipFile(place / "images.zip", "w") as file:
        for number, sample in enumerate(samples[::-1]):
            method = zipfile.ZIP_DEFLATED if number % 2 else zipfile.ZIP_STORED
            file.writestr(f"images/{sample.name}", sample.data, method)
    return Made(place / "images.zip")


def database(place: Path, samples: tuple[Sample, ...]) -> Made:
    with lmdb.open(str(place / "lmdb"), map_size=1 << 24) as opened, opened.begin(write=True) as transaction:
        for sample in samples:
            transaction.put(sample.name.encode(), sample.data)
    return Made(place / "lmdb")


def numbered_database(place: Path, samples: tuple[Sample, ...]) -> Made:
    path = place / "images.lmdb"
    with lmdb.open(str(path), map_size=1 << 24, subdir=False) as opened, opened.begin(write=True) as transaction:
        transaction.put(b"num-samples", str(len(samples)).encode())
        for number, sample in enumerate(samples, start=1):
            transaction.put(b"image-%09d" % number, sample.data)
            transaction.put(b"label-%09d" % number, str(sample.label).encode())
    return Made(path)


def hugging_face(_: Path, samples: tuple[Sample, ...]) -> Made:
    """With a mapping of indices, over two chunks."""
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(image=datasets.Image(), label=datasets.ClassLabel(names=["a", "b", "c"]))
    rows = [{"image": {"bytes": sample.data, "path": None}, "label": sample.label} for sample in reversed(samples)]
    parts = [datasets.Dataset.from_list(rows[part], features=features) for part in (slice(0, 10), slice(10, 24))]
    return Made(datasets.concatenate_datasets(parts).select(range(23, -1, -1)))


def hugging_face_on_disk(place: Path, samples: tuple[Sample, ...]) -> Made:
    hugging_face(place, samples).data.save_to_disk(place / "saved", num_shards=2)
    return Made(place / "saved")


def rows(place: Path, samples: tuple[Sample, ...]) -> list[tuple[str, int]]:
    """Files, and of each its path and label."""
    write_files(place, samples)
    return [(sample.name, sample.label) for sample in samples]


def csv(place: Path, samples: tuple[Sample, ...]) -> Made:
    lines = [f"{name},{label}\n" for name, label in rows(place, samples)]
    (place / "data.csv").write_text("".join(["image,label\n", *lines]))
    return Made(place / "data.csv")


def json_lines(place: Path, samples: tuple[Sample, ...]) -> Made:
    """With names of classes."""
    lines = [{"image": name, "label": f"class {label}"} for name, label in rows(place / "images", samples)]
    (place / "data.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return Made(gpupipe.Manifest(place / "data.jsonl", root=place / "images"))


def parquet_of_paths(place: Path, samples: tuple[Sample, ...]) -> Made:
    paths, labels = zip(*rows(place, samples), strict=True)
    pq.write_table(pa.table({"path": paths, "label": labels}), place / "data.parquet")
    return Made(place / "data.parquet", {"image": gpupipe.Image("path"), "label": gpupipe.Scalar()})


def query(place: Path, samples: tuple[Sample, ...]) -> Made:
    """With the images in the database."""
    with closing(sqlite3.connect(place / "data.db")) as database:
        database.execute("CREATE TABLE images (id INTEGER PRIMARY KEY, image BLOB, label INTEGER)")
        database.executemany(
            "INSERT INTO images VALUES (?, ?, ?)",
            [(number, sample.data, sample.label) for number, sample in enumerate(samples)],
        )
        database.commit()
    text = "SELECT image, label FROM images ORDER BY id"
    return Made(gpupipe.Query(f"sqlite:///{place}/data.db", text))


def hdf5(place: Path, samples: tuple[Sample, ...]) -> Made:
    with h5py.File(place / "images.h5", "w") as file:
        images = file.create_dataset("images", len(samples), h5py.vlen_dtype(np.uint8))
        for row, sample in enumerate(samples):
            images[row] = np.frombuffer(sample.data, np.uint8)
        file["labels"] = [sample.label for sample in samples]
    return Made(place / "images.h5")


def numpy_arrays(place: Path, samples: tuple[Sample, ...]) -> Made:
    """The files as strings of one length, filled up with zeros."""
    np.save(place / "image.npy", np.array([sample.data for sample in samples]))
    np.save(place / "label.npy", [sample.label for sample in samples])
    return Made({"image": place / "image.npy", "label": place / "label.npy"})


def chosen(place: Path, samples: tuple[Sample, ...]) -> Made:
    """By index and by column, from more samples."""
    (place / "twice").mkdir()
    both = [*shards(place, samples[::-1]).data, *shards(place / "twice", samples).data]
    backwards = open_source(both).select(range(47, -1, -1))
    return Made(backwards.filter(lambda columns: columns["index"] >= 24))


def joined(place: Path, samples: tuple[Sample, ...]) -> Made:
    """Images of one file, labels of another."""
    keyed = [(sample.name.removesuffix(".jpg"), sample) for sample in samples]
    images = write_tar(place / "images.tar", [(f"{key}.jpg", sample.data) for key, sample in keyed])
    labels = write_tar(
        place / "labels.tar", [(f"{key}.txt", str(sample.label).encode()) for key, sample in keyed[::-1]]
    )
    left = open_source(images, fields={"image": gpupipe.Image()})
    return Made(left.join(open_source(labels, fields={"label": gpupipe.Scalar("txt")})))


KINDS: dict[str, Callable[[Path, tuple[Sample, ...]], Made]] = {
    "folder": folder,
    "shards": shards,
    "dataset": dataset,
    "hugging face": hugging_face,
    "hugging face, on disk": hugging_face_on_disk,
    "parquet": parquet,
    "parquet, zstd": partial(parquet, compression="zstd"),
    "csv": csv,
    "json lines": json_lines,
    "parquet of paths": parquet_of_paths,
    "query": query,
    "zip": archive,
    "lmdb": database,
    "lmdb-numbered": numbered_database,
    "hdf5": hdf5,
    "npy": numpy_arrays,
    "chosen": chosen,
    "joined": joined,
}

BY_URL: dict[str, Callable[[Path, tuple[Sample, ...]], Made]] = {
    "folder by URL": folder,
    "shards by URL": shards,
    "parquet by URL": partial(parquet, compression="none", use_dictionary=False),
    "csv by URL": csv,
}
"""Kinds whose files are put into a bucket, whose URL stands in the place of the folder."""

ENGINES = {"torch-0": ("torch", 0), "torch-2": ("torch", 2), "dali": ("dali", 1)}
every_kind = pytest.mark.parametrize("kind", [*KINDS, *BY_URL])


@pytest.fixture(scope="module")
def upload(request: pytest.FixtureRequest) -> Iterator[Callable[[Path], str]]:
    """Puts a folder into a bucket of its own; its URL."""
    with pytest.MonkeyPatch.context() as patch:

        def put(folder: Path) -> str:
            storage = request.getfixturevalue("moto")
            for name, value in storage.environment().items():
                patch.setenv(name, value)
            bucket = storage.bucket()
            bucket.put_folder(folder)
            return f"s3://{bucket.name}"

        yield put


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory, upload: Callable[[Path], str]) -> Callable[..., Source]:
    """The source of a kind, written once; with a bad sample, where it is asked for."""

    @cache
    def made(kind: str, bad: int | None = None) -> Made:
        place = tmp_path_factory.mktemp("everywhere")
        if kind in KINDS:
            return KINDS[kind](place, samples(bad))
        local, url = BY_URL[kind](place, samples(bad)), upload(place)
        data = local.data if isinstance(local.data, list) else [local.data]
        urls = [str(path).replace(str(place), url) for path in data]
        return Made(urls if isinstance(local.data, list) else urls[0], local.fields)

    def opened(kind: str, bad: int | None = None) -> Source:
        one = made(kind, bad)
        return open_source(one.data, fields=one.fields)

    return opened


def loader(source: Source, engine: str, **options: Any) -> gpupipe.Loader:
    name, workers = ENGINES[engine]
    usual = {"batch_size": 6, "seed": 3, "shuffle": True, "engine": name, "num_workers": workers, "device": "cpu"}
    return gpupipe.Loader(source, gpupipe.imagenet_train(32, dtype="uint8"), **usual | options)


def batches(loader: gpupipe.Loader) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    with loader:
        for images, labels in loader:
            yield images.clone(), labels.clone()


@pytest.fixture(scope="module")
def expected(make: Callable[..., Source]) -> Callable[[str], list[Any]]:
    """An epoch of the image folder, by engine."""
    return cache(lambda engine: list(batches(loader(make("folder"), engine))))


def assert_same(made: list[Any], expected: list[Any]) -> None:
    assert len(made) == len(expected)
    for (images, labels), (other_images, other_labels) in zip(made, expected, strict=True):
        assert torch.equal(labels, other_labels)
        assert torch.equal(images, other_images)


def test_the_folder_is_what_was_made(make: Callable[..., Source]) -> None:
    source = make("folder")
    assert [source[index][0].tobytes() for index in range(24)] == [sample.data for sample in samples()]
    assert [source[index][1] for index in range(24)] == [sample.label for sample in samples()]


@every_kind
def test_it_keeps_the_contract(make: Callable[..., Source], kind: str) -> None:
    source = make(kind)
    assert len(source) == 24
    check_source(source)
    assert make(kind).fingerprint == source.fingerprint
    assert all(source.key(index) in source.location(index) for index in range(24))


@every_kind
@pytest.mark.parametrize("engine", ENGINES)
def test_batches_are_those_of_the_folder(
    make: Callable[..., Source], expected: Callable[[str], list[Any]], kind: str, engine: str
) -> None:
    assert_same(list(batches(loader(make(kind), engine))), expected(engine))


@every_kind
def test_it_goes_on_at_any_step_on_two_ranks(
    make: Callable[..., Source], expected: Callable[[str], list[Any]], kind: str
) -> None:
    source = make(kind)
    for step in range(1, 4):
        with loader(source, "torch-0") as first:
            for _ in zip(range(step), first, strict=False):
                state = first.state_dict()
        ranks = []
        for rank in range(2):
            second = loader(make(kind), "torch-0", batch_size=3, rank=rank, world_size=2)
            second.load_state_dict(state)
            ranks.append(list(batches(second)))
        together = [tuple(map(torch.cat, zip(*parts, strict=True))) for parts in zip(*ranks, strict=True)]
        assert_same(together, expected("torch-0")[step:])


FETCH = """
import hashlib, pickle, sys
import numpy as np
source = pickle.loads(sys.stdin.buffer.read())
columns = source.fetch(np.arange(len(source)))
print(hashlib.sha256(b"".join(data.tobytes() for data in columns["image"].data)).hexdigest(), columns["label"].tolist())
"""


@every_kind
def test_it_is_sent_to_a_process_that_is_not_forked(make: Callable[..., Source], kind: str) -> None:
    source = make(kind)
    source.fetch(np.arange(3))  # by now files may be open, which can't be sent
    sent = bytes(ForkingPickler.dumps(source))
    found = subprocess.run([sys.executable, "-c", FETCH], input=sent, capture_output=True, check=True)
    images = hashlib.sha256(b"".join(sample.data for sample in samples())).hexdigest()
    assert found.stdout.decode().strip() == f"{images} {[sample.label for sample in samples()]}"


@every_kind
def test_a_bad_sample_is_named(make: Callable[..., Source], kind: str) -> None:
    source = make(kind, BAD)
    with pytest.raises(gpupipe.SampleError) as raised:
        list(batches(loader(source, "torch-0", shuffle=False)))
    assert raised.value.index == BAD
    assert raised.value.location == source.location(BAD)
    skipping = loader(source, "torch-0", shuffle=False, on_error="skip")
    kept = list(batches(skipping))
    assert [error.index for error in skipping.bad_samples] == [BAD]
    assert sum(len(labels) for _, labels in kept) == 24
