"""What the documentation shows is run, and what it names exists."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
from pathlib import Path

import pytest
from modules import MODULES
from torch.utils.data import DataLoader

from gpupipe.tools.cli import COMMANDS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_readme_names_every_command():
    assert set(re.findall(r"^    gpupipe (\w+)", README, re.MULTILINE)) == set(COMMANDS)


def test_the_page_of_commands_has_each() -> None:
    page = (ROOT / "docs" / "start" / "commands.md").read_text()
    assert sorted(re.findall(r"^## gpupipe (\w+)$", page, re.MULTILINE)) == sorted(COMMANDS)


def test_what_is_guaranteed_names_tests_that_exist():
    named = re.findall(r"`(test_\w+\.py)(?:::(\w+))?`", (ROOT / "docs" / "guarantees.md").read_text())
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
