"""Arrays of NumPy's and of HDF5 files: what a row is as a field of each kind, and each kind of damage by name."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from images import encode, picture
from tars import jpeg

import gpupipe
from gpupipe.batch import Array, Boxes, Bytes, Image, Index, Key, Mask, Points, Scalar, Text
from gpupipe.errors import ConfigError, DataError, SampleError
from gpupipe.sources import check_source, open_source
from gpupipe.sources.stores import npy
from gpupipe.sources.stores.hdf5 import Hdf5File
from gpupipe.sources.stores.rows import Held

N = 5
PIXELS = np.stack([picture(20, 30, number) for number in range(N)])
FILES = [jpeg(number) for number in range(N)]
LABELS = np.array([3, 1, 4, 1, 5], np.uint8)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An HDF5 file with arrays of every kind, five rows each."""
    path = tmp_path_factory.mktemp("hdf5") / "all.h5"
    longest = max(map(len, FILES))
    with h5py.File(path, "w", userblock_size=512) as file:
        file["images"], file["labels"] = PIXELS, LABELS
        file["deep/gray"], file["deep/one"] = PIXELS[..., 0], PIXELS[..., :1]
        file.create_dataset("chunked", data=PIXELS, chunks=(2, 7, 30, 3), compression="gzip")
        encoded = file.create_dataset("encoded", N, h5py.vlen_dtype(np.uint8))
        boxes = file.create_dataset("flat boxes", N, h5py.vlen_dtype(np.float32))
        file["opaque"] = np.array([np.void(data.ljust(longest, b"\0")) for data in FILES])
        file["strings"] = np.array(FILES)
        file["masks"] = (PIXELS[..., 0] > 99).astype(np.int16)
        file["boxes"] = np.arange(N * 8, dtype=np.float64).reshape(N, 2, 4)
        file["points"] = np.arange(N * 6).reshape(N, 3, 2)
        file["embeddings"] = np.arange(N * 3, dtype=np.float16).reshape(N, 3)
        file["captions"] = ["a", "ü", "", "d" * 9, "e"]
        file["names"] = np.array([b"dog", b"cat", b"dog", b"ant", b"cat"])
        file["floats"], file["channels first"] = PIXELS / 255, PIXELS.transpose(0, 3, 1, 2)
        file["six"], file["number"], file["none"] = np.arange(6), 3, np.zeros((0, 2))
        file["column"] = LABELS[:, None].astype(np.int64)
        file.create_dataset("lengths", N, h5py.vlen_dtype(np.float32))
        file["records"] = np.zeros(N, [("x", "f4"), ("y", "i4")])
        for row, data in enumerate(FILES):
            encoded[row] = np.frombuffer(data, np.uint8)
            boxes[row] = np.arange(4 * row)
    return path


def everything(**fields: Any) -> dict[str, Any]:
    return {"image": Image("encoded"), **fields}


