"""`gpupipe index --verify`: everything is decoded once, and the index keeps what was found."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from images import encode, picture, write_folder
from PIL import Image
from tars import write_tar
from test_index import rows, run

import gpupipe
from gpupipe.errors import ConfigError, DataError, SampleError
from gpupipe.sources import open_source
from gpupipe.tools import verifying
from gpupipe.tools.cli import index

RECIPE = gpupipe.imagenet_eval(32)
SCAN = b"\xff\xda"


def with_table(jpeg: bytes, number: int = 0x33) -> bytes:
    """A JPEG whose scan asks for other Huffman tables, as for such that are not there; header and end are whole."""
    changed = bytearray(jpeg)
    changed[changed.index(SCAN) + 6] = number
    return bytes(changed)


def flipped(png: bytes) -> bytes:
    """A PNG with a flipped bit in what is compressed, which its sum tells."""
    changed = bytearray(png)
    changed[changed.index(b"IDAT") + 40] ^= 1
    return bytes(changed)


def refused(data: bytes, path: Path) -> bool:
    """Whether Pillow refuses it, too."""
    path.write_bytes(data)
    try:
        Image.open(path).convert("RGB")
    except Exception:
        return True
    return False


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """An image folder: samples 2 and 5 can't be decoded, of which headers and ends say nothing."""
    root = write_folder(tmp_path / "data")
    paths = sorted(root.rglob("*.jpg"))
    bad = with_table(paths[2].read_bytes()), flipped(encode(picture(60, 70, 5), "PNG"))
    for path, data in zip((paths[2], paths[5]), bad, strict=True):
        assert refused(data, tmp_path / "other")
        path.write_bytes(data)
    return root


def batches(root: Path, **options: Any) -> list[np.ndarray]:
    with gpupipe.Loader(root, RECIPE, 4, on_error="skip", engine="torch", device="cpu", **options) as loader:
        return [images.numpy() for images, _ in loader]


