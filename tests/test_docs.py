"""What the documentation shows is run, and what it names exists."""

from __future__ import annotations

import doctest
import importlib
import inspect
import json
import re
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from images import encode, picture, write_folder
from modules import MODULES
from PIL import Image
from tars import jpeg, write_samples, write_tar
from torch.utils.data import DataLoader

import gpupipe
from gpupipe.order import Order
from gpupipe.tools.cli import COMMANDS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def python_blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_readme_recipe_and_order():
    names: dict[str, object] = {"gpupipe": gpupipe}
    for block in python_blocks():
        if "gpupipe.Recipe(" in block or "class EverySecond" in block:
            exec(block, names)  # the project's own README
    recipe = names["recipe"]
    assert isinstance(recipe, gpupipe.Recipe)
    assert recipe.output_spec(4).shape == (4, 3, 176, 176)
    assert [one.name for one in names["salted"].own] == ["salt", "roll"]  # type: ignore[attr-defined]
    order = names["EverySecond"]()  # type: ignore[operator]
    assert isinstance(order, Order)
    assert order.indices(0, 1, np.arange(3)).tolist() == [1, 3, 5]


def test_readme_translation() -> None:
    (block,) = [block for block in python_blocks() if "from_torchvision" in block]
    names: dict[str, object] = {"gpupipe": gpupipe}
    exec(block, names)  # the project's own README
    assert names["evaluation"].crop == gpupipe.ResizeCenterCrop(224, 256, "bicubic")  # type: ignore[attr-defined]


def test_readme_source(tmp_path: Path) -> None:
    (block,) = [block for block in python_blocks() if "class Photos" in block]
    names: dict[str, object] = {"gpupipe": gpupipe, "__name__": __name__}
    exec(block, names)  # the project's own README
    path = str(tmp_path / "photos.db")
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE photos (id INTEGER, jpeg BLOB, class INTEGER, height INTEGER, width INTEGER)")
        rows = [(number, encode(picture(30 + number, 40)), number % 3, 30 + number, 40) for number in range(6)]
        database.executemany("INSERT INTO photos VALUES (?, ?, ?, ?, ?)", rows)
    globals()["Photos"] = names["Photos"]  # which can be pickled now
    source = names["Photos"](path)  # type: ignore[operator]
    gpupipe.check_source(source)
    loader = gpupipe.Loader(source, gpupipe.imagenet_eval(16), 3, engine="torch", num_workers=0, device="cpu")
    assert [labels.tolist() for _, labels in loader] == [[0, 1, 2], [0, 1, 2]]


def test_readme_fields() -> None:
    (block,) = [block for block in python_blocks() if "fields = {" in block]
    names: dict[str, object] = {"gpupipe": gpupipe}
    exec(block.partition("train = ")[0], names)  # the project's own README
    assert list(gpupipe.Schema(names["fields"]))[:2] == ["image", "mask"]  # type: ignore[arg-type]


def test_readme_python_compiles():
    assert len(python_blocks()) >= 4
    for block in python_blocks():
        compile(block, "README.md", "exec")


def test_readme_names_every_command():
    assert set(re.findall(r"^    gpupipe (\w+)", README, re.MULTILINE)) == set(COMMANDS)


def test_readme_names_tests_that_exist():
    named = re.findall(r"`(test_\w+\.py)(?:::(\w+))?`", README)
    assert len(named) > 5
    for file, test in named:
        text = (ROOT / "tests" / file).read_text()
        assert not test or re.search(rf"^(class|def) {test}\b", text, re.MULTILINE)


def heading_anchors(page: Path) -> set[str]:
    """As GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        *(
            "docs/migration.md",
            "docs/data.md",
            "docs/formats.md",
            "docs/storage.md",
            "docs/recipes.md",
            "docs/orders.md",
            "docs/video.md",
        ),
    ],
)
def test_links_lead_somewhere(page: str) -> None:
    links = re.findall(r"\]\((?!http)([^)#]*)(?:#([^)]+))?\)", (ROOT / page).read_text())
    assert links
    for target, anchor in links:
        found = (ROOT / page).parent / target if target else ROOT / page
        assert found.exists(), target
        assert not anchor or anchor in heading_anchors(found), anchor


@pytest.mark.parametrize("section", ["Lookups", "Mixtures"])
def test_the_data_page_runs(section: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    folder = write_folder(tmp_path / "photos")
    keys = [str(path.relative_to(folder)) for path in folder.rglob("*.jpg")]
    pq.write_table(pa.table({"file": keys, "embedding": [[1.5, 2.0]] * len(keys)}), "embeddings.parquet")
    write_samples(tmp_path / "drawings.tar", count=8)
    text = (ROOT / "docs" / "guide" / "data.md").read_text().partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(block, names)  # the project's own page
    with names["train"] as loader:
        assert len(list(loader)) == len(loader) > 0
    expected = {
        "Lookups": "[1.5 2. ] 0 {'class_0': 2, 'class_1': 2, 'class_2': 0}",
        "Mixtures": "'epochs/photos': 2.33",
    }
    assert expected[section] in capsys.readouterr().out


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What examples of docs/data.md read, in the current folder."""
    monkeypatch.chdir(tmp_path)
    for folder in ("photos", "lists"):
        (tmp_path / folder).mkdir()
    rows = [(number, f"{number}.jpg", number % 2) for number in range(8)]
    for number, path, _ in rows:
        (tmp_path / "photos" / path).write_bytes(encode(picture(70, 80, number)))
    for table, root in (("train.csv", "photos/"), ("lists/val.csv", "")):
        lines = [f"{root}{path},{('cat', 'dog')[label]},{number}" for number, path, label in rows]
        (tmp_path / table).write_text("\n".join(["path,class,score", *lines]))
    with sqlite3.connect(tmp_path / "photos.db") as database:
        database.execute("CREATE TABLE photos (id INTEGER, path TEXT, label INTEGER)")
        database.executemany("INSERT INTO photos VALUES (?, ?, ?)", rows)