class TestFields:
    """Against what h5py and NumPy read."""

    @pytest.mark.parametrize("name", ["images", "chunked", "deep/gray", "/deep/one"])
    def test_pixels(self, path: Path, name: str) -> None:
        source = open_source(path, fields={"image": Image(name), "label": Scalar()})
        check_source(source)
        assert source.shapes(np.arange(N)).tolist() == [[20, 30, 1]] * N
        expected = np.broadcast_to(PIXELS[..., :1], PIXELS.shape) if "deep" in name else PIXELS
        for row in range(N):
            image, label = source[row]
            assert np.array_equal(image, expected[row])
            assert label == LABELS[row]

    @pytest.mark.parametrize("name", ["encoded", "opaque", "strings"])
    def test_files(self, path: Path, name: str) -> None:
        source = open_source(path, fields={"image": Image(name)})
        check_source(source)
        assert source.shapes(np.arange(N)) is None
        for row in range(N):
            data = source[row]["image"].tobytes()
            assert data[: len(FILES[row])] == FILES[row]
            assert data[len(FILES[row]) :].strip(b"\0") == b""
            assert len(data) <= len(FILES[row]) + 16

    def test_all_other_kinds(self, path: Path) -> None:
        fields = everything(
            boxes=Boxes(),
            flat=Boxes("flat boxes"),
            points=Points(),
            mask=Mask(),
            embedding=Array(),
            caption=Text(),
            data=Bytes("encoded"),
            name=Scalar("names"),
            key=Key(),
            index=Index(),
        )
        source = open_source(path, fields=fields)
        check_source(source)
        columns = source.fetch(np.array([3, 1]))
        with h5py.File(path) as file:
            for place, row in enumerate((3, 1)):
                assert np.array_equal(columns["boxes"][place], file["boxes"][row])
                assert np.array_equal(columns["flat"][place], file["flat boxes"][row].reshape(-1, 4))
                assert np.array_equal(columns["points"][place], file["points"][row])
                assert np.array_equal(columns["mask"][place], file["masks"][row])
                assert np.array_equal(columns["embedding"][place], file["embeddings"][row])
                assert columns["caption"][place] == file["captions"].asstr()[row]
                assert columns["data"][place] == FILES[row]
        assert columns["name"].tolist() == [0, 1]  # of ant, cat, dog
        assert columns["key"] == ["3", "1"]
        assert columns["index"].tolist() == [3, 1]

    def test_what_is_known_without_reading(self, path: Path) -> None:
        source = open_source(path)  # image and label are in arrays that are named in the plural
        assert source.targets.tolist() == LABELS.tolist()
        assert source.targets.dtype == np.int64
        assert source.column("label").tolist() == LABELS.tolist()
        assert source.location(3) == f"row 3 of {path}, 'images'"
        named = open_source(path, fields={"image": Image(), "label": Scalar("names")})
        assert named.classes == ["ant", "cat", "dog"]
        assert named.targets.tolist() == [2, 1, 2, 0, 1]
        assert named.fingerprint != source.fingerprint
        texts = open_source(path, fields=everything(caption=Text()))
        with pytest.raises(DataError, match=r"the labels of .* are no list of integers"):
            _ = texts.targets

    def test_pixels_are_as_those_of_a_dataset(self, path: Path) -> None:
        recipe = gpupipe.imagenet_train(16, dtype="uint8")
        data = [(PIXELS[row], int(LABELS[row])) for row in range(N)]
        options: dict[str, Any] = {"seed": 1, "shuffle": True, "engine": "torch", "device": "cpu"}
        first = list(gpupipe.Loader(open_source(path), recipe, 2, num_workers=2, **options))
        other = list(gpupipe.Loader(data, recipe, 2, num_workers=0, **options))
        assert len(first) == len(other) == 3
        for (images, labels), (other_images, other_labels) in zip(first, other, strict=True):
            assert torch.equal(images, other_images)
            assert torch.equal(labels, other_labels)

    @pytest.mark.parametrize(
        ("field", "error", "message"),
        [
            (Image("lengths"), DataError, r"array float32 of varying length \(5,\): images are uint8"),
            (
                Scalar("column"),
                ConfigError,
                r"int64 \(5, 1\): a Scalar is one number; .*reshape\(5\) or pass gpupipe\.Array",
            ),
            (Scalar("embeddings"), ConfigError, r"float16 \(5, 3\): a Scalar is one number; pass gpupipe\.Array"),
            (Scalar("nothing"), ConfigError, "encoded uint8 of varying length"),
            (Image("floats"), DataError, r"can't be made of an array float64 \(5, 20, 30, 3\): .*images are uint8"),
            (Image("channels first"), DataError, r"uint8 \(5, 3, 20, 30\): .*pixels are uint8 \(height, width, 3"),
            (Image("captions"), DataError, "it is text"),
            (Image("number"), DataError, "'number' has no rows"),
            (Image("none"), DataError, "has no rows in none"),
            (Array("records"), DataError, r"'records' is of \[.*\], no plain values"),
            (
                Image("nothing"),
                ConfigError,
                r"in the array 'nothing', which is not there, but .*, captions text \(5,\)",
            ),
            (Image("deep"), ConfigError, "in the array 'deep', which is not there"),
            (Image(0), ConfigError, "arrays are found by their names"),
        ],
        ids=str,
    )
    def test_arrays_that_do_not_fit(self, path: Path, field: Any, error: Any, message: str) -> None:
        with pytest.raises(error, match=message):
            open_source(path, fields={"field": field})

    @pytest.mark.parametrize(
        ("arrays", "proposed"),
        [
            (["a/boxes", "a/images", "a/labels", "a/masks"], "Image('a/images'), 'label': gpupipe.Scalar('a/labels')"),
            (["boxes", "encoded", "y"], "Image('encoded'), 'label': gpupipe.Scalar('y')"),
            (["boxes", "channels first", "opaque"], "Image('opaque'), 'label': gpupipe.Scalar('NAME')"),
            (
                [*(f"boxes{number:02}" for number in range(15)), "x/images"],
                "Image('x/images'), 'label': gpupipe.Scalar('NAME')",
            ),
        ],
    )
    def test_what_fits_is_proposed(self, path: Path, tmp_path: Path, arrays: list[str], proposed: str) -> None:
        with h5py.File(path) as file, h5py.File(tmp_path / "a.h5", "w") as made:
            for array in arrays:
                name = array.split("/")[-1].rstrip("0123456789")
                file.copy("labels" if name == "y" else name, made, array)
        with pytest.raises(ConfigError, match=re.escape(f"name it, as fields={{'image': gpupipe.{proposed}}}")):
            open_source(tmp_path / "a.h5")

    def test_arrays_of_different_lengths(self, path: Path) -> None:
        with pytest.raises(ConfigError, match="arrays differ in their rows: 'encoded' 5, 'six' 6"):
            open_source(path, fields=everything(label=Scalar("six")))

    def test_a_bad_row_is_named(self, tmp_path: Path) -> None:
        with h5py.File(tmp_path / "a.h5", "w") as file:
            boxes = file.create_dataset("boxes", 3, h5py.vlen_dtype(np.float32))
            boxes[0], boxes[1], boxes[2] = np.zeros(4), np.zeros(5), np.zeros(0)
            file["image"] = PIXELS[:3]
        source = open_source(tmp_path / "a.h5", fields={"image": Image(), "boxes": Boxes()})
        with pytest.raises(SampleError, match=r"row 1 of .*a\.h5.*its field 'boxes': cannot reshape"):
            source.fetch(np.arange(3))

    @pytest.mark.parametrize("name", ["a.h5", "a.npz", "packed.npz", "a.npy"])
    def test_a_number_without_a_place_in_int64_is_a_bad_sample(self, tmp_path: Path, name: str) -> None:
        numbers = np.array([2**63 + 5, 2**63 - 1, 5, 2**64 - 1], np.uint64)
        arrays = {"image": PIXELS[:4], "id": numbers, "label": numbers}
        path: Any = tmp_path / name
        if name == "a.h5":
            with h5py.File(path, "w") as file:
                file.update(arrays)
        elif name == "a.npy":
            path = {array: str(tmp_path / f"{array}.npy") for array in arrays}
            for array, file in path.items():
                np.save(file, arrays[array])
        else:
            {"a.npz": np.savez, "packed.npz": np.savez_compressed}[name](path, **arrays)
        source = open_source(path, fields={"image": Image(), "id": Scalar(), "label": Scalar()})
        assert source.fetch(np.array([2, 1]))["id"].tolist() == [5, 2**63 - 1]
        message = r"row {} of .*its field '{}': {} has no place in int64"
        for row in (0, 3):
            with pytest.raises(SampleError, match=message.format(row, "id", numbers[row])):
                source.fetch(np.array([1, row]))
        with pytest.raises(SampleError, match=message.format(0, "id", numbers[0])):
            source.column("id")
        with pytest.raises(SampleError, match=message.format(0, "label", numbers[0])):
            _ = source.targets


