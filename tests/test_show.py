"""The contact sheet's tiles against the loader's own output, and the command's exit codes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from images import encode, picture, write_folder
from PIL import Image

import gpupipe
from gpupipe.cli import main
from gpupipe.contact_sheet import (
    BACKGROUND,
    GAP,
    LABEL_HEIGHT,
    Tile,
    draw_sheet,
    read_tiles,
    tile_corners,
    write_sheet,
)

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


def tiles_of(sheet: Path, count: int, size: int, columns: int) -> list[np.ndarray]:
    pixels = np.asarray(Image.open(sheet))
    return [pixels[y : y + size, x : x + size] for x, y in tile_corners(count, (size, size), columns)]


def label_area(sheet: Path | Image.Image, number: int, count: int, size: int, columns: int) -> np.ndarray:
    pixels = np.asarray(Image.open(sheet) if isinstance(sheet, Path) else sheet)
    x, y = tile_corners(count, (size, size), columns)[number]
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
    for tile, pixels in zip(tiles_of(sheet, 7, SIZE, 3), expected, strict=False):
        np.testing.assert_array_equal(tile, pixels)


def test_dali_shows_the_same_crops(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("nvidia.dali")
    for engine in ("torch", "dali"):
        flags = ["--count", "4", "--columns", "4", "--size", str(SIZE), "--engine", engine]
        assert main(["show", str(folder), "-o", str(tmp_path / f"{engine}.png"), *flags]) == 0
    pairs = zip(*(tiles_of(tmp_path / f"{engine}.png", 4, SIZE, 4) for engine in ("torch", "dali")), strict=True)
    for torch_tile, dali_tile in pairs:
        assert np.abs(torch_tile.astype(int) - dali_tile).mean() < 1


def test_repeat_follows_each_sample_through_shuffled_epochs(folder: Path) -> None:
    with one_by_one(folder, shuffle=True, seed=3) as loader:
        loader.set_epoch(1)
        tiles = list(read_tiles(loader, count=4, repeat=3))
        wanted = [int(loader.order.indices(3, 1, np.array([position]))[0]) for position in range(4)]
    assert len(tiles) == 12
    for shown, epoch in enumerate((1, 2, 3)):
        images, _ = epoch_of(folder, epoch, recipe=gpupipe.imagenet_train(SIZE, dtype="uint8"), shuffle=True, seed=3)
        order = gpupipe.Shuffled(12).indices(3, epoch, np.arange(12)).tolist()
        for row, index in enumerate(wanted):
            np.testing.assert_array_equal(tiles[3 * row + shown].pixels, images[order.index(index)])


def test_labels_are_class_names(folder: Path) -> None:
    with one_by_one(folder) as loader:
        assert [tile.label for tile in read_tiles(loader, 6)] == ["class_0"] * 4 + ["class_1"] * 2


def test_labels_without_classes_are_numbers() -> None:
    samples = [(encode(picture(30, 40, seed)), 10 * seed) for seed in range(3)]
    with one_by_one(samples) as loader:
        assert [tile.label for tile in read_tiles(loader, 9)] == ["0", "10", "20"]


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
    for x, y in tile_corners(3, (SIZE, SIZE), 3):
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


def test_the_output_has_to_be_named(folder: Path) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["show", str(folder)])


def test_mixed_samples_are_shown_with_both_labels(folder: Path) -> None:
    recipe = gpupipe.Recipe((gpupipe.ResizeCenterCrop(SIZE, SIZE), gpupipe.Normalize(), gpupipe.CutMix(num_classes=3)))
    options: dict[str, object] = dict(engine="torch", device="cpu", num_workers=0, seed=1, shuffle=True)
    with gpupipe.Loader(folder, recipe, batch_size=2, **options) as loader:
        tiles = list(read_tiles(loader, 12))
        batches = [(images.clone(), targets) for images, targets in loader]
    images, targets = (torch.cat(parts) for parts in zip(*batches, strict=True))
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in recipe.statistics)
    for tile, image, target in zip(tiles, images, targets, strict=True):
        np.testing.assert_allclose(tile.pixels, (255 * (image * std + mean)).permute(1, 2, 0).numpy(), atol=0.51)
        share, first = target.max(0)
        name = f"class_{int(first)}"
        assert tile.label.startswith(name if share > 0.995 else f"{name} {float(share):.0%}")
        assert ("," in tile.label) == bool((target > 0.01).sum() > 1)
    assert any("," in tile.label for tile in tiles)


def test_views_follow_each_other_in_their_own_sizes(folder: Path, tmp_path: Path) -> None:
    flags = ["--recipe", "dino", "--size", "40", "--count", "2", "--engine", "torch"]
    assert main(["show", str(folder), "-o", str(tmp_path / "dino.png"), "--columns", "10", *flags]) == 0
    with gpupipe.Loader(folder, gpupipe.dino_train(40), 2, engine="torch", device="cpu", num_workers=0) as loader:
        tiles = list(read_tiles(loader, 2))
    assert [tile.pixels.shape[0] for tile in tiles] == [40, 40, *[96] * 8] * 2
    sheet = tiles_of(tmp_path / "dino.png", 20, 96, 10)
    np.testing.assert_array_equal(sheet[2], tiles[2].pixels)
    np.testing.assert_array_equal(sheet[0][28:68, 28:68], tiles[0].pixels)
    assert (sheet[0][:28] == BACKGROUND).all()


@pytest.mark.parametrize("recipe", ["resnet50-v2", "timm-a1", "timm-a2", "timm-a3", "deit3"])
def test_presets_can_be_shown(folder: Path, tmp_path: Path, recipe: str) -> None:
    flags = ["--recipe", recipe, "--size", "32", "--count", "4", "--engine", "torch"]
    assert main(["show", str(folder), "-o", str(tmp_path / "sheet.png"), *flags]) == 0
    assert len(np.unique(np.asarray(Image.open(tmp_path / "sheet.png")))) > 50
