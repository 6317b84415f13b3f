"""`gpupipe pack` from any source to any destination: every kind of field comes back as it was."""

from __future__ import annotations

import argparse
import io
import json
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import images
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from images import encode, picture, write_folder
from PIL import Image as PillowImage
from test_sources_everywhere import KINDS, samples

import gpupipe
from gpupipe import Array, Boxes, Bytes, Image, Index, Key, Mask, Points, Scalar, Text
from gpupipe.batch import MISSING, Field, Pad, Schema
from gpupipe.batch.stored import schema_from_json, schema_to_json
from gpupipe.errors import ConfigError, DataError, SampleError
from gpupipe.sources import Source, check_source, open_source
from gpupipe.sources.packed import MARKS
from gpupipe.tools import on_ray
from gpupipe.tools.cli import index as index_command
from gpupipe.tools.pack import PLAN_NAME, Packed, PackSettings, pack, pack_share
from gpupipe.tools.packing.layout import digest

FORMATS = ("shards", "parquet", "huggingface")
SIZE = 23
EVERYTHING: dict[str, Field] = {
    "image": Image(),
    "right": Image(geometry="image"),
    "mask": Mask(dtype="int16", ignore=-1),
    "boxes": Boxes(format="xywh", labels=("classes",), min_area=2.0),
    "classes": Array(),
    "points": Points(outside="keep"),
    "caption": Text(),
    "score": Scalar(),
    "half": Scalar(),
    "rare": Scalar(missing="default", default=0.5),
    "embedding": Array(collate=Pad(multiple=4, mask=True)),
    "grid": Array(),
    "raw": Bytes(missing="default"),
    "label": Scalar(),
    "key": Key(),
    "index": Index(),
}


class Everything:
    """A dataset with a field of each kind; some samples lack some."""

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, number: int) -> dict[str, Any]:
        rng = np.random.default_rng(number)
        count = number % 4
        pixels = picture(30 + number, 40, number)
        return {
            "image": encode(pixels, ("JPEG", "PNG", "WEBP")[number % 3]),
            "right": pixels[:, ::-1],
            "mask": rng.integers(0, 300, (30 + number, 40)).astype(np.int16),
            "boxes": rng.uniform(0, 9, (count, 4)).astype(np.float32),
            "classes": rng.integers(0, 200, count).astype(np.uint8),
            "points": rng.uniform(0, 9, (count, 2)),
            "caption": f"bird {number} – Zaunkönig",
            "score": float(rng.uniform()),
            "half": np.float16(number / 4),
            "rare": None if number == 3 else number / 4,
            "embedding": rng.uniform(size=number % 5).astype(np.float32),
            "grid": rng.integers(0, 9, (2, 3, 2), dtype=np.int64),
            "raw": None if number == 5 else bytes(range(number)),
            "label": number % 7,
        }


def decoded(data: np.ndarray) -> np.ndarray:
    if data.ndim != 1:
        return data
    with PillowImage.open(io.BytesIO(data.tobytes())) as image:
        return np.asarray(image)


def sample_of(source: Source, number: int) -> dict[str, Any]:
    columns = source.fetch(np.array([number]))
    return {name: columns[name].data[0] if name in source.fields.images else columns[name][0] for name in columns}


@pytest.fixture(params=FORMATS)
def packed(request: pytest.FixtureRequest, tmp_path: Path) -> Packed:
    return pack(
        open_source(Everything(), fields=EVERYTHING),
        tmp_path / "out",
        PackSettings(samples_per_shard=5, to=request.param),
        2,
    )