WRITE = """
import sys, h5py, numpy
file = h5py.File(sys.argv[1], sys.argv[2], libver="latest")
if "images" not in file:
    file["images"], file["labels"] = numpy.zeros((4, 8, 8, 3), "u1"), numpy.arange(4)
if sys.argv[3] == "swmr":
    file.swmr_mode = True
print("open", flush=True)
sys.stdin.read()
"""


class TestHdf5Files:
    @pytest.mark.parametrize(
        ("mode", "message"),
        [("plain", "another process has it open for writing"), ("swmr", "another process writes to it, or was killed")],
    )
    def test_another_process_writes(self, tmp_path: Path, mode: str, message: str) -> None:
        path = tmp_path / "a.h5"
        command = [sys.executable, "-c", WRITE, str(path), "w", mode]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            assert writer.stdin is not None
            assert writer.stdout.readline() == b"open\n"
            with pytest.raises(DataError, match=rf"a\.h5 can't be opened: {message}"):
                open_source(path)
            writer.stdin.close()
        assert len(open_source(path)) == 4

    def test_a_file_that_is_cut(self, tmp_path: Path, path: Path) -> None:
        data = path.read_bytes()
        for size, message in ((len(data) - 700, "it is cut"), (700, "it is cut"), (300, "it is no HDF5 file")):
            (tmp_path / "a.h5").write_bytes(data[:size])
            with pytest.raises(DataError, match=rf"a\.h5 can't be opened: {message}"):
                open_source(tmp_path / "a.h5")

    def test_a_file_that_is_missing(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"a\.hdf5 can't be read: No such file"):
            open_source(tmp_path / "a.hdf5")
        os.mkfifo(tmp_path / "a.h5")
        with pytest.raises(DataError, match=r"a\.h5 can't be read: it is a FIFO"):
            open_source(tmp_path / "a.h5")

    def test_a_file_that_changes_meanwhile(self, tmp_path: Path, path: Path) -> None:
        copy = tmp_path / "a.h5"
        copy.write_bytes(path.read_bytes())
        source = open_source(copy)
        os.utime(copy, (1, 1))
        with pytest.raises(SampleError, match=r"row 2 of .*a\.h5.*the file was written to.*; .*make the loader again"):
            source.fetch(np.array([2]))

    def test_what_lies_in_other_files(self, tmp_path: Path, path: Path) -> None:
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file["linked"] = h5py.ExternalLink(str(path), "images")
            file.create_dataset("raw", (2, 4, 4), "u1", external=[("/etc/passwd", 0, 32)])
            layout = h5py.VirtualLayout((N, 20, 30, 3), "u1")
            layout[:] = h5py.VirtualSource(str(path), "images", (N, 20, 30, 3))
            file.create_virtual_dataset("virtual", layout)
        for name in ("linked", "raw", "virtual"):
            with pytest.raises((DataError, ConfigError), match=r"lies in other files|is not there"):
                open_source(tmp_path / "a.h5", fields={"image": Image(name)})

    def test_chunks_that_make_rows_dear(self, path: Path, caplog: pytest.LogCaptureFixture) -> None:
        open_source(path, fields={"image": Image("encoded"), "other": Image("images")})
        assert not caplog.text
        open_source(path, fields={"image": Image("chunked")})
        assert (
            "has chunks of (2, 7, 30, 3), so a row is read out of 3,780 values: write it with chunks=(1, 20"
            in caplog.text
        )

    def test_each_process_has_its_own(self, path: Path) -> None:
        source = open_source(path, fields={"image": Image("chunked"), "label": Scalar()})
        source.fetch(np.arange(N))
        mine = source._rows["image"].file._file
        read, write = os.pipe()
        child = os.fork()
        if not child:
            same = np.array_equal(source.fetch(np.array([4]))["image"].data[0], PIXELS[4])
            os.write(write, b"%d%d" % (same, source._rows["image"].file._file is not mine))
            os._exit(0)
        os.waitpid(child, 0)
        assert os.read(read, 2) == b"11"
        assert np.array_equal(source[0][0], PIXELS[0])

    def test_without_h5py(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "h5py", None)
        with pytest.raises(ConfigError, match=r"needs h5py, .*pip install 'gpupipe\[arrays\]'"):
            open_source(path)