def test_lists_what_cannot_be_decoded_and_keeps_it(damaged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(damaged) == 0  # headers and ends are well
    expected = batches(damaged, num_workers=0)
    capsys.readouterr()
    assert run(damaged, "--verify") == index.DAMAGED_FOUND
    out = capsys.readouterr().out
    assert (rows(out)["damaged"], rows(out)["can't be decoded"]) == ("0", "2")
    listed = [line for line in out.splitlines() if line.startswith("damaged: ")]
    assert [name in line for line, name in zip(listed, ("img_2.jpg", "img_1.jpg"), strict=True)] == [True, True]
    source = open_source(damaged)
    assert list(source.verdict) == [2, 5]
    assert run(damaged) == index.DAMAGED_FOUND  # it knows by now
    for workers in (0, 2):
        assert all(map(np.array_equal, batches(damaged, num_workers=workers), expected))


def test_what_is_known_is_not_read(damaged: Path) -> None:
    run(damaged, "--verify")
    path = sorted(damaged.rglob("*.jpg"))[2]
    path.write_bytes(with_table(path.read_bytes(), 0))  # it is good by now
    loader = gpupipe.Loader(damaged, RECIPE, 4, engine="torch", device="cpu", num_workers=0)
    with pytest.raises(SampleError, match=r"sample 2 .*img_2.jpg.*index --verify` found that, and the file was not"):
        list(loader)
    assert run(damaged, "--verify") == index.DAMAGED_FOUND  # looks anew
    assert list(open_source(damaged).verdict) == [5]
    assert run(damaged, "--rebuild") == 0
    assert open_source(damaged).verdict == {}


@pytest.mark.parametrize("engine", ["torch", "dali"])
def test_both_engines_and_spawned_workers_know(damaged: Path, engine: Any) -> None:
    run(damaged, "--verify")
    how = {"multiprocessing_context": "spawn"} if engine == "torch" else {}
    with gpupipe.Loader(
        damaged, RECIPE, 4, on_error="skip", engine=engine, device="cpu", num_workers=1, **how
    ) as loader:
        list(loader)
        assert sorted(error.index for error in loader.bad_samples) == [2, 5]
        assert all("index --verify" in error.remedy for error in loader.bad_samples)


def test_shards_and_archives(damaged: Path, tmp_path: Path) -> None:
    paths = sorted(damaged.rglob("*.jpg"))
    members = [
        (f"{number:03d}.{kind}", data)
        for number, path in enumerate(paths)
        for kind, data in (("jpg", path.read_bytes()), ("cls", b"0"))
    ]
    write_tar(tmp_path / "shard.tar", members)
    archive = shutil.make_archive(str(tmp_path / "archive"), "zip", damaged)
    for data in (tmp_path / "shard.tar", Path(archive)):
        assert run(data, "--verify") == index.DAMAGED_FOUND
        assert list(open_source(data).verdict) == [2, 5]


def test_what_may_mend_itself_is_told_and_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_folder(tmp_path / "data")
    paths = sorted(root.rglob("*.jpg"))
    open_source(root)
    paths[3].write_bytes(paths[3].read_bytes() + b"more")  # than the index says
    monkeypatch.setattr(verifying, "check_limits", lambda _: gpupipe.Limits(max_pixels=max_pixels))
    max_pixels = max(int(np.prod(Image.open(path).size)) for path in paths) - 1  # of sample 3 and another
    source = open_source(root)
    bad = verifying.verify(source, workers=1)
    assert len(bad) == 2
    assert bad[0].index == 3
    verifying.keep_verdict(source, bad)  # type: ignore[arg-type]
    assert open_source(root).verdict == {}


def test_want_of_memory_is_no_fault_of_the_file(damaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*given: Any) -> None:
        raise MemoryError

    monkeypatch.setattr("gpupipe.decode.rendering.render", no_memory)  # of what the kernel refuses, the two bad ones
    source: Any = open_source(damaged)
    bad = verifying.verify(source, workers=0)
    assert {error.index: error.remedy for error in bad} == dict.fromkeys((2, 5), "raise the limit (ulimit -v)")
    verifying.keep_verdict(source, bad)
    assert open_source(damaged).verdict == {}  # type: ignore[attr-defined]


def test_masks_are_decoded_too(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "data" / "images")
    for path in sorted(root.rglob("*.jpg")):
        mask = tmp_path / "data" / "masks" / path.relative_to(root).with_suffix(".png")
        mask.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture(*Image.open(path).size[::-1])[..., 0]).save(mask)
    mask.write_bytes(flipped(mask.read_bytes()))
    fields = {"image": gpupipe.Image(folder="images"), "mask": gpupipe.Mask(folder="masks", suffix=".png")}
    source = open_source(tmp_path / "data", fields=fields)
    assert [error.index for error in verifying.verify(source, workers=0)] == [len(source) - 1]


def test_data_without_an_index_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_folder(tmp_path / "photos")
    paths = sorted(root.rglob("*.jpg"))
    paths[1].write_bytes(with_table(paths[1].read_bytes()))
    lines = ["image,label", *(f"{path.relative_to(tmp_path)},0" for path in paths)]
    (tmp_path / "train.csv").write_text("\n".join(lines))
    assert run(tmp_path / "train.csv", "--verify") == index.DAMAGED_FOUND
    out = capsys.readouterr()
    assert "the verdict is printed, not kept" in out.out + out.err
    assert rows(out.out)["can't be decoded"] == "1"


def test_refusals(damaged: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ConfigError, match=r"--verify decodes all of the data here: leave out --task"):
        run(damaged, "--verify", "--task", "1/2")
    source: Any = open_source(damaged)
    Path(source.index_path).write_bytes(b"")
    with pytest.raises(DataError, match=r"the verdict can't be kept in the index .*: .*; index and verify again"):
        verifying.keep_verdict(source, [])
    with caplog.at_level(logging.WARNING):
        assert open_source(damaged).verdict == {}
    assert "is stale" in caplog.text
