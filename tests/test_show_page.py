"""The page of `gpupipe show --html`: its structure by a parser, its pictures by what is drawn for them, and how a real
browser shows it."""

from __future__ import annotations

import base64
import html
import io
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from images import encode, picture, write_folder
from PIL import Image, ImageOps
from tars import write_samples

import gpupipe
from gpupipe.kernels import Op, affine_matrix, gaussian_weights
from gpupipe.kernels.operations import perspective_matrix
from gpupipe.tools.cli import main
from gpupipe.tools.showing.charts import safe
from gpupipe.tools.showing.words import step_in_words

SIDE = 48
HOSTILE = "<script>document.title='run'<\\script>"
FILE = '"><img src=x onerror="document.title=\'run\'">&amp;.jpg'
VOID = {"meta", "img", "br"}


class Parsed(HTMLParser):
    """Tags in their order, the text of each kind, and whether all that was opened was closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.texts: dict[str, list[str]] = {}
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        self.texts.setdefault(tag, []).append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        for tag in set(self.open):
            self.texts[tag][-1] += data

    def having(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.tags if name == tag]

    def pictures(self, kind: str) -> list[np.ndarray]:
        """Those of the pictures that are of that kind: "png" after the recipe, "jpeg" as stored."""
        sources = [image["src"] for image in self.having("img")]
        found = [source.partition(",")[2] for source in sources if source.startswith(f"data:image/{kind};base64,")]
        return [np.asarray(Image.open(io.BytesIO(base64.b64decode(data)))) for data in found]


def page_of(data: object, path: Path, *flags: str) -> Parsed:
    assert main(["show", str(data), "--html", str(path), "--engine", "torch", "--size", str(SIDE), *flags]) == 0
    return Parsed(path.read_text())


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of a folder with a class and files whose names would be HTML, and a file that is no image."""
    root = tmp_path_factory.mktemp("page")
    folder = write_folder(root / "images", classes=3, per_class=3)
    (folder / "class_0").rename(folder / HOSTILE)
    (folder / HOSTILE / "img_0.jpg").rename(folder / HOSTILE / FILE)
    (folder / "class_1" / "img_1.jpg").write_bytes(b"<script>no image</script>")
    page_of(folder, root / "page.html", "--recipe", "timm-a2", "--seed", "1")
    return root / "page.html"


def test_the_page_is_whole_and_needs_nothing_else(hostile: Path) -> None:
    page = Parsed(hostile.read_text())
    assert {"script", "link", "iframe", "object", "base", "form"}.isdisjoint(name for name, _ in page.tags)
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    assert all(image["src"].startswith("data:image/") for image in page.having("img"))
    assert all(link["href"].startswith("#") for link in page.having("a"))
    assert "url(" not in page.texts["style"][0]
    assert "@import" not in page.texts["style"][0]
    policy = next(meta["content"] for meta in page.having("meta") if "http-equiv" in meta)
    assert policy.startswith("default-src 'none'")


def test_the_page_can_be_read_by_all(hostile: Path) -> None:
    page = Parsed(hostile.read_text())
    assert page.having("html") == [{"lang": "en"}]
    levels = [int(name[1]) for name, _ in page.tags if re.fullmatch(r"h[1-6]", name)]
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert [link["href"] for link in page.having("a")] == [f"#{name}" for name in ids]
    alts = [image["alt"] for image in page.having("img")]
    assert all(alts)
    assert len(set(alts)) == len(alts)
    assert all(svg["role"] == "img" and svg["aria-label"] for svg in page.having("svg"))
    assert "prefers-color-scheme: dark" in page.texts["style"][0]


def test_names_stand_as_they_are(hostile: Path) -> None:
    page = Parsed(hostile.read_text())
    assert page.texts["h3"][0] == f"{HOSTILE}/{FILE}"
    assert any(text.startswith(f"{HOSTILE}: ") for text in page.texts["title"][1:])  # of a bar of the chart
    assert page.texts["title"][0] == page.texts["h1"][0] == f"What the model sees of {hostile.parent / 'images'}"


def test_bad_samples_are_listed_and_not_shown(hostile: Path) -> None:
    page = Parsed(hostile.read_text())
    (row,) = page.texts["tr"][1:]
    assert row.startswith("class_1/img_1.jpg")
    assert "no known image format begins with the bytes b'<script>" in row
    assert len(page.texts["article"]) == 8
    assert not [name for name in page.texts["h3"] if "class_1/img_1" in name]