KINDS_OF_CHUNKS: list[dict[str, Any]] = [
    {},
    {"chunks": (1,)},
    {"chunks": (3,)},
    {"chunks": (4,), "compression": "gzip", "shuffle": True},
    {"chunks": (4,), "compression": "gzip"},
    {"chunks": (2,), "compression": "lzf"},
]
LOOKED_AT = KINDS_OF_CHUNKS[:-1]


def written(path: Path, **options: Any) -> Path:
    """Values of varying length, in several heaps."""
    with h5py.File(path, "w", **options) as file:
        for number, kind in enumerate(KINDS_OF_CHUNKS):
            made = file.create_dataset(str(number), 60, h5py.vlen_dtype(np.uint8), **kind)
            for row in range(60):
                made[row] = np.full(30 * row + number, row, np.uint8)
        file.create_dataset("texts", data=[f"text {row}" * (row % 7) for row in range(300)], dtype=h5py.string_dtype())
        file.create_dataset("table", (6, 3), h5py.vlen_dtype(np.int16), chunks=(4, 2))[:] = [[np.arange(3)] * 3] * 6
        for number, kind in enumerate(({}, {"chunks": (4,)})):
            file.create_dataset(f"never written {number}", 9, h5py.vlen_dtype(np.uint8), **kind)
    return path


