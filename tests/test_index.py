"""`gpupipe index`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
import pytest
from images import encode, picture, write_folder
from PIL import Image
from tars import write_samples, write_tar

import gpupipe
from gpupipe.errors import DataError
from gpupipe.sources import open_source
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
    times = (root / "class_0").stat()
    (root / "class_0/img_0.jpg").write_bytes(b"broken")
    os.utime(root / "class_0", ns=(times.st_atime_ns, times.st_mtime_ns))
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