def test_every_kind_of_field_comes_back(packed: Packed, tmp_path: Path) -> None:
    source = open_source(tmp_path / "out")
    check_source(source)
    assert len(source) == SIZE
    assert packed.left_out == []
    seen = set()
    for number in range(SIZE):
        found = sample_of(source, number)
        assert found["index"] == number
        expected = Everything()[int(found["key"])]
        seen.add(int(found["key"]))
        assert found["image"].tobytes() == expected["image"]
        np.testing.assert_array_equal(decoded(found["right"]), expected["right"])
        np.testing.assert_array_equal(decoded(found["mask"]), expected["mask"])
        for name in ("boxes", "points", "classes", "embedding", "grid"):
            np.testing.assert_array_equal(np.asarray(found[name]).reshape(expected[name].shape), expected[name])
        for name in ("caption", "score", "label", "half", "rare", "raw"):
            assert found[name] == (MISSING if expected[name] is None else expected[name])
    assert seen == set(range(SIZE))


def test_loaders_make_the_same_batches(packed: Packed, tmp_path: Path) -> None:
    """Also what `fields` says of collation, dtypes and defaults."""
    numbers = [int(sample_of(packed.source, number)["key"]) for number in range(SIZE)]
    original = open_source(Everything(), fields=EVERYTHING).select(numbers)
    made = []
    for source in (original, open_source(tmp_path / "out")):
        with gpupipe.Loader(
            source,
            gpupipe.imagenet_eval(24, dtype="uint8"),
            6,
            shuffle=False,
            engine="torch",
            device="cpu",
            num_workers=0,
        ) as loader:
            made.append([dict(batch) for batch in loader])
    assert len(made[0]) == 4
    for one, other in zip(*made, strict=True):
        assert one.keys() == other.keys()
        for name, value in one.items():
            if isinstance(value, list):
                assert value == other[name]
            elif isinstance(value, gpupipe.Ragged):
                assert value.values.dtype == other[name].values.dtype
                assert value.values.tolist() == other[name].values.tolist()
                assert value.offsets.tolist() == other[name].offsets.tolist()
            else:
                assert value.dtype == other[name].dtype
                assert value.equal(other[name]), name


class TestSchemas:
    @pytest.mark.parametrize(
        "fields",
        [
            EVERYTHING,
            {
                "x": Array("json:a.b", missing="default", default=np.array([1, 2], np.int16)),
                "y": Bytes(default=b"\xff", missing="default"),
            },
            {
                "image": Image(folder="a", suffix=".png", missing="skip"),
                "n": Array(1, default=3, missing="default", dtype="uint8"),
            },
        ],
    )
    def test_as_json_and_back(self, fields: dict[str, Field]) -> None:
        document = json.loads(json.dumps(schema_to_json(Schema(fields))))
        back = schema_from_json(document)
        assert repr(back) == repr(Schema(fields))
        assert list(back) == list(fields)

    def test_a_function_is_refused(self, tmp_path: Path) -> None:
        fields = {"image": Image(), "label": Scalar(collate=len)}
        with pytest.raises(ConfigError, match=r"'label' is Scalar\(.*function len.*can't be stored .*; leave that out"):
            pack(open_source([(encode(picture(9, 9)), 1)], fields=fields), tmp_path / "out")

    @pytest.mark.parametrize(
        ("document", "reason"),
        [
            ([], "AttributeError"),
            ({}, "must be a dict"),
            ({"x": {"kind": "Source"}}, "KeyError: 'Source'"),
            ({"x": {}}, "KeyError: 'kind'"),
            ({"x": {"kind": "Scalar", "collate": {"run": "rm"}}}, "KeyError"),
            ({"x": {"kind": "Scalar", "usual": "list"}}, "unexpected keyword argument 'usual'"),
            ({"x": {"kind": "Scalar", "missing": "never"}}, "missing='never' must be one of"),
            ({"x": {"kind": "Scalar", "dtype": "object_of_mine"}}, "is none of NumPy's"),
        ],
    )
    def test_what_is_no_schema(self, document: Any, reason: str) -> None:
        with pytest.raises(ConfigError, match=f"the stored fields can't be used .*{reason}"):
            schema_from_json(document)

    def test_of_another_hand_beside_shards(self, packed: Packed, tmp_path: Path) -> None:
        path = tmp_path / "out" / PLAN_NAME
        plan = json.loads(path.read_text())
        path.write_text(json.dumps(plan | {"fields": {"image": {"kind": "os.system"}}}))
        with pytest.raises(DataError, match=r"\.gpupipe-pack\.json can't be read .*os\.system"):
            open_source(tmp_path / "out")