@pytest.mark.usefixtures("photos")
def test_tables_and_databases() -> None:
    page = (ROOT / "docs" / "guide" / "data.md").read_text()
    names: dict[str, Any] = {}
    for heading in ("Tables that list samples", "Databases"):
        (block,) = re.findall(r"```python\n(.*?)```", page.split(f"## {heading}\n")[1].split("\n## ")[0], re.DOTALL)
        exec(block, names)  # the project's own page
        gpupipe.check_source(names["train"])
    assert names["val"].class_to_idx == {"cat": 0, "dog": 1}
    with names["loader"] as loader:
        assert len(list(loader)) == 1


def test_the_recipes_page_has_every_preset_and_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "recipes.md").read_text()
    presets = [name for name in gpupipe.__all__ if re.search("_(train|eval|finetune)$", name)]
    assert [name for name in presets if f"`{name}" not in page] == []
    monkeypatch.chdir(tmp_path)
    table = pa.table({"image": [encode(picture(70, 80, 1))] * 8, "captions": [["one", "another"]] * 8})
    pq.write_table(table, "pairs.parquet")
    write_folder(tmp_path / "photos")
    boxes, classes = [[[5, 6, 40, 50]]] * 4, [[1]] * 4
    images = [encode(picture(70 + 9 * number, 80, number)) for number in range(4)]
    pq.write_table(pa.table({"image": images, "boxes": boxes, "classes": classes}), "boxes.parquet")
    for folder in ("streets/images", "streets/masks"):
        (tmp_path / folder).mkdir(parents=True)
    for number, image in enumerate(images):
        (tmp_path / f"streets/images/{number}.jpg").write_bytes(image)
        Image.new("L", (80, 70 + 9 * number), number).save(tmp_path / f"streets/masks/{number}.png")
    coco = {"images": [{"id": 7 + number, "file_name": f"{number}.jpg"} for number in range(4)]}
    objects = [(7, [1, 2, 30, 40], 0), (7, [1, 2, 30, 40], 1), (8, [20, 10, 30, 40], 0), (9, [20, 10, 30, 40], 0)]
    of = [dict(zip(("image_id", "bbox", "iscrowd"), one, strict=True)) | {"category_id": 3} for one in objects]
    (tmp_path / "instances.json").write_text(json.dumps(coco | {"annotations": of}))
    mask = np.zeros((70, 80), np.uint8)
    mask[10:30, 20:50] = 1
    beside = (("png", encode(mask, "PNG", "L")), ("json", b'{"boxes": [[20, 10, 50, 30]], "classes": [3]}'))
    members = [(f"{row}.{kind}", data) for row in range(8) for kind, data in (("jpg", jpeg(row, 70, 80)), *beside)]
    write_tar(tmp_path / "objects.tar", members)
    names: dict[str, Any] = {"model": lambda images: images.mean(dim=(2, 3))}
    names["detector"] = lambda images, targets: [*zip(images, targets, strict=True)]  # test_sizes.py has a real one
    names["detr"] = lambda images, mask: images.masked_fill(mask[:, None], 1)
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(block, names)  # the project's own page
    assert [len(row["boxes"]) for row in names["rows"].values()] == [1, 1, 1, 0]
    assert names["image"].shape == (3, 300, 300)
    assert names["logits"].shape[1] == 3
    assert names["batch"]["caption"].shape == (4, 32)
    assert [list(target) for _, target in names["losses"]] == [["boxes", "labels"]] * 2
    assert names["predicted"].shape[2:] == (640, 640)
    assert names["objects"]["mask"].shape == (4, 64, 64)


def test_the_orders_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_folder(tmp_path / "photos")
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "orders.md").read_text(), re.DOTALL):
        exec(block, names)  # the project's own page
    for name in ("train", "padded", "packed"):
        with names[name] as loader:
            batches = [batch if isinstance(batch, dict) else {"label": batch[1]} for batch in loader]
            assert sum(len(batch["label"]) for batch in batches) == len(names["source"])


def test_the_migration_page_has_each_argument_of_dataloader() -> None:
    page = (ROOT / "docs" / "migration.md").read_text()
    told = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (.*?) \|", page, re.MULTILINE))))
    assert set(inspect.signature(DataLoader).parameters) - {"self"} <= told


def test_what_is_said_of_security_is_tested() -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "SECURITY.md").read_text()))
    there = {
        name for path in (ROOT / "tests").glob("test_*.py") for name in re.findall(r"def (test_\w+)", path.read_text())
    }
    assert len(named) > 20
    assert named - there == set()
    assert "](SECURITY.md)" in README
