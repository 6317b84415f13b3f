"""Masks, boxes, points, captions and several cameras on the contact sheet, against where they were put."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from images import encode, picture
from PIL import Image
from tars import write_tar

import gpupipe
from gpupipe.tools.cli import main
from gpupipe.tools.showing.marks import Marks, colour, drawn
from gpupipe.tools.showing.sheet import BACKGROUND, GAP, LABEL_HEIGHT, Tile, draw_sheet
from gpupipe.tools.showing.shown import read_shown

SIDE = 96
GRAY = 100
WHOLE = gpupipe.Recipe((gpupipe.ResizeCenterCrop(SIDE, resize=SIDE),), dtype="uint8")
OWN = """
import gpupipe
crop = gpupipe.ResizeCenterCrop(96, resize=96)
whole = gpupipe.Recipe((crop,), dtype="uint8")
mirrored = gpupipe.Recipe((crop, gpupipe.RandomHorizontalFlip(1.0)), dtype="uint8")
number = {"image": 7}
detection = {
    "image": gpupipe.Image("png"),
    "mask": gpupipe.Mask("seg.png"),
    "boxes": gpupipe.Boxes("json:boxes", format="xywh", labels="kinds", collate=gpupipe.Pad(mask=True)),
    "kinds": gpupipe.Array("json:kinds"),
    "points": gpupipe.Points("json:points"),
    "caption": gpupipe.Text("txt", collate=len),
}
plain = {"image": gpupipe.Image("png"), "mask": gpupipe.Mask("seg.png")}
cameras = lambda: {
    "front": gpupipe.Image("png"), "back": gpupipe.Image("back.png"), "caption": gpupipe.Text("txt", tokenizer=len)
}
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    (tmp_path / "own.py").write_text(OWN)
    return tmp_path / "own.py"


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    """Two gray images with a mask (1 in the middle, 255 in the lower right corner), boxes, points and a caption, and a
    brighter image beside each."""
    mask = np.zeros((SIDE, SIDE), np.uint8)
    mask[40:50, 40:50] = 1
    mask[90:, 90:] = 255
    known = {"boxes": [[10, 30, 20, 15], [60, 60, 30, 20]], "kinds": [3, 5], "points": [[20.0, 80.0]]}
    members = []
    for number in range(2):
        members += [
            (f"s{number}.png", encode(np.full((SIDE, SIDE, 3), GRAY, np.uint8), "PNG")),
            (f"s{number}.back.png", encode(np.full((SIDE, SIDE, 3), GRAY + 100, np.uint8), "PNG")),
            (f"s{number}.seg.png", encode(mask, "PNG", "L")),
            (f"s{number}.json", json.dumps(known).encode()),
            (f"s{number}.txt", b"two words"),
        ]
    return write_tar(tmp_path / "data.tar", members)


def sheet_of(shard: Path, own: Path, *flags: str) -> np.ndarray:
    sheet = own.parent / "sheet.png"
    assert main(["show", str(shard), "-o", str(sheet), "--engine", "torch", *flags]) == 0
    return np.asarray(Image.open(sheet))


@pytest.mark.parametrize("recipe", ["whole", "mirrored"])
def test_masks_boxes_and_points_are_drawn_where_they_are(shard: Path, own: Path, recipe: str) -> None:
    sheet = sheet_of(shard, own, "--fields", f"{own}:detection", "--recipe", f"{own}:{recipe}", "--count", "1")
    tile = sheet[GAP : GAP + SIDE, GAP : GAP + SIDE]
    tile = tile[:, ::-1] if recipe == "mirrored" else tile
    # The mask's class is laid over the image by half, what is ignored in white, the background is left.
    np.testing.assert_allclose(tile[45, 45], (GRAY + np.array(colour(1))) / 2, atol=0.51)
    np.testing.assert_allclose(tile[94, 94], (GRAY + 255) / 2, atol=0.51)
    assert (tile[55, 20] == GRAY).all()
    for (left, top, wide, tall), kind in (((10, 30, 20, 15), 3), ((60, 60, 30, 20), 5)):
        assert (tile[top + tall - 1, left : left + wide] == colour(kind)).all()
        assert (tile[top : top + tall, left + wide - 1] == colour(kind)).all()
        assert (tile[top + tall + 2, left : left + wide] == GRAY).all()
    at = (80, 19 if recipe == "mirrored" else 20)  # a point mirrors at the middle of the pixels 0 and 95
    assert (tile[at] == colour(0)).all()


def test_a_box_of_less_than_a_pixel_is_drawn() -> None:
    plain = np.full((20, 30, 3), GRAY, np.uint8)
    made = drawn(plain, Marks(boxes=[((5.0, 4.0, 5.4, 16.0), 1, ""), ((9.0, 8.0, 20.0, 8.2), 1, "")]))
    changed = (made != plain).any(axis=2)
    assert changed[10, 5]
    assert changed[8, 15]
    assert not changed[18].any()