def of(*samples: Any, fields: dict[str, Field]) -> Source:
    """Samples with an image each, too."""
    given = [{"image": encode(picture(9, 9)), **sample} for sample in samples]
    return open_source(given, fields={"image": Image(), **fields})


class TestBadSamples:
    def test_what_lacks_a_field(self, tmp_path: Path) -> None:
        fields: dict[str, Field] = {"text": Text(), "key": Key()}
        source = of({"text": "a"}, {"words": "b"}, {"text": "c"}, fields=fields)
        with pytest.raises(
            SampleError, match=r"list\[1\]\): has no 'text' there are \['image', 'words'\]; .*--skip-bad"
        ):
            pack(source, tmp_path / "out")
        assert pack(source, tmp_path / "new", PackSettings(skip_bad=True)).left_out == [1]
        fields["text"] = Text(missing="skip")
        assert pack(of({"text": "a"}, {}, fields=fields), tmp_path / "skipped").left_out == [1]

    def test_values_of_different_forms(self, tmp_path: Path) -> None:
        odd = int(gpupipe.Shuffled(80).indices(0, 0, np.array([1]))[0])  # of those that aren't looked at before
        source = of(*({"label": 1.5 if number == odd else number} for number in range(80)), fields={"label": Scalar()})
        with pytest.raises(SampleError, match=r"'label': it is float64 of 0 sides, \[1.5\], where .* have int64 of 0"):
            pack(source, tmp_path / "out")

    def test_a_mask_that_no_file_can_hold(self, tmp_path: Path) -> None:
        source = of({"mask": np.full((9, 9), -1)}, fields={"mask": Mask(dtype="int64")})
        with pytest.raises(SampleError, match="'mask': it holds values from -1 to -1, and a PNG has 0 to 65535"):
            pack(source, tmp_path / "out")

    @pytest.mark.parametrize("passing", [ConnectionResetError("reset"), OSError(24, "too many"), MemoryError()])
    def test_what_can_not_be_read_now_is_not_left_out(self, passing: Exception, tmp_path: Path) -> None:
        """Its file is written by a later run, while those before it are kept."""

        class Away:
            fingerprint, down = "away", True

            def __len__(self) -> int:
                return 60

            def __getitem__(self, index: int) -> tuple[bytes, int]:
                if self.down and index == away:
                    raise passing
                return encode(picture(9, 9, index)), index

        order = gpupipe.Shuffled(60).indices(0, 0, np.arange(60))
        away = int(order[41])  # of those that aren't looked at before
        settings, dataset = PackSettings(skip_bad=True, samples_per_shard=20), Away()
        with pytest.raises(SampleError, match=rf"Away\[{away}\].*; if that may pass, run the same again to go on"):
            pack(open_source(dataset), tmp_path / "out", settings)
        assert sorted(path.name for path in (tmp_path / "out").glob("*.tar")) == [f"shard-00000{n}.tar" for n in (0, 1)]
        dataset.down = False
        packed = pack(open_source(dataset), tmp_path / "out", settings)
        assert (len(packed.source), packed.left_out) == (60, [])

    @pytest.mark.parametrize("damage", [ValueError("bad"), OSError("it is truncated"), SyntaxError("broken")])
    def test_what_a_dataset_finds_damaged_is_left_out(self, damage: Exception, tmp_path: Path) -> None:
        class Damaged:
            def __len__(self) -> int:
                return 6

            def __getitem__(self, index: int) -> tuple[bytes, int]:
                if index == 4:
                    raise damage
                return encode(picture(9, 9, index)), index

        assert pack(open_source(Damaged()), tmp_path / "out", PackSettings(skip_bad=True)).left_out == [4]

    def test_memory_that_is_missing_for_shrinking_is_no_damage(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def short(*_: object) -> bytes:
            raise MemoryError

        monkeypatch.setattr("gpupipe.tools.packing.samples.shrunk", short)
        source = open_source([(encode(picture(99, 99)), 0)])
        with pytest.raises(SampleError, match=r"list\[0\]\): MemoryError: ; if that may pass, run the same again"):
            pack(source, tmp_path / "out", PackSettings(skip_bad=True, max_size=20))

    def test_a_file_that_is_not_there_is_no_damage(self, tmp_path: Path) -> None:
        source = open_source(write_folder(tmp_path / "data", classes=1, per_class=3))
        there = tmp_path / "data/class_0/img_1.jpg"
        there.rename(tmp_path / "away.jpg")
        with pytest.raises(SampleError, match=r"img_1\.jpg\).*put it back"):
            pack(source, tmp_path / "out", PackSettings(skip_bad=True))
        (tmp_path / "away.jpg").rename(there)
        assert pack(source, tmp_path / "out", PackSettings(skip_bad=True)).left_out == []

    def test_none_of_them_is_good(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="none of 2 samples that were tried can be packed"):
            pack(open_source([(b"x", 1), (b"y", 2)]), tmp_path / "out", PackSettings(skip_bad=True))


@pytest.mark.parametrize("to", FORMATS)
def test_files_of_every_format_stay_as_they_are(to: str, tmp_path: Path) -> None:
    kinds = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "AVIF", "JPEG2000")
    files = [encode(picture(30, 40, number), kind) for number, kind in enumerate(kinds)]
    exif = PillowImage.Exif()
    exif[0x0112] = 6  # with which datasets would turn it
    files[0] = encode(picture(30, 40, 0), exif=exif)
    fields = {"image": Image(), "left": Image(), "mask": Mask()}
    masks = [encode(picture(30, 40, number), kind, "L") for number, kind in enumerate(kinds)]
    samples = [{"image": one, "left": one, "mask": mask} for one, mask in zip(files, masks, strict=True)]
    for given in (fields, {"left": Image()}):
        place = tmp_path / str(len(given))
        packed = pack(open_source(samples, fields=given), place, PackSettings(to=to)).source
        found = [sample_of(packed, number) for number in range(len(kinds))]
        for name in given:
            assert {value[name].tobytes() for value in found} == {value[name] for value in samples}