@pytest.mark.timeout(60)  # it was for ever
class TestHeapsOfHdf5:
    """HDF5's own library ends never where a heap's header is all zeros."""

    @pytest.mark.parametrize("options", [{}, {"userblock_size": 512}, {"libver": "latest"}])
    def test_good_ones_are_read_as_h5py_reads_them(self, tmp_path: Path, options: dict[str, Any]) -> None:
        with h5py.File(written(tmp_path / "a.h5", **options)) as file:
            names = list(file)
            truth = {name: file[name][:] for name in names}
        opened = Hdf5File(str(tmp_path / "a.h5"))
        for name in names:
            rows = opened.rows(name)
            for row, expected in enumerate(truth[name]):
                if isinstance(rows, Held):
                    assert rows.values[row] == expected.decode()
                elif truth[name].ndim == 2:
                    assert [one.tolist() for one in rows.read(row)] == [one.tolist() for one in expected]
                else:
                    assert np.array_equal(rows.read(row), expected)

    @pytest.mark.parametrize("kind", range(len(LOOKED_AT)))
    @pytest.mark.parametrize("options", [{}, {"userblock_size": 512}])
    def test_zeros_in_one_are_an_error(self, tmp_path: Path, kind: int, options: dict[str, Any]) -> None:
        data = bytearray(written(tmp_path / "a.h5", **options).read_bytes())
        for heap in [found.start() for found in re.finditer(b"GCOL", data)]:
            data[heap + 16 : heap + 616] = bytes(600)
        (tmp_path / "b.h5").write_bytes(data)
        rows = Hdf5File(str(tmp_path / "b.h5")).rows(str(kind))
        for row in range(60):
            if 30 * row + kind == 0:  # which lies in no heap
                assert not len(rows.read(row))
                continue
            with pytest.raises(ValueError, match=r"^its heap at byte \d+ is damaged: an object of 0 bytes in \d+$"):
                rows.read(row)

    def test_a_list_of_texts_is_refused(self, tmp_path: Path) -> None:
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file["images"], file["labels"] = PIXELS, ["a", "b", "a", "b", "c"]
        data = (tmp_path / "a.h5").read_bytes()
        begin = data.index(b"GCOL") + 16
        (tmp_path / "a.h5").write_bytes(data[:begin] + bytes(600) + data[begin + 600 :])
        with pytest.raises(DataError, match=r"a\.h5: 'labels' can't be read: its heap at byte \d+ is damaged"):
            open_source(tmp_path / "a.h5")

    @pytest.mark.parametrize(
        ("at", "bytes_", "message"),
        [
            (0, b"GCOX", "it does not begin as one"),
            (24, b"\xf0" + b"\xff" * 7, "an object of 18446744073709551616 bytes"),
            (24, b"\xff" * 7 + b"\x7f", "an object of 9223372036854775824 bytes"),
            (8, b"\xff" * 8, "lies beyond the end of the file"),
        ],
    )
    def test_what_else_leads_nowhere(self, tmp_path: Path, at: int, bytes_: bytes, message: str) -> None:
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file.create_dataset("image", 1, h5py.vlen_dtype(np.uint8))[0] = np.arange(99, dtype=np.uint8)
        data = bytearray((tmp_path / "a.h5").read_bytes())
        begin = data.index(b"GCOL") + at
        data[begin : begin + len(bytes_)] = bytes_
        (tmp_path / "a.h5").write_bytes(data)
        with pytest.raises(ValueError, match=rf"its heap at byte \d+ is damaged: .*{message}"):
            Hdf5File(str(tmp_path / "a.h5")).rows("image").read(0)

    def test_a_file_that_was_written_to_is_read_anew_beside_what_has_it_open(self, tmp_path: Path) -> None:
        """Its time of change put back, as tar and rsync do."""
        path = tmp_path / "a.h5"
        with h5py.File(path, "w") as file:
            file["images"], file["labels"] = PIXELS, LABELS
        old = open_source(path)
        assert np.array_equal(old[1][0], PIXELS[1])
        data, stat = path.read_bytes(), path.stat()
        begin = data.index(PIXELS[1].tobytes())
        path.write_bytes(data[:begin] + PIXELS[2].tobytes() + data[begin + PIXELS[2].nbytes :])
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        assert np.array_equal(open_source(path)[1][0], PIXELS[2])