def test_charts_count_all_samples(hostile: Path) -> None:
    page = Parsed(hostile.read_text())
    titles = page.texts["title"][1:]
    widths = [(120, 160), (200, 150), (97, 131), (256, 256), (64, 300)]
    sides = [widths[number % 5] for number in range(9) if number != 4]
    bins = [tuple(map(int, re.fullmatch(r"(\d+) to (\d+): (\d+)", text).groups())) for text in titles[:-3]]
    for side, steps in ((1, bins[: len(bins) // 2]), (0, bins[len(bins) // 2 :])):
        values = np.array([size[side] for size in sides])
        assert [count for _, _, count in steps] == [
            int(((low <= values) & (values <= high)).sum()) for low, high, _ in steps
        ]
        assert sum(count for _, _, count in steps) == 8
    assert titles[-3:] == [f"{HOSTILE}: 3", "class_1: 3", "class_2: 3"]


def test_the_words_say_how_to_make_each_picture(tmp_path: Path) -> None:
    """By Pillow, from the crop and the flip that the page tells."""
    folder = write_folder(tmp_path / "images", classes=2, per_class=3)
    own = tmp_path / "own.py"
    own.write_text(
        "import gpupipe\npair = gpupipe.MultiCrop((\n"
        f"    gpupipe.Recipe((gpupipe.RandomResizedCrop({SIDE}), gpupipe.RandomHorizontalFlip()), dtype='uint8'),\n"
        f"    gpupipe.Recipe((gpupipe.ResizeCenterCrop({SIDE}, 60, 'bicubic'),), dtype='uint8'),\n"
        f"    gpupipe.Recipe((gpupipe.LetterBox({SIDE}, fill=0),), dtype='uint8'),\n"
        "    gpupipe.Recipe((gpupipe.Resize((30, 50), 66), gpupipe.RandomHorizontalFlip()), dtype='uint8'),\n))\n"
    )
    flags = ["--html", str(tmp_path / "a.html"), "--engine", "torch", "--recipe", f"{own}:pair", "--repeat", "2"]
    assert main(["show", str(folder), *flags]) == 0
    page = Parsed((tmp_path / "a.html").read_text())
    pictures = page.pictures("png")
    assert len(pictures) == 6 * 2 * 4
    assert len({made.shape for made in pictures}) > 3
    files = [path for path in sorted(folder.rglob("*.jpg")) for _ in range(8)]
    captions = [text for text in page.texts["figcaption"] if "epoch" in text]
    for file, caption, made in zip(files, captions, pictures, strict=True):
        np.testing.assert_array_equal(made, remade(Image.open(file), caption), err_msg=caption)
    assert {"mirrored", "not mirrored"} <= {text.partition(": ")[2] for text in page.texts["li"]}


def remade(image: Image.Image, caption: str) -> np.ndarray:
    box = re.search(r"(\d+) x (\d+) pixels at top (\d+), left (\d+) of \d+ x \d+, resized to (\d+) x (\d+)", caption)
    if box is not None:
        height, width, top, left, *size = map(int, box.groups())
        view = image.crop((left, top, left + width, top + height)).resize(size[::-1], Image.Resampling.BILINEAR)
        return np.asarray(ImageOps.mirror(view) if ": mirrored" in caption else view)
    size = re.search(r"all of \d+ x \d+ pixels, resized to (\d+) x (\d+) \((?:bicubic|bilinear)\)", caption)
    part = re.search(r"of that (\d+) x (\d+) pixels at top (-?\d+), left (-?\d+)", caption)
    height, width, top, left = map(int, part.groups() if part else (*size.groups(), 0, 0))
    how = Image.Resampling.BICUBIC if "bicubic" in caption else Image.Resampling.BILINEAR
    view = image.resize(tuple(map(int, size.groups()))[::-1], how)
    assert ("filled where" in caption) == (min(left, top) < 0)
    view = view.crop((left, top, left + width, top + height))
    return np.asarray(ImageOps.mirror(view) if ": mirrored" in caption else view)


@pytest.mark.parametrize("exif", [False, True])
def test_what_is_stored_is_turned_as_by_the_recipe(tmp_path: Path, exif: bool) -> None:
    (tmp_path / "images" / "a").mkdir(parents=True)
    tag = Image.Exif()
    tag[0x0112] = 6
    pixels = picture(60, 100)
    (tmp_path / "images" / "a" / "0.jpg").write_bytes(encode(pixels, quality=95, exif=tag))
    (tmp_path / "own.py").write_text(
        "import gpupipe\n"
        f"one = gpupipe.Recipe((gpupipe.ResizeCenterCrop(40, 40),), dtype='uint8', exif_orientation={exif})\n"
    )
    flags = ["--html", str(tmp_path / "a.html"), "--engine", "torch", "--recipe", f"{tmp_path / 'own.py'}:one"]
    assert main(["show", str(tmp_path / "images"), *flags]) == 0
    page = Parsed((tmp_path / "a.html").read_text())
    (stored,) = page.pictures("jpeg")
    expected = np.rot90(pixels, -1) if exif else pixels
    assert stored.shape == expected.shape
    differs = [np.abs(stored.astype(int) - turned).mean() for turned in (expected, np.rot90(expected, 2))]
    assert 2 * differs[0] < differs[1]  # it is compressed, and has a rectangle on it
    assert ("100 x 60 pixels" if exif else "60 x 100 pixels") in " ".join(page.texts["figcaption"])


def test_the_part_that_is_shown_stands_on_what_is_stored(tmp_path: Path) -> None:
    """The square in the middle of 200 x 100 pixels, of which the shorter side becomes 55 and 48 are left."""
    (tmp_path / "images" / "a").mkdir(parents=True)
    (tmp_path / "images" / "a" / "0.jpg").write_bytes(encode(np.full((100, 200, 3), 128, np.uint8)))
    page = page_of(tmp_path / "images", tmp_path / "a.html", "--recipe", "imagenet_eval")
    (stored,) = page.pictures("jpeg")
    line = np.abs(stored[30].astype(int) - 128).max(axis=1) > 60
    side = 100 * SIDE / 55  # of the crop, in pixels of what is stored
    assert np.flatnonzero(line).tolist()[0] == pytest.approx(100 - side / 2, abs=1.5)
    assert np.flatnonzero(line).tolist()[-1] == pytest.approx(100 + side / 2 - 1, abs=1.5)


def test_the_pictures_are_the_loaders(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "images", classes=2, per_class=3)
    page = page_of(folder, tmp_path / "a.html", "--count", "4", "--seed", "3", "--epoch", "1", "--shuffle")
    recipe = gpupipe.imagenet_train(SIDE, dtype="uint8")
    with gpupipe.Loader(folder, recipe, 6, True, seed=3, engine="torch", device="cpu", num_workers=0) as loader:
        loader.set_epoch(1)
        ((images, _),) = loader
    for made, image in zip(page.pictures("png"), images[:4], strict=True):
        np.testing.assert_array_equal(made, image.permute(1, 2, 0).numpy())


def unlabelled(tmp_path: Path) -> tuple[Path, list[str]]:
    folder = tmp_path / "images"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.jpg").write_bytes(encode(picture(50, 60, number)))
    return folder, ["--field", "image=Image"]


def tar(tmp_path: Path) -> tuple[Path, list[str]]:
    return write_samples(tmp_path / "a.tar", count=3), []


def parquet(tmp_path: Path) -> tuple[Path, list[str]]:
    images = [encode(picture(50, 60 + number, number)) for number in range(3)]
    pq.write_table(pa.table({"image": images, "label": [0, 1, 1]}), tmp_path / "a.parquet")
    return tmp_path / "a.parquet", []


def rows(tmp_path: Path) -> tuple[Path, list[str]]:
    """Of which nothing is known without reading it, with names of classes of boxes and a broken file."""
    folder, _ = unlabelled(tmp_path)
    (folder / "1.jpg").write_bytes((folder / "1.jpg").read_bytes()[:300])
    boxes = {"boxes": [[5, 5, 30, 30]] * 2, "kind": ["cat", "<b>dog</b>"], "said": "<i>x</i> & y"}
    lines = [json.dumps({"image": f"images/{number}.jpg", **boxes}) for number in range(3)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    (tmp_path / "own.py").write_text(
        "import gpupipe\nfields = {'image': gpupipe.Image(), 'boxes': gpupipe.Boxes(labels='kind'), "
        "'kind': gpupipe.Array(), 'said': gpupipe.Text()}\n"
    )
    return tmp_path / "a.jsonl", ["--fields", f"{tmp_path / 'own.py'}:fields"]


@pytest.mark.parametrize(
    ("made", "shown", "counts"),
    [
        (unlabelled, 3, []),
        (tar, 3, ["0: 1", "1: 1", "2: 1"]),
        (parquet, 3, ["1: 2", "0: 1"]),
        (rows, 2, ["<b>dog</b>: 2", "cat: 2"]),
    ],
)
def test_every_kind_of_data_has_a_page(tmp_path: Path, made: object, shown: int, counts: list[str]) -> None:
    data, flags = made(tmp_path)  # type: ignore[operator]
    page = page_of(data, tmp_path / "page.html", *flags)
    assert len(page.texts["article"]) == shown
    titles = [text for text in page.texts["title"][1:] if " to " not in text]
    assert sorted(titles) == sorted(counts)
    assert ("The data has no class numbers." in page.texts["p"]) == (not counts)
    assert (len(page.texts.get("tr", [])) == 2) == (shown == 2)
    if made is rows:
        assert "<i>x</i> & y" in page.texts["dd"]
        assert page.texts["dd"][-2] == "2, kind: cat <b>dog</b>"


def test_a_page_that_can_not_be_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, flags = unlabelled(tmp_path)
    assert main(["show", str(folder), "--html", str(tmp_path / "no" / "a.html"), "--engine", "torch", *flags]) == 2
    assert "the page can't be written to" in capsys.readouterr().err


def test_what_was_drawn_is_said_of_each_operation(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "images", classes=2, per_class=2)
    own = tmp_path / "own.py"
    own.write_text(
        "import gpupipe\nrecipe = gpupipe.Recipe((\n"
        "    gpupipe.RandomResizedCrop(48), gpupipe.ColorJitter(brightness=(1.5, 1.5)),\n"
        "    gpupipe.RandomSolarize(77, 0.0), gpupipe.RandomSolarize(99, 1.0), gpupipe.Normalize(),\n"
        "    gpupipe.RandomErasing(1.0), gpupipe.CutMix(num_classes=2),\n))\n"
    )
    flags = ["--html", str(tmp_path / "a.html"), "--engine", "torch", "--recipe", f"{own}:recipe", "--count", "1"]
    assert main(["show", str(folder), *flags]) == 0
    page = Parsed((tmp_path / "a.html").read_text())
    said = [text for text in page.texts["li"] if ": " in text]
    assert said[1:4] == [
        "ColorJitter: brightness x 1.50",
        "RandomSolarize: nothing",
        "RandomSolarize: levels from 99 on inverted",
    ]
    (made,) = page.pictures("png")
    inside = []
    for name, end, words in (("RandomErasing", "erased", said[4]), ("CutMix", "are of class_0/img_1.jpg", said[5])):
        box = re.fullmatch(rf"{name}: (\d+) x (\d+) pixels at top (\d+), left (\d+) {end}", words)
        assert box is not None, words
        height, width, top, left = map(int, box.groups())
        inside.append(np.zeros((SIDE, SIDE), bool))
        inside[-1][top : top + height, left : left + width] = True
    erased, partner = inside
    mean = np.abs(made - 255 * np.array([0.485, 0.456, 0.406])).max(axis=2) <= 1
    assert (erased & ~partner).sum() > 20
    assert mean[erased & ~partner].all()
    assert mean[~erased & ~partner].mean() < 0.1


TWICE = np.array([0.5, 0, 14.75, 0, 0.5, 9.75])  # as large, about the middle of 60 x 40 pixels


@pytest.mark.parametrize(
    ("op", "values", "words"),
    [
        (Op.AFFINE_NEAREST, affine_matrix((40, 60), angle=30), "turned by 30.0 degrees clockwise"),
        (Op.AFFINE_BILINEAR, affine_matrix((40, 60), angle=-12.5), "turned by 12.5 degrees counterclockwise"),
        (Op.AFFINE_BICUBIC, affine_matrix((40, 60), translate=(3, -4)), "moved by 3.0 pixels right and -4.0 down"),
        (Op.AFFINE_NEAREST, affine_matrix((40, 60), shear=(20, 0)), "sheared along x by -20.0 degrees"),
        (
            Op.AFFINE_NEAREST,
            np.array([0.5, 0, 14.75, 0, 0.5, 9.75]),
            "scaled by 2.00 and 2.00",
        ),
        (Op.AFFINE_NEAREST, affine_matrix((40, 60)), "left as it is"),
        (Op.GAUSSIAN_BLUR, gaussian_weights(9, 1.25), "blurred, sigma 1.25"),
        (Op.AFFINE_NEAREST, np.array([1.0, 0, 0, 0, -1, 39]), "mirrored top to bottom"),
        (
            Op.PERSPECTIVE_BILINEAR,
            perspective_matrix((40, 60), [(3, 4), (50, 2), (55, 38), (1, 30)]),
            "corners moved to (3, 4), (50, 2), (55, 38), (1, 30)",
        ),
        (Op.CHANNELS, np.array([3.0]), "channels in the order G, B, R"),
        (Op.NOISE, np.array([0, 25.5, 4, 5, 6, 7]), "noise of 0.0 levels in the mean, sigma 25.5"),
        (Op.HUE, np.array([-0.1]), "hue turned by -36 degrees"),
        (Op.GRAYSCALE, np.zeros(6), "gray"),
    ],
)
def test_steps_in_words(op: Op, values: np.ndarray, words: str) -> None:
    assert step_in_words(op, values, (40, 60)) == words


@pytest.mark.parametrize("op", list(Op))
def test_every_step_has_words(op: Op) -> None:
    moves = op.name.startswith(("AFFINE", "PERSPECTIVE"))
    values = np.array([1, 0, 0.25, 0, 1, 0.5, 0, 0] if moves else [1, 0.25, 0, 0, 0, 0])
    assert step_in_words(op, values.astype(np.float32), (40, 60))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\udcff\0\u202e", r"\udcff\x00\u202e"),
        ("<a b=\"'&", "&lt;a b=&quot;&#x27;&amp;"),
        ("two\nlines", r"two\nlines"),
        ("نمی\u200cخواهم",) * 2,
    ],
)
def test_any_text_is_safe(text: str, shown: str) -> None:
    assert safe(text) == shown
    assert safe(text).encode()


# In a browser.

MEASURES = """<!doctype html><meta charset=utf-8><body><script>
const results = [];
for (const width of [400, 1200]) {
  const frame = document.createElement("iframe");
  frame.width = width; frame.height = 800; frame.src = "page.html";
  frame.onload = () => {
    const page = frame.contentDocument, style = frame.contentWindow.getComputedStyle(page.body);
    const images = [...page.images];
    const places = what => [...page.querySelectorAll(what)].map(one => one.getBoundingClientRect());
    results.push({
      width, title: page.title, overflow: page.documentElement.scrollWidth - width,
      images: images.length, loaded: images.filter(one => one.naturalWidth > 0).length,
      outside: places("article *, svg").filter(place => place.right > width).length,
      columns: new Set(places("article").map(place => place.left)).size,
      colours: [style.color, style.backgroundColor],
    });
    document.body.dataset.results = JSON.stringify(results);
  };
  document.body.append(frame);
}
</script>"""


def colours(text: str) -> np.ndarray:
    return np.array(list(map(int, re.findall(r"\d+", text)[:3])))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_in_a_browser(hostile: Path, tmp_path: Path, scheme: str) -> None:
    """No script of a name runs, all pictures are there, and at both widths all fits, in dark colours and light ones."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("chromium is not installed (apt-get install chromium)")
    shutil.copy(hostile, tmp_path / "page.html")
    (tmp_path / "measures.html").write_text(MEASURES)
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files", "--dump-dom"]
    flags += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=20000"]
    flags += ["--force-dark-mode"] * (scheme == "dark")
    done = subprocess.run(
        [chromium, *flags, (tmp_path / "measures.html").as_uri()],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    found = re.search(r'data-results="(.*?)"', done.stdout)
    assert found is not None, done.stderr[-2000:]
    results = {result["width"]: result for result in json.loads(html.unescape(found[1]))}
    assert sorted(results) == [400, 1200]
    for result in results.values():
        assert result["title"].startswith("What the model sees of ")
        assert result["loaded"] == result["images"] == 16
        assert result["overflow"] <= 0
        assert result["outside"] == 0
        ink, paper = map(colours, result["colours"])
        assert abs(int(ink.mean()) - int(paper.mean())) > 180
        assert (paper.mean() < 128) == (scheme == "dark")
    assert (results[400]["columns"], results[1200]["columns"]) == (1, 2)