def test_on_through_all_of_them(folder: Path, tmp_path: Path) -> None:
    """From a folder to shards, to Parquet, to Hugging Face's layout and to shards: the same files and classes."""
    first = source = open_source(folder)
    for number, to in enumerate((*FORMATS, "shards")):
        packed = pack(source, tmp_path / str(number), PackSettings(seed=number, samples_per_shard=9, to=to)).source
        source = open_source(tmp_path / str(number))
        assert source.fingerprint == packed.fingerprint
        check_source(source)
        assert source.fields == first.fields
        assert source.classes == first.classes
        pairs = [sorted((image.tobytes(), label) for image, label in one) for one in (first, source)]
        assert pairs[0] == pairs[1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("to", ["shards", "parquet"])
def test_from_every_kind_of_data(kind: str, to: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    made = KINDS[kind](tmp_path / "in", samples())
    source = open_source(made.data, fields=made.fields)
    packed = pack(source, tmp_path / "out", PackSettings(to=to, samples_per_shard=10)).source
    expected = {(bytes(one.data), one.label) for one in samples()}
    assert {(image.tobytes(), label) for image, label in (packed[number] for number in range(24))} == expected
    assert open_source(tmp_path / "out").classes == source.classes


@pytest.mark.trainers("datasets")
def test_datasets_knows_images_and_classes(folder: Path, tmp_path: Path) -> None:
    import datasets

    source = open_source(folder)
    pack(source, tmp_path / "out", PackSettings(samples_per_shard=9, to="huggingface"))
    splits = datasets.load_dataset(str(tmp_path / "out"), cache_dir=str(tmp_path / "cache"))
    assert list(splits) == ["train"]
    assert splits["train"].features == datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=source.classes)}
    )
    expected = {source.key(number): source[number] for number in range(len(source))}
    rows = list(splits["train"].cast_column("image", datasets.Image(decode=False)))
    assert {row["image"]["path"]: (row["image"]["bytes"], row["label"]) for row in rows} == {
        key: (image.tobytes(), label) for key, (image, label) in expected.items()
    }
    assert splits["train"][0]["image"].size == PillowImage.open(io.BytesIO(rows[0]["image"]["bytes"])).size