def test_a_box_has_its_classes_name(tmp_path: Path) -> None:
    """The same box with another name looks different; without one, there is no text."""
    tiles = []
    for names in (["cat", "dog"], ["cat", "cow"]):
        image, rows = encode(picture(SIDE, SIDE), "PNG"), [{"image": "a.png", "boxes": [[5, 30, 90, 90]], "kind": 1}]
        (tmp_path / "a.png").write_bytes(image)
        rows[0]["kind"] = [names[1]]
        rows.append({"image": "a.png", "boxes": [[5, 30, 90, 90]], "kind": [names[0]]})
        (tmp_path / "data.jsonl").write_text("\n".join(map(json.dumps, rows)))
        fields = {"image": gpupipe.Image(), "boxes": gpupipe.Boxes(labels="kind"), "kind": gpupipe.Array()}
        with gpupipe.Loader(
            tmp_path / "data.jsonl", WHOLE, 2, fields=fields, engine="torch", device="cpu", num_workers=0
        ) as loader:
            tiles.append([shown.pictures[0].pixels for shown in read_shown(loader, 2)])
        (tmp_path / "data.jsonl").unlink()
    (dog, cat), (cow, cat_again) = tiles
    np.testing.assert_array_equal(cat, cat_again)  # class 0 in both
    assert (dog != cow).any()
    differs = (dog != cow).any(axis=2)
    assert not differs[60:].any()
    assert not differs[:, 60:].any()


def test_cameras_stand_side_by_side_with_their_caption(shard: Path, own: Path) -> None:
    sheet = sheet_of(shard, own, "--fields", f"{own}:cameras", "--recipe", f"{own}:whole")
    assert sheet.shape == (2 * (SIDE + 2 * LABEL_HEIGHT + GAP) + GAP, 2 * (SIDE + GAP) + GAP, 3)  # two lines of text
    for row in range(2):
        top = GAP + row * (SIDE + 2 * LABEL_HEIGHT + GAP)
        for column, level in enumerate((GRAY, GRAY + 100)):
            left = GAP + column * (SIDE + GAP)
            assert (sheet[top : top + SIDE, left : left + SIDE] == level).all()
            below = sheet[top + SIDE : top + SIDE + 2 * LABEL_HEIGHT, left : left + SIDE]
            inked = (below != BACKGROUND).any(axis=2)
            assert inked[:LABEL_HEIGHT].any()
            assert inked[LABEL_HEIGHT:].any() == (column == 0)  # "[front] two words" does not fit into one


def test_labels_of_several_words_have_lines(tmp_path: Path) -> None:
    black = np.zeros((SIDE, SIDE, 3), np.uint8)
    for text, lines in (("word", 1), ("word " * 4, 2), ("word " * 100, 3), ("w" * 100, 1)):
        sheet = draw_sheet([Tile(black, text)], 1)
        assert sheet.height == SIDE + lines * LABEL_HEIGHT + 2 * GAP, text


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--fields", "{}:number"], "is a builtins.dict, {'image': 7}, not a dict of a name and a gpupipe.Field each"),
        (["--fields", "{}:none"], "has no none; the fields in it: detection, plain"),
        (["--fields", "{}:detection", "--field", "image=Image"], "has all fields: leave out --field image"),
        (["--field", "caption=Text:txt"], "no image"),
    ],
)
def test_wrong_fields_are_named(
    shard: Path, own: Path, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    flags = [flag.format(own) for flag in flags]
    assert main(["show", str(shard), "-o", str(own.parent / "a.png"), "--engine", "torch", *flags]) == 2
    assert message in capsys.readouterr().err


def test_a_point_of_an_image_with_others_follows_its_own(tmp_path: Path) -> None:
    """What follows one camera is not drawn on another."""
    (tmp_path / "a.png").write_bytes(encode(np.full((SIDE, SIDE, 3), GRAY, np.uint8), "PNG"))
    row = {"left": "a.png", "right": "a.png", "points": [[30, 40]]}
    (tmp_path / "data.jsonl").write_text(json.dumps(row))
    fields = {"left": gpupipe.Image(), "right": gpupipe.Image(), "points": gpupipe.Points(geometry="right")}
    with gpupipe.Loader(
        tmp_path / "data.jsonl", WHOLE, 2, fields=fields, engine="torch", device="cpu", num_workers=0
    ) as loader:
        (shown,) = read_shown(loader, 1)
    left, right = (one.pixels for one in shown.pictures)
    assert (left == GRAY).all()
    assert (right[40, 30] == colour(0)).all()


def test_other_commands_take_fields_of_a_file(shard: Path, own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["index", str(shard), "--fields", f"{own}:detection"]) == 0
    assert "samples" in capsys.readouterr().out
    assert main(["pack", str(shard), str(own.parent / "packed"), "--fields", f"{own}:plain"]) == 0
    packed = gpupipe.open_source(own.parent / "packed")
    assert list(packed.fields) == ["image", "mask"]
