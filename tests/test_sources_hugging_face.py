"""Hugging Face's datasets as sources, compared to what the datasets themselves give."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from images import encode, picture
from PIL import Image as Pillow

from gpupipe import Array, Bytes, ConfigError, DataError, Image, Mask, SampleError, Scalar, Text
from gpupipe.batch import MISSING
from gpupipe.sources import DatasetSource, check_source, open_source

datasets = pytest.importorskip("datasets")
pytestmark = pytest.mark.trainers("datasets")

NOISE = [np.random.default_rng(number).bytes(5000) for number in range(6)]
JPEGS = [encode(picture(30 + number, 40, number)) for number in range(6)]
FEATURES = {
    "image": datasets.Image(),
    "label": datasets.ClassLabel(names=["ant", "bee"]),
    "name": datasets.Value("string"),
    "embedding": datasets.List(datasets.Value("float32")),
    "matrix": datasets.Array2D((2, 3), "float32"),
    "meta": {"score": datasets.Value("float64")},
}


def rows(**changes: Any) -> Any:
    """Six of all kinds; changed columns, or None for those left out."""
    columns: dict[str, Any] = {
        "image": [{"bytes": data, "path": f"{number}.jpg"} for number, data in enumerate(JPEGS)],
        "label": [0, 1, 1, 0, 1, 0],
        "name": [f"name {number}" for number in range(6)],
        "embedding": np.arange(12, dtype=np.float32).reshape(6, 2).tolist(),
        "matrix": np.arange(36, dtype=np.float32).reshape(6, 2, 3).tolist(),
        "meta": [{"score": number / 2} for number in range(6)],
    }
    columns |= changes
    return datasets.Dataset.from_dict(columns, features=datasets.Features(FEATURES))


def test_image_and_label() -> None:
    source = open_source(rows())
    assert type(source).__name__ == "HuggingFaceSource"
    check_source(source)
    assert [source[index][0].tobytes() for index in range(6)] == JPEGS
    assert source.targets.tolist() == [0, 1, 1, 0, 1, 0]
    assert (source.classes, source.class_to_idx) == (["ant", "bee"], {"ant": 0, "bee": 1})
    with pytest.raises(IndexError):
        source.fetch(np.array([6]))


def test_names_as_text_are_numbered_alike_once_they_are_cast(caplog: pytest.LogCaptureFixture) -> None:
    """As the page on data says: by themselves they are numbered as they are sorted, which the log tells."""
    train = rows().remove_columns("label").add_column("label", ["dog", "cat", "elk", "dog", "cat", "elk"])
    val = train.select([0, 2])
    with caplog.at_level("INFO", "gpupipe"):
        assert open_source(val).class_to_idx == {"dog": 0, "elk": 1}
    assert "2 samples): 2 classes of 'label': 'dog' is 0, 'elk' is 1" in caplog.text
    cast = val.cast_column("label", datasets.ClassLabel(names=open_source(train).classes))
    for source in (open_source(cast), open_source(cast.with_format("numpy"))):
        assert source.fetch(np.arange(2))["label"].tolist() == [1, 2]
    assert open_source(cast).class_to_idx == {"cat": 0, "dog": 1, "elk": 2}


def test_fields_of_all_kinds() -> None:
    fields = {
        "image": Image(),
        "text": Text("name"),
        "embedding": Array(),
        "matrix": Array(),
        "score": Scalar("meta.score"),
        "kind": Scalar("name"),
        "file": Bytes("image"),
        "path": Text("image.path"),
    }
    data = rows()
    source = open_source(data, fields=fields)
    check_source(source)
    for index, row in enumerate(data):
        found = source[index]
        assert (found["text"], found["score"], found["kind"]) == (row["name"], row["meta"]["score"], index)
        assert found["path"] == f"{index}.jpg"
        assert found["embedding"].tolist() == row["embedding"]
        assert np.asarray(found["matrix"]).tolist() == row["matrix"]
        assert (found["image"].tobytes(), found["file"]) == (JPEGS[index], JPEGS[index])
    assert source.column("score").tolist() == [0, 0.5, 1, 1.5, 2, 2.5]
    with pytest.raises(DataError, match="known only by reading"):
        source.column("image")


def test_a_mapping_of_indices_over_chunks() -> None:
    """Shuffled, selected and put together of several tables, as the dataset itself has it."""
    data = datasets.concatenate_datasets([rows(), rows(label=[1] * 6)]).shuffle(seed=3).select(range(2, 11))
    source = open_source(data)
    assert source.targets.tolist() == data["label"][:]
    expected = data.cast_column("image", datasets.Image(decode=False))
    assert [source[i][0].tobytes() for i in range(9)] == [row["image"]["bytes"] for row in expected]
    copy = pickle.loads(pickle.dumps(source))
    assert (copy.fingerprint, len(copy)) == (source.fingerprint, 9)
    assert source.fingerprint != open_source(data.select(range(8))).fingerprint
    assert source.fingerprint != open_source(data.select(range(8, -1, -1))).fingerprint


@pytest.mark.parametrize("shuffled", [False, True])
def test_columns_of_any_size(shuffled: bool) -> None:
    """The column of all rows is one array, so its offsets have 64 bits: of 32 bits it would hold 2 GiB."""
    data = datasets.concatenate_datasets([rows(), rows()])
    names = [[f"{row}", "x" * row] for row in range(12)]
    data = data.add_column("lists", names).add_column("vectors", [[row, 1] for row in range(12)])
    data = data.cast_column("vectors", datasets.List(datasets.Value("int8"), 2))
    data = data.shuffle(seed=1) if shuffled else data
    fields = {"text": Text("name"), "lists": Text(choose=True), "embedding": Array(), "vectors": Array()}
    source = open_source(data, fields={"image": Image(), **fields, "label": Scalar()})
    kinds = {
        "text": pa.large_string(),
        "lists": pa.large_list(pa.large_string()),
        "embedding": pa.large_list(pa.float32()),
        "vectors": pa.list_(pa.int8(), 2),
        "label": pa.int64(),
    }
    for name, kind in kinds.items():
        column = source._whole(name)
        assert column.type == kind
        assert column.to_pylist() == data["name" if name == "text" else name][:]
        mapped = {
            buffer.address for batch in source._batches for one in batch.columns for buffer in one.buffers() if buffer
        }
        assert not mapped & {buffer.address for buffer in column.buffers() if buffer}  # copied out of the files
    assert source.column("text") == data["name"][:]
    assert source.column("lists") == ["\n".join(lists) for lists in data["lists"]]
    assert [array.tolist() for array in source.column("vectors")] == data["vectors"][:]


def test_saved_to_disk(tmp_path: Path) -> None:
    data = rows()
    data.save_to_disk(tmp_path / "one")
    source = open_source(tmp_path / "one")
    assert [source[index][0].tobytes() for index in range(6)] == JPEGS
    assert source.fingerprint == open_source(data).fingerprint
    datasets.DatasetDict(train=data, test=data).save_to_disk(tmp_path / "both")
    with pytest.raises(ConfigError, match=rf"holds a DatasetDict.*pass the folder of one, '{tmp_path}/both/test'"):
        open_source(tmp_path / "both")
    with pytest.raises(ConfigError, match="a DatasetDict, of 'train', 'test': pass one of its parts"):
        open_source(datasets.DatasetDict(train=data, test=data))


def image_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.arrow"))


@pytest.mark.parametrize("shift", [0, 1], ids=["cut", "overwritten"])
@pytest.mark.parametrize("as_object", [False, True], ids=["folder", "object"])
def test_a_file_that_is_written_to_has_bad_samples(shift: int, as_object: bool, tmp_path: Path) -> None:
    """Those in it alone, though the dataset has it mapped, and the process goes on."""
    rows(image=[{"bytes": data, "path": None} for data in NOISE]).save_to_disk(tmp_path / "one", num_shards=2)
    source = open_source(datasets.load_from_disk(tmp_path / "one") if as_object else tmp_path / "one")
    before = source.fetch(np.arange(6))["image"].data
    alone = source.fetch(np.array([1]))["image"].data[0]
    path = image_files(tmp_path / "one")[0]
    content = path.read_bytes()
    with path.open("r+b") as file:  # the same file: what is mapped changes
        file.write(content[shift:] + content[:shift])
        if not shift:
            file.truncate(4096)
    assert ([data.tobytes() for data in before], alone.tobytes()) == (NOISE, NOISE[1])
    for indices, bad in (([1], 1), ([5, 2, 0, 3], 0)):
        with pytest.raises(SampleError, match=r"data-00000-of-00002\.arrow .*since it was opened") as raised:
            source.fetch(np.array(indices))
        assert raised.value.index == bad
    assert source.fetch(np.array([4]))["image"].data[0].tobytes() == NOISE[4]
    with pytest.raises(DataError, match=r"since it was opened.*make the loader again"):
        source.column("label")


def test_a_file_that_is_replaced_stays_as_it_was(tmp_path: Path) -> None:
    """By another one of its name: the dataset has the old one."""
    rows().save_to_disk(tmp_path / "one")
    rows(image=[{"bytes": data, "path": None} for data in JPEGS[::-1]]).save_to_disk(tmp_path / "two")
    source = open_source(tmp_path / "one")
    (old,), (new,) = image_files(tmp_path / "one"), image_files(tmp_path / "two")
    new.rename(old)
    assert [source[index][0].tobytes() for index in range(6)] == JPEGS
    with pytest.raises(DataError, match="changed while a loader used them"):
        pickle.loads(pickle.dumps(source))


@pytest.mark.parametrize("as_parquet", [False, True], ids=["dataset", "parquet"])
def test_images_are_upright_as_the_dataset_has_them(as_parquet: bool, tmp_path: Path) -> None:
    def opened(data: Any) -> Any:
        if as_parquet:
            data.to_parquet(tmp_path / "data.parquet")
        return open_source(tmp_path / "data.parquet" if as_parquet else data)

    exif = Pillow.Exif()
    exif[0x0112] = 6
    turned = encode(picture(20, 50, 1), exif=exif)
    data = rows(image=[{"bytes": turned, "path": None}, *({"bytes": one, "path": None} for one in JPEGS[1:])])
    images = opened(data).fetch(np.arange(6))["image"]
    assert np.array_equal(images.data[0], np.asarray(data[0]["image"].convert("RGB")))
    assert images.sizes.tolist() == [[50, 20, 1], *([30 + number, 40, 1] for number in range(1, 6))]
    assert images.data[1].tobytes() == JPEGS[1]
    stored = opened(data.cast_column("image", datasets.Image(decode=False)))
    assert stored[0][0].tobytes() == turned


def test_images_of_a_mode_of_their_own_in_parquet(tmp_path: Path) -> None:
    """As the dataset itself converts them."""
    data = rows().cast_column("image", datasets.Image(mode="L"))
    data.to_parquet(tmp_path / "data.parquet")
    found = open_source(tmp_path / "data.parquet").fetch(np.array([1, 4]))["image"]
    for row, index in enumerate((1, 4)):
        gray = np.asarray(data[index]["image"])
        assert gray.ndim == 2
        assert np.array_equal(found.data[row], np.dstack([gray] * 3))
    data.cast_column("image", datasets.Image(mode="no mode")).to_parquet(tmp_path / "data.parquet")
    with pytest.raises(DataError, match="has the mode 'no mode'"):
        open_source(tmp_path / "data.parquet")


def test_files_at_paths(tmp_path: Path) -> None:
    for number, data in enumerate(JPEGS):
        (tmp_path / f"{number}.jpg").write_bytes(data)
    source = open_source(rows(image=[str(tmp_path / f"{number}.jpg") for number in range(6)]))
    assert source[4][0].tobytes() == JPEGS[4]
    (tmp_path / "2.jpg").unlink()
    with pytest.raises(SampleError, match=r"Dataset\[2\].*2\.jpg can't be read: No such file") as raised:
        source.fetch(np.arange(6))
    assert raised.value.index == 2


def test_files_beside_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the dataset opens them."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "a.jpg").write_bytes(JPEGS[0])
    data = rows(image=["../a.jpg"] * 6)
    assert open_source(data)[3][0].tobytes() == JPEGS[0]
    assert data[3]["image"].size == (40, 30)


def test_cells_that_hold_nothing() -> None:
    images = pa.array([None, {"bytes": None, "path": None}, *({"bytes": one, "path": None} for one in JPEGS[2:])])
    source = open_source(datasets.Dataset(pa.table({"image": images, "label": [0, 1, None, 0, 1, 0]})))
    assert source.fetch(np.array([0]))["image"].data == [None]
    with pytest.raises(SampleError, match="has neither bytes nor path") as raised:
        source.fetch(np.array([2, 1]))
    assert raised.value.index == 1
    assert source.fetch(np.array([2]))["label"] == [MISSING]
    with pytest.raises(DataError, match="labels"):
        source.targets  # noqa: B018


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.with_format("torch"),
        lambda data: data.with_transform(lambda batch: batch),
        lambda data: data.cast_column("image", datasets.Image(mode="L")),
    ],
    ids=["format", "transform", "mode"],
)
def test_what_a_dataset_does_itself_it_is_asked_for(change: Any) -> None:
    source = open_source(change(rows()))
    assert type(source) is DatasetSource


def test_columns_of_other_names_are_listed() -> None:
    with pytest.raises(ConfigError, match=r"'label'.*has the columns image .*, kind \(int64\)"):
        open_source(rows().rename_column("label", "kind"))
    with pytest.raises(DataError, match="empty"):
        open_source(rows().select([]))


def test_masks(tmp_path: Path) -> None:
    mask = np.arange(12, dtype=np.uint8).reshape(3, 4)
    buffer = io.BytesIO()
    Pillow.fromarray(mask).save(buffer, "PNG")
    features = datasets.Features(image=datasets.Image(), mask=datasets.Image())
    one = {"image": {"bytes": JPEGS[0], "path": None}, "mask": {"bytes": buffer.getvalue(), "path": None}}
    source = open_source(
        datasets.Dataset.from_list([one], features=features), fields={"image": Image(), "mask": Mask()}
    )
    assert source[0]["mask"].tobytes() == buffer.getvalue()