@pytest.mark.trainers("datasets")
def test_datasets_knows_every_kind_of_field(tmp_path: Path) -> None:
    import datasets

    pack(open_source(Everything(), fields=EVERYTHING), tmp_path / "out", PackSettings(to="huggingface"))
    found = datasets.load_dataset(str(tmp_path / "out"), cache_dir=str(tmp_path / "cache"))["train"]
    for row in found:
        expected = Everything()[int(row["key"])]
        np.testing.assert_array_equal(np.asarray(row["right"]), expected["right"])
        np.testing.assert_array_equal(np.asarray(row["mask"]), expected["mask"])
        assert row["boxes"] == expected["boxes"].tolist()
        assert row["grid"] == expected["grid"].tolist()
        assert (row["caption"], row["score"], row["raw"]) == (expected["caption"], expected["score"], expected["raw"])
    assert found.features["embedding"] == datasets.List(datasets.Value("float32"))


def test_images_lie_in_parquet_as_they_are(tmp_path: Path) -> None:
    """By row groups of 100, found without a dictionary, and read by pyarrow alone."""
    files = [encode(picture(10, 10, number)) for number in range(230)]
    pack(open_source([(file, n) for n, file in enumerate(files)]), tmp_path / "out", PackSettings(to="parquet"))
    opened = pq.ParquetFile(tmp_path / "out" / "part-000000.parquet")
    groups = [opened.metadata.row_group(number) for number in range(opened.metadata.num_row_groups)]
    assert [group.num_rows for group in groups] == [100, 100, 30]
    images = [group.column(0) for group in groups]
    assert {(image.path_in_schema, image.compression) for image in images} == {("image.bytes", "UNCOMPRESSED")}
    assert not any(image.has_dictionary_page or image.is_stats_set for image in images)
    rows = opened.read().to_pylist()
    assert {row["label"]: row["image"] for row in rows} == {
        number: {"bytes": file, "path": str(number)} for number, file in enumerate(files)
    }


def test_numbers_that_parquet_has_not(tmp_path: Path) -> None:
    fields: dict[str, Field] = {"wave": Array(), "one": Scalar()}
    source = of({"wave": np.array([1j, 2]), "one": np.complex64(1j)}, fields=fields)
    with pytest.raises(ConfigError, match="to='parquet': Parquet has no complex numbers; pack to shards"):
        pack(source, tmp_path / "out", PackSettings(to="parquet"))
    packed = pack(source, tmp_path / "shards").source
    assert packed[0]["wave"].tolist() == [1j, 2]
    assert packed[0]["one"] == 1j


