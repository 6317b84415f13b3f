"""What is known of all samples without reading them, and sources made of others by it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engines import forked
from images import write_folder
from tars import jpeg, write_samples, write_tar
from torch.utils.data import Subset

import gpupipe
from gpupipe.batch import MISSING
from gpupipe.errors import DataError
from gpupipe.sources import DatasetSource, Source, open_source


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """12 images, of which none may be read."""
    return unread(open_source(write_folder(tmp_path / "data")), monkeypatch)


def unread(source: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    def read(index: int, number: int) -> Any:
        raise AssertionError(f"sample {index} was read")

    monkeypatch.setattr(source, "_file", read)
    return source


def test_columns_are_what_each_sample_has(folder: Any) -> None:
    names = sorted(str(path.relative_to(folder.location(0).rpartition("/class_0")[0])) for path in files(folder))
    assert folder.column("key") == names
    assert folder.column("label").tolist() == [int(name[6]) for name in names]  # class_0/...
    assert folder.column("index").tolist() == list(range(12))


def files(folder: Any) -> list[Path]:
    return [path for path in Path(folder.location(0)).parent.parent.rglob("*.jpg") if path.is_file()]


def test_columns_of_a_part_are_its_own(folder: Any) -> None:
    part = open_source(Subset(Subset(folder, [7, 3, 0]), [2, 1, 1]))
    assert part.column("key") == [folder.key(index) for index in (0, 3, 3)]
    assert part.column("label").tolist() == [0, 0, 0]
    assert part.column("index").tolist() == [0, 1, 2]


def test_fields_of_keys_and_indices_by_their_names(tmp_path: Path) -> None:
    fields = {"image": gpupipe.Image(), "name": gpupipe.Key(), "number": gpupipe.Index(), "label": gpupipe.Scalar()}
    shards = open_source(write_samples(tmp_path / "0.tar", 3, 4), fields=fields)
    for source in (shards, open_source(Subset(shards, [3, 1]))):
        columns = source.fetch(np.arange(len(source)))
        for name in ("name", "number", "label"):
            assert list(source.column(name)) == list(columns[name])


def test_what_is_not_known_says_so(folder: Any) -> None:
    dataset: Source = open_source([(jpeg(0), 3), (jpeg(1), 4)])
    assert dataset.column("key") == ["0", "1"]
    for source, name, message in (
        (folder, "image", "'image' of all samples of Fold.* is known only by reading them; .*'key' and 'index'"),
        (folder, "depth", "'depth' of all samples of FolderSource.* is none of its fields, image, label;"),
        (dataset, "label", "the labels of DatasetSource.* are known only by reading every sample"),
        (open_source(Subset(dataset, [1])), "label", "the labels of DatasetSource"),
    ):
        with pytest.raises(DataError, match=message):
            source.column(name)


def test_filter_chooses_by_columns_at_once(folder: Any) -> None:
    calls = []

    def some(columns: Any) -> Any:
        calls.append(list(columns))
        jpg = [key.endswith(("1.jpg", "3.jpg")) for key in columns["key"]]
        return (columns["label"] == 1) | jpg & (columns["index"] > 2)

    part = folder.filter(some)
    assert calls == [["image", "label", "key", "index"]]
    assert part.column("key") == [
        key for index, key in enumerate(folder.column("key")) if "class_1/" in key or (index > 2 and key[-5] in "13")
    ]
    texts = folder.filter(lambda columns: columns["key"] >= "class_2")
    assert texts.targets.tolist() == [2] * 4
    assert part.fingerprint == folder.select([3, 4, 5, 6, 7, 9, 11]).fingerprint != texts.fingerprint
    assert part.filter(lambda columns: columns["label"] == 0).column("key") == [folder.key(3)]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (lambda columns: columns["label"], r"int64 of shape \(12,\)"),
        (lambda columns: np.flatnonzero(columns["label"] == 0), r"int64 of shape \(4,\)"),
        (lambda columns: True, r"bool of shape \(\)"),
        (lambda columns: None, r"object of shape \(\)"),
        (lambda columns: columns["label"][1:] == 0, r"bool of shape \(11,\)"),
    ],
)
def test_a_predicate_that_gives_no_bool_for_each_sample_is_named(folder: Any, given: Any, named: str) -> None:
    with pytest.raises(gpupipe.ConfigError, match=rf"filter: .*<lambda> gave {named}.* an array of 12 bools"):
        folder.filter(given)


def test_filters_that_choose_nothing_or_need_pixels_say_so(folder: Any) -> None:
    with pytest.raises(DataError, match=r"<lambda> is true of none of the 12 samples of FolderSource"):
        folder.filter(lambda columns: columns["label"] > 5)
    with pytest.raises(DataError, match=r"'image' of all samples .* known only by reading"):
        folder.filter(lambda columns: columns["image"] == 0)


@pytest.mark.parametrize(
    ("options", "above", "unequal"), [({}, [2], [0, 1, 2]), ({"missing": "default", "default": 9}, [1, 2], [0, 1, 2])]
)
def test_what_samples_lack_is_in_no_range(tmp_path: Path, options: Any, above: list[int], unequal: list[int]) -> None:
    """As in pandas: of numbers it is NaN, of texts None."""
    (tmp_path / "data.csv").write_text("image,score,text\na.jpg,1,x\nb.jpg,,\nc.jpg,3,z\n")
    fields = {"image": gpupipe.Image(), "score": gpupipe.Scalar(**options), "text": gpupipe.Text(missing="skip")}
    source = open_source(tmp_path / "data.csv", fields=fields)
    assert source.filter(lambda columns: columns["score"] > 2).column("index").tolist() == list(range(len(above)))
    assert source.filter(lambda columns: columns["score"] > 2).column("key") == [source.key(index) for index in above]
    assert len(source.filter(lambda columns: columns["score"] != 2)) == len(unequal)
    assert source.filter(lambda columns: columns["text"] == "z").column("key") == [source.key(2)]
    assert source.filter(lambda columns: [text is None for text in columns["text"]]).column("key") == [source.key(1)]


def test_streams_are_refused_at_once(folder: Any) -> None:
    stream = open_source(gpupipe.Stream(lambda number: iter([])), fields={"score": gpupipe.Scalar()})
    for look in (
        lambda: stream.filter(lambda columns: [key == "1" for key in columns["key"]]),
        lambda: stream.sample("1"),
        lambda: folder.join(stream, on=("label", "index")),
        lambda: stream.join(folder),
    ):
        with pytest.raises(DataError, match=r"StreamSource\(.*\) gives its samples in their order alone"):
            look()


def test_select_is_a_subset_of_torchs(folder: Any) -> None:
    for indices in ([5, 0, -1], np.array([5, 0, 11]), range(4)):
        assert folder.select(indices).fingerprint == open_source(Subset(folder, list(indices))).fingerprint
    with pytest.raises(DataError, match="bool"):
        folder.select(np.zeros(12, bool))


def test_counts_of_classes(folder: Any, tmp_path: Path) -> None:
    assert folder.class_counts == {"class_0": 4, "class_1": 4, "class_2": 4}
    assert folder.select([1, 8, 2]).class_counts == {"class_0": 2, "class_1": 0, "class_2": 1}
    assert open_source(write_samples(tmp_path / "0.tar", 8, 5)).class_counts == {8: 1, 9: 1, 0: 1, 1: 1, 2: 1}
    with pytest.raises(DataError, match="the labels of DatasetSource"):
        _ = open_source([(jpeg(0), 3)]).class_counts


def test_one_sample_by_its_key(tmp_path: Path) -> None:
    source = open_source(write_samples(tmp_path / "0.tar", 3, 4))
    data, label = source.sample("s/0005")
    assert (data.tobytes(), label) == (jpeg(5, 45), 5)
    with pytest.raises(KeyError, match=r"ShardSource: no sample has the key '5'; keys are such as 's/0003'"):
        source.sample("5")


# Joins. The images are s/0000 ... s/0005, labels their numbers.

EMBEDDING = {"embedding": gpupipe.Array("npy"), "key": gpupipe.Key(), "number": gpupipe.Scalar("cls")}


def embeddings(path: Path, numbers: list[int], **fields: gpupipe.Field) -> Source:
    members = []
    for number in numbers:
        data = io.BytesIO()
        np.save(data, embedding(number))
        members += [(f"s/{number:04d}.npy", data.getvalue()), (f"s/{number:04d}.cls", str(number).encode())]
    return open_source(write_tar(path, members), fields=EMBEDDING | fields)


def embedding(number: int) -> Any:
    return np.arange(3, dtype=np.float32) + number


def images(tmp_path: Path) -> Source:
    return open_source(write_samples(tmp_path / "images.tar", 0, 6))


def test_embeddings_beside_images(tmp_path: Path) -> None:
    left = images(tmp_path)
    joined = left.join(embeddings(tmp_path / "0.tar", [9, 3, 5, 0, 4, 1, 2]))
    assert list(joined.fields) == ["image", "label", "embedding", "number"]
    gpupipe.check_source(joined)
    sample = joined[3]
    assert (sample["image"].tobytes(), sample["label"], sample["number"]) == (jpeg(3, 43), 3, 3)
    assert np.array_equal(sample["embedding"], embedding(3))
    assert joined.targets.tolist() == list(range(6))
    assert (joined.location(2), joined.key(2)) == (left.location(2), "s/0002")
    assert joined.shapes(np.arange(6)).tolist() == left.shapes(np.arange(6)).tolist()  # type: ignore[union-attr]
    for engine, workers in (("torch", 0), ("torch", 2), ("dali", 1)):
        options = {"engine": engine, "num_workers": workers, "device": "cpu", "shuffle": True}
        with gpupipe.Loader(joined, gpupipe.imagenet_eval(16, resize=16), 3, **options) as loader:
            for batch in loader:
                assert batch["number"].tolist() == batch["label"].tolist() == loader.last_indices.tolist()
                assert batch["embedding"].numpy().tolist() == [embedding(n).tolist() for n in batch["label"].tolist()]


def test_what_the_other_lacks_is_missing(tmp_path: Path) -> None:
    left, numbers = images(tmp_path), [4, 0, 1, 5]
    policies: dict[str, Any] = {
        "error": {},
        "skip": {"missing": "skip"},
        "default": {"default": [7.0], "missing": "default"},
    }
    got = {}
    for policy, options in policies.items():
        other = embeddings(
            tmp_path / f"{policy}.tar", numbers, embedding=gpupipe.Array("npy", collate="list", **options)
        )
        joined = left.join(other, fields=["embedding"])
        gpupipe.check_source(joined)
        with gpupipe.Loader(joined, gpupipe.imagenet_eval(16), 6, engine="torch", num_workers=0) as loader:
            if policy == "error":
                with pytest.raises(
                    gpupipe.SampleError, match=r"s/0002.*has no 'embedding' .*no 'key' of ShardSource.*is 's/0002'"
                ):
                    next(iter(loader))
                continue
            (batch,) = loader
            got[policy] = (batch["label"].tolist(), [len(row) for row in batch["embedding"]])
            assert [error.index for error in loader.bad_samples] == ([2, 3] if policy == "skip" else [])
    assert got["default"] == ([0, 1, 2, 3, 4, 5], [3, 3, 1, 1, 3, 3])
    assert [label in numbers for label in got["skip"][0]] == [True] * 6
    nothing = joined.fetch(np.array([2, 3]))["embedding"]
    assert [value is MISSING for value in nothing] == [True, True]


def test_columns_and_labels_of_the_other(tmp_path: Path) -> None:
    fields = {"image": gpupipe.Image(), "key": gpupipe.Key()}
    left = open_source(write_samples(tmp_path / "images.tar", 0, 6), fields=fields)
    right = open_source(write_samples(tmp_path / "labels.tar", 1, 9)).select([4, 0, 2, 1, 3, 5])
    joined = left.select(range(1, 6)).join(right, fields=["label"])
    assert joined.targets.tolist() == list(joined.column("label")) == [1, 2, 3, 4, 5]
    assert joined.column("key") == [f"s/{number:04d}" for number in range(1, 6)]
    whole = left.join(right, fields=["label"])
    assert whole.column("label") == [MISSING, 1, 2, 3, 4, 5]
    with pytest.raises(DataError, match=r"the labels of JoinedSource.*no 'key' of SubsetSource.* is 's/0000'"):
        _ = whole.targets
    assert len({whole.fingerprint, joined.fingerprint, left.fingerprint, right.fingerprint}) == 4


def test_images_of_the_other_that_are_missing_are_skipped(tmp_path: Path) -> None:
    other = {"depth": gpupipe.Image("jpg", missing="skip"), "name": gpupipe.Key()}
    right = open_source(write_samples(tmp_path / "depth.tar", 2, 9), fields=other)
    left = images(tmp_path)
    joined = left.join(right, on=("key", "name"))
    column = joined.fetch(np.arange(6))["depth"]
    assert [data is None for data in column.data] == [True, True, False, False, False, False]
    assert column.sizes.tolist() == [[0, 0, 1]] * 2 + [[40 + number, 60, 1] for number in range(2, 6)]
    with gpupipe.Loader(joined, gpupipe.imagenet_eval(16), 6, engine="torch", num_workers=0) as loader:
        (batch,) = loader
        assert set(batch["label"].tolist()) == {2, 3, 4, 5}


def test_a_bad_sample_of_the_other_has_the_index_here(tmp_path: Path) -> None:
    class Lost(list[Any]):
        def __getitem__(self, index: Any) -> Any:
            if index == 1:
                raise KeyError("no such blob")
            return {"more": super().__getitem__(index), "index": index}

    right = open_source(Lost([3.0, 4.0, 5.0]), fields={"more": gpupipe.Scalar(), "index": gpupipe.Index()})
    left = images(tmp_path).select([5, 4])
    numbered = open_source([(jpeg(0), 0), (jpeg(1), 1)]).select([1, 0])
    with pytest.raises(gpupipe.SampleError, match=r"sample 0 \(Lost\[1\]\): .*KeyError: 'no such blob'"):
        numbered.join(right).fetch(np.array([1, 0]))
    with pytest.raises(DataError, match=r"no value in common: 'key' there is such as 's/0005', 'key' here such as '0'"):
        left.join(right)


def test_draws_of_a_dataset_that_is_joined_follow_from_the_position(tmp_path: Path) -> None:
    class Noise:
        def __len__(self) -> int:
            return 6

        def __getitem__(self, index: int) -> Any:
            return {"noise": float(torch.rand(())), "name": f"s/{index:04d}"}

    class Named(DatasetSource):
        def key(self, index: int) -> str:
            return f"s/{index:04d}"

    joined = images(tmp_path).join(Named(Noise(), {"noise": gpupipe.Scalar()}))
    draws = []
    for batch_size, workers in ((2, 0), (3, 1)):
        options = {"engine": "torch", **forked(workers), "seed": 5}
        with gpupipe.Loader(joined, gpupipe.imagenet_eval(16), batch_size, **options) as loader:
            draws.append([value for batch in loader for value in batch["noise"].tolist()])
    assert draws[0] == draws[1]
    assert len(set(draws[0])) == 6


def test_joins_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    left, right = images(tmp_path), embeddings(tmp_path / "0.tar", [0, 1, 2])
    for options, kind, message in (
        ({"fields": ["embeding"]}, gpupipe.ConfigError, r"'embeding' is none of embedding, key, number"),
        ({"fields": []}, gpupipe.ConfigError, r"takes none of embedding, key, number"),
        ({"on": "label"}, DataError, r"'label' of all samples of .* none of its fields"),
        ({"on": "embedding"}, DataError, r"'embedding' of all samples"),
    ):
        with pytest.raises(kind, match=message):
            left.join(right, **options)  # type: ignore[arg-type]
    with pytest.raises(gpupipe.ConfigError, match=r"'image' is a field of .* another name"):
        left.join(left.select([0]))
    with pytest.raises(DataError, match=r"'key' is 's/0001' in .*s/0001.* and in .*s/0001.*which is meant"):
        left.join(right.select([0, 1, 2, 1]))
