"""What the documentation shows is run, and what it names exists."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from images import encode, picture
from modules import MODULES
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


PAGES = ["README.md", *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md")))]


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    links = re.findall(r"\]\((?!http)([^)#]*)(?:#([^)]+))?\)", (ROOT / page).read_text())
    for target, anchor in links:
        found = (ROOT / page).parent / target if target else ROOT / page
        assert found.exists(), target
        assert not anchor or anchor in heading_anchors(found), anchor


def test_the_migration_page_has_each_argument_of_dataloader() -> None:
    page = (ROOT / "docs" / "migration" / "dataloader.md").read_text()
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