@pytest.mark.parametrize("to", FORMATS)
def test_names_that_no_file_can_have(to: str, tmp_path: Path) -> None:
    names = {"Größe.x:y;z": 5, "a/b c": np.arange(3.0), 70 * "long": np.eye(2), 70 * "long" + "er": np.eye(3)}
    fields: dict[str, Field] = {name: Scalar() if np.ndim(value) == 0 else Array() for name, value in names.items()}
    fields["A.B"] = fields["a b"] = Image()
    pixels = [picture(9, 9, number) for number in range(2)]
    source = of({**names, "A.B": pixels[0], "a b": pixels[1]}, fields=fields)
    pack(source, tmp_path / "out", PackSettings(to=to))
    found = sample_of(open_source(tmp_path / "out"), 0)
    for name, value in names.items():
        np.testing.assert_array_equal(found[name], value)
    np.testing.assert_array_equal(decoded(found["A.B"]), pixels[0])
    np.testing.assert_array_equal(decoded(found["a b"]), pixels[1])


def test_large_samples_have_smaller_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpupipe.tools.packing.parquet.MOST_BYTES", 1000)
    source = of(*({"raw": bytes(300)} for _ in range(10)), fields={"raw": Bytes()})
    pack(source, tmp_path / "out", PackSettings(to="parquet"))
    metadata = pq.ParquetFile(tmp_path / "out" / "part-000000.parquet").metadata
    assert [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)] == [2, 2, 2, 2, 2]


