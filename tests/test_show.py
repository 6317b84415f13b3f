"""The contact sheet's tiles against the loader's own output, and the command's exit codes."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from images import encode, picture, write_folder
from PIL import Image

import gpupipe
from gpupipe.tools.cli import main
from gpupipe.tools.showing.sheet import (
    BACKGROUND,
    GAP,
    LABEL_HEIGHT,
    Tile,
    draw_sheet,
    tile_places,
    tiles_of,
    write_sheet,
)
from gpupipe.tools.showing.shown import read_shown

SIZE = 48


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("show") / "images", classes=3, per_class=4)


def one_by_one(data: object, **settings: object) -> gpupipe.Loader:
    recipe = gpupipe.imagenet_train(SIZE, dtype="uint8")
    return gpupipe.Loader(data, recipe, num_workers=0, engine="torch", device="cpu", **settings)


def epoch_of(folder: Path, epoch: int, *, recipe: gpupipe.Recipe, **settings: object) -> tuple[np.ndarray, list[int]]:
    """(N, height, width, 3) and labels of a whole epoch, in batches, from a loader of its own."""
    with gpupipe.Loader(
        folder, recipe, batch_size=5, engine="torch", device="cpu", num_workers=0, **settings
    ) as loader:
        loader.set_epoch(epoch)
        batches = [(images.numpy().copy(), labels.tolist()) for images, labels in loader]
    return np.concatenate([i.transpose(0, 2, 3, 1) for i, _ in batches]), [
        label for _, more in batches for label in more
    ]


def tile_corners(count: int, size: int, columns: int) -> list[tuple[int, int]]:
    return [(x, y) for x, y, _, _ in tile_places([(size, size)] * count, columns)]


def tiles_on(sheet: Path, count: int, size: int, columns: int) -> list[np.ndarray]:
    pixels = np.asarray(Image.open(sheet))
    return [pixels[y : y + size, x : x + size] for x, y in tile_corners(count, size, columns)]


def label_area(sheet: Path | Image.Image, number: int, count: int, size: int, columns: int) -> np.ndarray:
    pixels = np.asarray(Image.open(sheet) if isinstance(sheet, Path) else sheet)
    x, y = tile_corners(count, size, columns)[number]
    return pixels[y + size : y + size + LABEL_HEIGHT, x : x + size]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("recipe", ["train", "eval"])
def test_tiles_are_what_the_loader_gives(folder: Path, tmp_path: Path, recipe: str, shuffle: bool) -> None:
    sheet = tmp_path / "sheet.png"
    flags = ["--count", "7", "--columns", "3", "--size", str(SIZE), "--seed", "5", "--epoch", "2", "--engine", "torch"]
    flags += ["--recipe", recipe, "--shuffle" if shuffle else "--no-shuffle"]
    assert main(["show", str(folder), "-o", str(sheet), *flags]) == 0
    preset = gpupipe.imagenet_train if recipe == "train" else gpupipe.imagenet_eval
    expected, _ = epoch_of(folder, 2, recipe=preset(SIZE, dtype="uint8"), shuffle=shuffle, seed=5)
    for tile, pixels in zip(tiles_on(sheet, 7, SIZE, 3), expected, strict=False):
        np.testing.assert_array_equal(tile, pixels)


def test_dali_shows_the_same_crops(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("nvidia.dali")
    for engine in ("torch", "dali"):
        flags = ["--count", "4", "--columns", "4", "--size", str(SIZE), "--engine", engine]
        assert main(["show", str(folder), "-o", str(tmp_path / f"{engine}.png"), *flags]) == 0
    pairs = zip(*(tiles_on(tmp_path / f"{engine}.png", 4, SIZE, 4) for engine in ("torch", "dali")), strict=True)
    for torch_tile, dali_tile in pairs:
        assert np.abs(torch_tile.astype(int) - dali_tile).mean() < 1


def test_repeat_follows_each_sample_through_shuffled_epochs(folder: Path) -> None:
    with one_by_one(folder, shuffle=True, seed=3) as loader:
        loader.set_epoch(1)
        tiles = list(tiles_of(read_shown(loader, count=4, repeat=3)))
        wanted = [int(loader.order.indices(3, 1, np.array([position]))[0]) for position in range(4)]
    assert len(tiles) == 12
    for shown, epoch in enumerate((1, 2, 3)):
        images, _ = epoch_of(folder, epoch, recipe=gpupipe.imagenet_train(SIZE, dtype="uint8"), shuffle=True, seed=3)
        order = gpupipe.Shuffled(12).indices(3, epoch, np.arange(12)).tolist()
        for row, index in enumerate(wanted):
            np.testing.assert_array_equal(tiles[3 * row + shown].pixels, images[order.index(index)])


def test_batches_of_several_sizes_are_shown(folder: Path) -> None:
    order = gpupipe.Buckets([0] * 5 + [1] * 7, 3)
    with one_by_one(folder, order=order) as loader:
        loader.set_epoch(1)
        found = list(read_shown(loader, count=12))
    assert [one.index for one in found] == order.indices(0, 1, np.arange(12)).tolist()


def test_labels_are_class_names(folder: Path) -> None:
    with one_by_one(folder) as loader:
        assert [tile.label for tile in tiles_of(read_shown(loader, 6))] == ["class_0"] * 4 + ["class_1"] * 2


def test_labels_without_classes_are_numbers() -> None:
    samples = [(encode(picture(30, 40, seed)), 10 * seed) for seed in range(3)]
    with one_by_one(samples) as loader:
        assert [tile.label for tile in tiles_of(read_shown(loader, 9))] == ["0", "10", "20"]


def test_count_beyond_the_epoch_shows_the_epoch(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    sheet = tmp_path / "sheet.png"
    assert main(["show", str(folder), "-o", str(sheet), "--count", "100", "--size", "32", "--engine", "torch"]) == 0
    assert f"12 pictures written to {sheet}" in capsys.readouterr().out
    assert Image.open(sheet).size == (GAP + 6 * (32 + GAP), GAP + 2 * (32 + LABEL_HEIGHT + GAP))


def test_repeat_gives_each_sample_a_row(folder: Path, tmp_path: Path) -> None:
    sheet = tmp_path / "sheet.png"
    flags = ["--count", "2", "--repeat", "4", "--size", "32", "--engine", "torch"]
    assert main(["show", str(folder), "-o", str(sheet), *flags]) == 0
    assert Image.open(sheet).size == (GAP + 4 * (32 + GAP), GAP + 2 * (32 + LABEL_HEIGHT + GAP))


def inked(area: np.ndarray) -> np.ndarray:
    return (area != BACKGROUND).any(axis=-1)


@pytest.mark.parametrize("label", ["cat", "a" * 200, "名前", "two\nlines", "\udcff", "0"])
def test_every_label_is_written_inside_its_own_space(label: str) -> None:
    black = np.zeros((SIZE, SIZE, 3), np.uint8)
    sheet = draw_sheet([Tile(black, ""), Tile(black, label), Tile(black, "")], columns=3)
    areas = [inked(label_area(sheet, number, 3, SIZE, 3)) for number in range(3)]
    assert [area.any() for area in areas] == [False, True, False]
    outside = inked(np.asarray(sheet))
    for x, y in tile_corners(3, SIZE, 3):
        outside[y : y + SIZE + LABEL_HEIGHT, x : x + SIZE] = False
    assert not outside.any()


def test_a_long_label_keeps_its_beginning() -> None:
    black = np.zeros((SIZE, SIZE, 3), np.uint8)
    sheets = [draw_sheet([Tile(black, label)], 1) for label in ("abc" + "x" * 50, "abc" + "x" * 99, "xyz" + "x" * 50)]
    first, same_beginning, other = (label_area(sheet, 0, 1, SIZE, 1) for sheet in sheets)
    np.testing.assert_array_equal(first, same_beginning)
    assert (first != other).any()


@pytest.mark.parametrize(("suffix", "kind"), [(".png", "PNG"), (".JPG", "JPEG"), (".webp", "WEBP")])
def test_the_suffix_decides_the_format(tmp_path: Path, suffix: str, kind: str) -> None:
    path = tmp_path / f"sheet{suffix}"
    path.write_bytes(b"older")
    write_sheet(Image.new("RGB", (10, 20)), path)
    with Image.open(path) as image:
        assert (image.format, image.size) == (kind, (10, 20))
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_a_failed_write_leaves_the_older_sheet(tmp_path: Path) -> None:
    path = tmp_path / "sheet.webp"
    path.write_bytes(b"older")
    with pytest.raises(gpupipe.ConfigError, match=r"can't be written to .*sheet\.webp"):
        write_sheet(Image.new("RGB", (20_000, 1)), path)  # WebP's sides end at 16383
    assert path.read_bytes() == b"older"
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["-o", "sheet.xyz"], "sheet.xyz"),
        (["-o", "missing/sheet.png"], "can't be written to missing/sheet.png"),
        (["-o", "sheet.png", "--count", "0"], "count=0"),
        (["-o", "sheet.png", "--repeat", "0"], "repeat=0"),
        (["-o", "sheet.png", "--columns", "0"], "columns=0"),
        (["--columns", "3"], "--columns=3 is of a sheet, and a page has none: pass -o FILE.png"),
        (["--html", "page.html", "--columns", "3"], "--columns=3 is of a sheet"),
        (["-o", "sheet.png", "--size", "0"], "size=0"),
        (["-o", "sheet.png", "--seed", "-1"], "seed=-1"),
        (["-o", "sheet.png", "--epoch", "-1"], "epoch=-1"),
    ],
)
def test_wrong_settings_are_named(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
    flags: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["show", str(folder), "--engine", "torch", *flags]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_missing_folder_and_a_bad_image_are_the_librarys_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert main(["show", str(tmp_path / "nothing"), "-o", str(tmp_path / "a.png")]) == 2
    assert "nothing" in capsys.readouterr().err
    broken = write_folder(tmp_path / "images", classes=1, per_class=2)
    (broken / "class_0" / "img_0.jpg").write_bytes(b"<html>no image</html>")
    assert main(["show", str(broken), "-o", str(tmp_path / "a.png"), "--engine", "torch"]) == 2
    assert "img_0.jpg" in capsys.readouterr().err
    assert not (tmp_path / "a.png").exists()


def test_without_a_name_it_is_a_page(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "show.html").write_text("an older one")
    assert main(["show", str(folder), "--size", "32", "--count", "2", "--engine", "torch"]) == 0
    assert capsys.readouterr().out == "2 samples written to show.html\n"
    assert (tmp_path / "show.html").read_text().lower().startswith("<!doctype html>")
    assert main(["show", str(folder), "-o", "sheet.png", "--size", "32", "--count", "2", "--engine", "torch"]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sheet.png", "show.html"]
    with pytest.raises(SystemExit, match="2"):
        main(["show", str(folder), "-o", "sheet.png", "--html", "page.html"])


def shown(tile: Tile) -> dict[str, float]:
    """The classes under a tile and their shares."""
    parts = re.fullmatch(r"(class_\d)(?: (\d+)% \+ (class_\d) (\d+)%)?", tile.label)
    assert parts is not None, tile.label
    first, share, second, rest = parts.groups()
    return {first: 1.0} if share is None else {first: int(share) / 100, second: int(rest) / 100}


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("kind", [gpupipe.MixUp, gpupipe.CutMix])
def test_mixed_samples_are_shown_with_both_labels(folder: Path, kind: type, smoothing: float) -> None:
    """Against the targets of the same recipe without smoothing."""

    def loader(smoothing: float) -> gpupipe.Loader:
        mixing = kind(num_classes=3, p=0.7, label_smoothing=smoothing)
        recipe = gpupipe.Recipe((gpupipe.ResizeCenterCrop(SIZE, SIZE), gpupipe.Normalize(), mixing))
        options: dict[str, object] = dict(engine="torch", device="cpu", num_workers=0, seed=1, shuffle=True)
        return gpupipe.Loader(folder, recipe, batch_size=2, **options)

    with loader(smoothing) as smoothed:
        tiles = list(tiles_of(read_shown(smoothed, 12)))
        mean, std = (torch.tensor(values).view(3, 1, 1) for values in smoothed.recipe.statistics)
    with loader(0.0) as plain:
        batches = [(images.clone(), targets) for images, targets in plain]
    images, targets = (torch.cat(parts) for parts in zip(*batches, strict=True))
    for tile, image, target in zip(tiles, images, targets.tolist(), strict=True):
        np.testing.assert_allclose(tile.pixels, (255 * (image * std + mean)).permute(1, 2, 0).numpy(), atol=0.51)
        expected = {f"class_{label}": share for label, share in enumerate(target) if share >= 0.005}
        assert shown(tile) == pytest.approx(expected, abs=0.0051)
        assert list(shown(tile)) == sorted(expected, key=lambda name: -expected[name])
    assert {len(shown(tile)) for tile in tiles} == {1, 2}


def test_what_is_not_mixed_has_its_class_alone(folder: Path) -> None:
    """The last sample of an odd number, and all with mixing off; the targets are smoothed."""
    mixing = gpupipe.MixUp(num_classes=3, label_smoothing=0.1)
    recipe = gpupipe.Recipe((gpupipe.ResizeCenterCrop(SIZE, SIZE), gpupipe.Normalize(), mixing))
    options: dict[str, object] = dict(engine="torch", device="cpu", num_workers=0)
    with gpupipe.Loader(folder, recipe, 2, order=gpupipe.Subset([0, 4, 8], shuffle=False), **options) as loader:
        first, second, last = (tile.label for tile in tiles_of(read_shown(loader, 3)))
        assert "%" in first
        assert "%" in second
        assert last == "class_2"
        loader.mixup_enabled = False
        assert [tile.label for tile in tiles_of(read_shown(loader, 3))] == ["class_0", "class_1", "class_2"]


def test_the_views_of_a_sample_stand_in_a_row(folder: Path, tmp_path: Path) -> None:
    flags = ["--recipe", "dino", "--size", "112", "--count", "3", "--engine", "torch"]
    assert main(["show", str(folder), "-o", str(tmp_path / "dino.png"), *flags]) == 0
    with gpupipe.Loader(folder, gpupipe.dino_train(112), 2, engine="torch", device="cpu", num_workers=0) as loader:
        tiles = list(tiles_of(read_shown(loader, 3)))
    sides = [112] * 2 + [96] * 8
    assert [tile.pixels.shape[0] for tile in tiles] == sides * 3
    assert [tile.label for tile in tiles] == ["class_0", *[""] * 9] * 3
    sheet = np.asarray(Image.open(tmp_path / "dino.png"))
    assert sheet.shape[:2] == (GAP + 3 * (112 + LABEL_HEIGHT + GAP), GAP + sum(sides) + 10 * GAP)
    for row in range(3):
        top, left = GAP + row * (112 + LABEL_HEIGHT + GAP), GAP
        for side, tile in zip(sides, tiles[10 * row : 10 * row + 10], strict=True):
            middle = top + (112 - side) // 2
            np.testing.assert_array_equal(sheet[middle : middle + side, left : left + side], tile.pixels)
            assert (sheet[top:middle, left : left + side] == BACKGROUND).all()
            left += side + GAP


OWN = """
import gpupipe
from beside import SIDE

