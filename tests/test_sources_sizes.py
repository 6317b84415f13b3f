"""The sizes of all images of a source, as Pillow has them of each, whatever kind of data it is."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
from images import encode, picture, write_folder
from PIL import Image
from tars import write_samples
from test_index import rows, run

import gpupipe
from gpupipe.host.cache import cache_folder
from gpupipe.sources import image_sizes

SIZES = [(20 + number, 50 - 2 * number) for number in range(8)]


class Items:
    """Encoded images and pixels in turn, one that is damaged, and one that is none."""

    def __init__(self, **more: Any) -> None:
        vars(self).update(more)
        self.asked = 0

    def __len__(self) -> int:
        return len(SIZES) + 2

    def __getitem__(self, index: int) -> tuple[Any, int]:
        self.asked += 1
        if index == len(SIZES):
            return b"no image", 0
        if index > len(SIZES):
            raise ValueError("gone")
        pixels = picture(*SIZES[index], index)
        return (pixels if index % 2 else encode(pixels)), 0


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUPIPE_CACHE", str(tmp_path / "cache"))


def turned(path: Path) -> None:
    """Give it an orientation that swaps its axes."""
    exif = Image.Exif()
    exif[0x0112] = 6
    with Image.open(path) as image:
        image.save(path, exif=exif)


def test_of_files(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "photos")
    files = sorted(root.rglob("*.jpg"))
    turned(files[2])
    expected = [Image.open(path).size[::-1] for path in files]
    source = gpupipe.open_source(root)
    assert source.image_sizes().dtype == np.int32
    assert source.image_sizes().tolist() == [list(size) for size in expected]
    upright = [size[::-1] if at == 2 else size for at, size in enumerate(expected)]
    assert source.image_sizes(exif_orientation=True).tolist() == [list(size) for size in upright]
    assert source.select([5, 2]).image_sizes(True).tolist() == [list(upright[5]), list(upright[2])]


def test_of_shards_and_mixtures(tmp_path: Path) -> None:
    shard = write_samples(tmp_path / "a.tar", count=3)
    source = gpupipe.open_source(gpupipe.Mixture({"one": (shard, 1), "two": (shard, 1)}))
    own = gpupipe.open_source(shard).image_sizes().tolist()
    assert source.image_sizes().tolist() == own * 2


def table(root: Path) -> Path:
    """A list of images, which no index has the sizes of; one of them damaged."""
    (root / "data").mkdir()
    for number, size in enumerate(SIZES):
        (root / "data" / f"{number}.png").write_bytes(encode(picture(*size, number), "PNG"))
    (root / "data" / "8.png").write_bytes(b"no image")
    path = root / "data.csv"
    path.write_text("\n".join(["path,label", *(f"data/{number}.png,0" for number in range(9))]))
    return path


FIELDS = {"image": gpupipe.Image("path"), "label": gpupipe.Scalar()}


def test_of_a_table_they_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = table(tmp_path)
    expected = [*map(list, SIZES), [0, 0]]
    source = gpupipe.open_source(path, fields=FIELDS)
    assert source.image_sizes().tolist() == expected

    def refused(*_: object) -> None:
        raise AssertionError("read again")

    again = gpupipe.open_source(path, fields=FIELDS)
    monkeypatch.setattr(type(again), "fetch", refused)
    assert again.image_sizes().tolist() == expected
    (kept,) = cache_folder().glob("sizes-*.index")
    kept.write_bytes(b"damaged")
    with pytest.raises(AssertionError, match="read again"):
        again.image_sizes()


def as_csv(root: Path) -> Any:
    return table(root)


def as_parquet(root: Path) -> Any:
    rows = pyarrow.csv.read_csv(table(root))
    pyarrow.parquet.write_table(rows, root / "data.parquet")
    return root / "data.parquet"


def as_hugging_face(root: Path) -> Any:
    import datasets

    rows = pyarrow.csv.read_csv(table(root)).to_pydict()
    paths = [str(root / path) for path in rows["path"]]
    return datasets.Dataset.from_dict({"path": paths, "label": rows["label"]}).cast_column("path", datasets.Image())


@pytest.mark.parametrize(
    "data", [as_csv, as_parquet, pytest.param(as_hugging_face, marks=pytest.mark.trainers("datasets"))]
)
@pytest.mark.parametrize("how", ["alone", "in a mixture"])
def test_of_a_table_they_are_read_again_when_images_were_changed(
    tmp_path: Path, data: Callable[[Path], Any], how: str
) -> None:
    rows = data(tmp_path)

    def sizes() -> list[list[int]]:
        opened = gpupipe.open_source(rows, fields=FIELDS)
        source = opened if how == "alone" else gpupipe.open_source(gpupipe.Mixture({"one": (opened, 1)}))
        found: list[list[int]] = source.image_sizes().tolist()
        return found

    expected = [*map(list, SIZES), [0, 0]]
    assert sizes() == expected
    path = tmp_path / "data/3.png"
    time = path.stat()
    path.write_bytes(encode(picture(11, 12), "PNG"))
    os.utime(path, ns=(time.st_atime_ns, time.st_mtime_ns))
    assert sizes() == [*expected[:3], [11, 12], *expected[4:]]
    path.unlink()
    assert sizes()[3] == [0, 0]


@pytest.mark.parametrize("by", ["code", "command"])
def test_they_are_read_again_if_that_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    path, read = table(tmp_path), []
    again = image_sizes._read
    monkeypatch.setattr(image_sizes, "_read", lambda *args, **more: read.append(1) or again(*args, **more))
    for rebuild, times in ((False, 1), (False, 1), (True, 2), (False, 2)):
        if by == "code":
            source = gpupipe.open_source(path, fields=FIELDS, rebuild=rebuild)
            assert source.image_sizes().tolist() == source.image_sizes().tolist()
        else:
            options = ["--field", "image=Image:path", "--field", "label=Scalar", "--sizes"]
            assert run(path, *options, *(["--rebuild"] if rebuild else [])) == 3
        assert len(read) == times


def test_of_a_dataset_they_are_kept_where_it_says_what_it_is() -> None:
    expected = [*map(list, SIZES), [0, 0], [0, 0]]
    for items, again in ((Items(), True), (Items(fingerprint="one"), False)):
        source = gpupipe.open_source(items)
        assert source.image_sizes().tolist() == expected
        asked = items.asked
        assert source.image_sizes().tolist() == expected
        assert (items.asked > asked) is again


def test_where_nothing_can_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = table(tmp_path)
    (tmp_path / "file").touch()
    source = gpupipe.open_source(path, fields=FIELDS)
    monkeypatch.setenv("GPUPIPE_CACHE", str(tmp_path / "file"))
    assert source.image_sizes().tolist()[:2] == [list(size) for size in SIZES[:2]]


def test_of_what_has_no_images(tmp_path: Path) -> None:
    (tmp_path / "texts.csv").write_text("text,label\na,1\n")
    source = gpupipe.open_source(tmp_path / "texts.csv", fields={"text": gpupipe.Text()})
    with pytest.raises(gpupipe.DataError, match="has no images"):
        source.image_sizes()


def test_the_command_reads_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = [table(tmp_path), "--field", "image=Image:path", "--field", "label=Scalar"]
    assert run(*options) == 0
    assert "heights" not in rows(capsys.readouterr().out)
    assert run(*options, "--sizes") == 3
    found = rows(capsys.readouterr().out)
    assert (found["heights"], found["damaged"]) == ("min 20, median 23.5, max 27", "1")
    assert list(cache_folder().glob("sizes-*.index"))
