"""LMDB databases, written by LMDB's own library: the common layouts, and each kind of damage by name."""

from __future__ import annotations

import os
import pickle
import random
from collections.abc import Mapping
from pathlib import Path

import lmdb
import numpy as np
import pytest
from images import encode, picture
from tars import jpeg

import gpupipe
from gpupipe.batch import Boxes, Bytes, Image, Key, Scalar, Text
from gpupipe.errors import ConfigError, DataError, SampleError
from gpupipe.sources import check_source, open_source
from gpupipe.sources.stores.lmdb_pages import entries


def write(path: Path, values: Mapping[bytes, bytes], **options: object) -> Path:
    with lmdb.open(str(path), map_size=1 << 28, **options) as opened, opened.begin(write=True) as transaction:
        for key, value in values.items():
            transaction.put(key, value)
    return path


def images(count: int = 4, key: str = "{:08d}_{folder}/x.jpg") -> dict[bytes, bytes]:
    folders = ("dog", "cat")
    return {key.format(number, folder=folders[number % 2]).encode(): jpeg(number) for number in range(count)}


class TestPages:
    """The keys and places of values, against what LMDB reads."""

    @pytest.mark.parametrize("count", [0, 1, 60, 3000])
    def test_all_are_found(self, tmp_path: Path, count: int) -> None:
        draw = random.Random(count)
        values = {
            draw.randbytes(draw.randint(1, 60)): draw.randbytes(draw.choice([0, 1, 99, 1500, 2100, 9000]))
            for _ in range(count)
        }
        path = write(tmp_path / "a", values)
        with lmdb.open(str(path), map_size=1 << 28) as opened, opened.begin(write=True) as transaction:
            for key in list(values)[::3]:  # whose pages are used again, or lie empty
                transaction.delete(key)
        with lmdb.open(str(path), map_size=1 << 28) as opened, opened.begin(write=True) as transaction:
            transaction.put(b"later", bytes(5000))
        with lmdb.open(str(path), readonly=True, lock=False) as opened, opened.begin() as transaction:
            expected = list(transaction.cursor())
        found = entries(path / "data.mdb")
        data = (path / "data.mdb").read_bytes()
        places = zip(found.keys, found.offsets.tolist(), found.sizes.tolist(), strict=True)
        assert [(key, data[offset : offset + size]) for key, offset, size in places] == expected
        assert len(expected) == len(values) - len(list(values)[::3]) + 1

    @pytest.mark.parametrize("size", [0, 100, 4096, 8192, -4096, -8192])
    def test_one_that_is_cut(self, tmp_path: Path, size: int) -> None:
        path = write(tmp_path / "a", images(30)) / "data.mdb"
        os.truncate(path, path.stat().st_size + size if size < 0 else size)
        with pytest.raises(DataError, match=r"data\.mdb (is cut or damaged|is no LMDB database)"):
            open_source(path.parent)

    def test_damage_never_ends_the_process(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a", {b"%d/x" % number: bytes(number) for number in range(500)}) / "data.mdb"
        whole = path.read_bytes()
        draw = random.Random(0)
        refused = 0
        for _ in range(300):
            data = bytearray(whole)
            for _ in range(3):
                data[draw.randrange(len(data))] = draw.randrange(256)
            path.write_bytes(data)
            try:
                found = entries(path)
            except DataError:
                refused += 1
            else:
                assert (found.offsets + found.sizes).max(initial=0) <= len(data)
        assert 0 < refused < 300

    def test_pages_that_lead_in_circles(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a", {b"%d" % number: bytes(100) for number in range(200)}) / "data.mdb"
        data = bytearray(path.read_bytes())
        for at in range(0, len(data), 4096):
            if data[at + 10] == 1:  # a branch, which holds its pages' numbers; the first node stands last
                number = data[at : at + 4]
                lower = int.from_bytes(data[at + 12 : at + 14], "little")
                for node in range(16, lower, 2):
                    place = at + int.from_bytes(data[at + node : at + node + 2], "little")
                    data[place : place + 4] = number
        path.write_bytes(data)
        with pytest.raises(DataError, match="lead in circles"):
            entries(path)

    def test_other_layouts(self, tmp_path: Path) -> None:
        with lmdb.open(str(tmp_path / "named"), map_size=1 << 20, max_dbs=2) as opened:
            opened.open_db(b"train")
        with pytest.raises(DataError, match="has another database under the key b'train'"):
            open_source(tmp_path / "named")
        path = write(tmp_path / "several", images()) / "data.mdb"
        data = bytearray(path.read_bytes())
        for meta in (0, 4096):
            data[meta + 16 + 24 + 48 + 4] |= 4  # the flags of the data: dupsort
        path.write_bytes(data)
        with pytest.raises(DataError, match="has several values for a key"):
            open_source(path)


class TestKeys:
    """A key for each image."""

    def test_the_class_is_the_folder_in_the_key(self, tmp_path: Path) -> None:
        values = images()
        source = open_source(write(tmp_path / "a", values | {b"__len__": b"4"}))
        check_source(source)
        assert len(source) == 4
        assert source.classes == ["cat", "dog"]
        assert source.class_to_idx == {"cat": 0, "dog": 1}
        assert source.targets.tolist() == [1, 0, 1, 0]
        assert [sample[0].tobytes() for sample in source] == list(values.values())
        assert source.key(1) == "00000001_cat/x.jpg"
        assert source.location(1) == f"key '00000001_cat/x.jpg' in {tmp_path}/a/data.mdb"
        assert source.shapes(np.arange(4)).tolist() == [[40, 60, 1]] * 4

    @pytest.mark.parametrize("keys", [("00000001_a/x", "00000001_a/y", "00000002_a/x"), ("1_a/x", "2_a/y", "2_a/z")])
    def test_numbers_may_belong_to_the_folders(self, tmp_path: Path, keys: tuple[str, ...]) -> None:
        source = open_source(write(tmp_path / "a", {key.encode(): jpeg(1) for key in keys}))
        assert source.classes == sorted({key.partition("/")[0] for key in keys})

    def test_without_folders_there_are_no_labels(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a.lmdb", {b"\xff\x01": jpeg(1), b"b": jpeg(2)}, subdir=False)
        with pytest.raises(DataError, match=r"keys such as 'b' have no folder"):
            open_source(path)
        fields = {"photo": Image(), "key": Key()}
        source = open_source(path, fields=fields)
        check_source(source)
        assert source[1]["photo"].tobytes() == jpeg(1)
        with pytest.raises(DataError, match="with one value each, for the fields photo, text"):
            open_source(path, fields=fields | {"text": Text()})

    def test_values_that_would_have_to_be_unpickled(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a", {b"%d" % number: pickle.dumps((jpeg(number), 3)) for number in range(3)})
        with pytest.raises(DataError, match=r"holds neither .*\(pickles, .*write the encoded images"):
            open_source(path)
        path = write(tmp_path / "b", {b"1": b"\x82\xa5image"})
        with pytest.raises(DataError, match="holds neither images nor Caffe's Datum: the first values begin with"):
            open_source(path)

    def test_a_bad_image_among_good_ones(self, tmp_path: Path) -> None:
        source = open_source(write(tmp_path / "a", images() | {b"0_ant/x": b"no image"}))
        assert source.shapes(np.arange(5))[:, 0].tolist() == [40, 40, 40, 40, 0]

    @pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
    def test_all_that_are_looked_at_are_cut(self, tmp_path: Path, kind: str) -> None:
        whole = images(20)
        looked_at = sorted(whole)[::3]  # 7 of them
        cut = {key: encode(picture(40, 60), kind)[:-40] for key in looked_at}
        source = open_source(write(tmp_path / "a", whole | cut))
        heights = dict(zip(sorted(whole), source.shapes(np.arange(20))[:, 0].tolist(), strict=True))
        assert heights == {key: 0 if key in cut else 40 for key in whole}


def varint(number: int) -> bytes:
    number &= 2**64 - 1
    parts = []
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    return bytes([*parts, number])


def datum(label: int, data: bytes, **numbers: int) -> bytes:
    """As Caffe writes it, by the rules of Protocol Buffers."""
    fields = {"channels": 1, "height": 2, "width": 3}
    head = b"".join(varint(fields[name] << 3) + varint(value) for name, value in numbers.items() if name in fields)
    tail = varint(5 << 3) + varint(label) + b"".join(varint(7 << 3) + b"\1" for name in numbers if name == "encoded")
    return head + varint(4 << 3 | 2) + varint(len(data)) + data + tail


class TestDatum:
    def test_encoded(self, tmp_path: Path) -> None:
        values = {b"%08d_x.jpg" % n: datum(n - 1, jpeg(n), encoded=1) for n in range(3)}
        source = open_source(write(tmp_path / "a", values))
        check_source(source)
        assert source.targets.tolist() == [-1, 0, 1]
        assert [sample[0].tobytes() for sample in source] == [jpeg(n) for n in range(3)]
        assert source.sizes.tolist() == [len(jpeg(n)) for n in range(3)]

    @pytest.mark.parametrize("channels", [1, 3])
    def test_pixels(self, tmp_path: Path, channels: int) -> None:
        pixels = [picture(20, 30 + n, n)[:, :, :channels] for n in range(3)]
        values = {
            b"%08d" % n: datum(
                300, one[:, :, ::-1].transpose(2, 0, 1).tobytes(), channels=channels, height=20, width=30 + n
            )
            for n, one in enumerate(pixels)
        }
        source = open_source(write(tmp_path / "a", values))
        check_source(source)
        for one, expected in zip(source, pixels, strict=True):
            assert np.array_equal(one[0], np.broadcast_to(expected, (*expected.shape[:2], 3)))
            assert one[1] == 300
        with gpupipe.Loader(
            source, gpupipe.imagenet_eval(16, dtype="uint8"), 3, engine="torch", num_workers=0
        ) as loader:
            assert next(iter(loader))[0].shape == (3, 3, 16, 16)

    @pytest.mark.parametrize("bad", [b"", b"\xff" * 30, datum(1, jpeg(1), encoded=1)[:-9], datum(1, b"123", width=9)])
    def test_one_that_is_damaged(self, tmp_path: Path, bad: bytes) -> None:
        path = write(tmp_path / "a", {b"1": datum(1, jpeg(1), encoded=1), b"2": bad})
        with pytest.raises(DataError, match="has a value that can't be read, of the key '2': it is no Datum"):
            open_source(path)


class TestNumbered:
    """Keys with a number each."""

    @pytest.fixture
    def values(self) -> dict[bytes, bytes]:
        found = {b"num-samples": b"11"}
        for number in range(1, 12):
            found |= {b"image-%09d" % number: jpeg(number), b"label-%09d" % number: b"word %d" % number}
        return found

    def test_fields_are_before_the_number(self, tmp_path: Path, values: dict[bytes, bytes]) -> None:
        source = open_source(write(tmp_path / "a", values), fields={"image": Image(), "word": Text("label")})
        check_source(source)
        assert len(source) == 11
        assert source[10]["word"] == "word 11"
        assert source[1]["image"].tobytes() == jpeg(2)
        assert source.key(0) == "000000001"
        with pytest.raises(DataError, match=r"no sample of .* has 'x': there is no key 'x-000000001'"):
            open_source(tmp_path / "a", fields={"image": Image(), "x": Bytes()})
        with pytest.raises(DataError, match="the value of 'label-000000001' is b'word 1', no class number"):
            open_source(tmp_path / "a")

    def test_fields_in_json(self, tmp_path: Path, values: dict[bytes, bytes]) -> None:
        for number in range(1, 12):
            values[b"label-%09d" % number] = b'{"boxes": [[0, 1, 2, %d]]}' % number
        fields = {"image": Image(), "boxes": Boxes("label:boxes")}
        source = open_source(write(tmp_path / "a", values), fields=fields)
        check_source(source)
        assert np.array_equal(source[2]["boxes"], [[0, 1, 2, 3]])

    def test_what_a_sample_lacks(self, tmp_path: Path, values: dict[bytes, bytes]) -> None:
        del values[b"label-000000003"]
        fields = {"image": Image(), "label": Text(missing="default", default="none")}
        source = open_source(write(tmp_path / "a", values), fields=fields)
        recipe = gpupipe.imagenet_eval(16)
        with gpupipe.Loader(source, recipe, 11, engine="torch", num_workers=0) as loader:
            assert next(iter(loader))["label"][2] == "none"

    @pytest.mark.parametrize("count", [b"0", b"x", b"-1", b"99999999999999999", b"9" * 100])
    def test_another_count_than_there_are(self, tmp_path: Path, values: dict[bytes, bytes], count: bytes) -> None:
        with pytest.raises(DataError, match="has 23 keys, but num-samples is"):
            open_source(write(tmp_path / "a", values | {b"num-samples": count}))

    def test_a_field_of_another_kind(self, tmp_path: Path, values: dict[bytes, bytes]) -> None:
        path = write(tmp_path / "a", values)
        with pytest.raises(ConfigError, match="in LMDB a field is found by its name"):
            open_source(path, fields={"image": Image(), "label": Scalar(1)})


def test_a_database_that_changes_meanwhile(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path / "a", images())
    source = open_source(path)
    write(path, {b"9_dog/new": jpeg(9)})
    with pytest.raises(SampleError, match=r"since it was indexed.*put the database back, or index again"):
        source[0]
    assert len(open_source(path)) == 5
    assert "was changed); it is built again" in caplog.text


def test_one_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no LMDB database at .*a\.lmdb"):
        open_source(tmp_path / "a.lmdb")
    (tmp_path / "b.mdb").write_bytes(b"something else" * 1000)
    with pytest.raises(DataError, match="is no LMDB database"):
        open_source(tmp_path / "b.mdb")
    with pytest.raises(DataError, match="has no samples"):
        open_source(write(tmp_path / "c", {b"__len__": b"0"}))
