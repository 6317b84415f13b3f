"""What contributors read: every file that is named exists, and the templates are as GitHub takes them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import gpupipe

ROOT = Path(__file__).resolve().parents[1]
TEMPLATES = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
KINDS = ["source", "field", "operation", "engine", "order", "benchmark", "fault"]
FORMS = {path.stem: path for path in TEMPLATES if path.stem != "config"}


def form(name: str) -> dict[str, Any]:
    parsed: dict[str, Any] = yaml.safe_load(FORMS[name].read_text())
    return parsed


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "CODE_OF_CONDUCT.md"])
def test_every_file_that_is_named_exists(name: str) -> None:
    text = (ROOT / name).read_text()
    links = [target for target in re.findall(r"\]\(([^)]+)\)", text) if not target.startswith("http")]
    paths = re.findall(r"`((?:gpupipe|kernels|tests|docs|bench|\.ci|\.github)/[\w./-]+)`", text)
    paths += re.findall(r"`([\w-]+\.(?:md|toml|py))`", text)
    assert links
    assert [path for path in [*links, *paths] if not (ROOT / path).exists()] == []


def test_lists_of_files_name_what_is_there_to_touch() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    sections = re.split(r"^### ", text.partition("## Adding things")[2].partition("\n## ")[0], flags=re.MULTILINE)[1:]
    titles = [section.splitlines()[0] for section in sections]
    assert [title.split()[1] for title in titles] == KINDS
    for section in sections:
        assert re.search(r"`(tests/|bench/)", section), section.splitlines()[0]
        assert re.search(r"`docs/", section), section.splitlines()[0]


@pytest.mark.parametrize("name", FORMS)
def test_a_form_is_one_that_github_takes(name: str) -> None:
    parsed = form(name)
    assert set(parsed) == {"name", "description", "labels", "body"}
    ids = [part["id"] for part in parsed["body"]]
    assert len(ids) == len(set(ids))
    for part in parsed["body"]:
        assert part["type"] in ("input", "textarea")
        assert part["attributes"]["label"]
    assert any(part.get("validations", {}).get("required") for part in parsed["body"])


def test_forms_ask_for_what_finds_the_fault() -> None:
    texts = {name: path.read_text() for name, path in FORMS.items()}
    assert set(texts) == {"bug", "wrong_data", "performance", "feature"}
    assert [name for name in ("bug", "wrong_data", "performance") if "gpupipe doctor --json" not in texts[name]] == []
    assert "print(repr(loader), loader.state_dict(), loader.seed)" in texts["wrong_data"]
    assert "gpupipe profile" in texts["performance"]
    assert "profile.json" in texts["performance"]


def test_what_a_form_asks_to_print_of_a_loader_can_be_printed(capsys: pytest.CaptureFixture[str]) -> None:
    (asked,) = re.findall(r"`(print\(.*?\))` prints", FORMS["wrong_data"].read_text())
    loader = gpupipe.Loader(list(range(6)), batch_size=2, num_workers=0, seed=1234, device="cpu")
    exec(asked, {"loader": loader, "repr": repr})  # the project's own form
    assert capsys.readouterr().out.rstrip().endswith("} 1234")