parts = (gpupipe.ResizeCenterCrop(SIDE, SIDE), gpupipe.Normalize())
plain = gpupipe.Recipe(parts)
pair = gpupipe.MultiCrop((plain, gpupipe.Recipe((gpupipe.ResizeCenterCrop(20, 20), gpupipe.Normalize()))))
number = 7

def made():
    return plain

def nothing():
    pass

def fails():
    return unknown_name

if __name__ == "__main__":
    raise SystemExit("it trains only as a program")
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "beside", raising=False)
    (tmp_path / "beside.py").write_text("SIDE = 40\n")
    (tmp_path / "my.py").write_text(OWN)
    return tmp_path / "my.py"


@pytest.mark.parametrize(("name", "sides"), [("plain", [40]), ("made", [40]), ("pair", [40, 20])])
def test_a_recipe_of_ones_own(folder: Path, own: Path, name: str, sides: list[int]) -> None:
    sheet = own.parent / "sheet.png"
    flags = ["--recipe", f"{own}:{name}", "--count", "1", "--engine", "torch"]
    assert main(["show", str(folder), "-o", str(sheet), *flags]) == 0
    assert Image.open(sheet).size == (GAP + sum(side + GAP for side in sides), GAP + 40 + LABEL_HEIGHT + GAP)
    with gpupipe.Loader(
        folder, gpupipe.imagenet_eval(40, resize=40), 2, engine="torch", device="cpu", num_workers=0
    ) as loader:
        expected = next(tiles_of(read_shown(loader, 1))).pixels
    np.testing.assert_array_equal(np.asarray(Image.open(sheet))[GAP : GAP + 40, GAP : GAP + 40], expected)


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ("{}:number", r"number in .*/my\.py is a builtins\.int, 7, not a gpupipe\.Recipe"),
        ("{}:nothing", r"what nothing\(\) returned in .*/my\.py is a builtins\.NoneType"),
        ("{}:fails", r"my\.py, line 17 raised NameError: name 'unknown_name'"),
        ("{}:plian", r"my\.py has no plian; the recipes in it: plain, pair \(docs"),
        ("{}", r"neither FILE\.py:NAME nor a preset: train, eval, .*, mae_train, "),
        ("{}:", r"not of the form FILE\.py:NAME"),
        ("beside.txt:plain", r"not of the form FILE\.py:NAME"),
        ("missing.py:plain", r"there is no file .*/missing\.py"),
        ("trian", r"'trian' is neither"),
    ],
)
def test_a_wrong_recipe_is_named(
    folder: Path, own: Path, capsys: pytest.CaptureFixture[str], recipe: str, message: str
) -> None:
    sheet = own.parent / "sheet.png"
    assert main(["show", str(folder), "-o", str(sheet), "--recipe", recipe.format(own)]) == 2
    err = capsys.readouterr().err
    assert re.search(message, err.strip()), err
    assert not sheet.exists()


def test_a_file_that_fails_is_named_with_the_line(folder: Path, own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own.write_text("import gpupipe\n\nrecipe = gpupipe.Recipe(())\n")
    assert main(["show", str(folder), "-o", str(own.parent / "a.png"), "--recipe", f"{own}:recipe"]) == 2
    assert "my.py, line 3 raised ConfigError: Recipe: operations must be one crop" in capsys.readouterr().err


def test_the_size_is_a_presets(folder: Path, own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--recipe", f"{own}:plain", "--size", "32"]
    assert main(["show", str(folder), "-o", str(own.parent / "a.png"), *flags]) == 2
    assert "--size=32 is for presets" in capsys.readouterr().err


@pytest.mark.parametrize("recipe", ["resnet50-v2", "timm-a1", "timm-a2", "timm-a3", "deit3", "mae_train"])
def test_presets_can_be_shown(folder: Path, tmp_path: Path, recipe: str) -> None:
    flags = ["--recipe", recipe, "--size", "32", "--count", "4", "--engine", "torch"]
    assert main(["show", str(folder), "-o", str(tmp_path / "sheet.png"), *flags]) == 0
    assert len(np.unique(np.asarray(Image.open(tmp_path / "sheet.png")))) > 50
