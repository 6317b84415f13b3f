"""`gpupipe pack`: shards hold what the folder holds, whatever interrupts their writing."""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset
from images import encode, picture, write_folder
from PIL import Image, JpegImagePlugin
from torchvision.datasets import ImageFolder

from gpupipe.errors import ConfigError, DataError, SampleError
from gpupipe.sources import open_source
from gpupipe.tools.cli import pack as command
from gpupipe.tools.cli.options import byte_size
from gpupipe.tools.pack import PLAN_NAME, Packed, PackSettings, pack, pack_share


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "data", classes=3, per_class=7)


def do(source: Path, destination: Path, workers: int = 2, **settings: Any) -> Packed:
    return pack(open_source(source), destination, PackSettings(**settings), workers)


def content(folder: Path) -> dict[str, str]:
    """Every file of a folder by name, hashed; the index holds times of change and is left out."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".index"]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def by_webdataset(folder: Path) -> list[dict[str, Any]]:
    shards = sorted(str(path) for path in folder.glob("shard-*.tar"))
    return list(webdataset.WebDataset(shards, shardshuffle=False))


def test_webdataset_reads_every_image_with_its_label(root: Path, tmp_path: Path) -> None:
    do(root, tmp_path / "out", samples_per_shard=5)
    expected = {
        number: (Path(path).read_bytes(), label) for number, (path, label) in enumerate(ImageFolder(root).samples)
    }
    read = by_webdataset(tmp_path / "out")
    assert {int(sample["__key__"].split("_")[0]): (sample["jpg"], int(sample["cls"])) for sample in read} == expected
    assert len(read) == len(expected) == 21
    assert len(list((tmp_path / "out").glob("shard-*.tar"))) == 5


def test_the_order_is_shuffled_by_the_seed(root: Path, tmp_path: Path) -> None:
    orders = []
    for seed in (0, 1):
        do(root, tmp_path / f"out{seed}", seed=seed)
        orders.append([int(sample["__key__"].split("_")[0]) for sample in by_webdataset(tmp_path / f"out{seed}")])
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(21))
    assert orders[0] != orders[1]
    assert list(range(21)) not in orders


def test_the_packed_shards_are_an_indexed_source_with_classes(root: Path, tmp_path: Path, monkeypatch: Any) -> None:
    packed = do(root, tmp_path / "out", samples_per_shard=8)
    monkeypatch.delattr("gpupipe.sources.shard_index.scan_tar")
    again = open_source(str(tmp_path / "out/shard-*.tar"))
    assert again.fingerprint == packed.source.fingerprint
    assert again.class_to_idx == ImageFolder(root).class_to_idx
    assert packed.left_out == []


@pytest.mark.parametrize("settings", [{}, {"max_size": 60, "quality": 80}])
def test_equal_bytes_whatever_the_workers(root: Path, tmp_path: Path, settings: dict[str, int]) -> None:
    for workers in (1, 4):
        do(root, tmp_path / f"out{workers}", workers, samples_per_shard=6, **settings)
    assert content(tmp_path / "out1") == content(tmp_path / "out4")
    assert len([name for name in content(tmp_path / "out1") if name.endswith(".tar")]) == 4


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
@pytest.mark.parametrize("fails_at", [0, 3, 9, 20])
def test_interrupted_and_resumed_equals_uninterrupted(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Any, fails_at: int
) -> None:
    settings = {"samples_per_shard": 4, "max_size": 80}
    do(root, tmp_path / "whole", **settings)
    add, added = tarfile.TarFile.addfile, []

    def failing(tar: tarfile.TarFile, *what: Any) -> None:
        added.append(what)
        if len(added) > 2 * fails_at + 1:
            raise error
        add(tar, *what)

    monkeypatch.setattr(tarfile.TarFile, "addfile", failing)
    with pytest.raises((KeyboardInterrupt, DataError)):
        do(root, tmp_path / "out", **settings)
    finished = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*.tar")}
    assert len(finished) == fails_at // 4
    assert not list((tmp_path / "out").glob("*.tmp"))
    monkeypatch.setattr(tarfile.TarFile, "addfile", add)
    do(root, tmp_path / "out", **settings)
    assert content(tmp_path / "out") == content(tmp_path / "whole")
    for name, changed in finished.items():
        assert (tmp_path / "out" / name).stat().st_mtime_ns == changed


def test_what_a_killed_run_left_is_overwritten(root: Path, tmp_path: Path) -> None:
    do(root, tmp_path / "whole", samples_per_shard=9)
    do(root, tmp_path / "out", samples_per_shard=9)
    (tmp_path / "out/shard-000001.tar").rename(tmp_path / "out/shard-000001.tar.tmp")
    do(root, tmp_path / "out", samples_per_shard=9)
    assert content(tmp_path / "out") == content(tmp_path / "whole")


def test_another_plan_is_refused(root: Path, tmp_path: Path) -> None:
    do(root, tmp_path / "out", seed=1)
    before = content(tmp_path / "out")
    with pytest.raises(ConfigError, match=r"holds another packing \(quality 90, now 70; seed 1, now 2\)"):
        do(root, tmp_path / "out", seed=2, quality=70)
    write_folder(tmp_path / "other", classes=2)
    with pytest.raises(ConfigError, match=r"holds another packing .*source.*samples 21, now 8"):
        do(tmp_path / "other", tmp_path / "out", seed=1)
    (tmp_path / "out" / PLAN_NAME).write_text("{")
    with pytest.raises(ConfigError, match="can't be read"):
        do(root, tmp_path / "out", seed=1)
    (tmp_path / "out" / PLAN_NAME).unlink()
    with pytest.raises(ConfigError, match="not of this tool"):
        do(root, tmp_path / "out", seed=1)
    del before[PLAN_NAME]
    assert content(tmp_path / "out") == before


def test_a_destination_inside_the_source_is_refused(root: Path) -> None:
    with pytest.raises(ConfigError, match="would become a class"):
        do(root, root / "packed")
    assert not (root / "packed").exists()


def test_two_at_once_are_refused(root: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    descriptor = os.open(tmp_path / "out", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(ConfigError, match="another process is packing"):
        do(root, tmp_path / "out")
    os.close(descriptor)
    assert len(do(root, tmp_path / "out").source) == 21


def test_shard_size_bounds_each_shard(root: Path, tmp_path: Path) -> None:
    limit = 60_000
    packed = do(root, tmp_path / "out", shard_size=limit)
    with_end_mark = [Path(shard).stat().st_size - 10240 for shard in packed.source.shards]
    assert len(with_end_mark) > 3
    assert max(with_end_mark) <= limit
    assert len(do(root, tmp_path / "single", shard_size=1).source.shards) == 21


def test_large_images_are_shrunk_and_small_ones_copied(tmp_path: Path) -> None:
    root = tmp_path / "data"
    (root / "c").mkdir(parents=True)
    exif = Image.Exif()
    exif[0x0112] = 6
    big = {
        "a420.jpg": encode(picture(200, 300), quality=95, subsampling=2),
        "b444.jpg": encode(picture(300, 200), quality=95, subsampling=0, exif=exif),
        "gray.jpg": encode(picture(151, 1000), mode="L"),
        "cmyk.jpg": encode(picture(140, 150), mode="CMYK"),
        "png.png": encode(picture(500, 130), "PNG", "RGBA"),
    }
    small = {
        "x.jpg": encode(picture(100, 2000)),
        "y.webp": encode(picture(90, 90), "WEBP"),
        "z.bmp": encode(picture(7, 9), "BMP"),
    }
    for name, data in {**big, **small}.items():
        (root / "c" / name).write_bytes(data)
    do(root, tmp_path / "out", max_size=100, quality=85)
    samples = {sample["__key__"].partition("_")[2]: sample for sample in by_webdataset(tmp_path / "out")}
    for name, data in big.items():
        with Image.open(io.BytesIO(samples[Path(name).stem]["jpg"])) as got, Image.open(io.BytesIO(data)) as original:
            assert (got.mode, got.format, min(got.size)) == ("RGB", "JPEG", 100)
            longer = max(original.size) * 100 / min(original.size)
            assert abs(max(got.size) - longer) <= 0.5
            wanted = original.convert("RGB").resize(got.size, Image.Resampling.LANCZOS)
            assert np.abs(np.asarray(got, np.int16) - np.asarray(wanted, np.int16)).mean() < 6
            subsampling = JpegImagePlugin.get_sampling(got)
            assert subsampling == (2 if name == "a420.jpg" else 0)
            assert got.getexif().get(0x0112, 1) == (6 if name == "b444.jpg" else 1)
    assert samples["x"]["jpg"] == small["x.jpg"]
    assert samples["y"]["webp"] == small["y.webp"]
    assert samples["z"]["bmp"] == small["z.bmp"]


def test_keys_are_unique_and_plain(tmp_path: Path) -> None:
    root = tmp_path / "data"
    (root / "c").mkdir(parents=True)
    for name in ("a.jpg", "a.png", "a.b.c.jpg", "ünï côdé.jpg", "x" * 200 + ".jpg", ".hidden.jpg", "with space.jpg"):
        (root / "c" / name).write_bytes(encode(picture(20, 20), "PNG" if name.endswith("png") else "JPEG"))
    packed = do(root, tmp_path / "out")
    keys = [packed.source.key(index) for index in range(len(packed.source))]
    assert len(set(keys)) == 7
    assert all(key.isascii() and "." not in key and " " not in key and len(key) < 90 for key in keys)


def test_a_png_named_jpg_keeps_its_kind(tmp_path: Path) -> None:
    write_folder(tmp_path / "data", classes=1, per_class=1)
    (tmp_path / "data/class_0/img_0.jpg").write_bytes(encode(picture(9, 9), "PNG"))
    do(tmp_path / "data", tmp_path / "out")
    assert "png" in by_webdataset(tmp_path / "out")[0]


def test_damaged_images_stop_or_are_left_out(root: Path, tmp_path: Path) -> None:
    (root / "class_0/img_2.jpg").write_bytes(b"<html>")
    (root / "class_2/img_6.jpg").write_bytes(encode(picture(60, 60))[:700])
    with pytest.raises(DataError, match=r"2 of 21 images are damaged: .*img_2\.jpg \(.*html.*img_6\.jpg .*--skip-bad"):
        do(root, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    packed = do(root, tmp_path / "out", skip_bad=True)
    assert packed.left_out == [2, 20]
    assert len(packed.source) == 19


def test_damage_found_only_by_decoding(root: Path, tmp_path: Path) -> None:
    broken = bytearray(encode(picture(200, 200), "PNG"))
    broken[len(broken) // 2] ^= 0xFF
    (root / "class_1/img_0.jpg").write_bytes(bytes(broken))
    with pytest.raises(SampleError, match=r"class_1/img_0\.jpg.*can't be decoded.*--skip-bad") as caught:
        do(root, tmp_path / "out", max_size=100)
    assert caught.value.index == 7
    packed = do(root, tmp_path / "out2", max_size=100, skip_bad=True, samples_per_shard=1)
    assert packed.left_out == [7]
    assert do(root, tmp_path / "out2", max_size=100, skip_bad=True, samples_per_shard=1).left_out == [7]


def test_fewer_threads_than_none(root: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="workers=-1 must be an int of 0 or more"):
        do(root, tmp_path / "out", workers=-1)
    with pytest.raises(ConfigError, match="workers=-1 must be an int of 0 or more"):
        pack_share(open_source(root), tmp_path / "out", PackSettings(), (1, 2), workers=-1)
    assert not (tmp_path / "out").exists()


def test_nothing_but_damage(tmp_path: Path) -> None:
    write_folder(tmp_path / "data", classes=1, per_class=1)
    (tmp_path / "data/class_0/img_0.jpg").write_bytes(b"x")
    with pytest.raises(DataError, match="all 1 images are damaged"):
        do(tmp_path / "data", tmp_path / "out", skip_bad=True)


def test_shards_can_be_packed_again(root: Path, tmp_path: Path) -> None:
    first = do(root, tmp_path / "one", samples_per_shard=5)
    again = do(tmp_path / "one/shard-{000000..000004}.tar", tmp_path / "two", seed=5)
    assert again.source.classes == first.source.classes
    pairs = [
        sorted((shards[index][0].tobytes(), int(shards.targets[index])) for index in range(len(shards)))
        for shards in (first.source, again.source)
    ]
    assert pairs[0] == pairs[1]


@pytest.mark.parametrize(
    "wrong", [{"shard_size": 0}, {"samples_per_shard": 0}, {"max_size": -1}, {"quality": 96}, {"seed": -1}]
)
def test_settings_check_themselves(wrong: dict[str, int]) -> None:
    ((name, value),) = wrong.items()
    with pytest.raises(ConfigError, match=f"{name}={value} must"):
        PackSettings(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "expected"), [("256MB", 256_000_000), ("1GiB", 2**30), ("1.5k", 1500), ("77", 77), ("64 kib", 65536)]
)
def test_byte_size(text: str, expected: int) -> None:
    assert byte_size(text) == expected


@pytest.mark.parametrize("text", ["", "MB", "-5", "5TBB", "1e6"])
def test_no_byte_size(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        byte_size(text)


def test_the_command(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "class_1/img_1.jpg").write_bytes(b"x")
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers())
    arguments = ["pack", str(root), str(tmp_path / "out"), "--shard-size", "100kB", "--skip-bad", "--workers", "1"]
    args = parser.parse_args(arguments)
    assert args.run(args) == 0
    out = capsys.readouterr().out
    assert out.startswith("20 samples in ")
    assert f"left out: {root}/class_1/img_1.jpg" in out
    assert json.loads((tmp_path / "out" / PLAN_NAME).read_text())["shard_size"] == 100_000


def test_the_command_for_a_table(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = sorted(root.glob("*/*.jpg"))
    rows = [f"{file.relative_to(root)},{file.parent.name},{number / 2}" for number, file in enumerate(files)]
    (root / "list.csv").write_text("\n".join(["file,name,score", *rows]))
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers())
    fields = ("image=Image:file", "label=Scalar:name", "score=Scalar")
    options = [word for field in fields for word in ("--field", field)]
    args = parser.parse_args(
        ["pack", str(root / "list.csv"), str(tmp_path / "out"), "--to", "huggingface", "--task", "1/1", *options]
    )
    assert args.run(args) == 0
    source = open_source(tmp_path / "out")
    assert source.classes == ["class_0", "class_1", "class_2"]
    made = sorted((sample["score"], sample["label"], sample["image"].tobytes()) for sample in source)
    assert made == [(number / 2, number // 7, file.read_bytes()) for number, file in enumerate(files)]


def test_the_command_for_a_share(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers())
    said = []
    for share in ("1/2", "2/2"):
        args = parser.parse_args(
            ["pack", str(root), str(tmp_path / "out"), "--samples-per-shard", "5", "--task", share]
        )
        assert args.run(args) == 0
        said.append(capsys.readouterr().out)
    assert said[0].startswith("task 1/2 is done in ")
    assert said[1].startswith("21 samples in ")
    for wrong in ("1", "a/2", "-1/2"):
        with pytest.raises(SystemExit):
            parser.parse_args(["pack", str(root), str(tmp_path / "out"), "--task", wrong])


@pytest.mark.trainers("ray")
def test_the_command_on_a_ray_of_its_own(root: Path, tmp_path: Path) -> None:
    """No cluster being there, it starts one, and ends it."""
    do(root, tmp_path / "whole", samples_per_shard=11)
    command = [
        sys.executable,
        "-m",
        "gpupipe",
        "pack",
        root,
        tmp_path / "out",
        "--samples-per-shard",
        "11",
        "--on",
        "ray",
    ]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("21 samples in ")
    assert content(tmp_path / "out") == content(tmp_path / "whole")


@pytest.mark.parametrize(("library", "options"), [("pyarrow", ["--to", "parquet"]), ("ray", ["--on", "ray"])])
def test_a_library_that_is_missing_is_named(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str, options: list[str]
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers())
    args = parser.parse_args(["pack", str(root), str(tmp_path / "out"), *options])
    with pytest.raises(ConfigError, match=f"this needs {library}, which can't be imported .*pip install 'gpupipe"):
        args.run(args)