def test_parquet_that_is_read_by_row_groups_is_packed_by_them(tmp_path: Path) -> None:
    """Each row group is read once, though no two have room."""
    files = [encode(picture(30, 30, number)) for number in range(400)]
    table = pa.table({"image": files, "label": list(range(400))})
    pq.write_table(table, tmp_path / "in.parquet", compression="zstd", row_group_size=10)
    source = open_source(tmp_path / "in.parquet")
    packed = pack(source, tmp_path / "out", PackSettings(samples_per_shard=80)).source
    groups = [int(label) // 10 for label in packed.targets]
    assert sorted(packed.targets) == list(range(400))
    assert all(len(set(groups[start : start + 160])) == 16 for start in (0, 160))
    assert len(set(groups[:40])) > 10
    pq.write_table(table, tmp_path / "plain.parquet", compression="none", row_group_size=10)
    packed = pack(
        open_source(tmp_path / "plain.parquet"), tmp_path / "plain", PackSettings(samples_per_shard=80)
    ).source
    assert len({int(label) // 10 for label in packed.targets[:160]}) > 30


def test_what_follows_images_is_not_left_behind_by_smaller_ones(tmp_path: Path) -> None:
    source = open_source(Everything(), fields=EVERYTHING)
    with pytest.raises(ConfigError, match="max_size=20 shrinks images, and mask, boxes, points would not fit them"):
        pack(source, tmp_path / "out", PackSettings(max_size=20))


def test_a_stream_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"StreamSource\(.*\) gives its samples in a sequence"):
        pack(open_source(gpupipe.Stream(lambda number: iter([]))), tmp_path / "out")


@pytest.mark.parametrize("to", FORMATS)
def test_what_is_written_wrongly_is_found(to: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flipped(values: dict[str, Any]) -> bytes:
        return digest(
            {name: value[:-1] + b"?" if isinstance(value, bytes) else value for name, value in values.items()}
        )

    source = open_source([(encode(picture(9, 9), seed=n), n) for n in range(3)])
    settings = PackSettings(to=to)
    with monkeypatch.context() as patch:
        patch.setattr("gpupipe.tools.packing.samples.digest", flipped)
        with pytest.raises(
            DataError, match=r"can't be read back: its sample 0 is not what was written; check the disk"
        ):
            pack(source, tmp_path / "out", settings)
    assert len(pack(source, tmp_path / "out", settings).source) == 3


def test_a_users_dataset_is_asked_by_one_thread(tmp_path: Path) -> None:
    class Asked(Everything):
        threads: set[int] = set()  # noqa: RUF012

        def __getitem__(self, number: int) -> dict[str, Any]:
            self.threads.add(threading.get_ident())
            return super().__getitem__(number)

    pack(open_source(Asked(), fields=EVERYTHING), tmp_path / "out", workers=4)
    assert Asked.threads == {threading.get_ident()}


def test_sizes_that_are_not_known_are_expected_from_some_samples(tmp_path: Path) -> None:
    files = [encode(picture(100, 100, number), quality=95) for number in range(60)]
    pack(open_source([(file, 0) for file in files]), tmp_path / "out", PackSettings(shard_size=100_000))
    sizes = [path.stat().st_size for path in (tmp_path / "out").glob("*.tar")]
    assert len(sizes) > 4
    assert 70_000 < sorted(sizes)[-2] < 110_000


LAST = int(gpupipe.Shuffled(20).indices(0, 0, np.array([19]))[0])


class Numbers:
    """A dataset whose images tell their number. While there is a file `deadly`, which is removed if "once" is in it,
    the sample that is packed last ends a process that is not this one."""

    def __init__(self, deadly: Path) -> None:
        self.deadly, self.home = deadly, os.getpid()
        self.files = [encode(picture(20 + number, 30, number)) for number in range(20)]

    def __len__(self) -> int:
        return 20

    def __getitem__(self, number: int) -> tuple[bytes, int]:
        if number == LAST and os.getpid() != self.home and self.deadly.exists():
            if self.deadly.read_text() == "once":
                self.deadly.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.files[number], number


def content(folder: Path) -> dict[str, bytes]:
    """All files by name, but the index, which holds times of change."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".index"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def changed(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("shard-*.tar")}


FIVE_FILES = PackSettings(samples_per_shard=4)


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return open_source(Numbers(tmp_path / "deadly"))


@pytest.fixture
def whole(source: Source, tmp_path: Path) -> dict[str, bytes]:
    """What one run writes."""
    pack(source, tmp_path / "whole", FIVE_FILES, 1)
    return content(tmp_path / "whole")


class TestShares:
    def test_they_make_what_one_run_makes_whatever_their_order(
        self, source: Source, whole: dict[str, bytes], tmp_path: Path
    ) -> None:
        out = tmp_path / "out"
        assert pack_share(source, out, FIVE_FILES, (2, 3)) is None
        assert set(changed(out)) == {"shard-000001.tar", "shard-000004.tar"}
        with pytest.raises(DataError, match=r"lacks 3 of its 5 files, the first shard-000000\.tar"):
            open_source(out)
        assert pack_share(source, out, FIVE_FILES, (3, 3)) is None
        packed = pack_share(source, out, FIVE_FILES, (1, 3))
        assert packed is not None
        assert sorted(label for _, label in packed.source) == list(range(20))
        assert content(out) == whole

    def test_one_that_is_run_again_does_what_is_missing(
        self, source: Source, whole: dict[str, bytes], tmp_path: Path
    ) -> None:
        out = tmp_path / "out"
        for share in ((1, 2), (2, 2)):
            pack_share(source, out, FIVE_FILES, share)
        before = changed(out)
        (out / "shard-000002.tar").unlink()
        with open(out / "shard-000003.tar", "ab") as file:  # what is of another size was not written by us
            file.write(b"more")
        (out / f"shard-000004.tar.{32 * 'f'}.tmp").write_bytes(b"of a task that was killed")
        assert pack_share(source, out, FIVE_FILES, (1, 2)) is None
        assert pack_share(source, out, FIVE_FILES, (2, 2)) is not None
        assert content(out) == whole
        kept = {name for name, when in changed(out).items() if before[name] == when}
        assert kept == {"shard-000000.tar", "shard-000001.tar", "shard-000004.tar"}

    def test_a_run_of_all_finishes_what_shares_have_left(
        self, source: Source, whole: dict[str, bytes], tmp_path: Path
    ) -> None:
        pack_share(source, tmp_path / "out", FIVE_FILES, (2, 2))
        before = changed(tmp_path / "out")
        assert len(pack(source, tmp_path / "out", FIVE_FILES).source) == 20
        assert content(tmp_path / "out") == whole
        assert before.items() <= changed(tmp_path / "out").items()

    def test_at_the_same_time(self, source: Source, whole: dict[str, bytes], tmp_path: Path) -> None:
        def share(number: int) -> Packed | None:
            return pack_share(source, tmp_path / "out", FIVE_FILES, (number, 3))

        with ThreadPoolExecutor(3) as pool:
            done = list(pool.map(share, (1, 2, 3)))
        assert any(packed is not None for packed in done)
        assert content(tmp_path / "out") == whole

    @pytest.mark.parametrize("share", [(0, 3), (4, 3), (1, 0)])
    def test_there_is_no_such_one(self, source: Source, tmp_path: Path, share: tuple[int, int]) -> None:
        with pytest.raises(ConfigError, match=f"task {share[0]}/{share[1]}: tasks are counted from 1/"):
            pack_share(source, tmp_path / "out", FIVE_FILES, share)
        assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    import ray

    with tempfile.TemporaryDirectory(dir="/tmp", prefix="ray") as folder:  # short, as sockets lie in it
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, _temp_dir=folder)
        for module in (sys.modules[__name__], images):  # which its processes can't import
            ray.cloudpickle.register_pickle_by_value(module)
        yield
        ray.shutdown()


@pytest.mark.trainers("ray")
@pytest.mark.usefixtures("cluster")
class TestOnRay:
    def test_a_worker_that_is_killed_is_replaced(self, source: Source, whole: dict[str, bytes], tmp_path: Path) -> None:
        (tmp_path / "deadly").write_text("once")
        packed = pack(source, tmp_path / "out", FIVE_FILES, on="ray")
        assert not (tmp_path / "deadly").exists()
        assert sorted(label for _, label in packed.source) == list(range(20))
        assert content(tmp_path / "out") == whole

    def test_a_task_that_is_lost_is_told_and_another_run_does_what_is_missing(
        self, source: Source, whole: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(on_ray, "RETRIES", 0)
        (tmp_path / "deadly").write_text("always")
        with pytest.raises(DataError, match=r"packing into .*out: a task was lost: .*run the same again to go on"):
            pack(source, tmp_path / "out", FIVE_FILES, on="ray")
        marked = {path.stem for path in (tmp_path / "out" / MARKS).glob("*.json")}  # others were written, not compared
        before = {name: when for name, when in changed(tmp_path / "out").items() if name in marked}
        assert 1 <= len(before) < 5
        (tmp_path / "deadly").unlink()
        pack(source, tmp_path / "out", FIVE_FILES, on="ray")
        assert content(tmp_path / "out") == whole
        assert before.items() <= changed(tmp_path / "out").items()

    def test_shards_are_indexed(
        self,
        whole: dict[str, bytes],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        for index in (tmp_path / "whole").glob(".gpupipe-*.index"):
            index.unlink()
        monkeypatch.setattr("gpupipe.sources.shard_index.scan_tar", None)  # here; it is done by Ray's processes
        parser = argparse.ArgumentParser()
        index_command.add_parser(parser.add_subparsers())
        args = parser.parse_args(["index", str(tmp_path / "whole"), "--on", "ray"])
        assert args.run(args) == 0
        assert "samples │ 20" in capsys.readouterr().out
        assert sorted(open_source(tmp_path / "whole").targets) == list(range(20))

    def test_what_a_task_raises_is_raised(self, tmp_path: Path) -> None:
        files = [(encode(picture(20, 20)), 0), (b"<html>", 1), (encode(picture(20, 20)), 2)]
        with pytest.raises(SampleError, match=r"list\[1\]\): .*--skip-bad") as caught:
            pack(open_source(files), tmp_path / "out", PackSettings(samples_per_shard=1), on="ray")
        assert caught.value.index == 1
        packed = pack(open_source(files), tmp_path / "new", PackSettings(samples_per_shard=2, skip_bad=True), on="ray")
        assert packed.left_out == [1]
