"""`gpupipe index`."""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from images import encode, picture, write_folder
from PIL import Image
from tars import write_samples, write_tar

import gpupipe
from gpupipe.errors import ConfigError, DataError
from gpupipe.sources import open_source, shard_index
from gpupipe.sources.storage import open_index
from gpupipe.tools.cli import index


def run(*arguments: str | Path) -> int:
    parser = argparse.ArgumentParser()
    index.add_parser(parser.add_subparsers())
    args = parser.parse_args(["index", *map(str, arguments)])
    return int(args.run(args))


def rows(text: str) -> dict[str, str]:
    """The printed table by its first column."""
    cells = [line.strip("│ ").split("│") for line in text.splitlines() if line.startswith("│")]
    return {name.strip(): value.strip() for name, value in cells}


def test_the_table_of_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_folder(tmp_path / "data")
    assert run(root) == 0
    out = capsys.readouterr().out
    table = rows(out)
    files = sorted(root.rglob("*.jpg"))
    sizes = np.array([Image.open(path).size for path in files])
    assert table["samples"] == "12"
    assert table["classes"] == "3"
    assert int(table["bytes"].replace(",", "")) == sum(path.stat().st_size for path in files)
    assert table["widths"] == f"min {sizes[:, 0].min()}, median {np.median(sizes[:, 0]):g}, max {sizes[:, 0].max()}"
    assert table["heights"].startswith(f"min {sizes[:, 1].min()}, ")
    assert table["damaged"] == "0"
    assert f"index: {root / '.gpupipe.index'}" in out.splitlines()


def test_shards_as_a_pattern_and_as_a_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shards = [write_samples(tmp_path / f"{number}.tar", 3 * number, 3) for number in range(2)]
    assert run(tmp_path / "{0..1}.tar") == 0
    first = capsys.readouterr().out
    assert run(*shards) == 0
    second = capsys.readouterr().out
    assert (rows(first)["samples"], rows(first)["classes"]) == ("6", "6")
    assert first.splitlines()[-1] == second.splitlines()[-1]


def test_damage_is_listed_with_its_reason_and_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_folder(tmp_path / "data")
    (root / "class_1/img_2.jpg").write_bytes(b"<html>")
    (root / "class_2/img_0.jpg").write_bytes(encode(picture(60, 60))[:900])
    (root / "class_2/gone.jpg").symlink_to(tmp_path / "nowhere")
    assert run(root) == index.DAMAGED_FOUND == 3
    out = capsys.readouterr().out
    assert rows(out)["damaged"] == "3"
    listed = [line for line in out.splitlines() if line.startswith("damaged: ")]
    assert listed[0].startswith(f"damaged: {root / 'class_1/img_2.jpg'}: not a readable image: ")
    assert listed[1] == f"damaged: {root / 'class_2/gone.jpg'}: can't be read: No such file or directory"
    assert "class_2/img_0.jpg: the image can't be decoded" in listed[2]
    assert len(listed) == 3


def test_rebuild_looks_at_files_that_changed_in_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_folder(tmp_path / "data")
    assert run(root) == 0
    (root / "class_0/img_0.jpg").write_bytes(b"broken")
    assert run(root) == 0
    assert run(root, "--rebuild") == 3
    assert "class_0/img_0.jpg" in capsys.readouterr().out