class TestNumpy:
    @pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
    def test_archives(self, tmp_path: Path, save: Any) -> None:
        save(tmp_path / "a.npz", images=PIXELS, labels=LABELS, other=np.arange(3))
        source = open_source(tmp_path / "a.npz")
        check_source(source)
        assert source.targets.tolist() == LABELS.tolist()
        for row in (4, 0, 2):
            assert np.array_equal(source[row][0], PIXELS[row])

    def test_files_by_name(self, tmp_path: Path) -> None:
        np.save(tmp_path / "train_x.npy", PIXELS)
        np.save(tmp_path / "y.npy", LABELS.astype(">i4"))
        data = {"image": tmp_path / "train_x.npy", "label": str(tmp_path / "y.npy")}
        source = open_source(data)
        check_source(source)
        assert np.array_equal(source[2][0], PIXELS[2])
        assert source.targets.tolist() == LABELS.tolist()
        alone = open_source(tmp_path / "train_x.npy", fields={"image": Image("train_x")})
        assert np.array_equal(alone[4]["image"], PIXELS[4])

    def test_rows_are_read_one_by_one(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        np.savez(tmp_path / "a.npz", images=PIXELS, labels=LABELS)
        source = open_source(tmp_path / "a.npz")
        sizes, own = [], npy.OpenFiles.read

        def read(files: Any, path: str, offset: int, size: int) -> Any:
            sizes.append(size)
            return own(files, path, offset, size)

        monkeypatch.setattr(npy.OpenFiles, "read", read)
        source.fetch(np.array([1, 3]))
        assert sizes == [PIXELS[0].nbytes] * 2

    def test_classes_by_name(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "a.npz", image=PIXELS, label=np.array(["b", "a", "b", "ü", "a"]))
        source = open_source(tmp_path / "a.npz")
        assert source.classes == ["a", "b", "ü"]
        assert source.targets.tolist() == [1, 0, 1, 2, 0]
        np.savez(tmp_path / "b.npz", image=PIXELS, label=np.array([text.encode() for text in "babüa"]))
        assert open_source(tmp_path / "b.npz").classes == source.classes
        np.savez(tmp_path / "b.npz", image=PIXELS, label=np.array([b"a", b"\xff", b"b", b"c", b"d"]))
        with pytest.raises(DataError, match="'label': the names of classes are no UTF-8"):
            open_source(tmp_path / "b.npz")
        text = open_source(tmp_path / "a.npz", fields={"image": Image(), "label": Text()})
        assert text[3]["label"] == "ü"

    def test_pickles_are_never_loaded(self, tmp_path: Path) -> None:
        np.save(tmp_path / "a.npy", np.array([{"x": 1}, None]), allow_pickle=True)
        np.savez_compressed(tmp_path / "a.npz", image=np.array([{"x": 1}, None]))
        for name in ("a.npy", "a.npz"):
            with pytest.raises(DataError, match=r"holds object, no numbers, and pickles are never loaded"):
                open_source(tmp_path / name, fields={"image": Image("a" if name == "a.npy" else "image")})

    @pytest.mark.parametrize("cut", [5, 100, 5000, -1])
    def test_a_file_that_is_cut(self, tmp_path: Path, cut: int) -> None:
        np.save(tmp_path / "image.npy", PIXELS)
        data = (tmp_path / "image.npy").read_bytes()
        (tmp_path / "image.npy").write_bytes(data[:cut])
        with pytest.raises(DataError, match=r"image\.npy (is cut or damaged|its \.npy has a header)"):
            open_source(tmp_path / "image.npy", fields={"image": Image()})

    def test_one_array_has_no_labels(self, tmp_path: Path) -> None:
        np.save(tmp_path / "pictures.npy", PIXELS)
        np.savez(tmp_path / "a.npz", pictures=PIXELS)
        alone = r"fields=\{'image': gpupipe\.Image\('pictures'\)\} for images alone"
        both = r"pass \{'image': 'pictures\.npy', 'label': 'labels\.npy'\} with the labels' file, or "
        for name, message in (("pictures.npy", both + alone), ("a.npz", f"no labels: pass {alone}")):
            with pytest.raises(ConfigError, match=message):
                open_source(tmp_path / name)
            assert len(open_source(tmp_path / name, fields={"image": Image("pictures")})) == N

    def test_columns_first(self, tmp_path: Path) -> None:
        np.save(tmp_path / "image.npy", np.asfortranarray(PIXELS))
        with pytest.raises(DataError, match=r"has its columns first: write it by np\.save"):
            open_source(tmp_path / "image.npy", fields={"image": Image()})

    def test_what_is_too_large_to_be_read_whole(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        np.savez_compressed(tmp_path / "a.npz", images=PIXELS, labels=LABELS)
        monkeypatch.setattr(npy, "MOST_HELD", 1000)
        with pytest.raises(ConfigError, match=r"'images' is compressed and has 9,128 bytes, more than the 1,000"):
            open_source(tmp_path / "a.npz")

    def test_a_file_that_changes_meanwhile(self, tmp_path: Path) -> None:
        np.save(tmp_path / "image.npy", PIXELS)
        source = open_source(tmp_path / "image.npy", fields={"image": Image()})
        reopen, arguments = source.__reduce__()
        np.save(tmp_path / "image.npy", PIXELS[:4])
        with pytest.raises(
            SampleError,
            match=r"row 1 of .*image\.npy.*has 7328 bytes where it had 9128: it was cut since it was opened; "
            "put the file back, or make the loader again",
        ):
            source[1]
        with pytest.raises(DataError, match="was changed while a loader used it"):
            reopen(*arguments)


def test_a_dict_of_something_else(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="pass one of its parts"):
        open_source({"image": tmp_path / "a.npy", "label": [1, 2]})


def test_encoded_png(tmp_path: Path) -> None:
    np.save(tmp_path / "image.npy", np.array([encode(PIXELS[0], "PNG"), encode(PIXELS[1], "PNG")]))
    source = open_source(tmp_path / "image.npy", fields={"image": Image()})
    with gpupipe.Loader(source, gpupipe.imagenet_eval(20, dtype="uint8"), 2, engine="torch", num_workers=0) as loader:
        assert next(iter(loader))["image"].shape == (2, 3, 20, 20)