def test_a_missing_folder_raises_what_the_command_line_prints(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no folder at"):
        run(tmp_path / "nothing")


def test_images_without_labels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Refused with the way to index them, and indexed as a loader of the images alone finds them."""
    (tmp_path / "flat").mkdir()
    for number in range(3):
        (tmp_path / "flat" / f"{number}.jpg").write_bytes(encode(picture(40, 60)))
    shard = write_tar(tmp_path / "a.tar", [(f"{number}.jpg", encode(picture(40, 60))) for number in range(4)])
    for data, count in ((tmp_path / "flat", 3), (shard, 4)):
        with pytest.raises(DataError, match="gpupipe index --no-labels"):
            run(data)
        assert run(data, "--no-labels") == 0
        out = capsys.readouterr().out
        table = rows(out)
        assert (table["samples"], table["classes"], table["damaged"]) == (str(count), "no labels", "0")
        path = open_source(data, fields={"image": gpupipe.Image()}).index_path
        assert out.splitlines()[-1] == f"index: {path}"
    assert run(write_folder(tmp_path / "classes"), "--no-labels") == 0
    assert rows(capsys.readouterr().out)["classes"] == "no labels"


class TestShares:
    """Of several tasks each indexes some shards, and the last one makes the index of all."""

    FIELDS = ("--field", "image=Image", "--field", "label=Scalar:json:label", "--field", "text=Text:txt")

    @pytest.fixture(params=["usual", "fields"])
    def options(self, request: pytest.FixtureRequest) -> tuple[str, ...]:
        return self.FIELDS if request.param == "fields" else ()

    @pytest.fixture
    def data(self, tmp_path: Path) -> Path:
        """Five shards, of which one is empty and one has a damaged image; some samples have no text."""
        place = tmp_path / "shards"
        place.mkdir()
        for shard in range(5):
            members = []
            for number in range(0 if shard == 3 else 4):
                image = b"<html>" if (shard, number) == (1, 2) else encode(picture(20 + number, 30 + shard))
                members += [(f"{number}.jpg", image), (f"{number}.json", b'{"label": %d}' % (shard * 10 + number))]
                members += [(f"{number}.txt", b"words")] * (number != 1)
            write_tar(place / f"{shard}.tar", members)
        return place

    def test_they_make_the_index_that_one_run_makes(
        self,
        data: Path,
        options: tuple[str, ...],
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        whole = Path(shutil.copytree(data, tmp_path / "whole"))
        assert run(whole, *options) == 3
        expected = open_index(next(whole.glob(".gpupipe-*.index")))
        capsys.readouterr()
        assert run(data, "--task", "1/2", *options) == 0
        assert capsys.readouterr().out == "task 1/2 is done; others have 2 shards to index\n"
        scanned = []
        scan = shard_index.scan_tar
        monkeypatch.setattr(
            shard_index, "scan_tar", lambda path, *rest: scanned.append(Path(path).name) or scan(path, *rest)
        )
        assert run(data, "--task", "2/2", *options) == 3
        assert sorted(scanned) == ["1.tar", "3.tar"]
        assert "damaged" in capsys.readouterr().out
        monkeypatch.setattr(shard_index, "scan_tar", None)
        assert run(data, "--task", "1/2", *options) == 3  # there is nothing left to do
        found = next(
            one for path in data.glob(".gpupipe-*.index") if len((one := open_index(path)).info["shards"]) == 5
        )
        assert found.fingerprint == expected.fingerprint
        assert found.arrays.keys() == expected.arrays.keys()
        for name, array in expected.arrays.items():
            np.testing.assert_array_equal(found.arrays[name], array)
            assert found.arrays[name].dtype == array.dtype

    def test_what_changed_is_indexed_again(self, data: Path) -> None:
        run(data, "--task", "1/1")
        write_tar(data / "4.tar", [("a.jpg", encode(picture(9, 9))), ("a.cls", b"90")])
        for path in data.glob(".gpupipe-*.index"):
            if open_index(path).info["shards"][0]["name"] == "2.tar":
                path.write_bytes(b"cut")
        assert open_source(data).targets.tolist() == [0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23, 90]
        stamp = (data / "1.tar").stat()
        (data / "1.tar").write_bytes((data / "1.tar").read_bytes().replace(b'{"label": 10}', b'{"label": 99}'))
        os.utime(data / "1.tar", ns=(stamp.st_atime_ns, stamp.st_mtime_ns))  # its ctime tells of it
        write_tar(data / "0.tar", [("a.jpg", encode(picture(9, 9))), ("a.cls", b"7")])
        assert open_source(data).targets.tolist()[:3] == [7, 99, 11]

    def test_shards_are_copied_with_their_indices(
        self, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        run(data, "--task", "1/1")
        for path in data.glob(".gpupipe-*.index"):
            if len(open_index(path).info["shards"]) > 1:
                path.unlink()
        copied = shutil.copytree(data, tmp_path / "copied")
        monkeypatch.setattr(shard_index, "scan_tar", None)
        first, again = open_source(copied), open_source(copied)
        assert not caplog.records
        assert len(again) == len(first) == 16
        assert first[0][0].tobytes() == encode(picture(20, 30))

    @pytest.mark.parametrize("options", [("--task", "0/2"), ("--task", "3/2"), ("--task", "1/2", "--rebuild")])
    def test_options_that_do_not_go(self, data: Path, options: tuple[str, ...]) -> None:
        with pytest.raises(SystemExit):
            run(data, *options)

    def test_other_data(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"data can't be indexed in shares: pass \.tar shards"):
            run(write_folder(tmp_path / "data"), "--task", "1/2")
